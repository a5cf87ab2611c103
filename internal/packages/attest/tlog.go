package attest

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Entry is an entry of a transparency log (rekor).
type Entry struct {
	LogIndex number `json:"logIndex"`
	LogID    struct {
		KeyID []byte `json:"keyId"`
	} `json:"logId"`
	IntegratedTime number   `json:"integratedTime"`
	Promise        *promise `json:"inclusionPromise"`
	Proof          *struct {
		LogIndex   number   `json:"logIndex"`
		RootHash   []byte   `json:"rootHash"`
		TreeSize   number   `json:"treeSize"`
		Hashes     [][]byte `json:"hashes"`
		Checkpoint struct {
			Envelope string `json:"envelope"`
		} `json:"checkpoint"`
	} `json:"inclusionProof"`
	Body []byte `json:"canonicalizedBody"`
}

type promise struct {
	Signed []byte `json:"signedEntryTimestamp"`
}

// number is a number of JSON, or a text with one.
type number int64

// UnmarshalJSON implements json.Unmarshaler.
func (n *number) UnmarshalJSON(b []byte) error {
	v, err := strconv.ParseInt(string(bytes.Trim(b, `"`)), 10, 64)
	*n = number(v)
	return err
}

// loggedAt verifies that a log of the root has recorded a signature, and returns when.
func (r *Root) loggedAt(b *Bundle, leaf, signature []byte) (at time.Time, index int64, err error) {
	if len(b.Material.Entries) != 1 {
		return at, 0, fmt.Errorf("expected one entry, got %d", len(b.Material.Entries))
	}
	e := &b.Material.Entries[0]
	at = time.Unix(int64(e.IntegratedTime), 0)
	if e.Promise == nil || e.IntegratedTime <= 0 {
		return at, 0, errors.New("it has no signed time, and other times are not supported")
	}
	l := findLog(r.logs, e.LogID.KeyID, at)
	if l == nil {
		return at, 0, errors.New("no such log is in the trusted root")
	}
	// The members in the order of their names, as RFC 8785 has them.
	signed := fmt.Sprintf(`{"body":"%s","integratedTime":%d,"logID":"%s","logIndex":%d}`,
		base64.StdEncoding.EncodeToString(e.Body), e.IntegratedTime, hex.EncodeToString(e.LogID.KeyID), e.LogIndex)
	if err := verifySignature(l.key, []byte(signed), e.Promise.Signed); err != nil {
		return at, 0, fmt.Errorf("its promise: %w", err)
	}
	if e.Proof != nil {
		if err := e.verifyInclusion(l); err != nil {
			return at, 0, fmt.Errorf("its proof: %w", err)
		}
	}
	return at, int64(e.LogIndex), e.about(b, leaf, signature)
}

func findLog(all []log, id []byte, at time.Time) *log {
	for i := range all {
		if sameBytes(all[i].id, id) && inRange(at, all[i].start, all[i].end) {
			return &all[i]
		}
	}
	return nil
}

// about verifies that an entry is that of a signature: of its statement, its certificate and itself.
func (e *Entry) about(b *Bundle, leaf, signature []byte) error {
	var body struct {
		Kind string `json:"kind"`
		Spec struct {
			PayloadHash hashed `json:"payloadHash"` // of dsse
			Signatures  []struct {
				Signature string `json:"signature"`
				Verifier  []byte `json:"verifier"`
			} `json:"signatures"`
			Data struct { // of hashedrekord
				Hash hashed `json:"hash"`
			} `json:"data"`
			Signature struct {
				Content   string `json:"content"`
				PublicKey struct {
					Content []byte `json:"content"`
				} `json:"publicKey"`
			} `json:"signature"`
			Content struct { // of intoto
				PayloadHash hashed `json:"payloadHash"`
				Envelope    struct {
					Signatures []struct {
						Sig       []byte `json:"sig"`
						PublicKey []byte `json:"publicKey"`
					} `json:"signatures"`
				} `json:"envelope"`
			} `json:"content"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(e.Body, &body); err != nil {
		return fmt.Errorf("decode the entry: %w", err)
	}
	sum, text := body.Spec.PayloadHash, base64.StdEncoding.EncodeToString(signature)
	var signed string
	var certificate []byte
	switch {
	case b.image && body.Kind == "hashedrekord":
		sum, signed = body.Spec.Data.Hash, body.Spec.Signature.Content
		certificate = body.Spec.Signature.PublicKey.Content
	case b.image:
		return fmt.Errorf("an entry of the kind %.40q is not one of a signature", body.Kind)
	case body.Kind == "dsse" && len(body.Spec.Signatures) == 1:
		signed, certificate = body.Spec.Signatures[0].Signature, body.Spec.Signatures[0].Verifier
	case body.Kind == "intoto" && len(body.Spec.Content.Envelope.Signatures) == 1:
		one := body.Spec.Content.Envelope.Signatures[0]
		sum, signed, certificate = body.Spec.Content.PayloadHash, string(one.Sig), one.PublicKey
	default:
		return fmt.Errorf("an entry of the kind %.40q is not supported", body.Kind)
	}
	want := sha256.Sum256(b.Envelope.Payload)
	block, _ := pem.Decode(certificate)
	if sum.Algorithm != "sha256" || sum.Value != hex.EncodeToString(want[:]) || signed != text || block == nil ||
		!sameBytes(block.Bytes, leaf) {
		return errors.New("the entry is that of another signature")
	}
	return nil
}

type hashed struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"value"`
}

// verifyInclusion verifies that an entry is in a tree (RFC 9162, 2.1.3.2) whose root the log has signed.
func (e *Entry) verifyInclusion(l *log) error {
	p := e.Proof
	if p.LogIndex < 0 || p.LogIndex >= p.TreeSize {
		return errors.New("the entry is not in the tree")
	}
	sum := sha256.Sum256(append([]byte{0}, e.Body...))
	at, last := uint64(p.LogIndex), uint64(p.TreeSize-1)
	for _, h := range p.Hashes {
		if len(h) != sha256.Size || last == 0 {
			return errors.New("it does not lead to the root")
		}
		if at&1 == 1 || at == last {
			sum = node(h, sum[:])
			for at&1 == 0 && at != 0 {
				at, last = at>>1, last>>1
			}
		} else {
			sum = node(sum[:], h)
		}
		at, last = at>>1, last>>1
	}
	if last != 0 || !sameBytes(sum[:], p.RootHash) {
		return errors.New("it does not lead to the root")
	}
	return e.verifyCheckpoint(l)
}

func node(left, right []byte) [sha256.Size]byte {
	return sha256.Sum256(append(append([]byte{1}, left...), right...))
}

// verifyCheckpoint verifies a signed note (c2sp.org/signed-note): the size and root of the tree, and a signature.
func (e *Entry) verifyCheckpoint(l *log) error {
	text, signatures, ok := strings.Cut(e.Proof.Checkpoint.Envelope, "\n\n")
	lines := strings.Split(text, "\n")
	if !ok || len(lines) < 3 || lines[1] != strconv.FormatInt(int64(e.Proof.TreeSize), 10) ||
		lines[2] != base64.StdEncoding.EncodeToString(e.Proof.RootHash) {
		return errors.New("its checkpoint is that of another tree")
	}
	for line := range strings.Lines(signatures) {
		words := strings.Fields(line)
		if len(words) != 3 || words[0] != "\u2014" {
			continue
		}
		raw, err := base64.StdEncoding.DecodeString(words[2])
		if err == nil && len(raw) > 4 && len(l.id) >= 4 &&
			binary.BigEndian.Uint32(raw) == binary.BigEndian.Uint32(l.id) &&
			verifySignature(l.key, []byte(text+"\n"), raw[4:]) == nil {
			return nil
		}
	}
	return errors.New("its checkpoint has no signature of the log")
}

package attest

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
)

// Annotations of a signature of an image, as cosign 1 and 2 store it.
const (
	signatureNote   = "dev.cosignproject.cosign/signature"
	certificateNote = "dev.sigstore.cosign/certificate"
	entryNote       = "dev.sigstore.cosign/bundle"
)

// ParseImage reads a signature of an image that is kept beside it by a tag: the payload names the image, and the
// annotations have the signature of the payload, the certificate, and the entry of the transparency log. One by a key
// without a certificate has no certificate in the result.
func ParseImage(payload []byte, annotations map[string]string) (*Bundle, error) {
	b := &Bundle{image: true}
	certificate := annotations[certificateNote]
	if certificate == "" {
		return b, nil
	}
	signature, err := base64.StdEncoding.DecodeString(annotations[signatureNote])
	if err != nil {
		return nil, fmt.Errorf("decode the signature: %w", err)
	}
	block, _ := pem.Decode([]byte(certificate))
	if block == nil {
		return nil, errors.New("the certificate of the signature is not PEM")
	}
	b.Envelope.Payload = payload
	b.Envelope.Signatures = append(b.Envelope.Signatures, struct {
		Sig []byte `json:"sig"`
	}{signature})
	b.Material.Certificate = &rawBytes{block.Bytes}
	var entry struct {
		Promise []byte `json:"SignedEntryTimestamp"`
		Payload struct {
			Body  []byte `json:"body"`
			Time  number `json:"integratedTime"`
			Index number `json:"logIndex"`
			Log   string `json:"logID"`
		}
	}
	if err := json.Unmarshal([]byte(annotations[entryNote]), &entry); err != nil {
		return nil, fmt.Errorf("decode the entry of the transparency log: %w", err)
	}
	e := Entry{LogIndex: entry.Payload.Index, IntegratedTime: entry.Payload.Time, Body: entry.Payload.Body}
	if e.LogID.KeyID, err = hex.DecodeString(entry.Payload.Log); err != nil {
		return nil, fmt.Errorf("decode the name of the transparency log: %w", err)
	}
	e.Promise = &promise{entry.Promise}
	b.Material.Entries = []Entry{e}
	return b, nil
}

// IsImage reports whether it is a signature of an image alone, which says nothing of how that was built.
func (b *Bundle) IsImage() bool { return b.image }

// checkImage requires that the payload of a signature is about an image.
func checkImage(payload []byte, algorithm, digest string) error {
	var s struct {
		Critical struct {
			Image struct {
				Digest string `json:"docker-manifest-digest"`
			} `json:"image"`
			Type string `json:"type"`
		} `json:"critical"`
	}
	if err := json.Unmarshal(payload, &s); err != nil {
		return fmt.Errorf("decode the signed payload: %w", err)
	}
	if s.Critical.Type != "cosign container image signature" {
		return errors.New("the payload is none of an image")
	}
	if digest == "" || !strings.EqualFold(s.Critical.Image.Digest, algorithm+":"+digest) {
		return fmt.Errorf("the signature is about another image than the one with the %s %s", algorithm, digest)
	}
	return nil
}

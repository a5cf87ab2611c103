package approvals

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/crypto/argon2"

	"gatehouse/internal/files/atomicfile"
)

// Proof verifies that an approval was given by a person who knows the passphrase. The passphrase
// derives a private key, which signs the approved request. Only the public key and the salt are stored,
// so no process of the account can forge an approval from what it can read, or by writing to the file
// of approvals.
type Proof struct {
	Passes  uint32            `json:"passes"` // of argon2id
	Memory  uint32            `json:"memory"` // KiB
	Salt    []byte            `json:"salt"`
	Checker ed25519.PublicKey `json:"key"`
}

const (
	leastPassphrase = 10 // bytes
	mostPassphrase  = 1024
	proofPasses     = 3
	proofMemory     = 64 << 10
	mostProof       = 4 << 10
)

// The errors of a proof.
var (
	ErrPassphrase = errors.New("that is not the passphrase")
	ErrNoProof    = errors.New("no passphrase is set: run gatehouse approvals passphrase at a terminal")
	ErrUnproven   = errors.New("the approval was given without the passphrase or passkey that it needs")
	ErrPasskey    = errors.New("the passkey did not approve this call")
)

// NewProof returns the proof of a passphrase.
func NewProof(passphrase []byte) (*Proof, error) {
	if n := len(passphrase); n < leastPassphrase || n > mostPassphrase {
		return nil, fmt.Errorf("a passphrase has %d to %d bytes, this one has %d", leastPassphrase, mostPassphrase, n)
	}
	p := &Proof{Passes: proofPasses, Memory: proofMemory, Salt: make([]byte, 16)}
	rand.Read(p.Salt) // never fails
	p.Checker = p.signer(passphrase).Public().(ed25519.PublicKey)
	return p, nil
}

func (p *Proof) signer(passphrase []byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(argon2.IDKey(passphrase, p.Salt, p.Passes, p.Memory, 1, ed25519.SeedSize))
}

// LoadProof reads the file of a proof. It returns ErrNoProof if the file does not exist.
func LoadProof(path string) (*Proof, error) {
	b, err := atomicfile.Read(path, mostProof)
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrNoProof
	}
	var p Proof
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err == nil &&
		(len(p.Checker) != ed25519.PublicKeySize || len(p.Salt) < 8 || p.Passes < 1 || p.Passes > 100 ||
			p.Memory < 1024 || p.Memory > 4<<20) {
		err = errors.New("the file does not hold a proof of a passphrase")
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return &p, nil
}

// Save writes the proof to a file that only its user can read.
func (p *Proof) Save(path string) error {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(b, '\n'))
}

// Sign signs the approval of a request.
func (p *Proof) Sign(passphrase []byte, r Request) ([]byte, error) {
	key := p.signer(passphrase)
	if !p.Checker.Equal(key.Public()) {
		return nil, ErrPassphrase
	}
	return ed25519.Sign(key, signed(r)), nil
}

// Knows reports whether a passphrase is the one of the proof.
func (p *Proof) Knows(passphrase []byte) bool {
	return p.Checker.Equal(p.signer(passphrase).Public())
}

// checks reports whether a signature is valid for a request.
func (p *Proof) checks(r Request, signature []byte) bool {
	return ed25519.Verify(p.Checker, signed(r), signature)
}

// signed returns the bytes that the signature of an approval covers: the request, in the form in which
// it was shown.
func signed(r Request) []byte {
	h := sha256.New()
	for _, part := range []string{"gatehouse approval 1", r.ID, r.Owner, r.Tool, r.Rule, string(r.Args),
		r.Until.UTC().Format(time.RFC3339Nano)} {
		fmt.Fprintf(h, "%d:%s,", len(part), part)
	}
	return h.Sum(nil)
}

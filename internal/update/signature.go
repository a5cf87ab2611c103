package update

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/blake2b"
)

// ErrSignature means that what was found is not what its makers signed.
var ErrSignature = errors.New("the signature is not that of the key in the settings")

// Key is a public key of minisign, with which releases are signed.
type Key struct {
	id  [8]byte
	key ed25519.PublicKey
}

// ParseKey reads a public key as minisign writes it: the one line, or the file
// with its remark.
func ParseKey(text string) (k Key, err error) {
	bad := errors.New("expected a public key of minisign, which begins with RW")
	lines := strings.Fields(text)
	if len(lines) == 0 {
		return k, bad
	}
	raw, err := base64.StdEncoding.DecodeString(lines[len(lines)-1])
	if err != nil || len(raw) != 2+8+ed25519.PublicKeySize || string(raw[:2]) != "Ed" {
		return k, bad
	}
	copy(k.id[:], raw[2:10])
	k.key = raw[10:]
	return k, nil
}

// Verify holds a text against a signature of minisign, with its trusted
// comment, which is given back.
func (k Key) Verify(text, signature []byte) (comment string, err error) {
	if k.key == nil {
		return "", errors.New("there is no key to verify with")
	}
	lines := strings.Split(strings.ReplaceAll(strings.TrimRight(string(signature), "\r\n"), "\r\n", "\n"), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "untrusted comment: ") {
		return "", fmt.Errorf("%w: it is none of minisign", ErrSignature)
	}
	comment, trusted := strings.CutPrefix(lines[2], "trusted comment: ")
	raw, err := base64.StdEncoding.DecodeString(lines[1])
	whole, e := base64.StdEncoding.DecodeString(lines[3])
	if err != nil || e != nil || !trusted || len(raw) != 2+8+ed25519.SignatureSize || len(whole) != ed25519.SignatureSize {
		return "", fmt.Errorf("%w: it is none of minisign", ErrSignature)
	}
	signed := text
	switch string(raw[:2]) {
	case "ED":
		sum := blake2b.Sum512(text)
		signed = sum[:]
	case "Ed":
	default:
		return "", fmt.Errorf("%w: it is of a kind that is not known", ErrSignature)
	}
	if !bytes.Equal(raw[2:10], k.id[:]) {
		return "", fmt.Errorf("%w: it was made with another", ErrSignature)
	}
	if !ed25519.Verify(k.key, signed, raw[10:]) || !ed25519.Verify(k.key, append(raw[10:len(raw):len(raw)], comment...), whole) {
		return "", ErrSignature
	}
	return comment, nil
}

package identity

import (
	"crypto/sha256"
	"encoding/base32"
	"hash/crc32"
	"strings"
)

// A token consists of a prefix that names its kind, 160 random bits, and a checksum, which detects
// typing errors without a look-up.
const (
	tokenPrefix = "gh_"
	localPrefix = "gh_local_"
	secretSize  = 32 // random characters
	checkSize   = 6  // characters of checksum
)

var letters = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

func newSecret(prefix string) string {
	s := prefix + letters.EncodeToString(random(secretSize*5/8))
	return s + checksum(s)
}

// checksum returns the first 30 bits of the CRC-32.
func checksum(s string) string {
	sum := crc32.ChecksumIEEE([]byte(s))
	b := []byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)}
	return letters.EncodeToString(b)[:checkSize]
}

// spelling is the kind of a token, as far as its text shows it.
type spelling uint8

const (
	foreign  spelling = iota // not a token of this program
	mistyped                 // has a prefix of ours but is incomplete or has a wrong checksum
	ours                     // a token of a user
	locals                   // a token of this machine
)

func spell(token string) spelling {
	kind, prefix := ours, tokenPrefix
	switch {
	case strings.HasPrefix(token, localPrefix):
		kind, prefix = locals, localPrefix
	case !strings.HasPrefix(token, tokenPrefix):
		return foreign
	}
	if len(token) != len(prefix)+secretSize+checkSize {
		return mistyped
	}
	if at := len(token) - checkSize; checksum(token[:at]) != token[at:] {
		return mistyped
	}
	return kind
}

// newLoginSecret returns the secret of a login: the cookie, and after it the key, which the page keeps.
func newLoginSecret() string { return newCookie() + newCookie() }

// newCookie returns 128 random bits.
func newCookie() string { return letters.EncodeToString(random(16)) }

const cookieSize = 26 // characters

// newID returns a random public ID for a credential, from which nothing else can be derived.
func newID(prefix string) string { return prefix + letters.EncodeToString(random(10)) }

func digestOf(secret string) digest { return sha256.Sum256([]byte(secret)) }

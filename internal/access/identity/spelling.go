package identity

import (
	"crypto/sha256"
	"encoding/base32"
	"hash/crc32"
	"strings"
)

// What a token looks like: a prefix that tells whose it is, 160 random bits,
// and a checksum that tells a typo from a token without looking anywhere.
const (
	tokenPrefix = "gh_"
	localPrefix = "gh_local_"
	secretSize  = 32 // characters that are random
	checkSize   = 6  // characters of checksum
)

var letters = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

func newSecret(prefix string) string {
	s := prefix + letters.EncodeToString(random(secretSize*5/8))
	return s + checksum(s)
}

// checksum is the first 30 bits of the CRC-32.
func checksum(s string) string {
	sum := crc32.ChecksumIEEE([]byte(s))
	b := []byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)}
	return letters.EncodeToString(b)[:checkSize]
}

// spelling says what a token could be by its looks.
type spelling uint8

const (
	foreign  spelling = iota // none of ours
	mistyped                 // begins like ours and is not complete or not right
	ours                     // of a user
	locals                   // of this machine
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

// newCookie is 128 random bits.
func newCookie() string { return letters.EncodeToString(random(16)) }

const cookieSize = 26 // characters

// newID is a public name for a credential, which nothing follows from.
func newID(prefix string) string { return prefix + letters.EncodeToString(random(10)) }

func digestOf(secret string) digest { return sha256.Sum256([]byte(secret)) }

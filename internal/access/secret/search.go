package secret

import (
	"bytes"
	"cmp"
	"crypto/subtle"
	"math/bits"
	"math/rand/v2"
	"slices"
)

// A caller can make a program or a server repeat what it likes, and can measure when each byte of the output arrives.
// So neither the bytes that are held back nor the time that a search takes depend on how much of a text is like a
// secret, only on whether it contains all of one: otherwise the secret could be guessed byte by byte.

// Search replaces texts in a stream. It is made by NewSearch, and safe for concurrent use once all texts are added.
type Search struct {
	all  []needle
	base uint64 // of the hashes; random, so that no text can be made to have the hash of a secret
	tail int    // how many bytes are held back at the end of an unfinished line; at least one less than the longest
}

// needle is a text that is searched for, and what replaces it.
type needle struct {
	find, put []byte
	hash      uint64 // of find
	first     uint64 // what the first byte of find is multiplied by in hash
}

// leastTail is the least tail, in bytes. Tails are powers of two less one, so that they tell little about the length
// of a secret.
const leastTail = 63

// LineEnds are bytes that no text of a Search contains.
const LineEnds = "\r\n\x00"

// NewSearch returns a search for nothing.
func NewSearch() Search { return Search{base: rand.Uint64() | 1, tail: leastTail} }

// Add adds a text, which is not empty and has no byte of LineEnds, and what replaces it. Of texts
// that begin at the same place the one that was added first is replaced. A text that was added
// before is left out.
func (s *Search) Add(find, put []byte) {
	if slices.ContainsFunc(s.all, func(k needle) bool { return bytes.Equal(k.find, find) }) {
		return
	}
	k := needle{find: find, put: put, hash: s.hash(find), first: 1}
	for range len(find) - 1 {
		k.first *= s.base
	}
	s.all = append(s.all, k)
	s.tail = max(s.tail, 1<<bits.Len(uint(len(find)-1))-1)
}

// Replace replaces the texts in b. It returns what can be passed on, and the rest, which may contain the beginning of a
// text and is to be searched again with what follows. If last is set, nothing follows. Both may be parts of b.
func (s Search) Replace(b []byte, last bool) (out, rest []byte) {
	end := len(b)
	if !last {
		end = s.decided(b)
	}
	done := 0
	for _, m := range s.matches(b) {
		if m.at < done || m.at >= end { // part of the one before, or to be found again
			continue
		}
		out = append(append(out, b[done:m.at]...), m.put...)
		done = m.at + len(m.find)
	}
	if end = max(end, done); done == 0 {
		return b[:end], b[end:]
	}
	return append(out, b[done:end]...), b[end:]
}

// decided returns how many bytes at the beginning of b begin no text that ends after b. These are all but the tail, and
// all whole lines, so that streams of lines and events are passed on as they arrive.
func (s Search) decided(b []byte) int {
	return max(0, len(b)-s.tail, bytes.LastIndexAny(b, LineEnds)+1)
}

type match struct {
	needle
	at int
}

// matches returns where the texts are in b, in order; at the same place, in the order in which they were added.
func (s Search) matches(b []byte) (found []match) {
	for _, k := range s.all {
		found = s.appendMatches(found, b, k)
	}
	slices.SortStableFunc(found, func(a, b match) int { return cmp.Compare(a.at, b.at) })
	return found
}

// appendMatches compares a hash of the bytes at each place, because the time of comparing bytes would depend on how
// many are equal.
func (s Search) appendMatches(found []match, b []byte, k needle) []match {
	size := len(k.find)
	if len(b) < size {
		return found
	}
	hash := s.hash(b[:size])
	for at := 0; ; at++ {
		if hash == k.hash && subtle.ConstantTimeCompare(b[at:at+size], k.find) == 1 {
			found = append(found, match{k, at})
		}
		if at+size == len(b) {
			return found
		}
		hash = (hash-uint64(b[at])*k.first)*s.base + uint64(b[at+size])
	}
}

// hash returns the polynomial with the bytes of b as coefficients, at the base, modulo 1<<64.
func (s Search) hash(b []byte) (h uint64) {
	for _, c := range b {
		h = h*s.base + uint64(c)
	}
	return h
}

package proxy

import (
	"bytes"
	"cmp"
	"crypto/subtle"
	"io"
	"math/bits"
	"math/rand/v2"
	"slices"
)

// Code in a sandbox can make a server repeat what it likes, and can measure when each byte of the answer arrives.
// So neither the bytes that are held back nor the time that a search takes depend on how much of a text is like a
// secret, only on whether it contains all of one: otherwise the secret could be guessed byte by byte.

// needle is a text that is searched for, and what replaces it.
type needle struct {
	find, put []byte
	hash      uint64 // of find
	first     uint64 // what the first byte of find is multiplied by in hash
}

// needles are what is searched for in an answer.
type needles struct {
	all  []needle
	base uint64 // of the hashes; random, so that no text can be made to have the hash of a secret
	tail int    // how many bytes are held back at the end of an unfinished line; at least one less than the longest
}

// leastTail is the least tail. Tails are powers of two less one, so that they tell little about the length of a
// secret.
const leastTail = 63

// needles returns the secrets in every form that is searched for: plain, and as encoded in URLs, JSON and
// HTML.
func (s secrets) needles() needles {
	n := needles{base: rand.Uint64() | 1, tail: leastTail}
	add := func(find, put []byte) {
		for _, form := range forms(string(find)) {
			if !slices.ContainsFunc(n.all, func(k needle) bool { return string(k.find) == form }) {
				n.add([]byte(form), put)
			}
		}
	}
	for _, h := range s {
		add([]byte(h.value), []byte(h.placeholder))
		for _, k := range h.sent {
			add(k.find, k.put)
		}
	}
	return n
}

func (n *needles) add(find, put []byte) {
	k := needle{find: find, put: put, hash: n.hash(find), first: 1}
	for range len(find) - 1 {
		k.first *= n.base
	}
	n.all = append(n.all, k)
	n.tail = max(n.tail, 1<<bits.Len(uint(len(find)-1))-1)
}

// replace replaces the needles in b. It returns what can be passed on, and the rest, which may contain the
// beginning of a needle and is to be searched again with what follows. If last is set, nothing follows.
func (n needles) replace(b []byte, last bool) (out, rest []byte) {
	end := len(b)
	if !last {
		end = n.decided(b)
	}
	done := 0
	for _, m := range n.matches(b) {
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

// lineEnds are bytes that no secret contains, in any form.
const lineEnds = "\r\n\x00"

// decided returns how many bytes at the beginning of b begin no needle that ends after b. These are all but the
// tail, and all whole lines, so that streams of lines and events are passed on as they arrive.
func (n needles) decided(b []byte) int {
	return max(0, len(b)-n.tail, bytes.LastIndexAny(b, lineEnds)+1)
}

type match struct {
	needle
	at int
}

// matches returns where the needles are in b, in order; at the same place, in the order of the needles.
func (n needles) matches(b []byte) (found []match) {
	for _, k := range n.all {
		found = n.appendMatches(found, b, k)
	}
	slices.SortStableFunc(found, func(a, b match) int { return cmp.Compare(a.at, b.at) })
	return found
}

// appendMatches compares a hash of the bytes at each place, because the time of comparing bytes would depend on how
// many are equal.
func (n needles) appendMatches(found []match, b []byte, k needle) []match {
	size := len(k.find)
	if len(b) < size {
		return found
	}
	hash := n.hash(b[:size])
	for at := 0; ; at++ {
		if hash == k.hash && subtle.ConstantTimeCompare(b[at:at+size], k.find) == 1 {
			found = append(found, match{k, at})
		}
		if at+size == len(b) {
			return found
		}
		hash = (hash-uint64(b[at])*k.first)*n.base + uint64(b[at+size])
	}
}

// hash returns the polynomial with the bytes of b as coefficients, at the base, modulo 1<<64.
func (n needles) hash(b []byte) (h uint64) {
	for _, c := range b {
		h = h*n.base + uint64(c)
	}
	return h
}

// redactedBody is a body without secrets.
type redactedBody struct {
	from    io.ReadCloser
	needles needles
	ready   []byte
	rest    []byte
	err     error
}

// Read returns what can be passed on of the next bytes of the body. If the body breaks off, the bytes that are
// held back are not returned: they may be the beginning of a secret.
func (h *redactedBody) Read(b []byte) (int, error) {
	for len(h.ready) == 0 {
		if h.err != nil {
			return 0, h.err
		}
		buf := make([]byte, len(h.rest), len(h.rest)+32<<10)
		copy(buf, h.rest)
		n, err := h.from.Read(buf[len(buf):cap(buf)])
		h.err = err
		h.ready, h.rest = h.needles.replace(buf[:len(buf)+n], err == io.EOF)
	}
	n := copy(b, h.ready)
	h.ready = h.ready[n:]
	return n, nil
}

// Close implements io.Closer.
func (h *redactedBody) Close() error { return h.from.Close() }

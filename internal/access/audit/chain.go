package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
)

// hash is the SHA-256 of a line without its newline. The hash before the first line is all zeros.
type hash = [sha256.Size]byte

// link is a position in the chain: a line's number and hash.
type link struct {
	seq  int64
	hash hash
}

const (
	seqMember  = `{"seq":`
	prevMember = `,"prev":"`
)

// appendLine appends the line that follows the position at, and returns its own position. members were
// written by Entry.append.
func appendLine(dst []byte, at link, members []byte) ([]byte, link) {
	from := len(dst)
	dst = append(dst, seqMember...)
	dst = strconv.AppendInt(dst, at.seq+1, 10)
	dst = append(dst, prevMember...)
	dst = hex.AppendEncode(dst, at.hash[:])
	dst = append(dst, `",`...)
	dst = append(dst, members...)
	dst = append(dst, '}')
	next := link{at.seq + 1, sha256.Sum256(dst[from:])}
	return append(dst, '\n'), next
}

// parseLink returns a line's number and the hash of the line before.
func parseLink(line []byte) (seq int64, prev hash, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte(seqMember))
	if !ok {
		return 0, prev, false
	}
	digits, rest, ok := bytes.Cut(rest, []byte(prevMember))
	if !ok || len(rest) < 2*len(prev)+1 || rest[2*len(prev)] != '"' {
		return 0, prev, false
	}
	seq, err := strconv.ParseInt(string(digits), 10, 64)
	if err != nil || seq < 1 {
		return 0, prev, false
	}
	_, err = hex.Decode(prev[:], rest[:2*len(prev)])
	return seq, prev, err == nil
}

package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"hash/maphash"
	"sync/atomic"
)

// SessionHash is what stands for a session in the ledger.
func SessionHash(id string) string {
	h := sha256.Sum256([]byte(id))
	return hex.EncodeToString(h[:8])
}

// seen is what a ledger remembers because finding it out again costs more. The
// zero value is ready.
type seen struct {
	secrets  secretCache
	sessions sessionNames
}

// sessionNames remembers the hashes of the sessions that were seen last: a
// session makes many lines, and a hash costs a tenth of a line. The zero value
// is ready. Safe for concurrent use.
type sessionNames struct {
	seen [256]atomic.Pointer[sessionName] // by a hash of the id; the newer replaces
}

type sessionName struct{ id, hash string }

var nameSeed = maphash.MakeSeed()

func (n *sessionNames) of(id string) string {
	at := &n.seen[maphash.String(nameSeed, id)%uint64(len(n.seen))]
	if s := at.Load(); s != nil && s.id == id {
		return s.hash
	}
	s := &sessionName{id, SessionHash(id)}
	at.Store(s)
	return s.hash
}

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
	members  memberNames
	second   clockText
}

// sessionNames remembers the hashes of the sessions that were seen last: a
// session makes many lines, and a hash costs a tenth of a line. The zero value
// is ready. Safe for concurrent use.
type sessionNames struct {
	seen [256]atomic.Pointer[sessionName] // by a hash of the id; the newer replaces
}

type sessionName struct{ id, hash string }

var nameSeed = maphash.MakeSeed()

// memberNames remembers which names of members mean a secret: tools are called
// with the same ones again and again. The zero value is ready. Safe for
// concurrent use.
type memberNames struct {
	seen [256]atomic.Pointer[memberName] // by a hash of the name; the newer replaces
}

type memberName struct {
	name   string
	secret bool
}

// longestName is how long a name may be that is remembered, in bytes.
const longestName = 64

// secret is isSecret.
func (n *memberNames) secret(name []byte) bool {
	if n == nil || len(name) > longestName {
		return isSecret(name)
	}
	at := &n.seen[maphash.Bytes(nameSeed, name)%uint64(len(n.seen))]
	if m := at.Load(); m != nil && m.name == string(name) {
		return m.secret
	}
	m := &memberName{string(name), isSecret(name)}
	at.Store(m)
	return m.secret
}

func (n *sessionNames) of(id string) string {
	at := &n.seen[maphash.String(nameSeed, id)%uint64(len(n.seen))]
	if s := at.Load(); s != nil && s.id == id {
		return s.hash
	}
	s := &sessionName{id, SessionHash(id)}
	at.Store(s)
	return s.hash
}

package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"hash/maphash"
	"sync/atomic"
)

// SessionHash is what stands for a session in the ledger.
func SessionHash(id string) string { return string(appendHash(nil, id)) }

func appendHash(b []byte, id string) []byte {
	h := sha256.Sum256([]byte(id))
	return hex.AppendEncode(b, h[:8])
}

// seen is what a ledger remembers because finding it out again costs more. The
// zero value is ready.
type seen struct {
	secrets  secretCache
	sessions sessionNames
	members  memberNames
	second   clockText
}

// sessionNames remembers the hashes of sessions: a session makes many lines,
// and a hash costs a tenth of a line. The zero value is ready. Safe for
// concurrent use.
type sessionNames struct {
	seen [256]atomic.Pointer[sessionName] // by a hash of the id
}

type sessionName struct {
	id     string
	hash   [16]byte     // in hex
	others atomic.Int32 // lines of other sessions that came to its place
}

// mostOthers is after how many of them another takes the place: where a great
// many sessions take turns, remembering each costs more than it saves.
const mostOthers = 8

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

// append writes what stands for a session.
func (n *sessionNames) append(b []byte, id string) []byte {
	at := &n.seen[maphash.String(nameSeed, id)%uint64(len(n.seen))]
	known := at.Load()
	if known != nil && known.id == id {
		return append(b, known.hash[:]...)
	}
	b = appendHash(b, id)
	if known == nil || known.others.Add(1) >= mostOthers {
		at.Store(&sessionName{id: id, hash: [16]byte(b[len(b)-16:])})
	}
	return b
}

package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"hash/maphash"
	"sync/atomic"
)

// SessionHash returns the name of a session in the ledger, a hash of its ID.
func SessionHash(id string) string { return string(appendHash(nil, id)) }

func appendHash(b []byte, id string) []byte {
	h := sha256.Sum256([]byte(id))
	return hex.AppendEncode(b, h[:8])
}

// seen holds the caches of a ledger. The zero value is ready.
type seen struct {
	secrets  secretCache
	sessions sessionNames
	members  memberNames
	second   clockText
}

// sessionNames caches the hashes of sessions, because a session writes many lines and a hash costs a
// tenth of a line. The zero value is ready. It is safe for concurrent use.
type sessionNames struct {
	seen [256]atomic.Pointer[sessionName] // by a hash of the ID
}

type sessionName struct {
	id     string
	hash   [16]byte     // in hex
	others atomic.Int32 // lines of other sessions with the same slot
}

// mostOthers is the number of such lines after which another session replaces the cached one. If a
// great many sessions alternate, replacing at each line would cost more than it saves.
const mostOthers = 8

var nameSeed = maphash.MakeSeed()

// memberNames caches which names of members mark a secret, because tools are called with the same names
// again and again. The zero value is ready. It is safe for concurrent use.
type memberNames struct {
	seen [256]atomic.Pointer[memberName] // by a hash of the name; the newer replaces
}

type memberName struct {
	name   string
	secret bool
}

// longestName is the longest name that is cached, in bytes.
const longestName = 64

// secret returns isSecret(name), cached.
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

// append appends the name of a session in the ledger.
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

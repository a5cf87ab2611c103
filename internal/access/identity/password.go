package identity

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"golang.org/x/crypto/argon2"
)

const (
	leastPassword = 8    // bytes
	mostPassword  = 1024 // bytes
	authTime      = 5 * time.Second
)

// cost is what hashing one password takes.
type cost struct {
	memory  uint32 // KiB
	passes  uint32
	threads uint8
}

// defaultCost is about a tenth of a second on one core. A hash keeps the cost
// it was made with; it is made anew at the next login when this changes.
var defaultCost = cost{memory: 32 << 10, passes: 3, threads: 1}

// sane keeps an altered file from taking all memory.
func (c cost) sane() bool {
	return c.memory >= 8 && c.memory <= 1<<20 && c.passes >= 1 && c.passes <= 32 && c.threads >= 1 && c.threads <= 16
}

var errBusy = errors.New("too many logins at once; try again in a moment")

// passwords hashes and checks passwords, a few at a time, because each takes
// memory.
type passwords struct {
	cost   cost
	slots  chan struct{}
	decoy  hash // compared with when there is no user
	derive func(password, salt []byte, c cost) []byte
}

func newPasswords(c cost) *passwords {
	p := &passwords{cost: c, slots: make(chan struct{}, max(2, runtime.GOMAXPROCS(0)/2)), derive: argon}
	p.decoy = hash{c, random(saltSize), random(keySize)}
	return p
}

const (
	saltSize = 16
	keySize  = 32
)

func argon(password, salt []byte, c cost) []byte {
	return argon2.IDKey(password, salt, c.passes, c.memory, c.threads, keySize)
}

func random(n int) []byte {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return b
}

// checkPassword returns an error that says why a chosen password is not accepted.
func checkPassword(password string) error {
	if n := len(password); n < leastPassword || n > mostPassword {
		return fmt.Errorf("a password has %d to %d bytes, this one has %d", leastPassword, mostPassword, n)
	}
	return nil
}

// hashPassword derives a key when it is its turn.
func (p *passwords) hashPassword(ctx context.Context, password string, salt []byte, c cost) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, authTime, errBusy)
	defer cancel()
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
		return p.derive([]byte(password), salt, c), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// hash makes what is kept of a password.
func (p *passwords) hash(ctx context.Context, password string) (string, error) {
	if err := checkPassword(password); err != nil {
		return "", err
	}
	h := hash{p.cost, random(saltSize), nil}
	var err error
	h.key, err = p.hashPassword(ctx, password, h.salt, h.cost)
	return h.String(), err
}

// verify compares a password with what is kept, which is "" when there is no
// such user or none with a password: it costs one derivation in every case.
// stale means that the hash should be made anew.
func (p *passwords) verify(ctx context.Context, kept, password string) (ok, stale bool, err error) {
	if checkPassword(password) != nil {
		return false, false, nil // for any user
	}
	h, there := parseHash(kept)
	if !there {
		h = p.decoy
	}
	key, err := p.hashPassword(ctx, password, h.salt, h.cost)
	if err != nil {
		return false, false, err
	}
	ok = subtle.ConstantTimeCompare(key, h.key) == 1 && there
	return ok, ok && h.cost != p.cost, nil
}

// hash is a password as it is kept, written in the form other programs use:
// $argon2id$v=19$m=32768,t=3,p=1$salt$key.
type hash struct {
	cost
	salt, key []byte
}

func (h hash) String() string {
	b := base64.RawStdEncoding
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version,
		h.memory, h.passes, h.threads, b.EncodeToString(h.salt), b.EncodeToString(h.key))
}

func parseHash(s string) (h hash, ok bool) {
	part := strings.Split(s, "$")
	if len(part) != 6 || part[0] != "" || part[1] != "argon2id" || part[2] != fmt.Sprintf("v=%d", argon2.Version) {
		return h, false
	}
	if _, err := fmt.Sscanf(part[3], "m=%d,t=%d,p=%d", &h.memory, &h.passes, &h.threads); err != nil || !h.sane() {
		return h, false
	}
	var errs [2]error
	h.salt, errs[0] = base64.RawStdEncoding.Strict().DecodeString(part[4])
	h.key, errs[1] = base64.RawStdEncoding.Strict().DecodeString(part[5])
	return h, errors.Join(errs[:]...) == nil && len(h.salt) >= 8 && len(h.key) == keySize && h.String() == s
}

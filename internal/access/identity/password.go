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

// cost holds the parameters of hashing one password.
type cost struct {
	memory  uint32 // KiB
	passes  uint32
	threads uint8
}

// defaultCost takes about a tenth of a second on one core. A hash stores the cost it was made with; if
// defaultCost has changed, the next login makes a new hash.
var defaultCost = cost{memory: 32 << 10, passes: 3, threads: 1}

// sane reports whether a cost is within limits, so that an altered file cannot exhaust memory.
func (c cost) sane() bool {
	return c.memory >= 8 && c.memory <= 1<<20 && c.passes >= 1 && c.passes <= 32 && c.threads >= 1 && c.threads <= 16
}

var errBusy = errors.New("too many logins at once: try again in a moment")

// passwords hashes and verifies passwords, a few at a time, because each needs memory.
type passwords struct {
	cost   cost
	slots  chan struct{}
	decoy  hash // compared with if the user does not exist
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

// checkPassword returns an error if a chosen password is not acceptable.
func checkPassword(password string) error {
	if n := len(password); n < leastPassword || n > mostPassword {
		return fmt.Errorf("a password has %d to %d bytes, this one has %d", leastPassword, mostPassword, n)
	}
	return nil
}

// hashPassword waits for a slot and derives a key.
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

// hash returns the stored form of a password.
func (p *passwords) hash(ctx context.Context, password string) (string, error) {
	if err := checkPassword(password); err != nil {
		return "", err
	}
	h := hash{p.cost, random(saltSize), nil}
	var err error
	h.key, err = p.hashPassword(ctx, password, h.salt, h.cost)
	return h.String(), err
}

// verify compares a password with its stored form, which is "" if the user does not exist or has no
// password: it costs one derivation in every case. stale means that the hash should be renewed.
func (p *passwords) verify(ctx context.Context, kept, password string) (ok, stale bool, err error) {
	if checkPassword(password) != nil {
		return false, false, nil // the decoy matches no user
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

// hash is the stored form of a password, which other programs use as well:
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

package identity

import (
	"context"
	"crypto/subtle"
	"errors"
	"strings"
	"sync"
	"time"
)

const (
	pairLife = 15 * time.Minute
	pairSize = 12 // letters, 60 bits
)

// pairing is the code by which the person who reads this host's standard error becomes its first admin.
// It is kept in memory as a hash.
type pairing struct {
	mu    sync.Mutex
	hash  digest
	until time.Time // zero means that there is no code
}

// ErrPairing means that a pairing code is wrong, used, expired, or no longer needed; the caller does
// not learn which.
var ErrPairing = errors.New(
	"this pairing code is not valid; one is printed when a host without users starts, and works once, for 15 minutes",
)

// Pairing makes a new pairing code, in groups of four letters, if no user can log in here yet;
// otherwise it returns "". Earlier codes are no longer valid.
func (s *Service) Pairing(ctx context.Context) (code string, err error) {
	users, err := s.Users(ctx)
	if err != nil || len(users) > 0 || s.Lost() {
		return "", err
	}
	raw := letters.EncodeToString(random(8))[:pairSize]
	s.pair.mu.Lock()
	defer s.pair.mu.Unlock()
	s.pair.hash, s.pair.until = digestOf(raw), clock().Add(pairLife)
	return raw[:4] + "-" + raw[4:8] + "-" + raw[8:], nil
}

// Pair creates the first user, an admin, for a caller with the code. An error about the name or the
// password is only returned to a caller with the right code, and then the code stays valid.
func (s *Service) Pair(ctx context.Context, code, user, password string) error {
	s.pair.mu.Lock()
	defer s.pair.mu.Unlock() // one at a time, because the code works once
	raw := strings.ToLower(strings.NewReplacer("-", "", " ", "").Replace(code))
	hash := digestOf(raw)
	if subtle.ConstantTimeCompare(hash[:], s.pair.hash[:]) != 1 || !clock().Before(s.pair.until) {
		return ErrPairing
	}
	if err := checkPassword(password); err != nil {
		return err
	}
	err := s.addUser(ctx, user, []string{Admin}, password, true)
	if errors.Is(err, ErrTaken) {
		err = ErrPairing
	}
	if err == nil || errors.Is(err, ErrPairing) {
		s.pair.hash, s.pair.until = digest{}, time.Time{}
	}
	return err
}

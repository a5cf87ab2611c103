package identity

import (
	"net/netip"
	"sync"
	"time"
)

const (
	loginTries   = 3 // of one network, and of one known device
	accountTries = 60
	loginWindow  = 20 * time.Second
	mostWatched  = 20_000 // keys of one limiter
)

// tries limits how often passwords may be guessed. The limit per network stops a guesser; the limit per
// account over all networks is far above what a person needs, so that guesses from one or several
// networks do not lock a user out. A browser in which its user has logged in before has a budget of its
// own, which no guesser can use up.
type tries struct {
	network, account, device, held, ceremony *limiter
}

func newTries() tries {
	return tries{
		network: newLimiter(loginTries, loginWindow), account: newLimiter(accountTries, loginWindow),
		device: newLimiter(loginTries, loginWindow), held: newLimiter(loginTries, loginWindow),
		ceremony: newLimiter(ceremonyTries, loginWindow),
	}
}

// Kinds of tries, by what is counted.
const (
	triesNetwork  = "network"
	triesAccount  = "account"
	triesDevice   = "device"
	triesHeld     = "held"
	triesCeremony = "ceremony"
)

func (t *tries) of(kind string) *limiter {
	switch kind {
	case triesNetwork:
		return t.network
	case triesAccount:
		return t.account
	case triesDevice:
		return t.device
	case triesHeld:
		return t.held
	case triesCeremony:
		return t.ceremony
	}
	return nil
}

// countTry counts a try here and, if it is within the limit, on the other nodes.
func (s *Service) countTry(kind, key string) (wait time.Duration) {
	if wait = s.tries.of(kind).countTry(key); wait <= 0 && s.o.Tried != nil {
		s.o.Tried(kind, key)
	}
	return wait
}

// CountTry counts a try that another node has allowed. So several nodes allow more than the limit only of tries that
// come to them within the time that such a message takes.
func (s *Service) CountTry(kind, key string) {
	if l := s.tries.of(kind); l != nil {
		l.countTry(key)
	}
}

// limiter allows a number of tries in any window of time, for each key. Its memory is bounded: if too
// many keys are tried at once, new ones wait.
type limiter struct {
	tries  int
	window time.Duration

	mu    sync.Mutex
	tried map[string][]time.Time // the last tries, oldest first
	swept time.Time
}

func newLimiter(tries int, window time.Duration) *limiter {
	return &limiter{tries: tries, window: window, tried: map[string][]time.Time{}}
}

// countTry counts a try. If it is over the limit, it does not count, and wait is the time until the
// next try is allowed.
func (l *limiter) countTry(key string) (wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := clock()
	l.dropExpired(now)
	past, known := l.tried[key]
	if !known && len(l.tried) >= mostWatched {
		return l.window
	}
	for len(past) > 0 && now.Sub(past[0]) >= l.window {
		past = past[1:]
	}
	if len(past) >= l.tries {
		return l.window - now.Sub(past[0])
	}
	l.tried[key] = append(past, now)
	return 0
}

// dropExpired removes keys that were not tried for a window.
func (l *limiter) dropExpired(now time.Time) {
	if now.Sub(l.swept) < l.window {
		return
	}
	l.swept = now
	for key, past := range l.tried {
		if now.Sub(past[len(past)-1]) >= l.window {
			delete(l.tried, key)
		}
	}
}

// network returns the key of an address: the whole IPv4 address, or the upper half of an IPv6 address,
// which a provider assigns to one customer.
func network(a netip.Addr) string {
	a = a.Unmap().WithZone("")
	if a.Is6() && !a.IsLoopback() {
		if p, err := a.Prefix(64); err == nil {
			return p.String()
		}
	}
	return a.String()
}

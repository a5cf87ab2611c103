package sandbox

import (
	"context"
	"net/netip"

	"gatehouse/internal/access/secret"
)

// Networked is what a Sandbox offers whose code can be let out to some places.
// Without it, and until the first SetNetwork, there is no way out at all.
type Networked interface {
	// SetNetwork replaces what the sandbox may reach. What is under way and
	// is no longer allowed is cut off before it returns. The zero Network
	// closes everything again. Programs that already run keep the environment
	// they began with. The error names the rule that is malformed.
	SetNetwork(ctx context.Context, n Network) error
}

// Network is what a sandbox may reach, by way of a proxy that its programs
// find in HTTP_PROXY, HTTPS_PROXY and ALL_PROXY. Package proxy says how a rule
// is written and in which order rules count.
type Network struct {
	Allow   []string       // rules for what may be reached; nothing else is
	Special []string       // rules of the settings for addresses that are not public; Allow reaches no others of these
	Deny    []string       // rules that count before those that allow
	Secrets []Secret       // swapped in on the way, never in the sandbox
	Decided func(Decision) // hears of every decision, on several goroutines, and returns soon; may be nil
	// Resolve finds the addresses of names; nil means as the host does. Tests set it, because no
	// name has to resolve where they run.
	Resolve Resolver
}

// Resolver finds the addresses of a name, as *net.Resolver does. network is
// "ip", and the name ends in a dot, so that no search domain is added.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Secret is a value that requests may carry and the sandbox never sees. Its
// code sends the placeholder instead.
type Secret struct {
	Placeholder string // 8 to 200 letters, digits, dashes and underscores that nothing else contains
	Value       secret.Text
	Hosts       []string // rules for where it may go
	// Plain allows the secret to travel without TLS. Tests set it; no setting does, so that
	// secrets are not sent in the clear.
	Plain bool
}

// Decision is what was said to one attempt to get out, or why one was ended.
type Decision struct {
	Allowed bool
	Way     string // CONNECT, SOCKS5, or the method of an HTTP request
	Target  string // host:port as it was asked for, made harmless to print
	Address string // what is dialled, or was judged; "" when it did not come to that
	Rule    string // the rule that settled it; "" when none did
	Reason  string // a sentence for whoever runs the code
}

package sandbox

import (
	"context"
	"net/netip"

	"gatehouse/internal/access/secret"
)

// Networked is implemented by a Sandbox whose code can be given access to some network addresses. Without it,
// and until the first SetNetwork, the sandbox has no network access at all.
type Networked interface {
	// SetNetwork replaces what the sandbox may reach. Open connections that are no longer allowed are cut off
	// before it returns. The zero Network closes everything again. Programs that already run keep the
	// environment they started with. The error names the malformed rule.
	SetNetwork(ctx context.Context, n Network) error
}

// Network is what a sandbox may reach, by way of a proxy that its programs find in HTTP_PROXY, HTTPS_PROXY and
// ALL_PROXY. Package proxy documents the syntax and the order of the rules.
type Network struct {
	Allow []string // rules for what may be reached; everything else is refused
	// rules from the settings for addresses that are not public; Allow reaches no others of these
	Special []string
	Deny    []string // rules that override those that allow
	Secrets []Secret // the proxy replaces their placeholders; the values never enter the sandbox
	// SpecialHint completes "such addresses are allowed only by" for the user; "" means the setting
	// of the module sandbox.
	SpecialHint string
	// Interface is the network interface of the host that connections leave by; "" means whichever the system chooses.
	// If it is gone, connections fail.
	Interface string
	Decided   func(Decision) // called for every decision, from several goroutines; it must return soon; may be nil
	// Resolve resolves host names; nil means the host's resolver. Tests set it, because they have no network.
	Resolve Resolver
}

// Resolver looks up the addresses of a name, as *net.Resolver does. network is "ip", and the name ends in a
// dot, so that no search domain is added.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Secret is a value that requests may carry and the sandbox never sees. The code sends the placeholder
// instead.
type Secret struct {
	Placeholder string // 8 to 200 letters, digits, dashes and underscores, unlikely to occur in other data
	Value       secret.Text
	Hosts       []string // rules for the hosts it may be sent to
	// Plain allows sending the secret without TLS. Tests set it; no setting does, so that secrets are not sent
	// in the clear.
	Plain bool
}

// Decision is the proxy's answer to one attempt to connect, or the reason why a connection was ended.
type Decision struct {
	Allowed bool
	Method  string // CONNECT, SOCKS5, or the method of an HTTP request
	Target  string // host:port as it was requested, with control characters removed
	Address string // the address that is dialled, or that was judged; "" if the name was not resolved
	Rule    string // the rule that decided; "" if none did
	Reason  string // a sentence for the user whose code runs
}

package identity

import (
	"net/http"
	"slices"
	"time"

	"gatehouse/tool"
)

// Way is the method by which a caller was authenticated.
type Way string

const (
	Anonymous   Way = "anonymous"   // no credentials were required
	Cookie      Way = "cookie"      // logged in with a password, a passkey, a link or at a provider
	ByToken     Way = "token"       // a token or API key of a user
	Certificate Way = "certificate" // a client certificate that the listener verified
	ByOAuth     Way = "oauth"       // an access token of the OAuth provider
	Peer        Way = "peer"        // the peer credentials of a Unix socket, from the kernel
	Local       Way = "local"       // the token of this machine, from this machine
	Flag        Way = "flag"        // the token set by hand
	Stdio       Way = "stdio"       // the user who started this process
)

// Admin is the role of those who may administer this host.
const Admin = "admin"

// AnonymousName is the name of the principal without credentials.
const AnonymousName = "anonymous"

// Principal is an authenticated caller. Its slices are shared: do not change them. Users of this host
// and of its operating system share one namespace; names from an OAuth provider end in @ and its host,
// which no user's name does.
type Principal struct {
	Name       string
	ID         string    // owns the data of the principal; "" means the name. A reused name has another ID
	Roles      []string  // its roles on this host
	Scopes     []string  // what the credential grants; empty means everything its principal may do
	Context    string    // the context the credential is bound to; "" means none
	Until      time.Time // when the credential expires; zero means never
	Way        Way
	Credential string // public ID of the credential, for the ledger and revocation; never a secret

	// Unattended says that the credential is one of a program that runs on its own: a token that was made for that, or an
	// access token that was issued to a client without a user.
	Unattended bool

	person bool   // a person logged in
	signer string // ID of the provider's key that signed the access token
}

// Caller returns the principal in the form that other packages use.
func (p Principal) Caller() tool.Caller {
	return tool.Caller{
		Principal:  p.Name,
		ID:         p.ID,
		Context:    p.Context,
		Roles:      p.Roles,
		Scopes:     p.Scopes,
		Credential: p.Credential,
		Unattended: p.Unattended,
	}
}

// Has reports whether the principal has a role.
func (p Principal) Has(role string) bool { return slices.Contains(p.Roles, role) }

// Person reports whether a person logged in for the principal, so that its decisions are those of a person.
func (p Principal) Person() bool { return p.person && p.Way == Cookie && len(p.Scopes) == 0 }

// Live reports whether the credential has not expired. Code that holds a principal for long must check
// again.
func (p Principal) Live(now time.Time) bool { return p.Until.IsZero() || now.Before(p.Until) }

var anonymous = Principal{Name: AnonymousName, Way: Anonymous}

// Denied is the refusal of a caller, with the contents of an HTTP answer.
type Denied struct {
	Status  int         // 401, 403, 429 or 503
	Code    string      // for programs: unauthorized, invalid_token, ...
	Message string      // states what to do; reveals nothing that the caller must not know
	Header  http.Header // WWW-Authenticate, Retry-After; may be nil
}

func (d *Denied) Error() string { return d.Message }

package identity

import (
	"net/http"
	"slices"
	"time"

	"gatehouse/tool"
)

// Way is how a caller proved who it is.
type Way string

const (
	Anonymous   Way = "anonymous"   // no credentials were required
	Cookie      Way = "cookie"      // logged in with a password
	ByToken     Way = "token"       // a token or API key of a user
	Certificate Way = "certificate" // a client certificate the door verified
	ByOAuth     Way = "oauth"       // an access token of the OAuth provider
	Peer        Way = "peer"        // the kernel's word about a Unix socket
	Local       Way = "local"       // the token of this machine, from this machine
	Flag        Way = "flag"        // the token set by hand
	Stdio       Way = "stdio"       // the user who started this process
)

// Admin is the role of those who may administer this host.
const Admin = "admin"

// Nobody is the name of the principal without credentials.
const Nobody = "anonymous"

// Principal is who is asking. Its slices are shared: do not change them. Users
// of this host and of its operating system share one space of names; names an
// OAuth provider gives end in @ and its host, which no user's does.
type Principal struct {
	Name       string
	ID         string    // what its things belong to; "" means the name. A name that is used again has another id
	Roles      []string  // what it is to this host
	Scopes     []string  // what the credential is good for; empty means everything its principal may
	Context    string    // the context the credential is bound to; "" means none
	Until      time.Time // when the credential ends; zero means never
	Way        Way
	Credential string // public id of the credential, for the ledger and revocation; never a secret

	signer string // the provider's key that signed the access token
}

// Caller returns the principal as the other packages use it.
func (p Principal) Caller() tool.Caller {
	return tool.Caller{
		Principal:  p.Name,
		ID:         p.ID,
		Context:    p.Context,
		Roles:      p.Roles,
		Scopes:     p.Scopes,
		Credential: p.Credential,
	}
}

// Has reports whether the principal has a role.
func (p Principal) Has(role string) bool { return slices.Contains(p.Roles, role) }

// Live reports whether the credential has not run out. A holder of a
// principal for long asks again.
func (p Principal) Live(now time.Time) bool { return p.Until.IsZero() || now.Before(p.Until) }

var nobody = Principal{Name: Nobody, Way: Anonymous}

// Denied is why a caller was turned away, ready for an HTTP answer.
type Denied struct {
	Status  int         // 401, 403, 429 or 503
	Code    string      // for programs: unauthorized, invalid_token, ...
	Message string      // says what to do; names nothing the caller may not know
	Header  http.Header // WWW-Authenticate, Retry-After; may be nil
}

func (d *Denied) Error() string { return d.Message }

// Package operator restricts operations that affect the whole host to
// administrators.
package operator

import "gatehouse/tool"

// anonymous is the name of a caller without a credential; see identity.
const anonymous = "anonymous"

// Func reports whether a caller is an administrator of the host. With nil, no
// caller is one. It must be safe for concurrent use.
type Func func(who tool.Caller) bool

// By reports whether a caller is an administrator.
func (f Func) By(who tool.Caller) bool { return f != nil && f(who) }

// Check refuses a call if the caller is not an administrator. what completes
// the sentence "only administrators of this host may": read the logs.
func (f Func) Check(c *tool.Call, what string) error {
	if f.By(c.Caller) {
		return nil
	}
	next := "Ask an administrator whose credential has no scopes."
	if c.Caller.Principal == anonymous {
		next = "Authenticate: on this machine this user's local token makes its bearer an administrator " +
			"(gatehouse call --url URL --token local, or Authorization: Bearer), and so does the daemon's socket " +
			"(gatehouse call --daemon)."
	}
	return Denied(what, next)
}

// Denied returns the refusal for callers that are not administrators. next states the next step, for
// tools that know a better one than to ask an administrator.
func Denied(what, next string) error {
	return &tool.Refusal{
		Code:    tool.CodeDenied,
		Message: "only administrators of this host may " + what + ", and the caller is not one",
		Next:    next,
	}
}

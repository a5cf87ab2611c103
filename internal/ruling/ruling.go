// Package ruling leaves what is everybody's matter on a host to those who rule
// it.
package ruling

import "gatehouse/tool"

// Func reports whether a caller is one of those who rule a host. nil says of
// nobody that they are. It must be safe for concurrent use.
type Func func(who tool.Caller) bool

// By reports whether a caller rules.
func (f Func) By(who tool.Caller) bool { return f != nil && f(who) }

// Check refuses a call of somebody who does not rule. What it would have done
// is said in words that follow "may": read the logs.
func (f Func) Check(c *tool.Call, what string) error {
	if f.By(c.Caller) {
		return nil
	}
	return Denied(what, "Ask an administrator, whose credential is not limited to some scopes.")
}

// Denied is the refusal of those who do not rule, for tools that know better
// than to ask an administrator what can be done next.
func Denied(what, next string) error {
	return &tool.Refusal{Code: "denied", Message: "only those who rule this host may " + what + ", and you are not one of them", Next: next}
}

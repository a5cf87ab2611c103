package protocol

import (
	"fmt"
	"strings"

	"gatehouse/internal/dispatch/views"
)

// failNotFound answers a request for something that the caller's view does not contain.
// If the caller's access token would cover it with other scopes, the error names them,
// so that the client can request them. Other callers do not learn that it exists.
func (r *request) failNotFound(absent *Fault, find func(*views.View) bool) {
	if f := r.insufficientScope(find); f != nil {
		r.sendFault(f)
		return
	}
	r.sendFault(absent)
}

// insufficientScope returns the error that names the missing scopes, or nil if other
// scopes would not help.
func (r *request) insufficientScope(find func(*views.View) bool) *Fault {
	e := r.e
	if e.opts.StepUp == nil || len(r.facts.Scopes) == 0 {
		return nil
	}
	enough := func(scopes []string) bool {
		who := r.facts.Caller
		who.Scopes = scopes
		v, err := e.opts.Views.View(r.ctx, &who, e.opts.Views.Cut(who))
		return err == nil && find(v)
	}
	if !enough(nil) {
		return nil
	}
	needed, challenge := e.opts.StepUp(r.facts.Caller, enough)
	if len(needed) == 0 {
		return nil
	}
	return &Fault{Status: 403, Code: CodeInvalidRequest, Challenge: challenge,
		Message: fmt.Sprintf("the access token's scope does not cover this; it needs %s", strings.Join(needed, " "))}
}

package protocol

import (
	"fmt"
	"strings"

	"gatehouse/internal/dispatch/views"
)

// missing answers a request for something that is not in the caller's view.
// Where it would be there if the caller's access token had other scopes, the
// answer says which, so that the client can get them; whoever has no such
// token, or would not see it anyway, learns nothing.
func (r *request) missing(absent *Fault, find func(*views.View) bool) {
	if f := r.beyondScope(find); f != nil {
		r.fail(f)
		return
	}
	r.fail(absent)
}

func (r *request) beyondScope(find func(*views.View) bool) *Fault {
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

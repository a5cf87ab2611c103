package administration

import (
	"context"
	"encoding/json"
	"time"

	"gatehouse/internal/access/approvals"
	"gatehouse/internal/access/passkey"
	"gatehouse/tool"
)

// Approvals administers the calls that wait for an operator. It is safe for concurrent use.
type Approvals struct{ Store *approvals.Store }

// Waiting is a request for approval as a caller sees it.
type Waiting struct {
	approvals.Request
	Mine      bool   `json:"mine,omitempty" doc:"the credential or session of this caller made the call, so that it cannot decide"`
	Challenge string `json:"challenge,omitempty" doc:"what a passkey signs to approve the call, if an approval needs one, in base64url"`
}

// ApprovalList is requests for approval.
type ApprovalList struct {
	Approvals []Waiting `json:"approvals" doc:"oldest first"`
	Proof     string    `json:"proof" doc:"what an approval needs besides a person's login" enum:"none,passphrase,passkey"`
}

// List lists the calls that wait; with all, also those that were decided within the last day.
func (a Approvals) List(all bool, by approvals.Caller) (out ApprovalList, err error) {
	if a.Store == nil {
		return out, errAbsent
	}
	out.Proof = a.Store.Needs()
	list, err := a.Store.Pending(all)
	for _, r := range list {
		w := Waiting{Request: r, Mine: r.Caller.Is(by)}
		if out.Proof == "passkey" && r.State == approvals.Pending {
			w.Challenge = passkey.Text.EncodeToString(approvals.Challenge(r))
		}
		out.Approvals = append(out.Approvals, w)
	}
	return out, err
}

// Decision is an operator's decision about a call.
type Decision struct {
	ID         string `json:"id" doc:"from approval_list, such as ap_5KQ7" min:"1"`
	Decision   string `json:"decision" doc:"what becomes of the call" enum:"approve,deny"`
	Passphrase string `json:"passphrase,omitempty" doc:"that of approvals, if an approval needs it" format:"password"`

	Assertion *passkey.Assertion `json:"assertion,omitempty" doc:"the use of a passkey of this user with the challenge of approval_list, if an approval needs one"`
}

// Decide applies a decision of a person who logged in.
func (a Approvals) Decide(ctx context.Context, in Decision, who tool.Caller) (r approvals.Request, err error) {
	switch {
	case a.Store == nil:
		return r, errAbsent
	case !who.Person || who.Child:
		return r, &tool.Refusal{
			Code:    tool.CodeDenied,
			Message: "only a person who logged in to this host can decide about a call, and this caller is a program",
			Next:    "Log in with a password, a passkey or the link of gatehouse ui, or use gatehouse approvals at a terminal.",
		}
	}
	given := approvals.Evidence{Passphrase: []byte(in.Passphrase)}
	if in.Assertion != nil {
		if given.Assertion, err = json.Marshal(in.Assertion); err != nil {
			return r, err
		}
	}
	return a.Store.DecideAs(ctx, in.ID, in.Decision == "approve", who.Principal,
		approvals.Caller{Credential: who.Credential, Session: who.Session}, given)
}

type approvalsIn struct {
	All bool `json:"all,omitempty" doc:"also those that were decided within the last day"`
}

type decided struct {
	ID    string          `json:"id"`
	State approvals.State `json:"state"`
	Tool  string          `json:"tool"`
	Until time.Time       `json:"until" doc:"when the approval expires, if no call uses it"`
}

func approvalTools(c Config) []tool.Tool {
	a := Approvals{c.Approvals}
	return []tool.Tool{
		operation(c, "see what waits for an approval", tool.Def{
			Name: "approval_list", Title: "List approvals", Effects: tool.Reads,
			Description: "Lists the calls that wait for an operator's approval, with their arguments.",
		}, func(_ context.Context, call *tool.Call, in approvalsIn) (ApprovalList, error) {
			return a.List(in.All, approvals.Caller{Credential: call.Caller.Credential, Session: call.Caller.Session})
		}),
		operation(c, "decide about calls", tool.Def{
			Name: "approval_decide", Title: "Approve or deny a call", Effects: tool.Writes,
			Description: "Approves or denies a call that waits. Only a person who logged in can, and not from the " +
				"login that made the call.",
			Help: "A token, a local program, a child process and a call inside another call are refused. An approval " +
				"holds for that one call with those arguments, unless the rule has it remembered.",
		}, func(ctx context.Context, call *tool.Call, in Decision) (decided, error) {
			r, err := a.Decide(ctx, in, call.Caller)
			return decided{r.ID, r.State, r.Tool, r.Until}, err
		}),
	}
}

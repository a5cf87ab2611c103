package dispatch

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/access/approvals"
	"gatehouse/internal/access/audit"
	"gatehouse/internal/access/confirm"
	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/access/permit"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

// These are the keys under which approval records its data between rounds, beside the handler's. Neither a handler
// nor a client can use them: the keys of a client's answers do not begin with "=", and those of a handler's values
// do not continue with the second one.
const (
	recordPrefix = "==gatehouse/"
	askedKey     = recordPrefix + "asked"    // the client was asked about this call
	approvedKey  = recordPrefix + "approved" // an approval was spent on this call
	operatorKey  = recordPrefix + "operator" // the approval came from an operator
	approvalLife = 24 * time.Hour            // how long a used answer is recorded as used
)

// ApprovalKey is the key of the question that asks a user to approve a call. An answer to it that arrives before
// the question was asked does not count.
const ApprovalKey = "gatehouse_approval"

// Pending is the error of a call that waits for an operator. No goroutine waits with it: Then sets what is done
// when the decision arrives.
type Pending struct {
	Approval approvals.Request
	Reason   string // of the verdict, for the caller

	mu   sync.Mutex
	then func(approvals.Request)
	came *approvals.Request
}

func (p *Pending) Error() string {
	said := approvals.Waits(p.Approval.ID)
	if p.Reason != "" {
		said += ": " + p.Reason
	}
	return said
}

// Then sets the function that is called with the decision, which may exist already.
func (p *Pending) Then(f func(approvals.Request)) {
	p.mu.Lock()
	p.then = f
	came := p.came
	p.mu.Unlock()
	if came != nil {
		f(*came)
	}
}

func (p *Pending) decided(r approvals.Request) {
	p.mu.Lock()
	p.came = &r
	then := p.then
	p.mu.Unlock()
	if then != nil {
		then(r)
	}
}

// approve asks the user or operator that the verdict names, unless an approval exists. It reports true if the call
// may run; otherwise the result or the error gives the reason.
func (d *Dispatcher) approve(r *Request, v permit.Verdict) (bool, Result, error) {
	store := d.opts.Approvals
	if store == nil {
		return false, refusalResult(
			tool.Refuse(tool.CodeDenied, "%s needs an approval, and this host stores none", r.Entry.Listed),
		), nil
	}
	ok, err := d.standingApproval(store, r, v)
	switch {
	case err != nil:
		return false, refusalResult(unkept(err)), nil
	case ok:
		return true, Result{}, nil
	case v.Kind == permit.AskOperator, d.onlyOperator(r), r.Facts.Can&tool.CanElicit == 0:
		err := d.askOperator(store, r, v.Rule, v.Reason)
		if long, ok := errors.AsType[*tool.Refusal](err); ok {
			return false, refusalResult(long), nil
		}
		return false, Result{}, err
	}
	return d.askClient(store, r, v)
}

// onlyOperator reports whether approvals of the caller's own client do not count, because every approval needs a
// proof, or because the client is a child process of the host.
func (d *Dispatcher) onlyOperator(r *Request) bool {
	return r.Facts.Child || d.opts.Approvals != nil && d.opts.Approvals.Proves()
}

// askedCaller returns the caller in the form that handlers see, because the host decides whether the caller's own
// statement counts as an approval.
func (d *Dispatcher) askedCaller(r *Request) *tool.Caller {
	only := d.onlyOperator(r)
	if !only && !d.opts.WordCounts {
		return &r.Facts.Caller
	}
	who := r.Facts.Caller
	if only {
		who.Can |= tool.OnlyOperator
	} else {
		who.Can |= tool.WordCounts
	}
	return &who
}

// confirmWith puts a handler's question to an operator: the call waits, if it came from a client directly. It
// returns the *Pending, or an error with the reason why the call cannot wait.
func (d *Dispatcher) confirmWith(r *Request, question string) error {
	store := d.opts.Approvals
	switch {
	case !r.mayAsk():
		return &tool.Refusal{
			Code: tool.CodeDenied,
			Message: r.Entry.Listed +
				" needs a user's agreement, which only a call that came from a client directly can get: " + question,
		}
	case store == nil || d.opts.NoOperators:
		return &tool.Refusal{
			Code: tool.CodeUnconfirmed,
			Message: "nothing was done: " + r.Entry.Listed + " needs a user's agreement, and the client cannot ask: " +
				question,
			Next: "Run it at a terminal, which asks you, or on a server, where gatehouse approvals lists the calls " +
				"that wait. With approvals.callers_word in the settings, confirm stands for the user's agreement.",
		}
	}
	return d.askOperator(store, r, "agreement: "+question, "")
}

// operatorConfirmed reports whether an operator's answer to a handler's question was spent on this call.
func (d *Dispatcher) operatorConfirmed(r *Request) bool {
	said := string(r.Recorded[operatorKey])
	if said == "" {
		return false // most calls, which are spared the digest
	}
	digest := callDigest(r)
	if said != digest {
		return false
	}
	return d.opts.Approvals == nil || d.opts.Approvals.WasProved(r.ID+" "+digest)
}

// recordAnswers records in the ledger who agreed to a call that needed an agreement.
func (d *Dispatcher) recordAnswers(r *Request, theirs map[string]json.RawMessage, err error) {
	if err != nil || r.Method != "tools/call" || d.opts.Ledger == nil {
		return
	}
	if _, ok := theirs[confirm.Key]; ok {
		d.recordApproved(r, permit.Verdict{}, "by the user of the client, as the client states")
		return
	}
	if !d.opts.WordCounts || d.onlyOperator(r) || r.Facts.Can&tool.CanElicit != 0 || r.Recorded[operatorKey] != nil {
		return
	}
	if said, ok := rawjson.Get(r.Args, "confirm"); ok && len(said) > 2 && said[0] == '"' {
		d.recordApproved(r, permit.Verdict{}, "by the caller's own statement (confirm)")
	}
}

func unkept(err error) *tool.Refusal {
	if ref, ok := errors.AsType[*tool.Refusal](err); ok {
		return ref
	}
	return tool.Refuse(tool.CodeUnavailable, "approvals cannot be stored at the moment: %v", err)
}

// standingApproval reports whether an earlier approval covers the call: one that the rule has remembered, or one
// that an earlier round of this call has used. A sealed state that contains the latter can be used once.
func (d *Dispatcher) standingApproval(store *approvals.Store, r *Request, v permit.Verdict) (bool, error) {
	if v.Remember > 0 {
		if ok, err := store.Remembered(r.Facts.Own(), r.Entry.Name, r.Args, v.Remember); ok || err != nil {
			return ok, err
		}
	}
	if string(r.Recorded[approvedKey]) != callDigest(r) || !store.WasProved(r.ID+" "+callDigest(r)) {
		return false, nil
	}
	fresh, err := store.Once(r.ID+" "+recordDigest(r.Recorded), approvalLife)
	if err == nil && !fresh {
		err = tool.Refuse(tool.CodeDenied, "this answer was used already; call again")
	}
	return fresh, err
}

// askClient asks the user of the client, or evaluates the user's answer.
func (d *Dispatcher) askClient(store *approvals.Store, r *Request, v permit.Verdict) (bool, Result, error) {
	answer, answered := r.Recorded[ApprovalKey]
	if !answered || string(r.Recorded[askedKey]) != callDigest(r) {
		return false, d.question(r, v), nil
	}
	var said struct{ Approve bool }
	action, err := tool.Elicited(answer, &said)
	if err != nil || action != "accept" || !said.Approve {
		return false, refusalResult(tool.Refuse(tool.CodeDenied, "%s was not approved", r.Entry.Listed)), nil
	}
	fresh, err := store.Once(r.ID+" approval", approvalLife)
	switch {
	case err != nil:
		return false, refusalResult(unkept(err)), nil
	case !fresh:
		return false, refusalResult(tool.Refuse(tool.CodeDenied, "this approval was used already; call again")), nil
	}
	d.approved(store, r, v)
	d.recordApproved(r, v, "by the user of the client")
	return true, Result{}, nil
}

// question returns the result that asks the client.
func (d *Dispatcher) question(r *Request, v permit.Verdict) Result {
	if r.ID == "" {
		r.ID = NewID()
	}
	why := ""
	if v.Reason != "" {
		why = "\n" + v.Reason
	}
	args, err := shownArgs(r)
	if err != nil {
		return refusalResult(tool.Refuse(tool.CodeTooLarge, "%s cannot be approved: %v", r.Entry.Listed, err))
	}
	msg := fmt.Sprintf("Allow %s with %s?%s", displaytext.Line(r.Entry.Listed), args, why)
	if r.Program != nil {
		msg += "\n" + r.Program.Origin
	}
	form := json.RawMessage(
		`{"type":"object","properties":{"approve":{"type":"boolean","title":"Approve","description":"true lets it run once"}},"required":["approve"]}`,
	)
	recorded := maps.Clone(r.Recorded)
	if recorded == nil {
		recorded = map[string]json.RawMessage{}
	}
	recorded[askedKey] = json.RawMessage(callDigest(r))
	return Result{
		Result: tool.Result{
			Input: &tool.Input{Questions: []tool.Question{tool.Elicit(ApprovalKey, msg, form)}, State: r.State},
		},
		Recorded: recorded, ID: r.ID,
	}
}

// wholeArgs is up to how many bytes of arguments a call of a program can be approved: they are shown whole, because
// nobody has seen them before.
const wholeArgs = 16 << 10

// shownArgs returns the arguments as an approver of the call is shown them.
func shownArgs(r *Request) (json.RawMessage, error) {
	if r.Program == nil {
		return approvals.Shown(r.Args)
	}
	if len(r.Args) > wholeArgs {
		return nil, fmt.Errorf(
			"its arguments have %d bytes, and those of a program's call are shown whole: at most %d "+
				"bytes can be approved",
			len(r.Args),
			wholeArgs,
		)
	}
	return displaytext.JSON(r.Args), nil
}

// askOperator makes the call wait for an operator: the error is a *Pending, or a refusal.
func (d *Dispatcher) askOperator(store *approvals.Store, r *Request, why, reason string) error {
	if d.opts.NoOperators {
		return &tool.Refusal{
			Code:    tool.CodeDenied,
			Message: r.Entry.Listed + " needs an operator's approval, and this host has no operators",
			Next:    "Call it on a server, where gatehouse approvals lists the calls that wait.",
		}
	}
	if r.Program != nil {
		if r.Program.Waits == nil {
			return tool.Refuse(tool.CodeDenied, "%s needs an operator's approval, for which this program cannot wait",
				r.Entry.Listed)
		}
		all, err := shownArgs(r)
		if err != nil {
			return tool.Refuse(tool.CodeTooLarge, "%s cannot be approved: %v", r.Entry.Listed, err)
		}
		if short, _ := approvals.Shown(r.Args); string(short) != string(all) {
			why += "\nAll of its arguments: " + string(all)
		}
		why += "\n" + r.Program.Origin
	}
	p := &Pending{Reason: reason}
	// A caller without a credential is told apart from a caller that is unknown.
	by := approvals.Caller{
		Credential: cmp.Or(r.Facts.Credential, "none of "+r.Facts.Principal), Session: r.Facts.Session,
	}
	req, err := store.Ask(r.Facts.Own(), r.Entry.Name, why, by, r.Args, p.decided)
	if long, ok := errors.AsType[*approvals.TooLong](err); ok {
		return tool.Refuse(tool.CodeTooLarge, "%s cannot be approved: %v", r.Entry.Listed, long)
	}
	if err != nil {
		return unkept(err)
	}
	p.Approval = req
	d.opts.Log.Info("call waits for an approval", "approval", req.ID, "tool", r.Entry.Name, "owner", r.Facts.Own())
	return p
}

// Approved applies an operator's decision to the call that waited for it. It reports false if the call was denied,
// or if the approval arrived too late or was used already.
func (d *Dispatcher) Approved(r *Request, ap approvals.Request) bool {
	store := d.opts.Approvals
	if ap.State != approvals.Allowed {
		return false
	}
	ok, err := store.Spend(ap, r.Facts.Own(), r.Entry.Name)
	if err != nil {
		d.opts.Log.Error("approval cannot be used", "approval", ap.ID, "err", err)
		d.recordRefused(r, audit.Denied, "an approval was not accepted, "+ap.ID+": "+err.Error())
	}
	if !ok {
		return false
	}
	if r.completeArgs() != nil {
		return false
	}
	v := r.Entry.Gate.Decide(r.Args, &r.Facts.Caller)
	d.approved(store, r, v)
	r.Recorded[operatorKey] = json.RawMessage(callDigest(r))
	store.Proved(r.ID+" "+callDigest(r), approvalLife)
	proof := "the same account"
	if store.Proves() {
		proof = "the " + store.Needs()
	}
	if login, isLogin := strings.CutSuffix(ap.By, approvals.ByLogin); isLogin && !store.Proves() {
		ap.By, proof = login, "a login of this host"
	}
	d.recordApproved(r, v, "by operator "+ap.By+" ("+proof+"), "+ap.ID)
	return true
}

// Withdraw removes a request for approval whose call can no longer use it.
func (d *Dispatcher) Withdraw(p *Pending) {
	if _, err := d.opts.Approvals.Decide(p.Approval.ID, false, "host"); err != nil {
		d.opts.Log.Debug("approval is not withdrawn", "approval", p.Approval.ID, "err", err)
	}
}

// approved records the approval for later rounds and, if the rule has it remembered, for equal calls.
func (d *Dispatcher) approved(store *approvals.Store, r *Request, v permit.Verdict) {
	r.Recorded = maps.Clone(r.Recorded)
	if r.Recorded == nil {
		r.Recorded = map[string]json.RawMessage{}
	}
	r.Recorded[approvedKey] = json.RawMessage(callDigest(r))
	if v.Remember > 0 {
		if err := store.Remember(r.Facts.Own(), r.Entry.Name, r.Args, v.Remember); err != nil {
			d.opts.Log.Warn("approval cannot be stored", "err", err)
		}
	}
}

// callDigest returns a digest of a call: its tool and its arguments. It is a JSON string.
func callDigest(r *Request) string {
	h := sha256.New()
	for _, part := range []string{r.Facts.Own(), r.Entry.Module, r.Entry.Name, string(r.Args)} {
		fmt.Fprintf(h, "%d:%s,", len(part), part)
	}
	return `"` + hex.EncodeToString(h.Sum(nil)) + `"`
}

func recordDigest(m map[string]json.RawMessage) string {
	h := sha256.New()
	for _, k := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(h, "%d:%s%d:%s", len(k), k, len(m[k]), m[k])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// split separates what approval has recorded from what the handler has recorded.
func split(recorded map[string]json.RawMessage) (ours, theirs map[string]json.RawMessage) {
	for k, v := range recorded {
		if strings.HasPrefix(k, recordPrefix) || k == ApprovalKey {
			if ours == nil {
				ours, theirs = map[string]json.RawMessage{}, maps.Clone(recorded)
			}
			ours[k] = v
			delete(theirs, k)
		}
	}
	if ours == nil {
		return nil, recorded
	}
	return ours, theirs
}

package code

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/sandbox/toolchannel"
	"gatehouse/module"
	"gatehouse/tool"
)

// asking is a call whose tool asks the caller.
type asking struct {
	prefix    string // of its keys
	questions []tool.Question
	answers   map[string]tool.Answer
	answered  chan struct{} // closed when all have come
}

// Call implements toolchannel.Handler: one call of the program.
func (r *run) Call(_ context.Context, m toolchannel.Message) toolchannel.Response {
	a := toolchannel.Response{ID: m.ID}
	m.Line = r.line(m.Line)
	n, err := r.countCall()
	if err != nil {
		a.Error, a.Kind = err.Error(), toolchannel.Limited
		return a
	}
	if r.calls.Err() != nil {
		r.leaveCall()
		a.Error, a.Kind = errExpired.Error(), toolchannel.Expired
		return a
	}
	entry := r.log.writeCall(n, m.Tool, m.Line)
	value, err := r.callFromProgram(n, m)
	if err != nil && context.Cause(r.calls) == errExpired {
		err = fmt.Errorf("%w, and the call may have run", errExpired)
	}
	r.leaveCall()
	entry.done(outcomeOf(err))
	r.freezer.awaitThaw(r.ctx)
	switch outcomeOf(err) {
	case callOK:
		a.Value = value
	case callExpired:
		a.Error, a.Kind = err.Error(), toolchannel.Expired
	default:
		a.Error, a.Kind = errorText(err), toolchannel.Failed
	}
	return a
}

// expiredError is the error of a call whose question was not answered in time.
type expiredError struct{ after time.Duration }

func (e *expiredError) Error() string {
	return fmt.Sprintf("its question was not answered within %v", e.after)
}

// countCall counts a call.
func (r *run) countCall() (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if most := r.m.cfg.Settings.Calls; r.made >= most {
		return 0, fmt.Errorf("a program may call tools %d times", most)
	}
	r.made++
	r.busy++
	r.parent.Peer.Progress(float64(r.made), 0, "")
	return r.made, nil
}

func (r *run) leaveCall() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy--; r.busy == 0 && len(r.asking) > 0 {
		r.notify()
	}
}

// callFromProgram runs a call, through the rounds of its questions.
func (r *run) callFromProgram(n int, m toolchannel.Message) (json.RawMessage, error) {
	ctx, cancel := context.WithCancel(r.calls)
	defer cancel()
	in := &module.InnerCall{Name: m.Tool, Args: m.Args, Asks: r.asks, Origin: r.origin(m.Line)}
	in.Waits = func() func() {
		late := time.AfterFunc(r.m.cfg.Settings.Question, cancel)
		thaw := r.freezer.freeze(r.ctx)
		r.setBusy(-1)
		return func() {
			late.Stop()
			r.setBusy(1)
			thaw()
		}
	}
	for round := 0; ; round++ {
		r.mu.Lock()
		parent := r.parent
		r.mu.Unlock()
		res, err := r.m.deps.Inner(ctx, &parent, in)
		switch {
		case err != nil && ctx.Err() != nil && r.calls.Err() == nil:
			return nil, &expiredError{r.m.cfg.Settings.Question}
		case err != nil:
			return nil, err
		case res.Input != nil:
			if in.Answers, err = r.askQuestions(ctx, fmt.Sprintf("program-%d-%d-", n, round), res.Input.Questions); err != nil {
				return nil, err
			}
			continue
		}
		return valueOf(&res)
	}
}

func (r *run) setBusy(by int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy += by; r.busy == 0 && len(r.asking) > 0 {
		r.notify()
	}
}

// origin says to an approver where a call comes from.
func (r *run) origin(line int) string {
	where := "This call is made by a program"
	if line > 0 {
		where = fmt.Sprintf("This call is made in line %d, as the program states", line)
	}
	return fmt.Sprintf("%s, of this program in %s:\n%s", where, r.language.name, displaytext.Text(r.source))
}

// settling is how long a question waits for those of other calls that the program makes at the same time.
const settling = 20 * time.Millisecond

// askQuestions freezes the program until the caller has answered.
func (r *run) askQuestions(ctx context.Context, prefix string, questions []tool.Question) (map[string]tool.Answer, error) {
	a := &asking{prefix: prefix, questions: questions, answers: map[string]tool.Answer{}, answered: make(chan struct{})}
	select {
	case <-time.After(settling):
	case <-ctx.Done():
	}
	thaw := r.freezer.freeze(r.ctx)
	defer thaw()
	r.mu.Lock()
	r.asking = append(r.asking, a)
	r.mu.Unlock()
	r.setBusy(-1)
	defer r.setBusy(1)
	late := time.NewTimer(r.m.cfg.Settings.Question)
	defer late.Stop()
	var err error
	select {
	case <-a.answered:
	case <-late.C:
		err = &expiredError{r.m.cfg.Settings.Question}
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asking = slices.DeleteFunc(r.asking, func(o *asking) bool { return o == a })
	return a.answers, err
}

// questions returns what the program asks, if none of its calls is being made any more. r.mu is held.
func (r *run) questions() (all []tool.Question) {
	if r.busy > 0 {
		return nil
	}
	for _, a := range r.asking {
		for _, q := range a.questions {
			if _, ok := a.answers[q.Key]; !ok {
				q.Key = a.prefix + q.Key
				all = append(all, q)
			}
		}
	}
	return all
}

// answer passes on the answers of the caller. r.mu is held.
func (r *run) answer(answers map[string]tool.Answer) {
	for _, a := range r.asking {
		missing := 0
		for _, q := range a.questions {
			if _, ok := a.answers[q.Key]; ok {
				continue
			}
			if v, ok := answers[a.prefix+q.Key]; ok {
				a.answers[q.Key] = v
			} else {
				missing++
			}
		}
		if missing == 0 {
			select {
			case <-a.answered:
			default:
				close(a.answered)
				r.asking = slices.DeleteFunc(slices.Clone(r.asking), func(o *asking) bool { return o == a })
			}
		}
	}
}

// answeredKeys are the keys of answers that are not needed any more.
func answeredKeys(answers map[string]tool.Answer, open []tool.Question) (keys []string) {
	for k := range answers {
		if !slices.ContainsFunc(open, func(q tool.Question) bool { return q.Key == k }) {
			keys = append(keys, k)
		}
	}
	return keys
}

// Return implements toolchannel.Handler.
func (r *run) Return(m toolchannel.Message) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.returned != nil {
		return toolchannel.ErrReturned
	}
	r.returned = m.Result
	return nil
}

// valueOf returns the result of a call as a program sees it: its structured content, or else its text, which is
// never read as JSON.
func valueOf(res *tool.Result) (json.RawMessage, error) {
	if res.Raw != nil {
		return relayedValue(res.Raw)
	}
	if res.IsError {
		return nil, errors.New(textOf(res.Content))
	}
	if raw, ok := res.Structured.(json.RawMessage); ok {
		return raw, nil
	}
	return json.Marshal(textOf(res.Content))
}

// relayedValue is valueOf for a result of a package's server.
func relayedValue(raw json.RawMessage) (json.RawMessage, error) {
	var relayed struct {
		Content []struct {
			Type, Text, MIMEType, URI string
			Data                      string
			Resource                  struct{ Text, URI string }
		}
		Structured json.RawMessage `json:"structuredContent"`
		IsError    bool
	}
	if err := json.Unmarshal(raw, &relayed); err != nil {
		return nil, fmt.Errorf("its result cannot be read: %w", err)
	}
	var texts []string
	for _, b := range relayed.Content {
		switch {
		case b.Type == "text":
			texts = append(texts, b.Text)
		case b.Resource.Text != "":
			texts = append(texts, b.Resource.Text)
		default:
			texts = append(texts, mark(b.Type, b.MIMEType, b.URI+b.Resource.URI, len(b.Data)*3/4))
		}
	}
	text := strings.Join(texts, "\n")
	if relayed.IsError {
		return nil, errors.New(text)
	}
	if s := relayed.Structured; s != nil && string(s) != "null" {
		return s, nil
	}
	return json.Marshal(text)
}

func textOf(blocks []tool.Content) string {
	var texts []string
	for _, b := range blocks {
		if b.Text != "" || b.Type == "text" {
			texts = append(texts, b.Text)
		} else {
			texts = append(texts, mark(b.Type, b.MIME, b.URI, len(b.Data)))
		}
	}
	return strings.Join(texts, "\n")
}

// mark stands for a block that is no text.
func mark(kind, mime, uri string, bytes int) string {
	return "[" + strings.Join(slices.DeleteFunc([]string{
		kind, mime, uri, fmt.Sprintf("%d bytes", bytes),
	}, func(s string) bool { return s == "" }), ", ") + "]"
}

func errorText(err error) string {
	if ref, ok := errors.AsType[*tool.Refusal](err); ok {
		return ref.Text()
	}
	return err.Error()
}

package guardrail

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/exec/proc"
	"gatehouse/internal/mcp/rawjson"
)

const (
	mostAnswer   = 16 << 20 // bytes of a decision
	mostAtOnce   = 16       // questions to one hook; further ones wait within their deadline
	longestSaid  = 300      // bytes of a reason
	mostProgress = 64       // processes of one program
)

// Decisions of a hook.
const (
	decideAllow   = "allow"
	decideRefuse  = "refuse"
	decideRewrite = "rewrite"
)

// question is what a hook is asked, as JSON.
type question struct {
	Version int    `json:"guardrail"` // 1
	When    string `json:"when"`      // before or after
	Call
	Result json.RawMessage `json:"result,omitempty"`
}

// decision is what a hook answers.
type decision struct {
	Decision  string          `json:"decision"`
	Reason    string          `json:"reason,omitempty"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
}

func (d *decision) reason() string {
	if d.Reason == "" {
		return "no reason is given"
	}
	return displaytext.Cut(displaytext.Line(d.Reason), longestSaid, "...")
}

func (d *decision) partValue(part string) json.RawMessage {
	if part == Arguments {
		return d.Arguments
	}
	return d.Result
}

// hook is a Hook that can be asked.
type hook struct {
	*Hook
	client *http.Client
	secret func(string) (secret.Text, error)
	slots  chan struct{}
}

// validateHook validates a hook.
func (h *Hook) validateHook() error {
	u, err := url.Parse(h.URL)
	switch {
	case h.Name == "":
		return errors.New("name is missing")
	case (h.URL == "") == (len(h.Command) == 0):
		return errors.New("expected either url or command")
	case h.Deadline < 0 || h.Deadline > maxDeadline:
		return fmt.Errorf("deadline %v: expected 0 to %v", h.Deadline, maxDeadline)
	case h.URL == "" && h.Secret != "":
		return errors.New("secret is for an address; a program reads its own")
	case h.URL == "" && !filepath.IsAbs(h.Command[0]):
		return fmt.Errorf("command %q: expected an absolute path", h.Command[0])
	case h.URL == "":
		return nil
	case err != nil || u.Host == "" || u.User != nil:
		return fmt.Errorf("url %q: expected https://HOST/PATH", h.URL)
	case u.Scheme != "https" && !(u.Scheme == "http" && loopback(u.Hostname())):
		return fmt.Errorf("url %q: expected https, or http of this machine", h.URL)
	}
	return nil
}

func loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

func newHook(h *Hook, find func(string) (secret.Text, error)) *hook {
	if h.Deadline == 0 {
		h.Deadline = defaultDeadline
	}
	return &hook{Hook: h, secret: find, slots: make(chan struct{}, mostAtOnce), client: &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: mostAtOnce, IdleConnTimeout: 30 * time.Second,
			TLSHandshakeTimeout: 10 * time.Second, MaxResponseHeaderBytes: 64 << 10,
		},
		// What a call contains goes to the address of the settings alone.
		CheckRedirect: func(*http.Request,
			[]*http.Request) error {
			return errors.New("it redirects, which is not followed")
		},
	}}
}

// decide asks the hook. Each error means that it has not decided.
func (h *hook) decide(ctx context.Context, when string, c Call, value json.RawMessage) (d decision, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, h.Deadline, fmt.Errorf("no decision within %v", h.Deadline))
	defer cancel()
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	case <-ctx.Done():
		return d, context.Cause(ctx)
	}
	q := question{Version: 1, When: when, Call: c}
	if when == after {
		q.Result = value
	}
	text, err := json.Marshal(q)
	if err != nil {
		return d, err
	}
	ask := h.post
	if h.URL == "" {
		ask = h.runHook
	}
	answer, err := ask(ctx, text)
	switch {
	case ctx.Err() != nil:
		return d, context.Cause(ctx)
	case err != nil:
		return d, err
	}
	return parseDecision(answer, when)
}

// parseDecision reads a decision. What is not exactly one is an error.
func parseDecision(answer []byte, when string) (d decision, err error) {
	if err := rawjson.Check(answer, 0); err != nil {
		return d, fmt.Errorf("its answer is no JSON: %w", err)
	}
	r := json.NewDecoder(bytes.NewReader(answer))
	r.DisallowUnknownFields()
	if err := r.Decode(&d); err != nil {
		return d, fmt.Errorf("its answer is no decision: %w", err)
	}
	want, other := d.Arguments, d.Result
	if when == after {
		want, other = other, want
	}
	switch {
	case d.Decision != decideAllow && d.Decision != decideRefuse && d.Decision != decideRewrite:
		return d, fmt.Errorf("its decision is %.40q: expected allow, refuse or rewrite", d.Decision)
	case d.Decision == decideRewrite && (rawjson.Kind(want) != '{' || other != nil):
		return d, errors.New("it rewrites, and gives no object of what it was asked about")
	case d.Decision != decideRewrite && (want != nil || other != nil):
		return d, errors.New("it gives another value, and its decision is not rewrite")
	}
	return d, nil
}

func (h *hook) post(ctx context.Context, text []byte) ([]byte, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	q.Header.Set("Content-Type", "application/json")
	if h.Secret != "" {
		if h.secret == nil {
			return nil, errors.New("this host stores no secrets")
		}
		token, err := h.secret(h.Secret)
		if err != nil {
			return nil, fmt.Errorf("secret %s: %w", h.Secret, err)
		}
		q.Header.Set("Authorization", "Bearer "+token.Reveal())
	}
	w, err := h.client.Do(q)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err
		}
		return nil, err
	}
	defer w.Body.Close()
	if w.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answers %s", w.Status)
	}
	answer, err := io.ReadAll(io.LimitReader(w.Body, mostAnswer+1))
	if err == nil && len(answer) > mostAnswer {
		err = tooLong()
	}
	return answer, err
}

func tooLong() error { return fmt.Errorf("its answer has more than %d bytes", mostAnswer) }

// runHook starts the program, which ends with the question.
func (h *hook) runHook(ctx context.Context, text []byte) ([]byte, error) {
	var out limited
	child, err := proc.Start(ctx, proc.Spec{
		Path: h.Command[0], Args: h.Command[1:], Stdin: bytes.NewReader(text), Stdout: &out, Whole: true,
		Processes: mostProgress, Grace: time.Millisecond,
	})
	if err != nil {
		return nil, err
	}
	end, err := child.Wait()
	switch {
	case err != nil:
		return nil, err
	case out.over:
		return nil, tooLong()
	case end.Stopped != nil:
		return nil, end.Stopped
	case end.Code != 0 || end.Signal != "":
		return nil, fmt.Errorf("it ended with code %d%s", end.Code, strings.TrimRight(" "+end.Signal, " "))
	}
	return out.b.Bytes(), nil
}

// limited keeps at most mostAnswer bytes.
type limited struct {
	b    bytes.Buffer
	over bool
}

func (l *limited) Write(p []byte) (int, error) {
	if l.over = l.over || l.b.Len()+len(p) > mostAnswer; !l.over {
		l.b.Write(p)
	}
	return len(p), nil
}

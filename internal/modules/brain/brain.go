// Package brain is the module with which agents remember facts from one conversation to the next.
package brain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/files/index"
	"gatehouse/module"
	"gatehouse/tool"
)

// Config is what the module is given.
type Config struct {
	// Store has the facts. The module does not close it; nil means a store in memory.
	Store *index.Store `json:"-"`
}

type memory struct {
	store *index.Store
	own   bool // the store is closed with the module
	deps  module.Deps
	offer module.Offer

	mu       sync.Mutex
	watchers map[*watcher]struct{}
}

// watcher is a subscriber to the facts of an owner.
type watcher struct {
	owner, context string
	changed        func(meta json.RawMessage)
}

// factsURI is the resource with all facts of the caller.
const factsURI = "memory://facts"

// New returns what makes the module with a configuration.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		m := &memory{store: cfg.Store, deps: d, watchers: map[*watcher]struct{}{}}
		if m.store == nil {
			m.store, m.own = index.Open("", index.Options{}), true
		}
		m.offer.Tools = []tool.Tool{
			tool.New(tool.Def{
				Name: "brain_remember", Title: "Remember a fact", Effects: tool.Writes | tool.Idempotent,
				Description: "Stores a fact for later conversations, and tells which stored facts contradict it.",
				Help:        rememberHelp,
			}, m.remember),
			tool.New(tool.Def{
				Name: "brain_recall", Title: "Recall facts", Effects: tool.Reads,
				Description: "Finds stored facts that answer a question, with their source, age and contradictions.",
			}, m.recall),
			tool.New(tool.Def{
				Name: "brain_forget", Title: "Forget facts", Effects: tool.Writes | tool.Destroys | tool.Idempotent,
				Description: "Removes one of your facts by its id, or all about a subject.",
			}, m.forget),
			tool.New(tool.Def{
				Name: "brain_list", Title: "List facts", Effects: tool.Reads,
				Description: "Lists stored facts, the newest first.",
			}, m.listFacts),
		}
		m.offer.Resources = []module.Resource{{
			URI: factsURI, Name: "facts", Title: "Remembered facts", MIME: "application/json",
			Description: "All facts that you remember here. Supports subscriptions.",
			Read:        m.readFacts, Watch: m.watchFacts, Each: true,
		}}
		return m, nil
	}
}

const rememberHelp = `Stores one fact. When it returns, the fact is on disk.

- kind is fact, preference, decision, procedure or event. An event counts half after 30 days, a fact after 365;
  the others do not age. half_life_days overrides that, expires_days removes the fact after that time.
- subject is what the fact is about, such as build.command. Facts of one kind and subject with different texts are
  contradictions: both are kept and shown together, until one is removed. replace removes the others at once.
- source is where it is known from: a path, a URL, a person.
- Facts belong to you in this context; with shared, all callers of the context can recall them.`

// kinds are the kinds of facts with the time after which they count half; 0 means never.
var kinds = map[string]time.Duration{
	"fact": 365 * 24 * time.Hour, "event": 30 * 24 * time.Hour, "preference": 0, "decision": 0, "procedure": 0,
}

type rememberIn struct {
	Text    string  `json:"text" min:"1" max:"4000"`
	Kind    string  `json:"kind,omitempty" enum:"fact,preference,decision,procedure,event" default:"fact"`
	Subject string  `json:"subject,omitempty" max:"200" doc:"what it is about"`
	Source  string  `json:"source,omitempty" max:"500" doc:"where it is known from"`
	Shared  bool    `json:"shared,omitempty" doc:"let the callers of this context recall it"`
	Replace bool    `json:"replace,omitempty" doc:"remove other facts of this kind and subject"`
	Half    float64 `json:"half_life_days,omitempty" min:"0" max:"36500"`
	Expires float64 `json:"expires_days,omitempty" min:"0" max:"36500"`
}

type rememberOut struct {
	ID          int64     `json:"id"`
	Contradicts []factOut `json:"contradicts,omitempty"`
	Replaced    int       `json:"replaced,omitempty"`
	Warning     string    `json:"warning,omitempty"`
}

type factOut struct {
	ID          int64   `json:"id"`
	Kind        string  `json:"kind"`
	Subject     string  `json:"subject,omitempty"`
	Text        string  `json:"text"`
	Source      string  `json:"source,omitempty"`
	Made        string  `json:"made"`
	Expires     string  `json:"expires,omitempty"`
	Foreign     bool    `json:"foreign,omitempty" doc:"another caller of this context shared it"`
	Shared      bool    `json:"shared,omitempty"`
	Score       float64 `json:"score,omitempty"`
	Contradicts []int64 `json:"contradicts,omitempty" doc:"ids of facts that say something else about the subject"`
}

func newFactOut(f index.Fact, owner string) factOut {
	out := factOut{
		ID: f.ID, Kind: f.Kind, Subject: f.Subject, Text: f.Text, Source: f.Source, Made: f.Made.Format(time.RFC3339),
		Foreign: f.Owner != owner, Shared: f.Shared != "",
	}
	if !f.Expires.IsZero() {
		out.Expires = f.Expires.Format(time.RFC3339)
	}
	return out
}

func (m *memory) remember(ctx context.Context, c *tool.Call, in rememberIn) (out rememberOut, err error) {
	days := func(n float64) time.Duration { return time.Duration(n * 24 * float64(time.Hour)) }
	f := index.Fact{
		Owner: c.Caller.Owner, Kind: in.Kind, Subject: strings.TrimSpace(in.Subject), Text: strings.TrimSpace(in.Text),
		Source: in.Source, Halves: kinds[in.Kind],
	}
	if f.Text == "" {
		return out, &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: "text is blank",
			Next:    "Give the fact as text.",
		}
	}
	if in.Half > 0 {
		f.Halves = days(in.Half)
	}
	if in.Expires > 0 {
		f.Expires = time.Now().Add(days(in.Expires))
	}
	if in.Shared {
		f.Shared = c.Caller.Context
	}
	var others []int64
	out.ID, others, err = m.store.Remember(ctx, f)
	if errors.Is(err, index.ErrFull) {
		return out, &tool.Refusal{Code: tool.CodeTooMany, Message: err.Error(), Next: "Remove some with brain_forget."}
	}
	if err != nil {
		return out, err
	}
	defer m.tell(c.Caller, f.Shared != "")
	if !m.store.Durable() {
		out.Warning = "this host has no data folder; the fact is lost when the host stops"
	}
	if in.Replace {
		for _, id := range others {
			if _, err := m.store.Forget(ctx, c.Caller.Owner, id, ""); err != nil {
				return out, err
			}
			out.Replaced++
		}
		return out, nil
	}
	if len(others) == 0 {
		return out, nil
	}
	all, err := m.store.Facts(ctx, c.Caller.Owner, "", f.Kind, f.Subject)
	for _, other := range all {
		if other.ID != out.ID {
			out.Contradicts = append(out.Contradicts, newFactOut(other, c.Caller.Owner))
		}
	}
	return out, err
}

type recallIn struct {
	Question string `json:"question" min:"1" max:"4000"`
	Kind     string `json:"kind,omitempty" enum:"fact,preference,decision,procedure,event"`
	Limit    int    `json:"limit,omitempty" default:"10" min:"1" max:"100"`
}

type factsOut struct {
	Facts []factOut `json:"facts"`
	More  int       `json:"more,omitempty" doc:"facts that were left out"`
}

func (m *memory) recall(ctx context.Context, c *tool.Call, in recallIn) (factsOut, error) {
	out := factsOut{Facts: []factOut{}}
	found, err := m.store.Recall(ctx, c.Caller.Owner, c.Caller.Context, in.Kind, in.Question, in.Limit)
	for _, f := range found {
		o := newFactOut(f.Fact, c.Caller.Owner)
		o.Score, o.Contradicts = float64(int(f.Score*1000))/1000, f.Contradicts
		out.Facts = append(out.Facts, o)
	}
	return out, err
}

type forgetIn struct {
	ID      int64  `json:"id,omitempty" min:"0"`
	Subject string `json:"subject,omitempty" max:"200" example:"deadlines" doc:"instead of id: all facts about it"`
}

type forgetOut struct {
	Removed int64 `json:"removed"`
}

func (m *memory) forget(ctx context.Context, c *tool.Call, in forgetIn) (forgetOut, error) {
	if (in.ID == 0) == (in.Subject == "") {
		return forgetOut{}, &tool.Refusal{
			Code: tool.CodeInvalidArguments, Message: "one of id and subject is required",
			Next: "brain_list shows both.",
		}
	}
	n, err := m.store.Forget(ctx, c.Caller.Owner, in.ID, in.Subject)
	if err == nil && n == 0 {
		return forgetOut{}, &tool.Refusal{
			Code: tool.CodeNotFound, Message: "you have no such fact",
			Next: "brain_list shows yours; shared ones of others stay.",
		}
	}
	m.tell(c.Caller, true)
	return forgetOut{n}, err
}

type listIn struct {
	Kind    string `json:"kind,omitempty" enum:"fact,preference,decision,procedure,event"`
	Subject string `json:"subject,omitempty" max:"200"`
	Limit   int    `json:"limit,omitempty" default:"50" min:"1" max:"500"`
}

func (m *memory) listFacts(ctx context.Context, c *tool.Call, in listIn) (factsOut, error) {
	out := factsOut{Facts: []factOut{}}
	all, err := m.store.Facts(ctx, c.Caller.Owner, c.Caller.Context, in.Kind, in.Subject)
	for _, f := range all[:min(len(all), in.Limit)] {
		out.Facts = append(out.Facts, newFactOut(f, c.Caller.Owner))
	}
	out.More = len(all) - len(out.Facts)
	return out, err
}

// readFacts reads the resource of all facts, at most 500.
func (m *memory) readFacts(ctx context.Context, c *tool.Call) (tool.Result, error) {
	out, err := m.listFacts(ctx, c, listIn{Limit: 500})
	if err != nil {
		return tool.Result{}, err
	}
	b, err := json.Marshal(out)
	return tool.Result{Content: []tool.Content{tool.TextResource(factsURI, "application/json", string(b))}}, err
}

func (m *memory) watchFacts(c tool.Caller, _ string, changed func(json.RawMessage)) (func(), error) {
	w := &watcher{c.Owner, c.Context, changed}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watchers[w] = struct{}{}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watchers, w)
	}, nil
}

// tell reports a change to the subscribers of an owner, or of the whole context.
func (m *memory) tell(c tool.Caller, shared bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for w := range m.watchers {
		if w.owner == c.Owner || shared && w.context == c.Context {
			w.changed(nil)
		}
	}
}

// Offer implements module.Module.
func (m *memory) Offer(context.Context, module.Audience) (*module.Offer, error) { return &m.offer, nil }

// Close implements module.Module.
func (m *memory) Close(context.Context) error {
	if m.own {
		return m.store.Close()
	}
	return nil
}

// EndOwned implements module.Owned: it removes the facts of removed owners.
func (m *memory) EndOwned(ctx context.Context, match func(owner string, made time.Time) bool) []string {
	n, err := m.store.OwnedFacts(ctx, func(f index.Fact) (string, bool) { return "", match(f.Owner, f.Made) })
	m.logFailure("cannot remove the facts of a removed user", err)
	return lines(n)
}

// HandOver implements module.Transferable.
func (m *memory) HandOver(ctx context.Context, heir module.Heir) []string {
	n, err := m.store.OwnedFacts(ctx, func(f index.Fact) (string, bool) { return heir(f.Owner, f.Made), false })
	m.logFailure("cannot hand over facts", err)
	return lines(n)
}

func lines(n int) []string {
	if n == 0 {
		return nil
	}
	return []string{fmt.Sprintf("facts: %s", strconv.Itoa(n))}
}

func (m *memory) logFailure(what string, err error) {
	if err != nil && m.deps.Log != nil {
		m.deps.Log.Error(what, "err", err)
	}
}

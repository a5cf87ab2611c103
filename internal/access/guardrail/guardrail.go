// Package guardrail judges the arguments and results of calls: it finds secrets and personal data in them, and asks
// programs and addresses of the administrator, which may allow, refuse or rewrite.
//
// What is promised: a hook that does not answer in time, or with something else than an answer,
// refuses the call. What is not: the scanner finds what has the form of a secret, plain or in one
// layer of base64, hexadecimal or percent encoding; data that is encrypted, split over several
// values or written in words passes it. Package dispatch asks for each call; config holds the
// settings.
package guardrail

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/access/secret"
)

// Settings are the guardrails of a host. Without any, nothing is judged.
type Settings struct {
	Scan  []ScanRule `yaml:"scan" doc:"What is searched for in arguments and results, and what is done when it is found. All rules that match a call apply."`
	Hooks []Hook     `yaml:"hooks" doc:"Programs and addresses that are asked before and after calls, in their order."`
}

// ScanRule says what is searched for in which calls.
type ScanRule struct {
	Name     string   `yaml:"name" doc:"Name of the rule in the ledger."`
	Contexts []string `yaml:"contexts" doc:"Patterns of contexts; empty means all."`
	Modules  []string `yaml:"modules" doc:"Names of modules; empty means all."`
	Names    []string `yaml:"names" doc:"Patterns of tools and prompts by their own names, or of URIs; empty means all."`
	In       []string `yaml:"in" doc:"Where it is searched for; empty means both." enum:"arguments,results"`
	Find     []string `yaml:"find" doc:"What is searched for: secrets, personal, or single kinds of them." enum:"secrets,personal,private-key,aws-key,github-token,gitlab-token,slack-token,stripe-key,google-key,model-key,registry-token,jwt,url-password,bearer,password,email,card,iban,us-ssn,phone" need:"yes"`
	Then     string   `yaml:"then" doc:"mask replaces what is found; warn lets it pass and records it; refuse refuses the call or withholds the result." enum:"mask,warn,refuse" need:"yes"`
}

// Hook is a program or an address that judges calls.
type Hook struct {
	Name     string        `yaml:"name" doc:"Name of the hook in the ledger and in refusals." need:"yes"`
	Contexts []string      `yaml:"contexts" doc:"Patterns of contexts; empty means all."`
	Modules  []string      `yaml:"modules" doc:"Names of modules; empty means all."`
	Names    []string      `yaml:"names" doc:"Patterns of tools and prompts by their own names, or of URIs; empty means all."`
	When     []string      `yaml:"when" doc:"before a call runs, with its arguments; after it, with its result; empty means both." enum:"before,after"`
	URL      string        `yaml:"url" doc:"Address that the question is posted to: https, or http on this machine."`
	Secret   string        `yaml:"secret" doc:"Name of a stored secret that is sent to the address as a bearer token."`
	Command  []string      `yaml:"command" doc:"Program and arguments, started for each question, which it reads from standard input."`
	Deadline time.Duration `yaml:"deadline" doc:"How long a decision may take; 0 means 2 s, at most 30 s. A call whose hook has not decided then is refused."`
}

// What is done when something is found.
const (
	Mask   = "mask"
	Warn   = "warn"
	Refuse = "refuse"
)

// Parts of a call.
const (
	Arguments = "arguments"
	Results   = "results"
)

const (
	before = "before"
	after  = "after"

	defaultDeadline = 2 * time.Second
	maxDeadline     = 30 * time.Second
	mostRules       = 200
	mostCached      = 4096 // operations whose rules are remembered
)

// Validate reports each mistake with the path of its setting below guardrails.
func (s Settings) Validate(report func(path, text string)) {
	if len(s.Scan)+len(s.Hooks) > mostRules {
		report("", fmt.Sprintf("at most %d rules and hooks", mostRules))
	}
	for i, r := range s.Scan {
		at := fmt.Sprintf("scan[%d]", i)
		if _, err := newScanner(r.Find); err != nil {
			report(at+".find", err.Error())
		}
		if !slices.Contains([]string{Mask, Warn, Refuse}, r.Then) {
			report(at+".then", fmt.Sprintf("%q: expected mask, warn or refuse", r.Then))
		}
		checkPatterns(at, append(slices.Clone(r.Contexts), r.Names...), report)
	}
	for i := range s.Hooks {
		h := &s.Hooks[i]
		at := fmt.Sprintf("hooks[%d]", i)
		if err := h.validateHook(); err != nil {
			report(at, err.Error())
		}
		checkPatterns(at, append(slices.Clone(h.Contexts), h.Names...), report)
	}
}

func checkPatterns(at string, patterns []string, report func(path, text string)) {
	for _, p := range patterns {
		if _, err := path.Match(p, ""); err != nil {
			report(at, fmt.Sprintf("%q is no pattern", p))
		}
	}
}

// Options are for New.
type Options struct {
	Settings Settings
	// Secret returns a stored secret; nil means that there are none.
	Secret func(name string) (secret.Text, error)
	Log    *slog.Logger // nil discards
}

// Guards are the guardrails of a host. They are safe for concurrent use.
type Guards struct {
	scans []*scan
	hooks []*hook
	log   *slog.Logger

	mu     sync.Mutex
	cached map[operation]*Guard
}

type operation struct{ context, module, name string }

// scan is a ScanRule with its scanner.
type scan struct {
	*ScanRule
	scanner *Scanner
}

// New returns the guardrails of the settings; nil if there are none.
func New(o Options) (*Guards, error) {
	s := o.Settings
	if len(s.Scan)+len(s.Hooks) == 0 {
		return nil, nil
	}
	var errs []error
	s.Validate(func(path, text string) { errs = append(errs, fmt.Errorf("guardrails.%s: %s", path, text)) })
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	g := &Guards{log: o.Log, cached: map[operation]*Guard{}}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	for i := range s.Scan {
		r := &s.Scan[i]
		if r.Name == "" {
			r.Name = fmt.Sprintf("scan %d", i+1)
		}
		sc, err := newScanner(r.Find)
		if err != nil {
			return nil, err
		}
		g.scans = append(g.scans, &scan{r, sc})
	}
	for i := range s.Hooks {
		g.hooks = append(g.hooks, newHook(&s.Hooks[i], o.Secret))
	}
	return g, nil
}

// Guard judges the calls of one operation in one context.
type Guard struct {
	scans map[string][]*scan // by part
	hooks map[string][]*hook // by when
	log   *slog.Logger
}

// For returns what judges an operation; nil if nothing does.
func (g *Guards) For(context, module, name string) *Guard {
	if g == nil {
		return nil
	}
	key := operation{context, module, name}
	g.mu.Lock()
	defer g.mu.Unlock()
	one, known := g.cached[key]
	if known {
		return one
	}
	one = &Guard{scans: map[string][]*scan{}, hooks: map[string][]*hook{}, log: g.log}
	for _, s := range g.scans {
		if matches(s.Contexts, s.Modules, s.Names, key) {
			for _, part := range either(s.In, Arguments, Results) {
				one.scans[part] = append(one.scans[part], s)
			}
		}
	}
	for _, h := range g.hooks {
		if matches(h.Contexts, h.Modules, h.Names, key) {
			for _, when := range either(h.When, before, after) {
				one.hooks[when] = append(one.hooks[when], h)
			}
		}
	}
	if len(one.scans)+len(one.hooks) == 0 {
		one = nil
	}
	if len(g.cached) >= mostCached {
		clear(g.cached)
	}
	g.cached[key] = one
	return one
}

func either(given []string, all ...string) []string {
	if len(given) == 0 {
		return all
	}
	return given
}

func matches(contexts, modules, names []string, o operation) bool {
	return matchesOne(contexts, o.context) && (len(modules) == 0 || slices.Contains(modules, o.module)) &&
		matchesOne(names, o.name)
}

func matchesOne(patterns []string, name string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool {
		ok, _ := path.Match(p, name)
		return ok || p == "*"
	})
}

// Judges reports whether anything judges a part.
func (g *Guard) Judges(part string) bool {
	return g != nil && (len(g.scans[part]) > 0 || len(g.hooks[whenOf(part)]) > 0)
}

func whenOf(part string) string {
	if part == Arguments {
		return before
	}
	return after
}

// Call is what a hook is told about a call.
type Call struct {
	ID        string          `json:"call"`
	Method    string          `json:"method"`
	Context   string          `json:"context"`
	Principal string          `json:"principal"`
	Module    string          `json:"module"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
}

// Event is what a rule or a hook did to a call. It names kinds and counts, never what was found.
type Event struct {
	Rule    string // or hook
	Part    string
	Outcome string // masked, warned, refused, or rewritten
	Reason  string
}

// Verdict is the decision about a part of a call.
type Verdict struct {
	Value   json.RawMessage // as it may go on
	Changed bool
	Events  []Event
	// Refused says why the call or its result is refused; "" allows it. Value is masked then, for the ledger.
	Refused string
}

// Judge decides about a part of a call, which is JSON. The scanners see it before the hooks, and again what a hook has
// rewritten.
func (g *Guard) Judge(ctx context.Context, part string, c Call, value json.RawMessage) Verdict {
	v := Verdict{Value: value}
	if !g.Judges(part) {
		return v
	}
	g.scanJSON(part, &v)
	for _, h := range g.hooks[whenOf(part)] {
		if v.Refused != "" {
			return v
		}
		if part == Arguments {
			c.Arguments = v.Value
		}
		d, err := h.decide(ctx, whenOf(part), c, v.Value)
		switch {
		case err != nil:
			g.log.Warn("a guardrail could not decide; the call is refused", "hook", h.Name, "call", c.ID, "err", err)
			v.refuse(h.Name, part, fmt.Sprintf("the guardrail %s could not decide: %v", h.Name, err))
		case d.Decision == decideRefuse:
			v.refuse(h.Name, part, fmt.Sprintf("the guardrail %s refuses it: %s", h.Name, d.reason()))
		case d.Decision == decideRewrite:
			v.Value, v.Changed = d.partValue(part), true
			v.Events = append(v.Events, Event{h.Name, part, "rewritten", d.reason()})
			g.scanJSON(part, &v)
		}
	}
	return v
}

func (v *Verdict) refuse(rule, part, why string) {
	v.Refused = why
	v.Events = append(v.Events, Event{rule, part, "refused", why})
}

// scanJSON applies the scanners to JSON.
func (g *Guard) scanJSON(part string, v *Verdict) {
	for _, s := range g.scans[part] {
		masked, found := s.scanner.JSON(v.Value)
		s.applyRule(v, part, found, func() { v.Value, v.Changed = masked, true })
	}
}

// Text applies the scanners to a text that is no JSON, and adds what they did to v.
func (g *Guard) Text(part, text string, v *Verdict) string {
	for _, s := range g.scans[part] {
		masked, found := s.scanner.Text(text)
		s.applyRule(v, part, found, func() { text, v.Changed = masked, true })
	}
	return text
}

// applyRule does what the rule says if something was found.
func (s *scan) applyRule(v *Verdict, part string, found Found, mask func()) {
	if len(found) == 0 {
		return
	}
	what := part + " contain " + found.String()
	switch s.Then {
	case Refuse:
		mask() // for the ledger
		v.refuse(s.Name, part, what)
	case Warn:
		v.Events = append(v.Events, Event{s.Name, part, "warned", what})
	default:
		mask()
		v.Events = append(v.Events, Event{s.Name, part, "masked", what})
	}
}

// Found are the kinds that were found, with how often.
type Found map[string]int

func (f Found) String() string {
	var all []string
	for _, kind := range slices.Sorted(maps.Keys(f)) {
		text := kind
		if f[kind] > 1 {
			text = fmt.Sprintf("%s (%d)", kind, f[kind])
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

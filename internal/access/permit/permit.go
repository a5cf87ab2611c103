// Package permit decides which caller may do what. No other package allows an operation.
//
// A policy is a list of rules; the first rule that matches decides. Rules that depend only on the
// caller and the operation are evaluated when a view is built; only rules that read arguments cost time
// per call. If no rule matches, the Default of the policy applies, which is to allow in the default
// settings. If a rule cannot be evaluated, the call is refused.
package permit

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/tool"
)

// Kind is the kind of a verdict. The zero value refuses.
type Kind uint8

const (
	Refuse      Kind = iota
	AskOperator      // an operator of this host must approve
	AskClient        // the user of the client must approve
	Stage            // it runs, and what it changes in folders waits for a person's review
	Allow
)

var kinds = [...]string{
	Refuse: "refuse", AskOperator: "ask-operator", AskClient: "ask-client", Stage: "stage", Allow: "allow",
}

func (k Kind) String() string { return kinds[k] }

// ParseKind parses a kind: refuse, ask-operator, ask-client (or ask), stage and allow.
func ParseKind(name string) (Kind, error) {
	if name == "ask" {
		return AskClient, nil
	}
	if i := slices.Index(kinds[:], name); i >= 0 {
		return Kind(i), nil
	}
	return Refuse, fmt.Errorf("%q: expected allow, stage, ask, ask-operator or refuse", name)
}

// Verdict is a decision and its origin.
type Verdict struct {
	Kind     Kind
	Rule     string        // the rule that decided; for the ledger
	Reason   string        // for the caller; reveals nothing that the caller must not know
	Remember time.Duration // how long an approval lasts for the same call; 0 means for one call

	unstaged bool // it asks because this machine cannot stage the call
}

// Rule is one rule of a policy. Empty fields match everything; patterns are those of path.Match.
type Rule struct {
	Name       string
	Contexts   []string     // patterns
	Principals []string     // patterns
	Roles      []string     // of which the caller has one
	Methods    []string     // tools/call and so on; empty means tools/call
	Modules    []string     // names
	Names      []string     // patterns of tool and prompt names in the module, or of URIs
	Effects    tool.Effects // of which the operation has one; 0 matches all
	When       string       // an expression over args, caller and op; "" means always
	Then       Kind
	Reason     string
	Remember   time.Duration
	// Own marks a rule of a context itself, in addition to the host's rules. The two sorts are
	// evaluated separately: if a rule of either matches, the stricter verdict holds, so that an own
	// rule never allows what the host's rules refuse.
	Own bool
}

// Access states which callers may enter a context.
type Access struct {
	Context string
	Roles   []string // the caller has one of them, or matches Users
	Users   []string // patterns of principals
	KnownTo []string // roles that may see that it exists without entering
}

// Options configures a Policy.
type Options struct {
	Rules    []Rule
	Access   []Access // contexts that are not named are open to all callers
	ReadOnly bool     // refuses every tool that is not declared to change nothing
	Default  Kind     // if no rule matches
	// Staging are the contexts in which Stage applies if no rule matches.
	Staging map[string]bool
	// Unattended reports whether Stage also applies in a context, if no rule matches, to callers of which the host
	// knows that no person is beside them, and with all also to those whose client cannot ask a person, and that are
	// none. nil means in no context.
	Unattended func(context string) (known, all bool)
	// Unstageable returns why a program that a call names cannot do its work where calls are staged, "" if it can; nil
	// means that all can. Such a call asks instead.
	Unstageable func(Command) string
	// CannotStage returns why this host stages nothing or, with programs, no call that starts some, "" if it does; nil
	// means that it does. It is called if a rule stages calls.
	CannotStage func(programs bool) string
	// Host resolves the paths and commands in the arguments of a call, for expressions over op.paths
	// and op.commands. With nil nothing can be resolved.
	Host Host
}

// Policy is a set of rules. It is immutable; a change makes a new one.
type Policy struct {
	opts       Options
	rules      []rule
	roles      map[string]bool // named by some rule or access
	principals []string        // patterns named by some rule or access
}

// rule is a Rule with its compiled expression.
type rule struct {
	*Rule
	when *expression // nil means always
}

// New compiles a policy. The error names the rule and its mistake.
func New(o Options) (*Policy, error) {
	p := &Policy{opts: o, roles: map[string]bool{}}
	var errs []error
	for i := range o.Rules {
		r := &o.Rules[i]
		if r.Name == "" {
			r.Name = fmt.Sprintf("rule %d", i+1)
		}
		c, err := compileRule(r)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", r.Name, err))
			continue
		}
		p.rules = append(p.rules, c)
		p.addNames(r.Roles, r.Principals)
	}
	for _, a := range o.Access {
		if err := checkPatterns(a.Users); err != nil {
			errs = append(errs, fmt.Errorf("context %s: users: %w", a.Context, err))
		}
		p.addNames(a.Roles, a.Users)
		p.addNames(a.KnownTo, nil)
	}
	slices.Sort(p.principals)
	p.principals = slices.Compact(p.principals)
	return p, errors.Join(errs...)
}

// Open returns the policy of a host without rules: every caller may do everything or, with readOnly,
// everything that changes nothing.
func Open(readOnly bool) *Policy {
	p, _ := New(Options{ReadOnly: readOnly, Default: Allow})
	return p
}

func (p *Policy) addNames(roles, principals []string) {
	for _, r := range roles {
		p.roles[r] = true
	}
	p.principals = append(p.principals, principals...)
}

func compileRule(r *Rule) (rule, error) {
	for what, ps := range map[string][]string{"contexts": r.Contexts, "principals": r.Principals, "names": r.Names} {
		if err := checkPatterns(ps); err != nil {
			return rule{}, fmt.Errorf("%s: %w", what, err)
		}
	}
	if r.When == "" {
		return rule{r, nil}, nil
	}
	e, err := compileExpression(r.When)
	if err != nil {
		return rule{}, fmt.Errorf("when: %w", err)
	}
	return rule{r, e}, nil
}

func checkPatterns(ps []string) error {
	for _, p := range ps {
		if _, err := path.Match(p, ""); err != nil {
			return fmt.Errorf("%q is not a pattern; expected a name such as file_read, or file_* for all that begin so",
				p)
		}
	}
	return nil
}

func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, _ := path.Match(p, name)
		return ok || p == "*"
	})
}

// Op is an operation, before its arguments are known.
type Op struct {
	Context, Method, Module, Name string
	Effects                       tool.Effects
	Tool                          *tool.Tool // nil unless it is the call of a tool
}

// Gate compiles the rules that apply to one operation for one cut. It is called once, when a view is
// built.
func (p *Policy) Gate(cut Cut, op Op) *Gate {
	g := &Gate{
		op:          op,
		who:         cut.parseCut(),
		host:        p.opts.Host,
		unstageable: p.opts.Unstageable,
	}
	g.otherwise = Verdict{Kind: p.opts.Default, Rule: "default"}
	if p.opts.Staging[op.Context] && g.otherwise.Kind == Allow {
		g.otherwise = Verdict{Kind: Stage, Rule: "context " + op.Context}
	}
	if g.otherwise.Kind == Allow && p.opts.Unattended != nil && op.Method == "tools/call" && !op.Effects.ReadOnly() {
		var known bool
		if known, g.aloneAll = p.opts.Unattended(op.Context); known || g.aloneAll {
			g.alone = sync.OnceValue(func() Verdict { // because a host without such callers need not know whether it can stage
				v := p.settled(op, Verdict{Kind: Stage, Rule: "unattended"})
				if v.Kind == AskClient {
					v.Kind = AskOperator
				}
				return v
			})
		}
	}
	g.otherwise = p.settled(op, g.otherwise)
	if reason, ok := p.barred(g.who, op); ok {
		g.hosts = chain{last: &Verdict{Kind: Refuse, Rule: "scope", Reason: reason}}
		return g
	}
	for i := range p.rules {
		r := &p.rules[i]
		c := &g.hosts
		if r.Own {
			c = &g.own
		}
		if c.last == nil && r.concerns(p, g.who, op) {
			c.addRule(r, p.settled(op, r.verdict()))
			if r.when != nil {
				g.needs = g.needs.or(r.when.needs)
			}
		}
	}
	return g
}

// settled returns a verdict that can be carried out. Only calls of tools can wait for an approval, so
// for other operations a verdict that asks becomes a refusal, and everything that is listed can be
// used.
//
// A call that cannot be staged, because the host cannot or because it has effects elsewhere, asks the user instead. A
// tool that only reads has nothing that could be staged: it runs, and sees the changes of the task.
func (p *Policy) settled(op Op, v Verdict) Verdict {
	if v.Kind == Stage && op.Method == "tools/call" && !op.Effects.ReadOnly() {
		why := ""
		if p.opts.CannotStage != nil {
			why = p.opts.CannotStage(op.Tool != nil && op.Tool.Programs)
		}
		v.unstaged = why != "" && op.Tool != nil && op.Tool.Staged
		if why == "" && (op.Tool == nil || !op.Tool.Staged) {
			why = "what it does is not limited to folders, so it cannot be staged"
			if op.Tool != nil && op.Tool.Unstaged != "" {
				why = op.Tool.Unstaged
			}
		}
		if why != "" {
			v.Kind, v.Reason = AskClient, strings.TrimPrefix(v.Reason+"; "+why, "; ")
		}
	}
	if op.Method != "tools/call" && (v.Kind == AskClient || v.Kind == AskOperator) {
		v.Kind = Refuse
		if v.Reason == "" {
			v.Reason = "it needs an approval, and only the call of a tool can be approved"
		}
	}
	return v
}

// chain is a sequence of rules; the first that matches decides.
type chain struct {
	rules []conditional // they read arguments
	last  *Verdict      // applies if none of them matches; nil means that no rule decides
}

func (r *rule) verdict() Verdict {
	return Verdict{Kind: r.Then, Rule: r.Name, Reason: r.Reason, Remember: r.Remember}
}

func (c *chain) addRule(r *rule, v Verdict) {
	if r.when == nil {
		c.last = &v
		return
	}
	c.rules = append(c.rules, conditional{r.when, v})
}

// passes reports whether some arguments get a verdict other than a refusal.
func (c *chain) passes() bool {
	return c.last != nil && c.last.Kind != Refuse ||
		slices.ContainsFunc(c.rules, func(c conditional) bool { return c.verdict.Kind != Refuse })
}

// silent reports whether some arguments get no verdict.
func (c *chain) silent() bool { return c.last == nil }

// decide returns the verdict of the first rule that matches, nil if none does.
func (c *chain) decide(in map[string]any) *Verdict {
	for i := range c.rules {
		r := &c.rules[i]
		if in == nil {
			return &Verdict{Kind: Refuse, Rule: r.verdict.Rule,
				Reason: "a rule cannot be evaluated for these arguments"}
		}
		yes, err := r.when.holds(in)
		if err != nil {
			yes = r.verdict.Kind != Allow
		}
		if yes {
			return &r.verdict
		}
	}
	return c.last
}

// barred returns what no rule can allow: writing on a read-only host, and operations outside the
// credential's scopes.
func (p *Policy) barred(w who, op Op) (reason string, barred bool) {
	if p.opts.ReadOnly && op.Method == "tools/call" && !op.Effects.ReadOnly() {
		return "this host is read-only", true
	}
	if len(w.scopes) > 0 && !slices.ContainsFunc(w.scopes, func(s string) bool { return covers(s, op) }) {
		return "the credential's scope does not cover it", true
	}
	return "", false
}

func (r *rule) concerns(p *Policy, w who, op Op) bool {
	methods := r.Methods
	if methods == nil {
		methods = []string{"tools/call"}
	}
	switch {
	case !slices.Contains(methods, op.Method) && !slices.Contains(methods, "*"),
		len(r.Contexts) > 0 && !matches(r.Contexts, op.Context),
		len(r.Principals) > 0 && !p.isOneOf(w, r.Principals),
		len(r.Roles) > 0 && !w.hasRole(r.Roles),
		len(r.Modules) > 0 && !slices.Contains(r.Modules, op.Module) && !r.usesFormerName(op.Module),
		len(r.Names) > 0 && !matches(r.Names, op.Name),
		r.Effects != 0 && effective(op.Effects)&r.Effects == 0:
		return false
	}
	return true
}

// formerModules are the names that modules had before, by their names now.
// Rules written before the change must still apply.
var formerModules = map[string]string{"resources": "house"}

func (r *rule) usesFormerName(module string) bool {
	former, ok := formerModules[module]
	return ok && slices.Contains(r.Modules, former)
}

// effective returns the effects that rules compare: an operation that declares none has the worst.
func effective(e tool.Effects) tool.Effects {
	if e == 0 {
		return tool.Writes | tool.Destroys | tool.OpenWorld
	}
	return e
}

// Gate is the compiled decision for one entry of a view. Listing and calling use the same gate. nil
// refuses.
type Gate struct {
	op         Op
	who        who
	host       Host
	needs      needs // of all rules that read arguments
	hosts, own chain
	otherwise  Verdict        // if neither chain decides
	alone      func() Verdict // instead of otherwise for a caller that no person is beside; nil makes no difference
	aloneAll   bool           // also for one of which that is not known

	unstageable func(Command) string
}

type conditional struct {
	when    *expression
	verdict Verdict
}

// Listed reports whether some arguments would not be refused. It does not compare rules that read
// arguments with each other.
func (g *Gate) Listed() bool {
	if g == nil {
		return false
	}
	h, o := &g.hosts, &g.own
	return h.passes() && (o.passes() || o.silent()) || h.silent() && o.passes() ||
		h.silent() && o.silent() && g.otherwise.Kind != Refuse
}

// Stages reports whether calls are staged unless a rule that reads their arguments decides otherwise.
func (g *Gate) Stages() bool {
	v := g.usual()
	return v != nil && v.Kind == Stage && !g.op.Effects.ReadOnly()
}

// Unstaged reports whether calls would be staged unless a rule that reads their arguments decides otherwise, and ask
// because this machine cannot stage them.
func (g *Gate) Unstaged() bool {
	v := g.usual()
	return v != nil && v.unstaged
}

// usual returns the verdict unless a rule that reads arguments decides; nil if there is none.
func (g *Gate) usual() *Verdict {
	if g == nil {
		return nil
	}
	v := &g.otherwise
	switch h, o := g.hosts.last, g.own.last; {
	case h == nil && o == nil:
	case h == nil || o != nil && o.Kind < h.Kind:
		v = o
	default:
		v = h
	}
	return v
}

// Decide decides one call by its canonical arguments. If an expression cannot be evaluated, a rule that
// restricts applies and a rule that allows does not. Paths are resolved in the folders of caller; with
// nil, rules over op.paths and op.commands cannot be evaluated.
func (g *Gate) Decide(args json.RawMessage, caller *tool.Caller) Verdict {
	if g == nil {
		return Verdict{Rule: "none"}
	}
	v := g.decide(args, caller)
	if v.Kind != Stage || g.unstageable == nil || g.host == nil || caller == nil || g.op.Tool == nil || !g.op.Tool.Programs {
		return v
	}
	all, err := g.host.Commands(caller, g.op, args)
	if err != nil {
		return v // it cannot be said what the call runs, which may do no more than other programs of a task
	}
	for _, c := range all {
		if why := g.unstageable(c); why != "" {
			v.Kind, v.Reason = AskClient, strings.TrimPrefix(v.Reason+"; "+why, "; ")
			if g.alone != nil && v.Rule == "unattended" {
				v.Kind = AskOperator
			}
			break
		}
	}
	return v
}

func (g *Gate) decide(args json.RawMessage, caller *tool.Caller) Verdict {
	var in map[string]any // nil if the arguments cannot be decoded: then every rule that reads them refuses
	if len(g.hosts.rules)+len(g.own.rules) > 0 {
		in, _ = inputs(g, args, caller)
	}
	a, b := g.hosts.decide(in), g.own.decide(in)
	switch {
	case a == nil && b == nil:
		if g.alone != nil && caller != nil && (caller.Unattended ||
			g.aloneAll && caller.Can&(tool.CanElicit|tool.Attended) == 0 && !caller.Person) {
			return g.alone()
		}
		return g.otherwise
	case a == nil || b != nil && b.Kind < a.Kind:
		return *b
	}
	return *a
}

// covers reports whether a scope includes an operation. A scope is "*", "read" (everything that changes
// nothing), or kind:pattern with a kind of tools, resources or prompts. MetricsScope includes none.
func covers(scope string, op Op) bool {
	switch scope {
	case "*":
		return true
	case "read":
		return op.Method != "tools/call" || op.Effects.ReadOnly()
	}
	kind, pattern, _ := strings.Cut(scope, ":")
	prefix := map[string]string{"tools": "tools/", "resources": "resources/", "prompts": "prompts/"}[kind]
	return prefix != "" && strings.HasPrefix(op.Method, prefix) && matches([]string{pattern}, op.Name)
}

// MetricsScope lets a credential read the metrics and the state of this host, and nothing else.
const MetricsScope = "metrics"

// Watches reports whether a caller may read the metrics and the state of this host: an administrator,
// unless the credential has other scopes, or a caller whose credential has MetricsScope.
func Watches(c tool.Caller, admin string) bool {
	if slices.Contains(c.Scopes, MetricsScope) {
		return true
	}
	return slices.Contains(c.Roles, admin) && (len(c.Scopes) == 0 || slices.Contains(c.Scopes, "*"))
}

// CheckScope returns an error if a scope is not valid.
func CheckScope(s string) error {
	kind, pattern, ok := strings.Cut(s, ":")
	if s == "*" || s == "read" || s == MetricsScope ||
		ok && slices.Contains([]string{"tools", "resources", "prompts"}, kind) &&
			checkPatterns([]string{pattern}) == nil {
		return nil
	}
	return fmt.Errorf(
		"scope %q: expected *, read, metrics, or tools:, resources: or prompts: with a pattern, such as tools:file_*",
		s,
	)
}

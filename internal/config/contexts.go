package config

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/dispatch/views"
)

// Context is a named view that the file defines. Patterns are those of path.Match and are matched against the
// modules' own names; "!" in front excludes; an empty list means all.
type Context struct {
	Name        string            `doc:"Name; callers choose the context by it." need:"yes"`
	Description string            `doc:"Description of the context."`
	Modules     []string          `doc:"Modules whose tools, prompts and resources are part of it; empty means all except those that run programs (process, sandbox, shell), unless view.modules names them."`
	Tools       []string          `doc:"Patterns of tools; ! in front excludes."`
	Prompts     []string          `doc:"Patterns of prompts."`
	Resources   []string          `doc:"Patterns of URIs, in which * also matches slashes."`
	Rename      map[string]string `doc:"Own names of tools or prompts, each with its name in this context."`
	Describe    map[string]string `doc:"Own names of tools or prompts, each with its description in this context."`
	Shape       []views.Shape     `doc:"What else changes in tools: arguments that are fixed or have defaults, and results that are cut."`
	Style       string            `doc:"How names are written." enum:"underscore,dot,colon"`
	Aliases     bool              `doc:"Offer tools under the first alias they declare."`
	Results     string            `doc:"What is sent of a tool that produces text: text alone (the default), or the whole output as structured content with its schema." enum:"text,structured"`
	List        string            `doc:"Which tools are listed: all (the default); search, the pinned tools and those that find and call the others; or auto, which is search for long lists and clients that do not search themselves." enum:"all,search,auto"`
	Pinned      []string          `doc:"Patterns of tools that a short list has."`
	ProgramsAsk bool              `doc:"Let programs of code_run call tools that ask the user or need an approval."`
	Env         map[string]string `doc:"Environment variables of the programs that run in it; ${secret:NAME} stands for a secret."`
	Roots       []string          `doc:"Folders its tools may access; empty means those of the host." kind:"path"`
	ClientRoots bool              `doc:"Restrict each call to the folders in which its client says it works, as roots.client does for every context."`
	Roles       []string          `doc:"Roles that may use it. If users is set too, either one is enough; if both are empty, every caller may."`
	Users       []string          `doc:"Patterns of users that may use it."`
	KnownTo     []string          `doc:"Roles that may see it without using it."`
	Team        string            `doc:"Team that owns what is made in it: whoever may use it shares its processes, sandboxes, jobs, collections and the like. Needs roles or users. Without it each caller owns what it makes."`
	Labels      []string          `doc:"What a node of the cluster must have to run its sandboxes, processes and packages, such as zone=a. Calls that run programs on a node without it are sent to one that has it; refused without a cluster."`
	Stage       bool              `doc:"Stage what its tools change in folders until a person accepts it, unless a rule decides otherwise; calls that cannot be staged ask."`
	Limits      ContextLimits     `doc:"Limits of its callers, besides the limits of the host."`
}

// ContextLimits bounds what the callers of one context can use.
type ContextLimits struct {
	Calls int     `doc:"Calls that run at once in it, of all callers together; more calls wait. 0 means the limit of the host."`
	Rate  float64 `doc:"Calls per second of one caller in it; 0 means no limit."`
	Burst int     `doc:"Calls of one caller that may arrive at once; 0 means twice the rate."`
}

// Rule is one rule of the policy. A field that is left out matches everything.
type Rule struct {
	Name       string        `doc:"Name of the rule in the ledger."`
	Contexts   []string      `doc:"Patterns of contexts."`
	Principals []string      `doc:"Patterns of users."`
	Roles      []string      `doc:"Roles, of which the caller must have one."`
	Methods    []string      `doc:"Methods such as tools/call, which is the default; * matches all."`
	Modules    []string      `doc:"Names of modules."`
	Names      []string      `doc:"Patterns of tools and prompts by their own names, or of URIs."`
	Effects    []string      `doc:"Effects, of which the tool must have one." enum:"reads,writes,destroys,open-world,idempotent"`
	When       string        `doc:"An expression (CEL) over args, caller and op that must be true. op.paths and op.commands are the paths and commands that the host resolves from the arguments."`
	Then       string        `doc:"The decision." enum:"allow,stage,ask,ask-operator,refuse" need:"yes"`
	Reason     string        `doc:"Reason that a refused caller receives."`
	Remember   time.Duration `doc:"How long an approval after ask or ask-operator holds for the same call; 0 means for that call alone."`
}

// Permit returns the settings of the policy that the rules and contexts define.
func (c Config) Permit() (permit.Options, error) {
	o := permit.Options{ReadOnly: c.View.ReadOnly, Default: permit.Allow}
	for _, x := range c.Contexts {
		if x.Stage {
			if o.Staging == nil {
				o.Staging = map[string]bool{}
			}
			o.Staging[x.Name] = true
		}
		if len(x.Roles)+len(x.Users)+len(x.KnownTo) > 0 {
			o.Access = append(
				o.Access,
				permit.Access{Context: x.Name, Roles: x.Roles, Users: x.Users, KnownTo: x.KnownTo},
			)
		}
	}
	for i, r := range c.Rules {
		p, err := r.permit()
		if err != nil {
			return o, fmt.Errorf("rule %d: %w", i+1, err)
		}
		o.Rules = append(o.Rules, p)
	}
	return o, nil
}

func (r Rule) permit() (p permit.Rule, err error) {
	p = permit.Rule{
		Name: r.Name, Contexts: r.Contexts, Principals: r.Principals, Roles: r.Roles, Methods: r.Methods,
		Modules: r.Modules, Names: r.Names, When: r.When, Reason: r.Reason, Remember: r.Remember,
	}
	if p.Then, err = permit.ParseKind(r.Then); err != nil {
		return p, fmt.Errorf("then: %w", err)
	}
	p.Effects, err = permit.ParseEffects(r.Effects)
	return p, err
}

// validateRule reports what is wrong with a rule that is checked alone.
func (r Rule) validateRule(w *problems, at string) {
	p, err := r.permit()
	if err != nil {
		return // the enums have been checked, with their positions
	}
	if _, err := permit.New(permit.Options{Rules: []permit.Rule{p}}); err != nil {
		// permit prefixes the rule's name, or its number in the list that it received, which is always 1 here.
		text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "rule 1: "), r.Name+": ")
		where := at
		if field, rest, ok := strings.Cut(text, ": "); ok &&
			slices.Contains([]string{"when", "contexts", "principals", "names"}, field) {
			where, text = at+"."+field, rest
		}
		w.addf(where, "%s", text)
	}
	asks := p.Then == permit.AskClient || p.Then == permit.AskOperator
	if r.Remember != 0 && !asks {
		w.addf(
			at+".remember",
			"a rule whose decision is %s has no approval to remember; leave remember out, or set then to ask or "+
				"ask-operator",
			r.Then,
		)
	}
	if r.Remember < 0 {
		w.addf(at+".remember", "%v: expected a duration above 0", r.Remember)
	}
}

// spelled reports whether a word has 1 to most bytes that are all letters, digits or characters of others, and
// does not begin with a character of later. It is written by hand because compiling regular expressions would add
// a part of a millisecond to every start of the program.
func spelled(word string, most int, others, later string) bool {
	for i, c := range []byte(word) {
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			strings.IndexByte(others, c) >= 0
		if !plain || i == 0 && strings.IndexByte(later, c) >= 0 {
			return false
		}
	}
	return word != "" && len(word) <= most
}

// isContextName reports whether a word can be the name of a context, which is part of URLs.
func isContextName(s string) bool { return spelled(s, 64, "-", "-") && s == strings.ToLower(s) }

func isListedName(s string) bool { return spelled(s, 128, "_.:-", "") }
func isVariable(s string) bool   { return spelled(s, 128, "_", "0123456789") }

func (c Context) validateContext(w *problems, at string, inCluster bool) {
	if !isContextName(c.Name) {
		w.addf(at+".name", "%q: expected 1 to 64 of a-z, 0-9 and -, beginning with a letter or digit", c.Name)
	}
	w.patterns(at+".tools", c.Tools)
	w.patterns(at+".prompts", c.Prompts)
	w.patterns(at+".users", c.Users)
	taken := map[string]string{}
	for _, from := range slices.Sorted(maps.Keys(c.Rename)) {
		to := c.Rename[from]
		switch {
		case !isListedName(to):
			w.addf(at+".rename."+from, "%q: expected 1 to 128 of letters, digits, _, -, . and :", to)
		case taken[to] != "":
			w.addf(at+".rename."+from, "%s would be named %s as well", taken[to], to)
		}
		taken[to] = from
	}
	if inside, err := views.CheckShapes(c.Shape); err != nil {
		w.addf(at+".shape"+inside, "%v", err)
	}
	if len(c.KnownTo) > 0 && len(c.Roles)+len(c.Users) == 0 {
		w.addf(at+".known_to", "has an effect only if roles or users restrict who may use the context")
	}
	if err := contextstore.CheckTeam(c.Team, c.Roles, c.Users); err != nil {
		w.addf(at+".team", "%v", err)
	}
	if err := contextstore.CheckLabels(c.Labels, inCluster); err != nil {
		w.addf(at+".labels", "%v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		c.checkVariable(w, at+".env."+name, name)
	}
	for i, r := range c.Roots {
		if r == "" {
			w.addf(fmt.Sprintf("%s.roots[%d]", at, i), "is empty: expected the path of a folder")
		}
	}
	c.Limits.validateLimits(w, at+".limits")
}

func (l ContextLimits) validateLimits(w *problems, at string) {
	atLeast(w, at+".calls", "calls at once", l.Calls, 0)
	atLeast(w, at+".rate", "rate", l.Rate, 0)
	atLeast(w, at+".burst", "burst", l.Burst, 0)
	if l.Burst > 0 && l.Rate == 0 {
		w.addf(at+".burst", "has an effect only with a rate")
	}
}

func (c Context) checkVariable(w *problems, at, name string) {
	if !isVariable(name) {
		w.addf(at, "%q is not the name of a variable; expected letters, digits and _", name)
	}
	if strings.HasPrefix(strings.ToUpper(name), "GATEHOUSE_") {
		w.addf(at, "names that begin with GATEHOUSE_ are reserved for the host")
	}
	if _, err := secret.Names(c.Env[name]); err != nil {
		w.addf(at, "%v", err)
	}
}

func (w *problems) patterns(at string, list []string) {
	for i, p := range list {
		if _, err := path.Match(strings.TrimPrefix(p, "!"), ""); err != nil || p == "" || p == "!" {
			w.addf(
				fmt.Sprintf("%s[%d]", at, i),
				"%q is not a pattern; expected a name such as file_read, or file_* for all that begin so",
				p,
			)
		}
	}
}

// checkContexts checks contexts and rules against each other.
func (c Config) checkContexts(w *problems) {
	names := map[string]bool{}
	for i, x := range c.Contexts {
		at := fmt.Sprintf("contexts[%d]", i)
		x.validateContext(w, at, c.Cluster.Name != "")
		if names[x.Name] {
			w.addf(at+".name", "there are two contexts called %q", x.Name)
		}
		names[x.Name] = true
	}
	if len(c.Contexts) > 0 && len(c.View.Tools) > 0 {
		w.addf("view.tools", "applies only to a host without contexts; name the tools in each context instead")
	}
	for i, r := range c.Rules {
		r.validateRule(w, fmt.Sprintf("rules[%d]", i))
	}
}

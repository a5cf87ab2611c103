package contextstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/cluster"
	"gatehouse/internal/dispatch/views"
)

// These are the limits of one record.
const (
	maxRecord   = 256 << 10 // bytes of its JSON
	maxOwn      = 200       // tools, and prompts
	maxList     = 1000      // entries of a list
	maxTemplate = 64 << 10  // bytes
)

// Invalid is the error of an invalid record: each line names a member and what was expected.
type Invalid struct{ Err error }

func (e *Invalid) Error() string { return e.Err.Error() }

// NameForm is the form of names of contexts.
var NameForm = lazy(`^[a-z0-9][a-z0-9-]{0,63}$`)

// admit checks a record before it is stored.
func (s *Store) admit(r *Record) error {
	if r.Name == Admin || s.opts.Fixed(r.Name) {
		return ErrFixed
	}
	if err := r.Check(); err != nil {
		return err
	}
	if err := CheckLabels(r.Labels, s.opts.Cluster); err != nil {
		return &Invalid{fmt.Errorf("labels: %w", err)}
	}
	if s.opts.Modules == nil {
		return nil
	}
	known := s.opts.Modules()
	for _, m := range r.Modules {
		if !slices.Contains(known, m) {
			return &Invalid{
				fmt.Errorf("modules: there is no module %q; expected some of %s", m, strings.Join(known, ", ")),
			}
		}
	}
	return nil
}

// Check reports everything that is wrong with a record; the error is an *Invalid.
func (r *Record) Check() error {
	c := &check{}
	if !NameForm().MatchString(r.Name) {
		c.bad("name", "%q: expected 1 to 64 of a-z, 0-9 and -, beginning with a letter or digit", r.Name)
	}
	c.checkText("description", r.Description, 4<<10)
	c.view(r)
	c.access(r)
	c.limits(r.Limits)
	c.environment(r)
	c.roots(r.Roots)
	c.own(r)
	if raw, err := json.Marshal(r); err != nil {
		c.bad("record", "%v", err)
	} else if len(raw) > maxRecord {
		c.bad("record", "has %d bytes; at most %d", len(raw), maxRecord)
	}
	if len(c.errs) > 0 {
		return &Invalid{errors.Join(c.errs...)}
	}
	return nil
}

// check collects errors.
type check struct{ errs []error }

func (c *check) bad(where, format string, args ...any) {
	if len(c.errs) < 20 {
		c.errs = append(c.errs, fmt.Errorf("%s: %w", where, fmt.Errorf(format, args...)))
	}
}

func (c *check) checkText(where, s string, most int) {
	if len(s) > most {
		c.bad(where, "has %d bytes; at most %d", len(s), most)
	}
	if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
		c.bad(where, "is not UTF-8 text")
	}
}

func (c *check) checkList(where string, list []string) {
	if len(list) > maxList {
		c.bad(where, "has %d entries; at most %d", len(list), maxList)
	}
	if i := slices.Index(list, ""); i >= 0 {
		c.bad(where, "entry %d is empty", i+1)
	}
}

func (c *check) patterns(where string, list []string) {
	c.checkList(where, list)
	for _, p := range list {
		if _, err := path.Match(strings.TrimPrefix(p, "!"), ""); err != nil || p == "!" {
			c.bad(where, "%q is not a pattern; expected a name such as file_read, or file_* for all that begin so", p)
		}
	}
}

func (c *check) view(r *Record) {
	c.checkList("modules", r.Modules)
	c.patterns("tools", r.Tools)
	c.patterns("pinned", r.Pinned)
	c.patterns("prompts", r.Prompts)
	c.checkList("resources", r.Resources)
	taken := map[string]string{}
	for _, from := range slices.Sorted(maps.Keys(r.Rename)) {
		to := r.Rename[from]
		if !listedName().MatchString(to) {
			c.bad("rename", "%q: expected 1 to 128 of letters, digits, _, -, . and :", to)
		}
		if taken[to] != "" {
			c.bad("rename", "%s and %s would both be %s", taken[to], from, to)
		}
		taken[to] = from
	}
	for _, s := range r.Describe {
		c.checkText("describe", s, 4<<10)
	}
	if at, err := views.CheckShapes(r.Shape); err != nil {
		c.bad("shape"+at, "%v", err)
	}
	if s := views.Style(r.Style); s != "" && s != views.Underscore && s != views.Dot && s != views.Colon {
		c.bad("style", "%q: expected underscore, dot or colon", r.Style)
	}
	if s := r.Results; s != "" && s != views.TextResults && s != views.Structured {
		c.bad("results", "%q: expected text or structured", s)
	}
	if s := r.List; s != "" && s != views.ListAll && s != views.ListSearch && s != views.ListAuto {
		c.bad("list", "%q: expected all, search or auto", s)
	}
}

var listedName = lazy(`^[A-Za-z0-9_.:-]{1,128}$`)

func (c *check) access(r *Record) {
	c.checkList("roles", r.Roles)
	c.patterns("users", r.Users)
	c.checkList("known_to", r.KnownTo)
	if len(r.KnownTo) > 0 && len(r.Roles)+len(r.Users) == 0 {
		c.bad("known_to", "has an effect only if roles or users restrict who may use the context")
	}
	if err := CheckTeam(r.Team, r.Roles, r.Users); err != nil {
		c.bad("team", "%w", err)
	}
	if err := cluster.CheckLabels(r.Labels); err != nil {
		c.bad("labels", "%w", err)
	}
	if len(r.Rules) > maxList {
		c.bad("rules", "there are %d; at most %d", len(r.Rules), maxList)
		return
	}
	rules, err := r.Permit()
	if err == nil {
		_, err = permit.New(permit.Options{Rules: rules, Access: []permit.Access{r.Access()}})
	}
	if err != nil {
		c.bad("rules", "%w", err)
	}
}

// CheckLabels refuses texts that are no labels of nodes, and all labels where there is no choice of nodes.
func CheckLabels(labels []string, inCluster bool) error {
	if len(labels) > 0 && !inCluster {
		return errors.New("this host is no node of a cluster, so that there is no choice of nodes: leave the labels out")
	}
	return cluster.CheckLabels(labels)
}

// CheckTeam returns an error unless a context can have a team: "" or a name, and somebody who is of it.
func CheckTeam(team string, roles, users []string) error {
	switch {
	case team == "":
		return nil
	case !NameForm().MatchString(team):
		return fmt.Errorf("%q: expected 1 to 64 of a-z, 0-9 and -, beginning with a letter or digit", team)
	case len(roles)+len(users) == 0:
		return errors.New("name the roles or users that are of the team: otherwise every caller is")
	}
	return nil
}

// permit returns the rule in the form of package permit, for this context alone.
func (r *Rule) permit(context string, i int) (p permit.Rule, err error) {
	name := r.Name
	if name == "" {
		name = fmt.Sprintf("rule %d", i+1)
	}
	p = permit.Rule{
		Name: context + ": " + name, Contexts: []string{context}, Principals: r.Principals, Roles: r.Roles,
		Methods: r.Methods, Modules: r.Modules, Names: r.Names, When: r.When, Reason: r.Reason, Own: true,
	}
	if p.Then, err = permit.ParseKind(r.Then); err != nil {
		return p, fmt.Errorf("%s: then: %w", name, err)
	}
	if p.Effects, err = permit.ParseEffects(r.Effects); err != nil {
		return p, fmt.Errorf("%s: %w", name, err)
	}
	if r.Remember != "" {
		if p.Remember, err = span(r.Remember, time.Second, 30*24*time.Hour); err != nil {
			return p, fmt.Errorf("%s: remember: %w", name, err)
		}
	}
	return p, nil
}

// span parses a duration within limits.
func span(s string, least, most time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < least || d > most {
		return 0, fmt.Errorf("%q: expected a duration from %v to %v, such as 30s", s, least, most)
	}
	return d, nil
}

// mostLimit is higher than what any host can do.
const mostLimit = 1_000_000

func (c *check) limits(l Limits) {
	for _, one := range []struct {
		what string
		v    float64
	}{{"calls", float64(l.Calls)}, {"rate", l.Rate}, {"burst", float64(l.Burst)}} {
		if !(one.v >= 0 && one.v <= mostLimit) {
			c.bad(
				"limits",
				"%s is %v; expected a number from 0, which means no limit, to %d",
				one.what,
				one.v,
				mostLimit,
			)
		}
	}
	if l.Burst > 0 && l.Rate == 0 {
		c.bad("limits", "burst has an effect only with a rate")
	}
}

var variable = lazy(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

func (c *check) environment(r *Record) {
	if len(r.Env) > maxList {
		c.bad("env", "there are %d variables; at most %d", len(r.Env), maxList)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Env)) {
		c.variable(name)
		c.checkText("env: "+name, r.Env[name], 32<<10)
		if _, err := secret.Names(r.Env[name]); err != nil {
			c.bad("env", "%s: %w", name, err)
		}
	}
}

func (c *check) variable(name string) {
	switch {
	case !variable().MatchString(name):
		c.bad("env", "%q is not the name of a variable; expected letters, digits and _", name)
	case strings.HasPrefix(strings.ToUpper(name), "GATEHOUSE_"):
		c.bad("env", "%s: names that begin with GATEHOUSE_ are reserved for the host", name)
	}
}

func (c *check) roots(list []Root) {
	if len(list) > 100 {
		c.bad("roots", "there are %d; at most 100", len(list))
	}
	for _, r := range list {
		c.checkText("roots", r.Path, 4<<10)
		if !isAbs(r.Path) {
			c.bad("roots", "%q is not absolute; expected an absolute path, or one that begins with ~", r.Path)
		}
	}
}

// lazy compiles an expression when it is first used, because compiling all of them would delay each start.
func lazy(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

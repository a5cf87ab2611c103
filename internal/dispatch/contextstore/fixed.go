package contextstore

import (
	"errors"
	"fmt"
	"slices"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/dispatch/views"
)

// Admin is the reserved context in which a host is administered, and the role that may use it. It is part of no
// other context, no rule opens it, and no other caller learns that it exists.
const (
	Admin     = "admin"
	AdminRole = "admin"
)

// Fixed is what a host has without the store: the contexts of its configuration and the policy over all of them.
type Fixed struct {
	Specs   []views.Spec
	Default string // "" means the first of Specs
	Policy  permit.Options
	Modules []string // of a stored context that names none
	Admin   []string // modules of the administration context
	Records []Record // fields of fixed contexts that their Spec does not have: Env, Roots and Limits
	Cluster bool     // this host is a node of a cluster, so that contexts can have labels
}

// Find returns what a fixed context has besides its Spec, or nil if it has nothing.
func (f *Fixed) Find(name string) *Record {
	i := slices.IndexFunc(f.Records, func(r Record) bool { return r.Name == name })
	if i < 0 {
		return nil
	}
	return &f.Records[i]
}

// Definition returns a fixed context in the form of a stored one, or nil if there is none.
func (f *Fixed) Definition(name string) *Record {
	i := slices.IndexFunc(f.Specs, func(s views.Spec) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	s := f.Specs[i]
	r := &Record{Name: name, Fixed: true, Definition: Definition{
		Description: s.Description, Modules: s.Modules, Tools: s.Tools, Prompts: s.Prompts, Resources: s.Resources,
		Rename: s.Rename, Describe: s.Describe, Shape: s.Shapes, Style: string(s.Style), Aliases: s.Aliases,
		Results: s.Results, List: s.List, Pinned: s.Pinned, ProgramsAsk: s.ProgramsAsk, Team: s.Team,
		Labels: s.Labels,
	}}
	if own := f.Find(name); own != nil {
		r.Env, r.Roots, r.Limits = own.Env, own.Roots, own.Limits
	}
	for _, a := range f.Policy.Access {
		if a.Context == name {
			r.Roles, r.Users, r.KnownTo = a.Roles, a.Users, a.KnownTo
		}
	}
	return r
}

// Has reports whether a fixed context has this name.
func (f *Fixed) Has(name string) bool {
	return name == Admin || slices.ContainsFunc(f.Specs, func(s views.Spec) bool { return s.Name == name })
}

// With adds the records to the fixed contexts. An invalid record, or one whose name is in use, is left out; the
// error names it and the reason, and the rules are valid nevertheless. An error without rules concerns the fixed
// part.
func (f *Fixed) With(records []Record) (views.Rules, error) {
	f.reserve()
	specs := slices.Clone(f.Specs)
	policy := f.Policy
	policy.Rules = slices.Clone(policy.Rules)
	policy.Access = slices.Clone(policy.Access)
	var left []error
	for i := range records {
		r := &records[i]
		rules, err := f.fits(r)
		if err != nil {
			left = append(left, fmt.Errorf("context %s is left out: %w", r.Name, err))
			continue
		}
		specs = append(specs, r.Spec(f.Modules))
		policy.Access = append(policy.Access, r.Access())
		policy.Rules = append(policy.Rules, rules...)
	}
	p, err := permit.New(policy)
	if err != nil {
		return views.Rules{}, err
	}
	return views.Rules{Specs: specs, Default: f.Default, Policy: p}, errors.Join(left...)
}

// fits checks a record again, because any program with access to the file may have written it, or the
// configuration may have used its name since.
func (f *Fixed) fits(r *Record) ([]permit.Rule, error) {
	if f.Has(r.Name) {
		return nil, ErrFixed
	}
	if err := r.Check(); err != nil {
		return nil, err
	}
	if err := CheckLabels(r.Labels, f.Cluster); err != nil {
		return nil, fmt.Errorf("labels: %w", err)
	}
	return r.Permit()
}

// reserve sets the administration context, and overrides other definitions of it.
func (f *Fixed) reserve() {
	f.Specs = slices.DeleteFunc(slices.Clone(f.Specs), func(s views.Spec) bool { return s.Name == Admin })
	if (f.Default == "" || f.Default == Admin) && len(f.Specs) > 0 {
		f.Default = f.Specs[0].Name
	}
	f.Specs = append(f.Specs, views.Spec{
		Name: Admin, Description: "The administration of this host.",
		Modules:     slices.Concat([]string{}, f.Admin), // not nil, which means all
		CallAliases: true,
	})
	f.Policy.Access = slices.DeleteFunc(
		slices.Clone(f.Policy.Access),
		func(a permit.Access) bool { return a.Context == Admin },
	)
	f.Policy.Access = append(f.Policy.Access, permit.Access{Context: Admin, Roles: []string{AdminRole}})
	own := permit.Rule{
		Name:     "administration",
		Contexts: []string{Admin},
		Then:     permit.Allow,
		Methods:  []string{"*"},
		Own:      true,
	}
	f.Policy.Rules = slices.DeleteFunc(
		slices.Clone(f.Policy.Rules),
		func(r permit.Rule) bool { return r.Own && r.Name == own.Name },
	)
	f.Policy.Rules = append(f.Policy.Rules, own)
}

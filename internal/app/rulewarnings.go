package app

import (
	"context"
	"iter"
	"log/slog"
	"slices"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/dispatch/modulehost"
	"gatehouse/internal/modules/standard"
	"gatehouse/module"
	"gatehouse/tool"
)

// RuleWarnings finds rules that compare as text what arguments name of the
// host: those of one context, or with nil those of the settings. Settings with
// mistakes give none.
func RuleWarnings(ctx context.Context, cfg config.Config, of *contextstore.Record) []string {
	var rules []permit.Rule
	if of != nil {
		rules, _ = of.Permit()
	} else {
		o, _ := cfg.Permit()
		rules = o.Rules
	}
	if !readsArguments(rules) {
		return nil
	}
	// Every standard module counts, because another start may serve another choice.
	var guests []guest
	for _, g := range standard.Modules(standard.Deps{}) {
		guests = append(guests, guest{Guest: Guest{g.Name, g.New}})
	}
	host := bareHost(ctx, guests)
	defer host.Close(ctx)
	return permit.Warnings(rules, offered(host.Offers(ctx, module.Audience{})))
}

func readsArguments(rules []permit.Rule) bool {
	return slices.ContainsFunc(rules, func(r permit.Rule) bool { return r.When != "" })
}

func offered(all []modulehost.Offered) iter.Seq2[string, *tool.Tool] {
	return func(yield func(string, *tool.Tool) bool) {
		for _, o := range all {
			for i := range o.Offer.Tools {
				if !yield(o.Module, &o.Offer.Tools[i]) {
					return
				}
			}
		}
	}
}

// warnOfText logs each rule in force that compares text, once for as long as it
// is in force.
func (f *inForce) warnOfText() {
	f.mu.Lock()
	rules := slices.Clone(f.fixed.Policy.Rules)
	for i := range f.now.Records {
		own, _ := f.now.Records[i].Permit() // one with mistakes is left out, which was logged
		rules = append(rules, own...)
	}
	f.mu.Unlock()
	if !readsArguments(rules) {
		return
	}
	ctx := context.Background()
	all := map[string]bool{}
	for _, s := range permit.Warnings(rules, offered(f.app.host.Offers(ctx, module.Audience{}))) {
		all[s] = true
	}
	f.mu.Lock()
	was := f.warned
	f.warned = all
	f.mu.Unlock()
	for s := range all {
		if !was[s] {
			f.app.log.WarnContext(ctx, "a rule does not hold what it seems to", slog.String("rule", s))
		}
	}
}

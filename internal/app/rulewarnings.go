package app

import (
	"context"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/dispatch/modulehost"
	"gatehouse/internal/modules/standard"
	"gatehouse/module"
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
	if !permit.ReadArguments(rules) {
		return nil
	}
	// Every standard module counts, because another start may serve another choice.
	var guests []guest
	for _, g := range standard.Modules(standard.Deps{}) {
		guests = append(guests, guest{Guest: Guest{g.Name, g.New}})
	}
	host := bareHost(ctx, guests)
	defer host.Close(ctx)
	return permit.Warnings(rules, modulehost.Tools(host.Offers(ctx, module.Audience{})))
}

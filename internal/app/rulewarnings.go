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

// RuleWarnings returns warnings of rules that compare paths or commands in arguments as text: the rules of one
// context, or those of the settings if of is nil. For invalid settings it returns none.
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
	var enabled []enabledModule
	for _, g := range standard.Modules(standard.Deps{}) {
		enabled = append(enabled, enabledModule{Module: Module{g.Name, g.New}})
	}
	host := bareHost(ctx, enabled)
	defer host.Close(ctx)
	return permit.Warnings(rules, modulehost.Tools(host.Offers(ctx, module.Audience{})))
}

package hosttest_test

import (
	"context"
	"testing"

	"gatehouse/internal/dispatch/jobs"
	"gatehouse/internal/dispatch/spool"
	"gatehouse/internal/mcp/schema"
	"gatehouse/internal/modules/job"
	"gatehouse/internal/modules/resources"
	"gatehouse/internal/modules/standard"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

// compiles checks a tool's schemas with the compiler that checks calls.
func compiles(x tool.Tool) error {
	if x.In != nil {
		if _, err := schema.For(x.In); err != nil {
			return err
		}
	}
	if x.Out != nil {
		if _, err := schema.ForOutput(x.Out); err != nil {
			return err
		}
	}
	if _, err := schema.Compile(x.Input); err != nil {
		return err
	}
	_, err := schema.Compile(x.Output)
	return err
}

// Every module in the program fulfills the contract.
func TestModulesKeepTheContract(t *testing.T) {
	modules := standard.Modules(standard.Deps{})
	j, err := jobs.Open("", jobs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close(context.Background()) })
	sp, err := spool.Open(t.TempDir(), spool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sp.Close() })
	help := resources.Help{
		Find:  func(context.Context, tool.Caller, string) (*tool.Def, bool) { return nil, false },
		Names: func(context.Context, tool.Caller) []string { return nil },
	}
	modules = append(
		modules,
		standard.Module{Name: "resources", New: resources.New(sp, help)},
		standard.Module{Name: "job", New: job.New(j, nil)},
	)
	for _, g := range modules {
		t.Run(g.Name, func(t *testing.T) {
			moduletest.Run(t, g.New, moduletest.Options{Check: compiles})
		})
	}
}

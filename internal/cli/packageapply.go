package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"gatehouse/internal/packages"
)

func packageApply(w Environment) *cobra.Command {
	var p packageFlags
	var dryRun bool
	c := &cobra.Command{
		Use:   "apply",
		Short: "Make the packages those of the settings",
		Long: `Make the packages those of the settings: install the missing ones of "packages:",
change those that differ, and remove those that the settings named before. Their
data are kept. Packages that were installed otherwise stay. A host does the same
when it starts and when it reads its settings again.`,
		Example: `  gatehouse package apply --dry-run
  gatehouse package apply --yes`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := p.t.host.loadSettings(w.Getenv)
			if err == nil {
				err = l.Validate()
			}
			if err != nil {
				return &usageError{err}
			}
			if !dryRun {
				if err := p.canAgree(w); err != nil {
					return err
				}
			}
			in := map[string]any{"packages": declaredArguments(l.Packages), "dry_run": dryRun}
			return callOnce(&p, c, w, "package_apply", in, func(out struct{ Steps []packages.Step }) error {
				return printSteps(w, out.Steps)
			})
		},
	}
	p.registerFlags(c.Flags())
	p.addYes(c.Flags())
	c.Flags().BoolVar(&dryRun, "dry-run", false, "show the differences and change nothing")
	return c
}

// declaredArguments are declared packages as package_apply takes them.
func declaredArguments(all []packages.Declared) []map[string]any {
	out := []map[string]any{}
	for _, d := range all {
		one := givenMembers(map[string]any{
			"name": d.Name, "source": d.Source, "command": d.Command, "start": d.Start, "results": d.Results,
			"instances": d.Instances, "login": d.Login,
			"title": d.Title, "args": d.Args, "env": d.Env, "headers": d.Headers, "pass_headers": d.PassHeaders,
			"off":     d.Off,
			"timeout": d.Timeout, "trust_hints": d.TrustHints, "trust": d.Trust,
			"new_tools": d.NewTools, "nodes": d.Nodes, "labels": d.Labels,
		})
		if o := d.OAuth.Given(); o != nil {
			one["oauth"] = o
		}
		if !d.Grants.IsZero() {
			one["grants"] = d.Grants
		}
		out = append(out, one)
	}
	return out
}

// printSteps prints what is done to each package, as a difference.
func printSteps(w Environment, steps []packages.Step) error {
	if len(steps) == 0 {
		_, err := fmt.Fprintln(w.Err, "[gatehouse] The packages are as the settings say")
		return err
	}
	for _, s := range steps {
		fmt.Fprintf(w.Out, "%s %s\n", s.Action, printable(s.ID))
		for _, line := range s.Lines {
			fmt.Fprintf(w.Out, "  %s\n", printable(line))
		}
		if s.Error != "" {
			fmt.Fprintf(w.Out, "  failed: %s\n", printable(s.Error))
		}
	}
	return nil
}

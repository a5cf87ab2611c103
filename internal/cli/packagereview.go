package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/packages/pins"
)

// packageChange is one change as package_changes shows it.
type packageChange struct {
	Kind  string   `json:"kind"`
	Name  string   `json:"name"`
	State string   `json:"state"`
	By    string   `json:"by"`
	At    string   `json:"at"`
	Diff  []string `json:"diff"`
}

// packageChangeList is the result of package_changes.
type packageChangeList struct {
	Changes []packageChange `json:"changes"`
	Seen    string          `json:"seen"`
}

func packageChanges(w Environment) *cobra.Command {
	var p packageFlags
	c := &cobra.Command{
		Use:   "changes NAME",
		Short: "Show tools of a package that wait for an approval, as differences",
		Long: `Show the tools and prompts of a package that are not offered because nobody has
approved them as they are: those that its server, or an update, has changed or added
since the installation. All others are offered meanwhile.`,
		Example: `  gatehouse package changes memory
  gatehouse package approve memory`,
		Args: exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			return callOnce(&p, c, w, "package_changes", packageID{args[0]}, func(out packageChangeList) error {
				if len(out.Changes) == 0 {
					fmt.Fprintf(w.Err, "[gatehouse] Nothing of %s waits for an approval\n", args[0])
				}
				return printChanges(w, out.Changes)
			})
		},
	}
	p.registerFlags(c.Flags())
	c.ValidArgsFunction = p.packageNames(w)
	return c
}

// notApproved returns an error that says why a tool of a package is not offered, if an approval of it is missing; nil
// for other tools, and if the caller may not manage the packages of the host.
func (t *target) notApproved(c *cobra.Command, w Environment, name string) error {
	id, _, ok := strings.Cut(name, "_")
	at := ""
	switch {
	case t.url != "":
		at = " --url " + t.url
	case t.unix != "":
		at = " --unix " + t.unix
	default:
		id = packageOf(w, name)
	}
	if !ok || id == "" {
		return nil
	}
	p := packageFlags{t: *t}
	p.t.keeps, p.t.host.context, p.t.ask = true, contextstore.Admin, nil
	a, err := p.connect(c, w)
	if err != nil {
		return nil
	}
	defer a.close()
	var open packageChangeList
	w.Err = io.Discard // the answer of a host that has no such package
	if err := a.callTool(c.Context(), w, "package_changes", packageID{id}, &open); err != nil {
		return nil
	}
	for _, one := range open.Changes {
		switch {
		case one.Name != name:
		case one.State == pins.Refused:
			return usagef("the tool %q of package %s was refused by %s at %s, so it is not offered: gatehouse package "+
				"approve %s %s%s approves it after all", name, id, printable(one.By), printable(one.At), id, name, at)
		default:
			return usagef("the tool %q of package %s is %s and not approved, so it is not offered: gatehouse package "+
				"changes %s%s shows it, and gatehouse package approve %s%s approves it",
				name, id, printable(one.State), id, at, id, at)
		}
	}
	return nil
}

// printChanges prints changes with their differences, of which no line can control the terminal.
func printChanges(w Environment, all []packageChange) error {
	for _, one := range all {
		by := ""
		if one.By != "" {
			by = ", before: " + one.By + " " + one.At
			if one.State == "refused" {
				by = " by " + one.By + " " + one.At
			}
		}
		fmt.Fprintf(w.Out, "%s %s: %s%s\n", printable(one.Kind), printable(one.Name), printable(one.State),
			printable(by))
		for _, line := range one.Diff {
			if _, err := fmt.Fprintf(w.Out, "  %s\n", printable(line)); err != nil {
				return err
			}
		}
	}
	return nil
}

// packageDecide makes the commands that approve and refuse changes.
func packageDecide(w Environment, approve bool) *cobra.Command {
	var p packageFlags
	c := &cobra.Command{
		Use:   "approve NAME [TOOL...]",
		Short: "Approve changed or new tools of a package, after showing the difference",
		Long: `Approve changed and new tools and prompts of a package as they are now: those that
are named, or all that wait. The difference is shown first. It needs an
administrator; a package cannot approve anything.`,
		Example: `  gatehouse package approve memory
  gatehouse package approve memory memory_read_graph --yes`,
	}
	if !approve {
		c.Use, c.Short = "refuse NAME [TOOL...]", "Refuse changed or new tools of a package"
		c.Long = `Refuse changed and new tools and prompts of a package as they are now: those that
are named, or all that wait. They stay out until the server describes them in
another way; package approve NAME TOOL approves a refused one after all.`
		c.Example = "  gatehouse package refuse memory memory_read_graph"
	}
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usagef("%s requires NAME; gatehouse package list lists the packages", c.CommandPath())
		}
		return nil
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if approve {
			if err := p.canAgree(w); err != nil {
				return err
			}
		}
		return decideChanges(&p, c, w, approve, args[0], args[1:])
	}
	p.registerFlags(c.Flags())
	if approve {
		p.addYes(c.Flags())
	}
	c.ValidArgsFunction = p.packageNames(w)
	return c
}

func decideChanges(p *packageFlags, c *cobra.Command, w Environment, approve bool, id string, names []string) error {
	a, err := p.connect(c, w)
	if err != nil {
		return err
	}
	defer a.close()
	var open packageChangeList
	if err := a.callTool(c.Context(), w, "package_changes", packageID{id}, &open); err != nil {
		return err
	}
	if approve && !p.json {
		if err := printChanges(w, chosenChanges(open.Changes, names)); err != nil {
			return err
		}
	}
	in := givenMembers(map[string]any{"id": id, "tools": names, "refuse": !approve, "seen": open.Seen})
	var out struct {
		Approved []string `json:"approved"`
		Refused  []string `json:"refused"`
	}
	if err := a.callTool(c.Context(), w, "package_approve", in, &out); err != nil {
		return err
	}
	if p.json {
		return showJSON(w.Out, out)
	}
	if len(out.Approved) > 0 {
		fmt.Fprintf(w.Err, "[gatehouse] Approved %s\n", printable(strings.Join(out.Approved, ", ")))
	}
	if len(out.Refused) > 0 {
		fmt.Fprintf(w.Err, "[gatehouse] Refused %s\n", printable(strings.Join(out.Refused, ", ")))
	}
	return nil
}

// chosenChanges returns the changes that are decided on: the named ones, or all that were not refused.
func chosenChanges(all []packageChange, names []string) (chosen []packageChange) {
	for _, one := range all {
		named := len(names) == 0 && one.State != "refused"
		for _, name := range names {
			named = named || name == one.Name || strings.HasSuffix(one.Name, "_"+name)
		}
		if named {
			chosen = append(chosen, one)
		}
	}
	return chosen
}

func packageRollback(w Environment) *cobra.Command {
	var p packageFlags
	c := &cobra.Command{
		Use:   "rollback NAME",
		Short: "Bring back the version before the last update of a package",
		Long: `Bring back the version of a package that its last update replaced, with what was
approved of it. Data stay as they are. A second rollback undoes the first.`,
		Example: "  gatehouse package rollback memory",
		Args:    exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := p.canAgree(w); err != nil {
				return err
			}
			return callOnce(&p, c, w, "package_rollback", packageID{args[0]}, func(out addedPackage) error {
				fmt.Fprintf(w.Err, "[gatehouse] Brought back %s %s\n", out.ID, printable(orDash(out.Version)))
				return nil
			})
		},
	}
	p.registerFlags(c.Flags())
	p.addYes(c.Flags())
	c.ValidArgsFunction = p.packageNames(w)
	return c
}

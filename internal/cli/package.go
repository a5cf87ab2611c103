package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gatehouse/internal/access/approvals"
	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/mcp/client"
	"gatehouse/internal/packages"
)

const packageModule = "package"

func packageCommand(w Environment) *cobra.Command {
	c := &cobra.Command{
		Use:   packageModule,
		Short: "Install and manage third-party MCP servers",
		Long: `Install and manage third-party MCP servers. Their tools are then tools of this
host, under names NAME_TOOL.

The commands talk to the daemon, or to another host of this user that runs the
packages, or to the host that --url or --unix names. If none runs they work on the
data folder themselves.`,
		Example: `  gatehouse package add memory npm:@modelcontextprotocol/server-memory
  gatehouse package list
  gatehouse package tools memory --off delete_entities
  gatehouse package remove memory`,
		Args: knownCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },

		SuggestionsMinimumDistance: 2,
	}
	c.AddCommand(packageAdd(w), packageList(w), packageInfo(w), packageTools(w), packageLogs(w),
		packageSet(w, "start", "Start the server of a package, and let calls start it again"),
		packageSet(w, "stop", "Stop the server of a package until it is started"),
		packageSet(w, "restart", "Stop the server of a package and start it again"), packageLogin(w), packageLogout(w),
		packageUpdate(w), packageRollback(w), packageChanges(w), packageDecide(w, true), packageDecide(w, false),
		packageWhy(w), packageStats(w), packageShell(w), packageLock(w), packageSync(w), packageRemove(w),
		packageApply(w), packageGrant(w), packageRevoke(w))
	return c
}

// packageFlags are the flags of the commands that manage packages.
type packageFlags struct {
	t    target
	yes  bool
	json bool
}

func (p *packageFlags) registerFlags(set *pflag.FlagSet) {
	set.SortFlags = false
	set.BoolVar(&p.json, "json", false, "print JSON")
	set.StringVar(&p.t.url, "url", "", "manage the packages of the host at this `address`, of http, https or tcp")
	set.StringVar(&p.t.unix, "unix", "", "manage those of the host at this Unix socket `path`")
	set.StringVar(&p.t.ca, "ca", "", "PEM `file` of authorities to believe besides the system's; needs --url")
	set.StringVar(&p.t.token, "token", "", "credentials for the host at --url; local means this user's token")
	set.StringVar(&p.t.host.file, "config", "", "`file` with settings (default: gatehouse.yaml in the config folder)")
	p.t.host.set, p.t.keeps, p.t.host.context = set, true, contextstore.Admin
}

// addYes adds the flag that answers questions beforehand.
func (p *packageFlags) addYes(set *pflag.FlagSet) {
	set.BoolVar(&p.yes, "yes", false, "agree beforehand, without being asked")
	p.t.ask = func(w Environment, f config.Folders) client.Ask {
		ask := asker(w, f)
		if !p.yes {
			return ask
		}
		return agree(f, ask)
	}
}

// agree answers yes to a question that can only be agreed to. If a yes needs the
// passphrase, ask reads it.
func agree(f config.Folders, ask client.Ask) client.Ask {
	if _, err := approvals.LoadProof(app.ProofFile(f)); !errors.Is(err, approvals.ErrNoProof) {
		return ask
	}
	return func(q client.Question) (string, map[string]any) {
		content := map[string]any{}
		for _, property := range q.Form.Properties {
			if len(property.Type) != 1 || property.Type[0] != "boolean" {
				return "decline", nil
			}
			content[property.Name] = true
		}
		return "accept", content
	}
}

// admin is a connection of an administrator to the host that has the packages.
type admin struct {
	client *client.Client
	tools  []client.Tool
	follow *follower
	close  func()
}

// connect finds the host that has the packages: the named one, the daemon or another
// host of this user if it runs, or one inside this process.
func (p *packageFlags) connect(c *cobra.Command, w Environment) (*admin, error) {
	t := p.t // the command may run again
	if !t.running() {
		l, err := readSettings(w)
		if err != nil {
			return nil, err
		}
		t.findHolder(c.Context(), l.Config)
	}
	cl, end, err := t.connectTarget(c, w)
	if err != nil {
		return nil, err
	}
	all, err := cl.Tools(c.Context())
	if err != nil {
		end()
		return nil, broken(err)
	}
	f := &follower{stderr: w.Err, client: cl, stays: t.running(), every: 1}
	return &admin{cl, all, f, end}, nil
}

// callTool calls a tool, follows its job to the end, and decodes the result into out.
func (a *admin) callTool(ctx context.Context, w Environment, name string, args, out any) error {
	raw, err := json.Marshal(args)
	if err != nil {
		return err
	}
	for _, t := range a.tools {
		if t.Name != name {
			continue
		}
		r, err := a.client.Call(ctx, t, raw)
		if err != nil {
			return broken(err)
		}
		if r, err = a.follow.follow(ctx, r); err != nil {
			return err
		}
		if r.IsError {
			for _, block := range r.Content {
				printLine(w.Err, printable(block.Text))
			}
			return errToolFailed
		}
		if err := json.Unmarshal(r.Structured, out); err != nil {
			return fmt.Errorf("the result of %s: %w", name, err)
		}
		return nil
	}
	return fmt.Errorf(
		"this host has no %s: start it with a data folder, and with a version of gatehouse that has package commands",
		name,
	)
}

// callOnce connects, calls one tool and prints its result: as JSON, or by show.
func callOnce[T any](
	p *packageFlags, c *cobra.Command, w Environment, name string, args any, show func(T) error,
) error {
	a, err := p.connect(c, w)
	if err != nil {
		return err
	}
	defer a.close()
	var raw json.RawMessage
	if err := a.callTool(c.Context(), w, name, args, &raw); err != nil {
		return err
	}
	if p.json {
		return printJSON(w.Out, raw)
	}
	var out T
	if err := json.Unmarshal(raw, &out); err != nil {
		return fmt.Errorf("the result of %s: %w", name, err)
	}
	return show(out)
}

// packageID is the argument of most tools of packages.
type packageID struct {
	ID string `json:"id"`
}

// packageEntry is a package as package_list shows it.
type packageEntry struct {
	ID      string `json:"id"`
	Title   string `json:"title"`
	Version string `json:"version"`
	State   string `json:"state"`
	Status  string `json:"status"`
	Tools   int    `json:"tools"`
	Error   string `json:"error"`
	Login   string `json:"login"`

	Confinement string `json:"confinement"`

	Quarantined int `json:"quarantined"`

	Health packages.Health `json:"health"`
}

func packageList(w Environment) *cobra.Command {
	var p packageFlags
	c := &cobra.Command{
		Use:   "list",
		Short: "List the packages",
		Example: `  gatehouse package list
  gatehouse package list --json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return callOnce(&p, c, w, "package_list", struct{}{}, func(out struct{ Packages []packageEntry }) error {
				if len(out.Packages) == 0 {
					fmt.Fprintln(w.Err, "[gatehouse] There are no packages; gatehouse package add installs one")
					return nil
				}
				t := tabwriter.NewWriter(w.Out, 0, 0, 2, ' ', 0)
				fmt.Fprintln(t, "NAME\tVERSION\tSTATUS\tCONFINEMENT\tTOOLS\tTITLE")
				for _, e := range out.Packages {
					status := e.Status
					if e.State != "installed" {
						status = e.State
					} else if e.Login != "" {
						status = "login"
					}
					if e.Quarantined > 0 {
						status += fmt.Sprintf(", %d to review", e.Quarantined)
					}
					fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\n", e.ID, orDash(e.Version), status, orDash(e.Confinement),
						e.Tools, printable(e.Title))
				}
				return t.Flush()
			})
		},
	}
	p.registerFlags(c.Flags())
	return c
}

// packageDetails is a package as package_info shows it.
type packageDetails struct {
	packageEntry
	Source    string            `json:"source"`
	Command   string            `json:"command"`
	Args      []string          `json:"args"`
	Env       map[string]string `json:"env"`
	Start     string            `json:"start"`
	Instances string            `json:"instances"`
	Timeout   string            `json:"timeout"`
	Hints     bool              `json:"trust_hints"`
	May       []string          `json:"may"`
	Grants    packages.Grants   `json:"grants"`
	Data      string            `json:"data"`
	Installed string            `json:"installed"`
	By        string            `json:"by"`
	PID       int               `json:"pid"`
	Bytes     int64             `json:"bytes"`
	Also      int64             `json:"also_bytes"`
	Names     []string          `json:"names"`
	Off       []string          `json:"off"`
	Left      []string          `json:"left_out"`
	NewTools  string            `json:"new_tools"`
	Digest    string            `json:"digest"`
	Previous  string            `json:"previous"`
	Waiting   []string          `json:"waiting"`
}

func packageInfo(w Environment) *cobra.Command {
	var p packageFlags
	c := &cobra.Command{
		Use:     "info NAME",
		Short:   "Describe a package",
		Example: "  gatehouse package info memory",
		Args:    exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			return callOnce(&p, c, w, "package_info", packageID{args[0]}, func(i packageDetails) error {
				return describePackage(w.Out, i)
			})
		},
	}
	p.registerFlags(c.Flags())
	c.ValidArgsFunction = p.packageNames(w)
	return c
}

func describePackage(out io.Writer, i packageDetails) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(t, "%s\t%s\n", name, printable(value))
		}
	}
	row("name", i.ID)
	row("title", i.Title)
	row("version", i.Version)
	row("state", i.State)
	row("status", i.Status)
	row("error", i.Error)
	if i.Login != "" {
		row("login", i.Login+"; log in with gatehouse package login "+i.ID)
	}
	row("source", i.Source)
	row("command", strings.Join(append([]string{i.Command}, i.Args...), " "))
	for _, name := range slices.Sorted(maps.Keys(i.Env)) {
		row("variable", name+" ("+i.Env[name]+")")
	}
	row("start", i.Start)
	row("instances", i.Instances)
	row("timeout", i.Timeout)
	if i.Hints {
		row("hints", "believed")
	}
	row("confinement", i.Confinement)
	for _, line := range i.May {
		row("may", line)
	}
	row("health", describeHealth(i.Health))
	row("data", i.Data)
	if i.Bytes > 0 {
		row("size", fmt.Sprintf("%.1f MB, %.1f MB of it in other packages too", float64(i.Bytes)/1e6,
			float64(i.Also)/1e6))
	}
	row("installed", strings.TrimSpace(i.Installed+" by "+i.By))
	row("tools", strings.Join(i.Names, " "))
	row("off", strings.Join(i.Off, " "))
	for _, why := range i.Left {
		row("left out", why)
	}
	row("new tools", i.NewTools)
	row("digest", i.Digest)
	row("previous", i.Previous)
	for _, one := range i.Waiting {
		row("to review", one)
	}
	return t.Flush()
}

// describeHealth returns one line about how a server serves; "" if it was not called.
func describeHealth(h packages.Health) string {
	if h.Calls == 0 {
		return ""
	}
	var said strings.Builder
	fmt.Fprintf(&said, "%d calls", h.Calls)
	for _, kind := range slices.Sorted(maps.Keys(h.Errors)) {
		fmt.Fprintf(&said, ", %d %s", h.Errors[kind], kind)
	}
	if h.P50 > 0 {
		fmt.Fprintf(&said, "; half in %v ms, 99%% in %v ms", h.P50, h.P99)
	}
	fmt.Fprintf(&said, "; %d restarts; circuit %s", h.Restarts, h.Circuit)
	if h.Retry != nil {
		said.WriteString(" until " + h.Retry.Format(time.RFC3339))
	}
	return said.String()
}

func packageTools(w Environment) *cobra.Command {
	var p packageFlags
	var in struct {
		ID  string   `json:"id"`
		Off []string `json:"off,omitempty"`
		On  []string `json:"on,omitempty"`
	}
	c := &cobra.Command{
		Use:   "tools NAME",
		Short: "List the tools of a package, and turn some off or on",
		Long: `List the tools of a package. With --off, some are no longer offered: they are in
no list and cannot be called. A tool is named as on this host or as the server
names it.`,
		Example: `  gatehouse package tools memory
  gatehouse package tools memory --off memory_delete_entities --off delete_relations
  gatehouse package tools memory --on delete_relations`,
		Args: exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			in.ID = args[0]
			type listed struct {
				Name        string
				Off         bool
				State       string
				Description string
			}
			return callOnce(&p, c, w, "package_tools", in, func(out struct{ Tools []listed }) error {
				t := tabwriter.NewWriter(w.Out, 0, 0, 2, ' ', 0)
				for _, one := range out.Tools {
					state := "on"
					if one.Off {
						state = "off"
					}
					if one.State != "" {
						state += ", " + one.State
					}
					fmt.Fprintf(t, "%s\t%s\t%s\n", one.Name, state, printable(shorten(sentence(one.Description))))
				}
				return t.Flush()
			})
		},
	}
	p.registerFlags(c.Flags())
	c.Flags().StringSliceVar(&in.Off, "off", nil, "`tool` to offer no longer; can be repeated")
	c.Flags().StringSliceVar(&in.On, "on", nil, "`tool` to offer again; can be repeated")
	c.ValidArgsFunction = p.packageNames(w)
	return c
}

func packageLogs(w Environment) *cobra.Command {
	var p packageFlags
	limit := 50
	c := &cobra.Command{
		Use:     "logs NAME",
		Short:   "Print the log of a package's server",
		Example: "  gatehouse package logs memory -n 200",
		Args:    exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			in := struct {
				ID    string `json:"id"`
				Limit int    `json:"limit"`
			}{args[0], limit}
			type line struct{ Timestamp, Message string }
			return callOnce(&p, c, w, "package_logs", in, func(out struct{ Entries []line }) error {
				for _, l := range out.Entries {
					fmt.Fprintf(w.Out, "%s %s\n", l.Timestamp, printable(l.Message))
				}
				return nil
			})
		},
	}
	p.registerFlags(c.Flags())
	c.Flags().IntVarP(&limit, "lines", "n", limit, "newest lines to print, at most 1000")
	c.ValidArgsFunction = p.packageNames(w)
	return c
}

// packageSet makes the commands that start and stop a server.
func packageSet(w Environment, word, short string) *cobra.Command {
	var p packageFlags
	c := &cobra.Command{
		Use:     word + " NAME",
		Short:   short,
		Example: "  gatehouse package " + word + " memory",
		Args:    exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			return callOnce(&p, c, w, "package_"+word, packageID{args[0]}, func(e packageEntry) error {
				fmt.Fprintf(w.Err, "[gatehouse] Package %s: %s\n", e.ID, e.Status)
				return nil
			})
		},
	}
	p.registerFlags(c.Flags())
	c.ValidArgsFunction = p.packageNames(w)
	return c
}

func packageRemove(w Environment) *cobra.Command {
	var p packageFlags
	var in struct {
		ID       string `json:"id"`
		KeepData bool   `json:"keep_data,omitempty"`
	}
	c := &cobra.Command{
		Use:     "remove NAME",
		Short:   "Remove a package with its data",
		Example: "  gatehouse package remove memory --yes",
		Args:    exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			in.ID = args[0]
			if err := p.canAgree(w); err != nil {
				return err
			}
			return callOnce(&p, c, w, "package_remove", in, func(out struct{ Removed string }) error {
				fmt.Fprintf(w.Err, "[gatehouse] Removed package %s\n", out.Removed)
				return nil
			})
		},
	}
	p.registerFlags(c.Flags())
	p.addYes(c.Flags())
	c.Flags().BoolVar(&in.KeepData, "keep-data", false, "keep its data for the next package of that name")
	c.ValidArgsFunction = p.packageNames(w)
	return c
}

// canAgree refuses a command that would have to ask where there is no terminal.
func (p *packageFlags) canAgree(w Environment) error {
	if p.yes || asker(w, config.Folders{}) != nil {
		return nil
	}
	return usagef("standard input is not a terminal, so there is no one to ask: give --yes to agree beforehand")
}

// packageNames completes the name of a package.
func (p *packageFlags) packageNames(w Environment) cobra.CompletionFunc {
	return func(c *cobra.Command, words []string, begin string) ([]string, cobra.ShellCompDirective) {
		quiet := w
		quiet.Err = io.Discard
		a, err := p.connect(c, quiet)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer a.close()
		var out struct{ Packages []packageEntry }
		if err := a.callTool(c.Context(), quiet, "package_list", struct{}{}, &out); err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, e := range out.Packages {
			if len(words) == 0 && strings.HasPrefix(e.ID, begin) {
				names = append(names, e.ID+"\t"+printable(e.Title))
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

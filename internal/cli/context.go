package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/files/sqlfile"
	"gatehouse/internal/modules/contextadmin"
	"gatehouse/internal/modules/standard"
	"gatehouse/tool"
)

func contextCommand(w Environment) *cobra.Command {
	c := &cobra.Command{
		Use:   "context",
		Short: "Create and change contexts: named views of this host",
		Long: `Create and change contexts: named views of this host, each with its choice of
tools, its callers, rules, folders, environment, and tools, prompts and resources
of its own. Callers choose one by --context, /mcp/NAME, the header X-MCP-Context, or
their token. Running hosts apply every change within a second.

Contexts that the settings define are changed in gatehouse.yaml; those that every
host has cannot be changed.`,
		Example: `  gatehouse context create notes -d ~/notes --tool 'file_*,dir_list'
  gatehouse context list
  gatehouse context delete notes`,
		Args: knownCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },

		SuggestionsMinimumDistance: 2,
	}
	c.AddCommand(contextCreate(w), contextList(w), contextShow(w), contextUpdate(w), contextDelete(w), contextCheck(w))
	return c
}

// definedContexts returns the contexts of the settings, which can be changed only there.
func definedContexts(w Environment) (config.Config, []contextstore.Record, error) {
	l, err := readSettings(w)
	if err != nil {
		return config.Config{}, nil, err
	}
	all, err := app.Defined(l.Config)
	if err != nil {
		goesOn(w)(err)
	}
	return l.Config, all, nil
}

// findContext returns the context with this name, or nil if there is none.
func findContext(all []contextstore.Record, name string) *contextstore.Record {
	if i := slices.IndexFunc(all, func(r contextstore.Record) bool { return r.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// isNode reports whether this machine is a node of a cluster, or was one.
func isNode(f config.Folders) bool {
	_, err := os.Stat(app.ClusterFolder(f.Data))
	return f.Data != "" && err == nil
}

// withContexts opens the store of contexts and runs f with it and with the contexts of the settings.
func withContexts(
	w Environment, f func(b *contextstore.Store, cfg config.Config, defined []contextstore.Record) error,
) error {
	cfg, defined, err := definedContexts(w)
	if err != nil {
		return err
	}
	b, err := contextstore.Open(app.ContextsFile(cfg.Folders), contextstore.Options{
		Fixed: func(name string) bool {
			return findContext(defined, name) != nil || app.ReservedContext(name)
		},
		Modules: func() (names []string) {
			for _, g := range standard.Modules(standard.Deps{}) {
				names = append(names, g.Name)
			}
			return names
		},
		Cluster: cfg.Cluster.Name != "" || isNode(cfg.Folders),
	})
	if err != nil {
		return err
	}
	if isNode(cfg.Folders) {
		if err := b.Replicate(func(file *sqlfile.File, applied func() error) error {
			_, err := app.Replicated(context.Background(), cfg.Folders, "contexts", file, applied)
			return err // the connection ends with this process
		}); err != nil {
			return errors.Join(err, b.Close())
		}
	}
	err = f(b, cfg, defined)
	if errors.Is(err, contextstore.ErrFixed) {
		err = fmt.Errorf(
			"%w: the settings define it, or every host has it; change it in gatehouse.yaml, or use another name",
			err,
		)
	}
	if _, wrong := errors.AsType[*contextstore.Invalid](err); wrong {
		err = &usageError{err}
	}
	return errors.Join(err, b.Close())
}

// definitionFlags define a context. On update, the flags that are given replace the previous values.
type definitionFlags struct {
	set  *pflag.FlagSet
	d    contextstore.Definition
	dirs []string
	vars []string
	from string
	read []byte // its content
}

func (f *definitionFlags) register(set *pflag.FlagSet) {
	f.set = set
	set.SortFlags = false
	set.StringVar(&f.d.Description, "description", "", "description of the context")
	set.StringSliceVar(
		&f.d.Modules,
		"module",
		nil,
		"modules it contains, comma-separated (default: those every caller gets)",
	)
	set.StringSliceVar(
		&f.d.Tools,
		"tool",
		nil,
		"patterns of tools such as file_*, comma-separated; ! in front excludes",
	)
	set.StringSliceVar(&f.d.Prompts, "prompt", nil, "patterns of prompts")
	set.StringSliceVar(&f.d.Resources, "resource", nil, "patterns of URIs")
	set.StringVar(&f.d.Style, "style", "", "how tool names are written: underscore, dot or colon")
	set.BoolVar(&f.d.Aliases, "aliases", false, "call tools by the first alias they declare")
	set.StringVar(&f.d.List, "list", "", "which tools are listed: all (the default), search, or auto")
	set.StringArrayVar(&f.d.Pinned, "pin", nil, "pattern of tools that a short list has; repeatable")
	set.BoolVar(&f.d.ProgramsAsk, "programs-ask", false,
		"programs of code_run may call tools that ask the user or need an approval")
	set.StringVar(
		&f.d.Results,
		"results",
		"",
		"what is sent of tools that produce text: text (the default) or structured",
	)
	set.StringSliceVar(&f.d.Roles, "role", nil, "roles that may use it, comma-separated (default: everyone)")
	set.StringSliceVar(&f.d.Users, "user", nil, "users that may use it, names or patterns")
	set.StringSliceVar(&f.d.KnownTo, "known-to", nil, "roles that may see it without using it")
	set.StringVar(&f.d.Team, "team", "", "team that owns what is made in it: whoever may use it shares that")
	set.StringSliceVar(&f.d.Labels, "label", nil,
		"what a node of the cluster must have to run its programs, such as zone=a, comma-separated")
	set.IntVar(
		&f.d.Limits.Calls,
		"calls",
		0,
		"calls that run at once in it, of all callers together (default: as many as on the host)",
	)
	set.Float64Var(&f.d.Limits.Rate, "rate", 0, "calls per second of one caller in it (default: no limit)")
	set.IntVar(&f.d.Limits.Burst, "burst", 0, "calls of one caller that may arrive at once (default: twice the rate)")
	set.StringArrayVarP(
		&f.dirs,
		"directory",
		"d",
		nil,
		"folder its tools may access; can be repeated (default: the host's)",
	)
	set.StringArrayVar(
		&f.vars,
		"env",
		nil,
		"`NAME=value` for programs in it, ${secret:NAME} stands for a secret; can be repeated",
	)
	set.StringVar(&f.from, "from", "", "JSON `file` with the definition, or parts of it; - reads standard input")
}

// load reads the file, if one was named.
func (f *definitionFlags) load(stdin io.Reader) error {
	if f.from == "" {
		return nil
	}
	in := stdin
	if f.from != "-" {
		file, err := os.Open(f.from)
		if err != nil {
			return &usageError{err}
		}
		defer file.Close()
		in = file
	}
	var err error
	f.read, err = io.ReadAll(io.LimitReader(in, definitionLimit))
	return err
}

// applyDefinition writes the given flags into a definition.
func (f *definitionFlags) applyDefinition(to *contextstore.Definition) error {
	if f.from != "" {
		if err := to.ReadJSON(f.read); err != nil {
			return err
		}
	}
	for flag, take := range map[string]func(){
		"description": func() { to.Description = f.d.Description },
		"module": func() {
			to.Modules = orEmpty(slices.DeleteFunc(f.d.Modules, func(m string) bool { return m == "none" }))
		},
		"tool":         func() { to.Tools = f.d.Tools },
		"prompt":       func() { to.Prompts = f.d.Prompts },
		"resource":     func() { to.Resources = f.d.Resources },
		"style":        func() { to.Style = f.d.Style },
		"aliases":      func() { to.Aliases = f.d.Aliases },
		"results":      func() { to.Results = f.d.Results },
		"list":         func() { to.List = f.d.List },
		"pin":          func() { to.Pinned = f.d.Pinned },
		"programs-ask": func() { to.ProgramsAsk = f.d.ProgramsAsk },
		"role":         func() { to.Roles = f.d.Roles },
		"user":         func() { to.Users = f.d.Users },
		"known-to":     func() { to.KnownTo = f.d.KnownTo },
		"team":         func() { to.Team = f.d.Team },
		"label":        func() { to.Labels = f.d.Labels },
		"calls":        func() { to.Limits.Calls = f.d.Limits.Calls },
		"rate":         func() { to.Limits.Rate = f.d.Limits.Rate },
		"burst":        func() { to.Limits.Burst = f.d.Limits.Burst },
	} {
		if f.set.Changed(flag) {
			take()
		}
	}
	if f.set.Changed("directory") {
		to.Roots = nil
		for _, d := range f.dirs {
			root, err := asRoot(d)
			if err != nil {
				return err
			}
			to.Roots = append(to.Roots, root)
		}
	}
	if f.set.Changed("env") {
		to.Env = map[string]string{}
		for _, v := range f.vars {
			name, value, ok := strings.Cut(v, "=")
			if !ok {
				return usagef("--env %s: expected NAME=value", v)
			}
			to.Env[name] = value
		}
	}
	return nil
}

// asRoot converts a path on the command line into a folder of a context. The folder must exist now; whether it
// exists when a host opens it is checked again by that host.
func asRoot(dir string) (contextstore.Root, error) {
	if dir == "" || dir == "~" || strings.HasPrefix(dir, "~/") {
		return contextstore.Root{Path: dir}, nil
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return contextstore.Root{}, err
	}
	if info, err := os.Stat(abs); err != nil || !info.IsDir() {
		return contextstore.Root{}, usagef("--directory %s: the folder does not exist", dir)
	}
	return contextstore.Root{Path: abs}, nil
}

// definitionLimit bounds a definition that is read, in bytes.
const definitionLimit = 1 << 20

func contextCreate(w Environment) *cobra.Command {
	var f definitionFlags
	c := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a context",
		Long: `Create a context. Rules, and tools, prompts and resources of its own, come from a
file:

  {"own_tools": [{"name": "log", "description": "Shows the last commits.",
                  "effects": ["reads"],
                  "input": {"type": "object", "properties": {"count": {"type": "integer"}}},
                  "command": {"path": "git", "args": ["log", "--oneline", "-n{{count?}}"]}}],
   "own_prompts": [{"name": "review", "arguments": [{"name": "path", "required": true}],
                    "template": "Review {{path}}."}],
   "own_resources": [{"uri": "team://notes/{topic}", "name": "notes", "file": "notes/{{topic}}.md",
                      "variables": [{"name": "topic", "values": ["build", "release"]}]}],
   "rules": [{"effects": ["destroys"], "then": "ask", "reason": "it cannot be undone"}]}`,
		Example: `  gatehouse context create notes -d ~/notes --tool 'file_*,dir_list'
  gatehouse context create tracker --role ci --module none --from tracker.json`,
		Args: exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.load(w.In); err != nil {
				return err
			}
			return withContexts(w, func(b *contextstore.Store, cfg config.Config, defined []contextstore.Record) error {
				r := contextstore.Record{Name: args[0]}
				if err := f.applyDefinition(&r.Definition); err != nil {
					return err
				}
				if _, err := b.Create(r, byCommand); err != nil {
					return fmt.Errorf("context %s: %w", args[0], err)
				}
				fmt.Fprintf(w.Err, "[gatehouse] Created context %s\n", args[0])
				noteUnserved(w, cfg, r.Modules)
				noteText(w, app.RuleWarnings(c.Context(), cfg, &r))
				return writeDown(w, changed{"context.created", named(args[0])})
			})
		},
	}
	f.register(c.Flags())
	return c
}

// noteUnserved prints which modules of a context a host with these settings does not serve.
func noteUnserved(w Environment, cfg config.Config, modules []string) {
	if missing := app.Unserved(cfg, modules); len(missing) > 0 {
		fmt.Fprintf(
			w.Err,
			"[gatehouse] A host with these settings does not serve %s: the context offers none of its tools there.\n"+
				"[gatehouse] Name it when you start the host: gatehouse serve %s\n",
			strings.Join(missing, ", "),
			strings.Join(modules, " "),
		)
	}
}

func contextUpdate(w Environment) *cobra.Command {
	var f definitionFlags
	c := &cobra.Command{
		Use:   "update NAME",
		Short: "Change a context; values that are not given stay unchanged",
		Long: `Change a context. A flag, or a member of the file, replaces the whole previous
value; an empty list, and null in the file, remove it. The rest stays unchanged.`,
		Example: `  gatehouse context update notes --tool 'file_*,!file_delete'
  gatehouse context update notes --role ''`,
		Args: exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.load(w.In); err != nil {
				return err
			}
			return withContexts(w, func(b *contextstore.Store, cfg config.Config, defined []contextstore.Record) error {
				r, err := b.Update(
					args[0],
					byCommand,
					func(r *contextstore.Record) error { return f.applyDefinition(&r.Definition) },
				)
				if err != nil {
					return fmt.Errorf("context %s: %w", args[0], err)
				}
				fmt.Fprintf(w.Err, "[gatehouse] Changed context %s\n", args[0])
				noteUnserved(w, cfg, r.Modules)
				noteText(w, app.RuleWarnings(c.Context(), cfg, &r))
				return writeDown(w, changed{"context.changed", named(args[0])})
			})
		},
	}
	f.register(c.Flags())
	return c
}

func contextList(w Environment) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:     "list",
		Short:   "List the contexts that commands created and those of the settings",
		Example: "  gatehouse context list",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return withContexts(w, func(b *contextstore.Store, cfg config.Config, defined []contextstore.Record) error {
				all := slices.Concat(defined, b.Current().Records)
				if asJSON {
					return showJSON(w.Out, map[string]any{"contexts": orEmpty(all)})
				}
				return printContexts(w, all)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func printContexts(w Environment, all []contextstore.Record) error {
	if len(all) == 0 {
		fmt.Fprintln(w.Err, "[gatehouse] There are no contexts; create one with gatehouse context create NAME")
		return nil
	}
	t := tabwriter.NewWriter(w.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tCALLERS\tMODULES\tOWN\tSINCE\tDESCRIPTION")
	for _, r := range all {
		who := dash(slices.Concat(r.Roles, r.Users))
		if who == "-" {
			who = "everyone"
		}
		modules := "default"
		if r.Modules != nil {
			modules = dash(r.Modules)
		}
		since := r.Updated.Format(time.DateOnly)
		if r.Fixed {
			since = "settings"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\n", r.Name, printable(who), printable(modules),
			len(r.OwnTools)+len(r.OwnPrompts)+len(r.OwnResources), since, orDash(sentence(r.Description)))
	}
	return t.Flush()
}

func contextShow(w Environment) *cobra.Command {
	return &cobra.Command{
		Use:     "show NAME",
		Short:   "Print a context as JSON, in the form that --from reads",
		Example: "  gatehouse context show notes",
		Args:    exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			return withContexts(w, func(b *contextstore.Store, cfg config.Config, defined []contextstore.Record) error {
				r := findContext(defined, args[0])
				if r == nil {
					r = b.Current().Find(args[0])
				}
				if r == nil && app.ReservedContext(args[0]) {
					return fmt.Errorf("context %s: hosts make it of the modules that they serve, and it has no definition; "+
						"gatehouse context check %s says what a caller may do in it", args[0], args[0])
				}
				if r == nil {
					return fmt.Errorf("context %s: %w", args[0], contextstore.ErrNotFound)
				}
				return showJSON(w.Out, r)
			})
		},
	}
}

func contextDelete(w Environment) *cobra.Command {
	return &cobra.Command{
		Use:     "delete NAME...",
		Short:   "Remove contexts; sessions in them lose access",
		Example: "  gatehouse context delete notes",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("%s requires the name of a context", c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			return withContexts(w, func(b *contextstore.Store, cfg config.Config, defined []contextstore.Record) error {
				for _, name := range args {
					if err := b.Delete(name); err != nil {
						return fmt.Errorf("context %s: %w", name, err)
					}
					fmt.Fprintf(w.Err, "[gatehouse] Removed context %s\n", name)
					if err := writeDown(w, changed{"context.removed", named(name)}); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

func contextCheck(w Environment) *cobra.Command {
	var q contextadmin.Question
	var args string
	c := &cobra.Command{
		Use:   "check NAME",
		Short: "Report whether a caller may use something in a context, and which rule decides",
		Long: `Report whether a caller may call a tool, read a resource or get a prompt in a
context, and which rule decides: allow, ask, ask-operator, refuse, or absent if
the context does not contain it. The decision uses the settings and the contexts
that commands created, as a host that is started now would.`,
		Example: `  gatehouse context check notes --user ann --tool file_delete
  gatehouse context check build --role ci --resource gatehouse:///public`,
		Args: exactly("NAME"),
		RunE: func(c *cobra.Command, names []string) error {
			q.Context = names[0]
			if args != "" {
				if err := json.Unmarshal([]byte(args), &q.Args); err != nil {
					return usagef("--args %s: expected a JSON object", args)
				}
			}
			l, err := readSettings(w)
			if err != nil {
				return err
			}
			if err := rolesOf(c.Context(), w, &q); err != nil {
				return err
			}
			cfg := l.Config
			cfg.Log.Level = max(cfg.Log.Level, slog.LevelWarn)
			v, err := app.Judge(
				c.Context(),
				cfg,
				app.Options{Log: logger(w.Err, cfg, new(slog.LevelVar)), Settings: l.File},
				q,
			)
			if ref, ok := errors.AsType[*tool.Refusal](err); ok {
				return usagef("%s", ref.Text())
			}
			if err != nil {
				return asUsage(l, err)
			}
			return showJSON(w.Out, v)
		},
	}
	c.Flags().SortFlags = false
	c.Flags().StringVar(&q.User, "user", "", "the caller; it has the roles of that user")
	c.Flags().StringSliceVar(&q.Roles, "role", nil, "further roles of the caller, comma-separated")
	c.Flags().StringVar(&q.Tool, "tool", "", "the tool, by its name in the context")
	c.Flags().StringVar(&q.Resource, "resource", "", "the URI of a resource")
	c.Flags().StringVar(&q.Prompt, "prompt", "", "the prompt, by its name in the context")
	c.Flags().StringVar(&args, "args", "", "arguments of the call as `JSON`, for rules that use them")
	return c
}

// rolesOf adds the roles that the caller has as a user of this machine's hosts.
func rolesOf(ctx context.Context, w Environment, q *contextadmin.Question) error {
	if q.User == "" {
		return nil
	}
	s, err := openUsers(w, nil)
	if err != nil {
		return err
	}
	users, err := s.Users(ctx)
	for _, u := range users {
		if u.Name == q.User {
			q.Roles = append(q.Roles, u.Roles...)
		}
	}
	return errors.Join(err, s.Close())
}

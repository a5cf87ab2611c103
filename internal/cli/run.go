package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/app"
	"gatehouse/internal/config"
	phase "gatehouse/internal/dispatch/progress"
	"gatehouse/internal/packages"
	"gatehouse/internal/packages/catalog"
)

// runFlags are the flags of gatehouse run that are not those of listeners.
type runFlags struct {
	host    hostFlags
	doors   listenerFlags
	env     []string
	headers []string
	passed  []string
	update  bool
}

func runCommand(w Environment) *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run [flags] TARGET [-- ARG...] | -- COMMAND [ARG...]",
		Short: "Serve one MCP server alone, under its own names",
		Long: `Serve one MCP server alone, under its own names: its tools, resources and prompts,
its name and its instructions, and nothing of this host. Clients of every revision
of the protocol can use it, whichever revision the server speaks. TARGET is

  https://HOST/PATH   a remote server; also http+unix:SOCKET:/PATH, unix:PATH and tcp:HOST:PORT
  npm:NAME[@VERSION]  an npm package; it is installed, and kept for the next run
  FILE                a server.json
  FOLDER              a folder with a package.json or a server.json
  ARCHIVE             a .tgz, .tar.gz, .tar, .zip or .mcpb, which is unpacked
  -- COMMAND ARG...   a program of this machine

Words after TARGET are arguments of the server; put -- before those that begin with
a dash. The server works in the current folder, with the environment of this command
without the variables that begin with GATEHOUSE_.

Without a listener, it serves standard input and output: a client starts the
command itself. The flags of listeners and of logins are those of gatehouse serve.`,
		Example: `  gatehouse run https://mcp.example.com/mcp --header Authorization='Bearer ${secret:TOKEN}'
  gatehouse run npm:@modelcontextprotocol/server-memory
  gatehouse run npm:@modelcontextprotocol/server-filesystem --http -p 8080 -- ~/projects
  gatehouse run ./server.json
  gatehouse run -- uvx mcp-server-git
  gatehouse run --http --require-auth -- python3 server.py`,
		RunE: func(c *cobra.Command, args []string) error {
			one, err := f.target(w, args, c.ArgsLenAtDash())
			if err != nil {
				return err
			}
			load := func() (*config.Loaded, error) { return f.config(c, w) }
			same := func(l *config.Loaded, _ []string) command { return f.sameOnStdio(c, w, args, l) }
			return runServer(c.Context(), load, w, same, one)
		},
	}
	c.Flags().SortFlags = false
	f.doors.register(c.Flags())
	f.host.set = c.Flags()
	c.Flags().StringArrayVarP(&f.env, "env", "e", nil,
		"variable of the server, `NAME=VALUE`, in which ${secret:NAME} stands for a secret; can be repeated")
	c.Flags().StringArrayVar(&f.headers, "header", nil,
		"header of requests to a remote server, `NAME=VALUE`, in which ${secret:NAME} stands for a secret; "+
			"can be repeated")
	c.Flags().StringArrayVar(&f.passed, "pass-header", nil,
		"header of a client's request that goes on to a remote server with it, `NAME`; can be repeated")
	c.Flags().BoolVar(&f.update, "update", false, "install the newest version that TARGET allows")
	c.Flags().StringSliceVar(&f.host.tools, "tools", nil,
		"tools to offer: names or patterns such as read_*, comma-separated; ! in front excludes")
	c.Flags().StringVar(&f.host.file, "config", "",
		"`file` with settings (default: gatehouse.yaml in the config folder)")
	c.Flags().BoolVarP(&f.host.verbose, "verbose", "v", false, "log in detail, on standard error")
	return c
}

// config returns the settings of run: those of serve without what they say about modules, contexts and packages.
func (f *runFlags) config(c *cobra.Command, w Environment) (*config.Loaded, error) {
	l, err := f.host.config(w.Getenv)
	if err != nil {
		return l, err
	}
	if err := f.doors.applyFlags(c, l); err != nil {
		return l, err
	}
	l.View = config.View{Tools: f.host.tools}
	l.Contexts, l.Packages = nil, nil
	if err := l.Validate(); err != nil {
		return l, &usageError{err}
	}
	return l, nil
}

// target returns the server that the command line names. dash is the number of arguments before --,
// -1 if there is none.
func (f *runFlags) target(w Environment, args []string, dash int) (*app.Alone, error) {
	if len(args) == 0 {
		return nil, usagef("the target is missing: expected https://HOST/PATH, npm:NAME, a folder or a server.json, " +
			"or -- COMMAND")
	}
	env, err := parsePairs("env", f.env)
	if err != nil {
		return nil, err
	}
	headers, err := parsePairs("header", f.headers)
	if err != nil {
		return nil, err
	}
	here, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("find the current folder: %w", err)
	}
	one := &app.Alone{Dir: here, Env: os.Environ(), Again: f.update, Progress: installing(w, args[0])}
	one.Package, err = f.record(args, dash == 0, env)
	if err != nil {
		return nil, &usageError{err}
	}
	for name, value := range env {
		if one.Package.Env == nil {
			one.Package.Env = map[string]string{}
		}
		one.Package.Env[name] = value
	}
	if len(headers) > 0 {
		one.Package.Headers = headers
	}
	one.Package.PassHeaders = f.passed
	one.Again = one.Again || one.Package.Source.FromPath() && one.Package.Source.Kind != packages.Folder
	if err := one.Package.Check(); err != nil {
		return nil, &usageError{err}
	}
	return one, nil
}

// record makes a package of the words of the command line.
func (f *runFlags) record(args []string, command bool, env map[string]string) (r packages.Record, err error) {
	r.Start, r.Title = packages.OnDemand, args[0]
	r.ID = idOf(args[0])
	first, rest := args[0], args[1:]
	if command {
		r.Source, r.Command, r.Args = packages.Source{Kind: packages.Command}, first, rest
		return r, nil
	}
	if source, err := packages.ParseSource(first); strings.Contains(first, "://") ||
		packages.IsSource(first) && (err != nil || !source.FromPath()) {
		wish, err := packages.ParseTarget(r.ID, args, nil)
		if err == nil && wish.Source.Kind == packages.Command {
			err = fmt.Errorf("%s: expected https://HOST/PATH, or http", first)
		}
		wish.Title = first
		return wish.Record, err
	}
	path, err := filepath.Abs(first)
	if err != nil {
		return r, err
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !strings.ContainsRune(first, os.PathSeparator):
		return r, fmt.Errorf("there is no file or folder %s; for a program of this machine, put -- before it: "+
			"gatehouse run -- %s; an npm package is npm:%[1]s", first, strings.Join(args, " "))
	case err != nil:
		return r, err
	case info.IsDir():
		return folderServer(r, path, rest, env)
	case filepath.Ext(path) == ".json":
		return describedServer(r, path, rest, env)
	}
	wish, err := packages.ParseTarget(r.ID, append([]string{path}, rest...), nil)
	if err == nil && !wish.Source.FromPath() {
		err = fmt.Errorf("%s: expected a server.json, a folder or an archive; to start a program, put -- before it: "+
			"gatehouse run -- %s", first, strings.Join(args, " "))
	}
	wish.Title = first
	return wish.Record, err
}

// folderServer is the server of a folder: its program, where it is, or the one that its server.json describes.
func folderServer(r packages.Record, folder string, args []string, env map[string]string) (packages.Record, error) {
	_, err := os.Stat(filepath.Join(folder, "package.json"))
	if err != nil {
		described := filepath.Join(folder, "server.json")
		if _, err := os.Stat(described); err != nil {
			return r, fmt.Errorf("%s has neither a package.json nor a server.json; to start a program of it, "+
				"put -- before its command line", r.Title)
		}
		return describedServer(r, described, args, env)
	}
	command, first, err := packages.LocalServer(folder)
	if err != nil {
		return r, err
	}
	r.Source, r.Command, r.Args = packages.Source{Kind: packages.Command}, command, slices.Concat(first, args)
	return r, nil
}

// describedServer is the server that a server.json describes: a package that can be installed here, or else its
// address.
func describedServer(r packages.Record, file string, args []string, env map[string]string) (packages.Record, error) {
	e, err := catalog.ReadServer(file)
	if err != nil {
		return r, err
	}
	p, err := e.Installable(nil)
	if err != nil && len(e.Remotes) == 0 {
		return r, err
	}
	wish, err := e.Wish(r.ID, p, func(in catalog.Input) (plain []string, sealed secret.Text, given bool, err error) {
		value, given := env[in.Name]
		if !given && in.Name != "" {
			value, given = os.LookupEnv(in.Name)
		}
		return []string{value}, sealed, given, nil
	})
	if err != nil {
		return r, fmt.Errorf("%w; give it with --env NAME=VALUE", err)
	}
	wish.Args = append(wish.Args, args...)
	wish.Title = r.Title
	return wish.Record, nil
}

var notOfIDs = regexp.MustCompile(`[^a-z0-9]+`)

// idOf returns an id for messages about a target: the last name in it.
func idOf(target string) string {
	if u, err := url.Parse(target); err == nil && u.Host != "" {
		target = u.Hostname()
	}
	if source, err := packages.ParseSource(target); err == nil && source.Versioned() {
		target = source.Name()
	}
	id := notOfIDs.ReplaceAllString(strings.ToLower(filepath.Base(target)), "-")
	id = strings.TrimLeft(strings.Trim(id, "-"), "-0123456789")
	if id = strings.Trim(id[:min(len(id), 32)], "-"); id == "" {
		return "server"
	}
	return id
}

// installing prints once that something is installed, which can take minutes.
func installing(w Environment, what string) packages.Report {
	var once sync.Once
	return func(phase.Progress) {
		once.Do(func() { fmt.Fprintf(w.Err, "[gatehouse] Installing %s\n", printable(what)) })
	}
}

// sameOnStdio repeats the command line without the flags of listeners and logins.
func (f *runFlags) sameOnStdio(c *cobra.Command, w Environment, args []string, l *config.Loaded) command {
	same := command{program(), []string{"run"}, l.Environment(w.Getenv)}
	left := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(listenerFlags).register(left)
	c.Flags().Visit(func(flag *pflag.Flag) {
		switch {
		case left.Lookup(flag.Name) != nil:
		case flag.Value.Type() == "stringArray":
			for _, value := range map[string][]string{"env": f.env, "header": f.headers,
				"pass-header": f.passed}[flag.Name] {
				same.args = append(same.args, "--"+flag.Name+"="+value)
			}
		default:
			same.args = append(same.args, "--"+flag.Name+"="+flagValue(flag))
		}
	})
	if c.ArgsLenAtDash() == 0 {
		same.args = append(same.args, "--")
		return command{same.program, append(same.args, args...), same.env}
	}
	same.args = append(same.args, args[0])
	if len(args) > 1 {
		same.args = append(append(same.args, "--"), args[1:]...)
	}
	return same
}

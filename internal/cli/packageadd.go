package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/config"
	"gatehouse/internal/packages"
)

// addFlags are the flags of gatehouse package add.
type addFlags struct {
	packageFlags
	grantFlags
	env       []string
	headers   []string
	passed    []string
	secrets   []string
	sets      []string
	start     string
	results   string
	instances string
	login     string
	oauth     packages.OAuth
	client    string // oauth's secret, by the name under which it is stored
	timeout   string
	hints     bool
	newTools  string
	nodes     string
	labels    []string
	locked    string // the lock file to install from
	title     string
	first     bool // take the first of several hits
	take      int  // or the one of this number
}

const addHelp = `Install an MCP server as a package. NAME begins the names of its tools. TARGET is

  npm:NAME[@VERSION]  an npm package; its scripts do not run
  pypi:NAME[==VERSION]
                      a package of PyPI, installed by uv or pip from wheels alone
  crate:NAME[@VERSION], go:MODULE/PATH[@VERSION]
                      a Rust crate or a Go program, built by cargo or go
  oci:HOST/NAME:TAG, docker run [OPTION...] IMAGE
                      an image of a registry, which runs in a sandbox without docker
  FOLDER, ARCHIVE     the path of a program, which is copied; an archive is a
                      .tgz, .tar.gz, .tar or .zip
  archive:https://HOST/PATH[#sha256=HEX], binary:https://HOST/PATH#sha256=HEX
                      an archive, or one program, of an address
  FILE.mcpb, mcpb:https://HOST/PATH[#sha256=HEX]
                      an MCP bundle; --set NAME=VALUE configures it
  FILE.json           what a server.json describes
  PROGRAM             a program of this machine
  openapi:PATH        an OpenAPI 3 document, or openapi:https://...; each operation is
                      a tool. only=tag:NAME chooses some, server=ADDRESS their server
  https://HOST/PATH   a remote server, by Streamable HTTP or the older HTTP+SSE
  http+unix:/SOCKET:/PATH
                      the same over a Unix socket
  unix:/PATH          a running server at a Unix socket; tcp:HOST:PORT over TCP.
                      --header 'Authorization=Bearer TOKEN' is the token it requires
  npx [-y] NAME, uvx NAME, pipx run NAME
                      as an MCP client would start it: the package NAME of npm or PyPI
  search:WORD         what gatehouse search finds for WORD; of several hits the
                      one that gatehouse pick remembers, or that you choose

Words after TARGET are arguments of the server; put -- before those that begin with
a dash. ${data} in them stands for the package's own data folder.

--secret asks for the value of a variable without showing it, and keeps the value in
the secret store. A value of --env that looks like a secret is kept there too.

The server runs in a sandbox with a home folder of its own. It sees no other files of
this machine than its programs, and reaches no network, except for what --allow-folder,
--allow-host and the like grant; gatehouse package grant changes that later.`

func packageAdd(w Environment) *cobra.Command {
	var f addFlags
	c := &cobra.Command{
		Use:   "add NAME TARGET [ARG...]",
		Short: "Install an MCP server as a package",
		Long:  addHelp,
		Example: `  gatehouse package add memory npm:@modelcontextprotocol/server-memory
  gatehouse package add files npm:@modelcontextprotocol/server-filesystem '${data}' --yes
  gatehouse package add github --secret GITHUB_PERSONAL_ACCESS_TOKEN -- github-mcp-server stdio
  gatehouse package add mine ./my-server
  gatehouse package add docs npm:@modelcontextprotocol/server-filesystem ~/docs --allow-folder ~/docs`,
		Args: func(c *cobra.Command, args []string) error {
			if f.locked != "" && len(args) == 1 {
				return nil
			}
			if len(args) < 2 {
				return usagef("%s requires NAME and TARGET, such as npm:@modelcontextprotocol/server-memory",
					c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.canAgree(w); err != nil {
				return err
			}
			if f.locked != "" {
				if len(args) > 1 {
					return usagef("--locked: the lock file says what %s is; give NAME alone", args[0])
				}
				return syncPackages(&f.packageFlags, c, w, f.locked, args, false)
			}
			wish, err := f.wish(c.Context(), w, args[0], args[1:])
			if err != nil {
				return err
			}
			f.t.host.folders = sourceFolders(wish)
			a, err := f.connect(c, w)
			if err != nil {
				return err
			}
			defer a.close()
			done, err := addPackage(c.Context(), w, a, wish)
			if err != nil {
				return err
			}
			if f.json {
				return showJSON(w.Out, done)
			}
			if err := done.print(w); err != nil {
				return err
			}
			return warnUnlisted(w, &f.t.host)
		},
	}
	f.registerFlags(c.Flags())
	f.addYes(c.Flags())
	f.registerGrants(c.Flags())
	f.registerTrust(c.Flags())
	f.registerWish(c.Flags())
	return c
}

// registerWish registers the flags that say what is installed and how it runs.
func (f *addFlags) registerWish(flags *pflag.FlagSet) {
	flags.StringArrayVarP(&f.env, "env", "e", nil, "variable of the server, `NAME=VALUE`; can be repeated")
	flags.StringArrayVar(&f.headers, "header", nil,
		"header of requests to a remote server, `NAME=VALUE`; can be repeated")
	flags.StringArrayVar(&f.passed, "pass-header", nil,
		"header of a client's request that goes on to a remote server with it, `NAME`; can be repeated")
	flags.StringArrayVar(&f.secrets, "secret", nil,
		"variable whose value is asked for and kept secret, `NAME`, or NAME=SECRET for a secret that is stored; "+
			"can be repeated")
	flags.StringArrayVar(&f.sets, "set", nil,
		"value of what a bundle or a server.json lets its user configure, `NAME=VALUE`; can be repeated")
	flags.StringVar(&f.start, "start", packages.OnDemand,
		"when the server starts: demand (at the first call) or always")
	flags.StringVar(&f.instances, "instances", "",
		"whom one instance of the server serves: auto, shared, principal or session (default: auto)")
	flags.StringVar(&f.results, "results", "", "text: omit structured content from results")
	flags.StringVar(&f.login, "login", "",
		"whose login is used at a remote server: shared or principal (default: shared)")
	flags.StringVar(&f.oauth.ClientID, "client-id", "", "`ID` of this host at the server's authorization server")
	flags.StringVar(&f.client, "client-secret", "", "`SECRET` of the secret store that belongs to --client-id")
	flags.StringVar(&f.oauth.Grant, "grant", "",
		"client_credentials: get tokens by --client-id and --client-secret, without a login")
	flags.StringVar(&f.timeout, "timeout", "", "time for one call, such as 30s (default: that of the host)")
	flags.BoolVar(&f.hints, "trust-hints", false,
		"believe what the server says that its tools do, such as readOnlyHint")
	flags.StringVar(&f.nodes, "nodes", "", "in a cluster, where its server runs: one (node for all, the default) or each")
	flags.StringSliceVar(&f.labels, "label", nil,
		"`KEY=VALUE` that a node of the cluster must have to run it; can be repeated")
	flags.StringVar(&f.newTools, "new-tools", "",
		"tools that the server adds later: ask for an approval, or allow (default: ask)")
	flags.StringVar(&f.title, "title", "", "display name (default: the server's)")
	flags.StringVar(&f.locked, "locked", "",
		"install NAME as the lock `file` has it (without a value: "+lockFile+")")
	flags.Lookup("locked").NoOptDefVal = lockFile
	flags.BoolVarP(&f.first, "first", "f", false, "of several hits of a search, take the first")
	flags.IntVar(&f.take, "take", 0, "of several hits of a search, take the one with this `number`")
}

// wish makes the package of a command line, and asks for its secrets.
func (f *addFlags) wish(ctx context.Context, w Environment, name string, words []string) (packages.Wish, error) {
	env, err := parsePairs("env", f.env)
	if err != nil {
		return packages.Wish{}, err
	}
	headers, err := parsePairs("header", f.headers)
	if err != nil {
		return packages.Wish{}, err
	}
	wish, err := packages.ParseTarget(name, words, env)
	if err == nil {
		err = wish.SetHeaders(headers)
	}
	if strings.HasPrefix(words[0], searchTarget) {
		wish, err = f.found(ctx, w, name, words[0], words[1:], env)
	} else if isDescription(words[0]) {
		wish, err = f.described(w, name, words[0], words[1:], env)
	} else if err != nil {
		err = &usageError{err}
	} else if wish.Source.Kind == packages.NPM && !f.yes {
		describeNPM(ctx, w, wish.Source.From)
	}
	if err == nil && wish.Source.Kind == packages.Bundle {
		err = f.configureBundle(w, &wish)
	}
	if err != nil {
		return wish, err
	}
	wish.Instances, wish.Login, wish.OAuth = f.instances, f.login, f.givenOAuth()
	wish.Timeout, wish.TrustHints = f.timeout, f.hints
	wish.Start, wish.Results, wish.Title = f.start, f.results, cmp.Or(f.title, wish.Title)
	wish.PassHeaders, wish.NewTools = f.passed, f.newTools
	wish.Nodes, wish.Labels = f.nodes, f.labels
	if wish.Grants, err = f.grants(); err != nil {
		return wish, err
	}
	if f.trust {
		wish.Confinement = packages.Trusted
	}
	if len(f.secrets) > 0 && wish.Env == nil {
		wish.Env = map[string]string{}
	}
	for _, one := range f.secrets {
		variable, stored, known := strings.Cut(one, "=")
		if !known {
			value, err := f.askSecret(w, variable)
			if err != nil {
				return wish, err
			}
			stored = packages.SecretName(name, variable)
			if wish.Secrets == nil {
				wish.Secrets = map[string]secret.Text{}
			}
			wish.Secrets[stored] = value
		}
		wish.Env[variable] = packages.SecretReference(stored)
	}
	if wish.Source.FromPath() {
		wish.Source.From, err = filepath.Abs(wish.Source.From)
	}
	return wish, err
}

// givenOAuth returns how this host identifies itself to an authorization server; nil if no flag says so.
func (f *addFlags) givenOAuth() *packages.OAuth {
	o := f.oauth
	if f.client != "" {
		o.ClientSecret = packages.SecretReference(f.client)
	}
	return o.Given()
}

// parsePairs parses the values of a flag, NAME=VALUE each.
func parsePairs(flag string, values []string) (map[string]string, error) {
	pairs := map[string]string{}
	for _, one := range values {
		key, value, ok := strings.Cut(one, "=")
		if !ok {
			return nil, usagef("--%s %s: expected NAME=VALUE", flag, one)
		}
		pairs[key] = value
	}
	return pairs, nil
}

// askSecret reads the value of a variable from the terminal without echo.
func (f *addFlags) askSecret(w Environment, variable string) (secret.Text, error) {
	in, ok := w.In.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return secret.Text{}, usagef(
			"--secret %s: standard input is not a terminal; store the value with gatehouse secret set, "+
				"and give --secret %[1]s=SECRET",
			variable,
		)
	}
	return readSecret(w, variable)
}

// sourceFolders are the folders that a package is installed from, which the host must
// be allowed to read.
func sourceFolders(wish packages.Wish) []string {
	switch {
	case wish.Source.Kind == packages.Folder:
		return []string{wish.Source.From}
	case wish.Source.FromPath():
		return []string{filepath.Dir(wish.Source.From)}
	}
	return nil
}

// addedPackage is the result of an installation.
type addedPackage struct {
	ID       string   `json:"id"`
	Title    string   `json:"title"`
	Version  string   `json:"version,omitempty"`
	Tools    []string `json:"tools"`
	Left     []string `json:"left_out,omitempty"`
	Waiting  []string `json:"waiting,omitempty"`
	Warnings []string `json:"warnings,omitempty"`

	Confinement string `json:"confinement"`
}

func (p addedPackage) print(w Environment) error {
	fmt.Fprintf(w.Err, "[gatehouse] Installed %s: %s\n", p.ID, printable(strings.TrimSpace(p.Title+" "+p.Version)))
	if p.Confinement == packages.Trusted {
		fmt.Fprintln(w.Err, "[gatehouse] It is trusted: it runs as your user, in no sandbox")
	}
	for _, warning := range p.Warnings {
		fmt.Fprintf(w.Err, "[gatehouse] %s\n", printable(warning))
	}
	for _, why := range p.Left {
		fmt.Fprintf(w.Err, "[gatehouse] Left out: %s\n", printable(why))
	}
	for _, name := range p.Tools {
		fmt.Fprintln(w.Out, printable(name))
	}
	warnWaiting(w, p.ID, p.Waiting)
	return nil
}

// warnWaiting says which tools are not offered until they are approved.
func warnWaiting(w Environment, id string, waiting []string) {
	if len(waiting) > 0 {
		fmt.Fprintf(w.Err,
			"[gatehouse] Not offered until they are approved: %s. gatehouse package changes %s shows them\n",
			printable(strings.Join(waiting, ", ")), id)
	}
}

// warnUnlisted says so if the settings put the tools of packages in no context.
func warnUnlisted(w Environment, host *hostFlags) error {
	l, err := host.config(w.Getenv)
	if err != nil {
		return nil // the host that installed the package has settings of its own
	}
	inContext := func(c config.Context) bool { return slices.Contains(c.Modules, packageModule) }
	if modules := l.View.Modules; len(modules) > 0 && !slices.Contains(modules, packageModule) &&
		!slices.ContainsFunc(l.Contexts, inContext) {
		const how = "[gatehouse] view.modules is %s, without %s: no context of the settings has these tools. " +
			"Add %[2]s to view.modules, or make a context: gatehouse context create NAME --module %[2]s\n"
		fmt.Fprintf(w.Err, how, strings.Join(modules, ", "), packageModule)
	}
	return nil
}

// addPackage stores the secrets of a package and installs it at a host. The user
// agrees through the connection. If the installation fails, the secrets that it stored
// are removed.
func addPackage(ctx context.Context, w Environment, a *admin, wish packages.Wish) (done addedPackage, err error) {
	forget, err := storeSecrets(w, wish.Secrets)
	if err != nil {
		return done, err
	}
	in := givenMembers(map[string]any{
		"id": wish.ID, "source": wish.Source.String(), "start": wish.Start, "command": wish.Command,
		"title":   wish.Title,
		"version": wish.Version, "results": wish.Results, "instances": wish.Instances, "args": wish.Args,
		"env": wish.Env, "headers": wish.Headers, "config": wish.Config,
		"pass_headers": wish.PassHeaders,
		"timeout":      wish.Timeout, "trust_hints": wish.TrustHints, "login": wish.Login,
		"new_tools": wish.NewTools, "nodes": wish.Nodes, "labels": wish.Labels,
		"trust": wish.Confinement == packages.Trusted,
	})
	if wish.OAuth != nil {
		in["oauth"] = wish.OAuth
	}
	if wish.Image != nil {
		in["image"] = wish.Image
	}
	if !wish.Grants.IsZero() {
		in["grants"] = wish.Grants
	}
	if err := a.callTool(ctx, w, "package_install", in, &done); err != nil {
		return done, errors.Join(err, forget())
	}
	return done, nil
}

// givenMembers removes the members that are false or empty texts, lists or maps from the
// arguments of a tool, because a tool takes a missing member as its default.
func givenMembers(all map[string]any) map[string]any {
	maps.DeleteFunc(all, func(_ string, member any) bool {
		v := reflect.ValueOf(member)
		return v.IsZero() || v.Kind() != reflect.Bool && v.Len() == 0
	})
	return all
}

// storeSecrets stores values in the secret store of this user. forget removes those
// that were not there before.
func storeSecrets(w Environment, values map[string]secret.Text) (forget func() error, err error) {
	forget = func() error { return nil }
	if len(values) == 0 {
		return forget, nil
	}
	s, err := secretStore(w)
	if err != nil {
		return nil, err
	}
	before, err := s.List()
	if err != nil {
		return nil, err
	}
	var added []string
	forget = func() error {
		var errs []error
		for _, name := range added {
			errs = append(errs, s.Remove(name), writeDown(w, changed{"secret.removed", named(name)}))
		}
		return errors.Join(errs...)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if err := s.Set(name, values[name]); err != nil {
			return nil, errors.Join(err, forget())
		}
		if !slices.ContainsFunc(before, func(e secret.Entry) bool { return e.Name == name }) {
			added = append(added, name)
		}
		fmt.Fprintf(w.Err, "[gatehouse] Stored secret %s\n", name)
		if err := writeDown(w, changed{"secret.set", named(name)}); err != nil {
			return nil, errors.Join(err, forget())
		}
	}
	return forget, nil
}

func packageUpdate(w Environment) *cobra.Command {
	var p packageFlags
	var accept bool
	c := &cobra.Command{
		Use:   "update [NAME [VERSION]]",
		Short: "Install a newer version of a package, or of all from registries",
		Long: `Install another version of a package of npm or PyPI, a crate or a Go module:
the newest, or VERSION. Other packages are installed again from
their source. Without NAME, all packages from registries are updated. Data are kept;
after an error a package is as before.`,
		Example: `  gatehouse package update memory
  gatehouse package update memory 2026.8.31
  gatehouse package update --yes`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 2 {
				return usagef("%s wants at most NAME and VERSION, got %d arguments", c.CommandPath(), len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if err := p.canAgree(w); err != nil {
				return err
			}
			a, err := p.connect(c, w)
			if err != nil {
				return err
			}
			defer a.close()
			return updatePackages(c.Context(), w, a, p.json, accept, args)
		},
	}
	p.registerFlags(c.Flags())
	p.addYes(c.Flags())
	c.Flags().BoolVar(&accept, "accept-source", false,
		"install it although its attestation has vanished or names another source than was approved")
	c.ValidArgsFunction = p.packageNames(w)
	return c
}

// updatedPackage is the result of an update.
type updatedPackage struct {
	ID     string `json:"id"`
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
	Failed bool   `json:"failed,omitempty"`
	// tools that are not offered until they are approved
	Waiting []string `json:"waiting,omitempty"`
}

func updatePackages(ctx context.Context, w Environment, a *admin, asJSON, accept bool, args []string) error {
	names, version := args, ""
	if len(args) == 2 {
		names, version = args[:1], args[1]
	}
	if len(names) == 0 {
		var out struct{ Packages []packageEntry }
		if err := a.callTool(ctx, w, "package_list", struct{}{}, &out); err != nil {
			return err
		}
		for _, e := range out.Packages {
			names = append(names, e.ID)
		}
	}
	results := []updatedPackage{}
	var failed error
	for _, name := range names {
		one, done, err := updatePackage(ctx, w, a, name, version, len(args) == 0, accept)
		if err != nil && (len(args) > 0 || !errors.Is(err, errToolFailed)) {
			return err
		}
		if err != nil {
			failed, one.Failed = err, true
		}
		if done || err != nil {
			results = append(results, one)
		}
	}
	if asJSON {
		return errors.Join(showJSON(w.Out, map[string]any{"packages": results}), failed)
	}
	for _, one := range results {
		switch {
		case one.Failed:
			fmt.Fprintf(w.Err, "[gatehouse] %s is as before: %s\n", one.ID, orDash(one.Before))
		case one.Before == one.After:
			fmt.Fprintf(w.Err, "[gatehouse] %s stays at %s\n", one.ID, orDash(one.After))
		default:
			fmt.Fprintf(w.Err, "[gatehouse] Updated %s from %s to %s\n", one.ID, orDash(one.Before), orDash(one.After))
		}
		warnWaiting(w, one.ID, one.Waiting)
	}
	return failed
}

// updatePackage updates one package. onlyVersioned leaves packages alone whose sources have no versions.
func updatePackage(
	ctx context.Context, w Environment, a *admin, name, version string, onlyVersioned, accept bool,
) (one updatedPackage, done bool, err error) {
	one.ID = name
	var was packageDetails
	if err := a.callTool(ctx, w, "package_info", packageID{name}, &was); err != nil {
		return one, false, err
	}
	one.Before = was.Version
	in := map[string]any{"id": name}
	source, err := packages.ParseSource(was.Source)
	switch {
	case err != nil:
		return one, false, err
	case source.Versioned():
		in["source"] = source.WithVersion(version).String()
	case onlyVersioned:
		return one, false, nil
	case version != "":
		return one, false, usagef("package %s comes from %s, which has no versions", name, was.Source)
	case source.FromAddress():
		in["source"] = was.Source
	}
	var now addedPackage
	if accept {
		in["accept_source"] = true
	}
	if err := a.callTool(ctx, w, "package_rebuild", in, &now); err != nil {
		return one, false, err
	}
	one.After, one.Waiting = now.Version, now.Waiting
	return one, true, nil
}

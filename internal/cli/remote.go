package cli

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"math"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/mcp/client"
	"gatehouse/internal/modules/standard"
	"gatehouse/internal/server/daemon"
)

// target is the server a command calls: a running one, or one inside this process.
type target struct {
	host hostFlags
	url  string
	unix string
	ca   string

	daemon bool

	token string
	lists bool // only lists tools, which a mistake in the settings does not change
	// keeps makes a host in this process use the data folder, in order to manage its packages. Other hosts in this
	// process store nothing.
	keeps bool
	// packages makes it use the data folder too, in order to call the tools of its packages.
	packages bool
	// ask answers questions in place of the user at the terminal; nil asks the user.
	ask func(Environment, config.Folders) client.Ask
}

func (t *target) register(set *pflag.FlagSet) {
	set.StringVar(
		&t.url,
		"url",
		"",
		"call the server at this `address`, http, https or tcp, instead of one in this process",
	)
	set.StringVar(&t.unix, "unix", "", "call the server at this Unix socket `path` instead")
	set.BoolVar(&t.daemon, "daemon", false, "call the daemon of this user, see gatehouse daemon")
	set.StringVar(&t.ca, "ca", "", "PEM `file` of authorities to accept besides the system's; needs --url")
	set.StringVar(
		&t.token,
		"token",
		"",
		"credentials for the server at --url; local means this user's token for servers on this machine (default: "+
			"$GATEHOUSE_TOKEN)",
	)
	t.host.register(set)
}

// running reports whether the command line names a server that keeps running after the command.
func (t *target) running() bool { return t.url != "" || t.unix != "" || t.daemon }

// connectTarget connects to the server. end closes everything that was opened.
func (t *target) connectTarget(c *cobra.Command, w Environment) (cl *client.Client, end func(), err error) {
	o := client.Options{Name: "gatehouse-cli", Version: app.Version, Progress: progress(w.Err)}
	if cfg, err := config.FromEnv(w.Getenv); err == nil {
		ask := asker
		if t.ask != nil {
			ask = t.ask
		}
		o.Ask = ask(w, cfg.Folders)
	}
	if !t.running() && t.ca == "" && t.token == "" {
		return t.within(c.Context(), w, o)
	}
	if t.url != "" && t.unix != "" || t.daemon && (t.url != "" || t.unix != "") {
		return nil, nil, usagef("--url, --unix and --daemon exclude each other")
	}
	if t.ca != "" && t.url == "" {
		return nil, nil, usagef("--ca needs --url")
	}
	if t.token != "" && t.url == "" {
		return nil, nil, usagef("--token needs --url")
	}
	for _, name := range t.host.names() {
		if c.Flags().Changed(name) && name != "verbose" && name != "context" && !(t.daemon && name == "directory") {
			return nil, nil, usagef(
				"--%s applies only to a server in this process; a running server has its own settings",
				name,
			)
		}
	}
	o.Context = t.host.context
	if t.daemon {
		cl, err = dialDaemon(c.Context(), w, t.host.folders, o)
	} else if t.url != "" {
		if o.Roots, err = authorities(t.url, t.ca, w.Getenv); err != nil {
			return nil, nil, err
		}
		if o.Token, err = t.credential(w.Getenv); err != nil {
			return nil, nil, err
		}
		dial := client.DialHTTP
		if strings.HasPrefix(t.url, "tcp:") {
			dial = client.DialTCP
		}
		cl, err = dial(c.Context(), t.url, o)
	} else {
		cl, err = client.DialUnix(c.Context(), t.unix, o)
	}
	if err != nil {
		return nil, nil, err
	}
	return cl, func() { cl.Close() }, nil
}

// credential returns the token for the server: from the flag, from the local token's file, or from the
// environment. The local token is sent only if the user requests it, because any program may listen on this
// machine.
func (t *target) credential(getenv func(string) string) (string, error) {
	switch t.token {
	case "":
		return getenv("GATEHOUSE_TOKEN"), nil
	case "local":
	default:
		return t.token, nil
	}
	if u, err := url.Parse(t.url); err == nil && !config.Loopback(u.Hostname()) {
		return "", usagef("--token local is for servers on this machine, and %s is not", t.url)
	}
	cfg, err := config.FromEnv(getenv)
	if err != nil {
		return "", &usageError{err}
	}
	token, err := os.ReadFile(app.LocalTokenFile(cfg.Folders))
	if err != nil {
		return "", usagef("--token local: %w; a server with --http or --tcp creates it", err)
	}
	return strings.TrimSpace(string(token)), nil
}

// authorities returns the certificates that verify a server: the system's, those in a file, and for a server on
// this machine its self-signed certificate. nil means only the system's.
func authorities(address, file string, getenv func(string) string) (*x509.CertPool, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" {
		return nil, nil // dialling reports what is wrong with it
	}
	var own []byte
	if file != "" {
		if own, err = os.ReadFile(file); err != nil {
			return nil, usagef("--ca: %w", err)
		}
	} else if cfg, err := config.FromEnv(getenv); err == nil && config.Loopback(u.Hostname()) {
		// if it does not exist, the system's certificates decide
		own, _ = os.ReadFile(filepath.Join(cfg.Folders.Cache, "tls", "self-signed.crt"))
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(own) {
		if file != "" {
			return nil, usagef("--ca: there is no certificate in %s; expected PEM, with BEGIN CERTIFICATE", file)
		}
		return nil, nil
	}
	return pool, nil
}

// within builds a host that lasts as long as the command and stores nothing. The command calls it through a pipe,
// as it calls any other server.
func (t *target) within(ctx context.Context, w Environment, o client.Options) (*client.Client, func(), error) {
	l, err := t.host.config(w.Getenv)
	if err == nil {
		err = l.Validate()
	}
	if err == nil {
		err = l.Explain(app.CheckSettings(l.Config))
	}
	if err != nil && t.lists && l.File != "" && t.host.file == "" {
		mistake := err
		t.host.noFile = true
		if l, err = t.host.config(w.Getenv); err == nil {
			err = l.Validate()
		}
		if err == nil {
			goesOn(w)(mistake)
		}
	}
	if err != nil {
		return nil, nil, &usageError{err}
	}
	cfg := l.Config
	if !t.host.verbose {
		cfg.Log.Level = max(cfg.Log.Level, slog.LevelWarn) // a command prints its result, not the host's log
	}
	cfg.Listen.Stdio, cfg.Listen.HTTP.Open, cfg.Listen.TCP, cfg.Listen.Unix = false, false, "", ""
	cfg.Limits.Result = cfg.Limits.Message // a terminal can scroll
	if t.keeps {
		cfg.View, cfg.Contexts = config.View{Modules: []string{packageModule}}, nil
	}
	ours, theirs := net.Pipe()
	host, err := app.New(
		ctx,
		cfg,
		app.Options{
			Log:      logger(w.Err, cfg, new(slog.LevelVar)),
			Private:  !t.keeps && !t.packages,
			OneCall:  true,
			Conn:     theirs,
			Settings: l.File,
		},
	)
	if err != nil {
		return nil, nil, asUsage(l, err)
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- host.Run(running) }()
	end := func() {
		ours.Close()
		stop()
		<-done
	}
	cl, err := client.Over(ctx, "this program", ours, o)
	if err != nil {
		end()
		return nil, nil, err
	}
	return cl, end, nil
}

// progress prints the progress of a tool.
func progress(stderr io.Writer) func(done, total float64, note string) {
	return func(done, total float64, note string) {
		s := fmt.Sprint(math.Round(done*1000) / 1000) // floating-point noise is rounded away
		if total > 0 {
			s += fmt.Sprintf(" of %v", total)
		}
		switch {
		case s == "0" && note != "":
			s = printable(note)
		case note != "":
			s += ": " + printable(note)
		}
		fmt.Fprintln(stderr, "[gatehouse] "+s)
	}
}

// printable removes from a third party's text what would control a terminal or deceive its reader.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if displaytext.Deceives(r) && r != '\n' && r != '\t' {
			return '?'
		}
		return r
	}, s)
}

// connectTool connects to the server and finds a tool there. A host inside this process has no packages; if it has no
// such tool, the host that has the packages is tried, and is the target from then on.
func (t *target) connectTool(c *cobra.Command, w Environment, name string) (
	cl *client.Client, entry client.Tool, end func(), err error) {
	cl, end, err = t.connectTarget(c, w)
	if err != nil {
		return nil, client.Tool{}, nil, err
	}
	all, err := cl.Tools(c.Context())
	if err != nil {
		end()
		return nil, client.Tool{}, nil, broken(err)
	}
	if entry, err = t.findTool(c.Context(), w, all, name); err == nil {
		return cl, entry, end, nil
	}
	missing := err
	end()
	other := *t
	if t.running() || !other.holdsPackages(c.Context(), w) {
		return nil, client.Tool{}, nil, cmp.Or(t.notApproved(c, w, name), missing)
	}
	cl, end, err = other.connectTarget(c, w)
	if err != nil {
		return nil, client.Tool{}, nil, missing
	}
	if all, err = cl.Tools(c.Context()); err == nil {
		for _, entry = range all {
			if entry.Name == name {
				*t = other
				return cl, entry, end, nil
			}
		}
	}
	end()
	return nil, client.Tool{}, nil, cmp.Or(other.notApproved(c, w, name), missing)
}

// allTools returns the tools that call and tools find: those of the server and, if it is in this process, those of
// the host that has the packages.
func (t *target) allTools(c *cobra.Command, w Environment) ([]client.Tool, error) {
	all, err := t.listTools(c, w)
	other := *t
	if err != nil || t.running() || !other.holdsPackages(c.Context(), w) {
		return all, err
	}
	more, err := other.listTools(c, w)
	if err != nil {
		return all, nil // such as flags that a running host does not accept
	}
	for _, one := range more {
		if !slices.ContainsFunc(all, func(known client.Tool) bool { return known.Name == one.Name }) {
			all = append(all, one)
		}
	}
	return all, nil
}

func (t *target) listTools(c *cobra.Command, w Environment) ([]client.Tool, error) {
	cl, end, err := t.connectTarget(c, w)
	if err != nil {
		return nil, err
	}
	defer end()
	all, err := cl.Tools(c.Context())
	if err != nil {
		return nil, broken(err)
	}
	return all, nil
}

// holdsPackages changes a target to the host that has the packages: the daemon or another host that runs, or
// else one in this process that uses the data folder. It reports whether there are packages.
func (t *target) holdsPackages(ctx context.Context, w Environment) bool {
	l, err := readSettings(w)
	if err != nil {
		return false
	}
	all, err := os.ReadDir(filepath.Join(l.Config.Folders.Data, "packages"))
	if err != nil || len(all) == 0 {
		return false
	}
	t.findHolder(ctx, l.Config)
	t.packages = !t.running()
	return true
}

// findHolder names the running host that has the packages, if there is one: the daemon, or another host of this user,
// which serves commands on a socket of its own.
func (t *target) findHolder(ctx context.Context, cfg config.Config) {
	if _, err := daemon.Ask(ctx, socketPath(cfg)); err == nil {
		t.daemon = true
		return
	}
	path := app.PackageSocket(cfg.Folders)
	if path == "" {
		return
	}
	var d net.Dialer
	if conn, err := d.DialContext(ctx, "unix", path); err == nil {
		conn.Close()
		t.unix = path
	}
}

// findTool returns the tool with a name, or an error that suggests another: a tool of this list, or one of a
// module that the server does not offer.
func (t *target) findTool(ctx context.Context, w Environment, all []client.Tool, name string) (client.Tool, error) {
	for _, t := range all {
		if t.Name == name {
			return t, nil
		}
	}
	near := nearest(name, toolNames(all))
	if module := elsewhere(all, name); module != "" {
		return client.Tool{}, usagef(
			"there is no tool %q here; it may exist if you name the module it begins with: %s",
			name,
			t.naming(module),
		)
	}
	if near == "" || distance(name, near) > 2 {
		if id := packageOf(w, name); id != "" {
			return client.Tool{}, usagef(
				"there is no tool %q here; gatehouse package info %s lists the tools that the package offers, "+
					"and gatehouse package changes %s those that are not offered until they are approved",
				name, id, id,
			)
		}
		if tool, module := t.other(ctx, w, name); tool != "" &&
			(near == "" || distance(name, tool) < distance(name, near)) {
			return client.Tool{}, usagef(
				"there is no tool %q here; did you mean %s, of the module %s? It is not shown here: %s",
				name,
				tool,
				module,
				t.naming(moduleFlag(module)),
			)
		}
	}
	if near != "" {
		return client.Tool{}, usagef("there is no tool %q; did you mean %s?", name, near)
	}
	return client.Tool{}, usagef("there is no tool %q; \"gatehouse tools\" lists the tools", name)
}

// packageOf returns the installed package that the name of a tool begins with, "" for none.
func packageOf(w Environment, name string) (id string) {
	l, err := readSettings(w)
	if err != nil {
		return ""
	}
	all, err := os.ReadDir(filepath.Join(l.Config.Folders.Data, "packages"))
	if err != nil {
		return ""
	}
	for _, e := range all {
		if strings.HasPrefix(name, e.Name()+"_") && len(e.Name()) > len(id) {
			id = e.Name()
		}
	}
	return id
}

func toolNames(all []client.Tool) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, t := range all {
			if !yield(t.Name) {
				return
			}
		}
	}
}

// naming describes how to offer the tools of a module. A running server has its own modules, and a command that
// calls it does not accept --modules.
func (t *target) naming(module string) string {
	if t.running() {
		return "the server must be started with that module, as by gatehouse serve " + strings.ReplaceAll(
			module,
			",",
			" ",
		)
	}
	return "--modules " + module
}

// other returns the tool of any module of this program whose name is nearest. It searches the program alone, never
// what a server hides.
func (t *target) other(ctx context.Context, w Environment, name string) (tool, module string) {
	var modules []string
	for _, g := range standard.Modules(standard.Deps{}) {
		if !g.Preset || g.Name == "shell" { // of the presets, only shell has common tools with this program's own names
			modules = append(modules, g.Name)
		}
	}
	every := target{lists: true, host: hostFlags{noFile: true}}
	every.host.register(pflag.NewFlagSet("", pflag.ContinueOnError))
	if every.host.set.Set("modules", strings.Join(modules, ",")) != nil {
		return "", ""
	}
	cl, end, err := every.within(
		ctx,
		Environment{In: w.In, Out: io.Discard, Err: io.Discard, Getenv: w.Getenv},
		client.Options{Name: "gatehouse-cli", Version: app.Version},
	)
	if err != nil {
		return "", ""
	}
	defer end()
	all, err := cl.Tools(ctx)
	if err != nil {
		return "", ""
	}
	tool = nearest(name, toolNames(all))
	prefix, _, _ := strings.Cut(tool, "_")
	if !slices.Contains(modules, prefix) {
		return "", ""
	}
	return tool, prefix
}

// elsewhere describes how to name the module that a tool's name begins with, if none of its tools is offered.
func elsewhere(all []client.Tool, name string) string {
	prefix, _, _ := strings.Cut(name, "_")
	for _, t := range all {
		if strings.HasPrefix(t.Name, prefix+"_") {
			return ""
		}
	}
	return moduleFlag(prefix)
}

// moduleFlag returns the flag that names a module so that its tools have this program's own names, or "" if there
// is no such module.
func moduleFlag(module string) string {
	for _, g := range standard.Modules(standard.Deps{}) {
		switch {
		case g.Name != module:
		case g.Preset: // alone it uses another server's names
			return "file," + g.Name
		default:
			return g.Name
		}
	}
	return ""
}

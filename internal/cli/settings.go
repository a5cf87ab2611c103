package cli

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/config"
)

// hostFlags are the flags of every command that builds a host: what its tools may access and what it offers.
type hostFlags struct {
	set          *pflag.FlagSet
	file         string
	folders      []string
	unrestricted bool
	context      string
	modules      []string
	tools        []string
	readOnly     bool
	verbose      bool

	// mistaken is called with a mistake in the file by a command that can continue with the valid part; if it is
	// nil, a mistake is an error.
	mistaken func(error)
	noFile   bool // the file is not read
}

func (f *hostFlags) register(set *pflag.FlagSet) {
	f.set = set
	set.SetNormalizeFunc(otherNames)
	set.StringArrayVarP(
		&f.folders,
		"directory",
		"d",
		nil,
		"folder the tools may access; can be repeated (default: the current one)",
	)
	set.BoolVar(&f.unrestricted, "unrestricted", false, "let the tools access every file this user can")
	set.StringVar(&f.context, "context", "", "named view that callers get")
	set.StringSliceVar(&f.modules, "modules", nil, "modules to offer, comma-separated (default: all)")
	set.StringSliceVar(
		&f.tools,
		"tools",
		nil,
		"tools to offer: names or patterns such as file_*, comma-separated; ! in front excludes",
	)
	set.BoolVar(&f.readOnly, "read-only", false, "offer only tools that change nothing")
	set.StringVar(&f.file, "config", "", "`file` with settings (default: gatehouse.yaml in the config folder)")
	set.BoolVarP(&f.verbose, "verbose", "v", false, "log in detail, on standard error")
}

// otherNames accepts --dir for --directory.
func otherNames(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if name == "dir" {
		name = "directory"
	}
	return pflag.NormalizedName(name)
}

// names returns the flags that add adds; they apply only to a host in this process.
func (f *hostFlags) names() (names []string) {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(hostFlags).register(set)
	set.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// config returns the settings of the file and the environment, overridden by these flags.
func (f *hostFlags) config(getenv func(string) string) (*config.Loaded, error) {
	l, err := f.loadSettings(getenv)
	if err != nil {
		return l, &usageError{err}
	}
	if f.unrestricted && len(f.folders) > 0 {
		return l, usagef("--unrestricted and --directory exclude each other")
	}
	flags{f.set, l}.applyAll([]flagged{
		{"directory", "roots.folders", func() { l.Roots.Folders, l.Roots.Unrestricted = f.folders, false }},
		{"unrestricted", "roots.unrestricted", func() { l.Roots.Unrestricted = f.unrestricted }},
		{"context", "view.context", func() { l.View.Context = f.context }},
		{"modules", "view.modules", func() { l.View.Modules = f.modules }},
		{"tools", "view.tools", func() { l.View.Tools = f.tools }},
		{"read-only", "view.read_only", func() { l.View.ReadOnly = f.readOnly }},
	})
	if f.verbose {
		l.Log.Level = min(l.Log.Level, slog.LevelDebug)
		l.By("log.level", "--verbose")
	}
	return l, nil
}

// loadSettings reads the settings without the flags.
func (f *hostFlags) loadSettings(getenv func(string) string) (*config.Loaded, error) {
	bare, err := config.WithoutFile(getenv)
	if err != nil || f.noFile {
		return bare, err
	}
	l, err := config.Load(getenv, f.file)
	if err != nil && f.mistaken != nil {
		f.mistaken(err)
		err = nil
	}
	return l, err
}

// goesOn returns a function that warns that a command ignores the invalid part of the settings.
func goesOn(w Environment) func(error) {
	return func(err error) {
		text := strings.ReplaceAll(err.Error(), "\n", "\n[gatehouse] ")
		fmt.Fprintf(
			w.Err,
			"[gatehouse] The settings have a mistake, and this command continues without it:\n[gatehouse] %s\n",
			text,
		)
	}
}

// readSettings reads the settings for a command that needs little of them.
func readSettings(w Environment) (*config.Loaded, error) {
	f := hostFlags{mistaken: goesOn(w)}
	l, err := f.loadSettings(w.Getenv)
	if err != nil {
		return l, &usageError{err}
	}
	return l, nil
}

// flagged is a flag, its setting, and the function that applies it.
type flagged struct {
	flag, path string
	apply      func()
}

// flags holds the flags of a command line and the settings they change.
type flags struct {
	set *pflag.FlagSet
	to  *config.Loaded
}

// applyAll applies the given flags; without a command line, none.
func (f flags) applyAll(all []flagged) {
	if f.set == nil {
		return
	}
	for _, one := range all {
		if f.set.Changed(one.flag) {
			one.apply()
			f.to.By(one.path, "--"+one.flag)
		}
	}
}

// listenerFlags are the flags of serve that open listeners.
type listenerFlags struct {
	stdio     bool
	http      bool
	port      int
	host      string
	origins   []string
	noSession bool
	tls       config.TLS
	tcp       string
	unix      string
	auth      config.Auth
	token     string
	metrics   bool
	rate      float64
	cluster   config.Cluster
}

func (f *listenerFlags) register(set *pflag.FlagSet) {
	set.BoolVar(&f.http, "http", false, "serve HTTP, at /mcp")
	set.IntVarP(&f.port, "port", "p", 3000, "port to listen on, 0 for any free one; needs --http")
	set.StringVarP(&f.host, "host", "H", "127.0.0.1", "address to bind to; needs --http")
	set.StringSliceVar(
		&f.origins,
		"origin",
		nil,
		"web origins that may call, comma-separated, * for every one; needs --http",
	)
	set.BoolVar(&f.metrics, "metrics", false, "serve /metrics for Prometheus; needs --http")
	set.Float64Var(
		&f.rate,
		"rate-limit",
		0,
		"requests per second of one principal, and of one session; 0 means no limit (default: 50 from other machines)",
	)
	set.BoolVar(&f.noSession, "no-session", false, "serve without sessions; needs --http")
	set.BoolVar(
		&f.tls.On,
		"tls",
		false,
		"serve HTTPS, self-signed unless --cert or --acme-domain says otherwise; needs --http",
	)
	set.StringVar(&f.tls.Cert, "cert", "", "PEM `file` with the certificate; needs --tls and --key")
	set.StringVar(&f.tls.Key, "key", "", "PEM `file` with the certificate's key; needs --tls and --cert")
	set.StringVar(
		&f.tls.ClientCA,
		"client-ca",
		"",
		"PEM `file` of authorities that sign clients' certificates; needs --tls",
	)
	set.StringSliceVar(
		&f.tls.ACME.Domains,
		"acme-domain",
		nil,
		"public names to get a certificate for from Let's Encrypt, which agrees to its terms; needs --tls and port 443",
	)
	set.StringVar(&f.tcp, "tcp", "", "serve newline-delimited messages over TCP on this `address`, host:port")
	set.StringVar(&f.unix, "unix", "", "serve newline-delimited messages over a Unix socket at this `path`")
	set.BoolVar(&f.auth.Required, "require-auth", false, "require credentials of every caller, also on this machine")
	set.StringVar(
		&f.token,
		"auth-token",
		"",
		"a `token` that authenticates its bearer, at least 16 characters; better: gatehouse token create",
	)
	set.BoolVar(
		&f.auth.Insecure,
		"insecure",
		false,
		"require no credentials of any caller: only behind a proxy that authenticates",
	)
	set.StringVar(&f.cluster.Name, "cluster", "", "be a node of the cluster of this `name`; needs --http")
	set.StringVar(&f.cluster.Listen, "cluster-listen", "", "`address` at which other nodes reach this one, host:port")
	set.StringSliceVar(&f.cluster.Join, "join", nil, "cluster `address` of a node, host:port; the first node has none")
	set.StringVar(
		&f.cluster.TokenFile,
		"join-token-file",
		"",
		"`file` of gatehouse cluster join-token, for the first start of a node that is not on loopback",
	)
	set.BoolVar(&f.stdio, "stdio", false, "serve standard input and output (default if no listener is named)")
}

// applyFlags opens the listeners that were named. Naming one on the command line closes those that the file and the
// environment open; other settings of a listener stay unchanged unless a flag overrides them.
func (f *listenerFlags) applyFlags(c *cobra.Command, l *config.Loaded) error {
	if err := f.applyListeners(c, l); err != nil {
		return err
	}
	for _, name := range []string{"cluster", "port", "host", "origin", "no-session", "tls", "cert", "key", "client-ca",
		"acme-domain", "metrics"} {
		if c.Flags().Changed(name) && !l.Listen.HTTP.Open {
			return usagef("--%s needs --http", name)
		}
	}
	h := &l.Listen.HTTP
	flags{c.Flags(), l}.applyAll([]flagged{
		{"port", "listen.http.port", func() { h.Port = f.port }},
		{"host", "listen.http.host", func() { h.Host = strings.Trim(f.host, "[]") }},
		{"origin", "listen.http.origins", func() { h.Origins = f.origins }},
		{"tls", "listen.http.tls.on", func() { h.TLS.On = f.tls.On }},
		{"cert", "listen.http.tls.cert", func() { h.TLS.Cert = f.tls.Cert }},
		{"key", "listen.http.tls.key", func() { h.TLS.Key = f.tls.Key }},
		{"client-ca", "listen.http.tls.client_ca", func() { h.TLS.ClientCA = f.tls.ClientCA }},
		{"acme-domain", "listen.http.tls.acme.domains", func() { h.TLS.ACME.Domains = f.tls.ACME.Domains }},
		{"no-session", "sessions.off", func() { l.Sessions.Off = f.noSession }},
		{"metrics", "observe.metrics", func() { l.Observe.Metrics = f.metrics }},
		{"require-auth", "auth.required", func() { l.Auth.Required = f.auth.Required }},
		{"auth-token", "auth.token", func() { l.Auth.Token = secret.New(f.token) }},
		{"rate-limit", "limits.rate", func() { l.Limits.Rate = &f.rate }},
		{"cluster", "cluster.name", func() { l.Cluster.Name = f.cluster.Name }},
		{"cluster-listen", "cluster.listen", func() { l.Cluster.Listen = f.cluster.Listen }},
		{"join", "cluster.join", func() { l.Cluster.Join = f.cluster.Join }},
		{"join-token-file", "cluster.token_file", func() { l.Cluster.TokenFile = f.cluster.TokenFile }},
		{"insecure", "auth.insecure", func() { l.Auth.Insecure = f.auth.Insecure }},
	})
	return nil
}

// applyListeners opens the listeners that were named, or standard input and output.
func (f *listenerFlags) applyListeners(c *cobra.Command, l *config.Loaded) error {
	d, given := &l.Listen, c.Flags().Changed
	if given("http") || given("tcp") || given("unix") || given("stdio") {
		d.Stdio, d.HTTP.Open, d.TCP, d.Unix = f.stdio, f.http, "", f.unix
		for flag, path := range map[string]string{"stdio": "listen.stdio", "http": "listen.http.open",
			"tcp": "listen.tcp", "unix": "listen.unix"} {
			l.By(path, "--"+flag)
		}
		if given("unix") && f.unix == "" {
			return usagef("--unix: expected the path of the socket")
		}
		if given("tcp") {
			addr, err := config.ParseTCP(f.tcp)
			if err != nil {
				return usagef("--tcp: %w", err)
			}
			d.TCP = addr
		}
	}
	if !d.Any() {
		d.Stdio = true
	}
	return nil
}

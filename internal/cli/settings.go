package cli

import (
	"log/slog"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gatehouse/internal/config"
)

// hostFlags are the flags of every command that builds a host: what it may
// touch and what it shows.
type hostFlags struct {
	folders      []string
	unrestricted bool
	context      string
	modules      []string
	tools        []string
	readOnly     bool
	verbose      bool
}

func (f *hostFlags) add(set *pflag.FlagSet) {
	set.StringArrayVarP(&f.folders, "directory", "d", nil, "folder the tools may touch; can be repeated (default: the current one)")
	set.BoolVar(&f.unrestricted, "unrestricted", false, "let the tools touch every file this user can")
	set.StringVar(&f.context, "context", "", "named view that callers get")
	set.StringSliceVar(&f.modules, "modules", nil, "modules to offer, comma-separated (default: all)")
	set.StringSliceVar(&f.tools, "tools", nil, "tools to offer: names or patterns such as file_*, comma-separated; ! in front excludes")
	set.BoolVar(&f.readOnly, "read-only", false, "offer only tools that change nothing")
	set.BoolVarP(&f.verbose, "verbose", "v", false, "log in detail, on standard error")
}

// names are the flags that add adds; they need a host of one's own.
func (f *hostFlags) names() (names []string) {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(hostFlags).add(set)
	set.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// config is what the environment says, with what these flags say on top.
func (f *hostFlags) config(getenv func(string) string) (config.Config, error) {
	c, err := config.FromEnv(getenv)
	if err != nil {
		return c, &usageError{err}
	}
	if f.unrestricted && len(f.folders) > 0 {
		return c, usagef("--unrestricted and --directory exclude each other")
	}
	c.Roots = config.Roots{Folders: f.folders, Unrestricted: f.unrestricted}
	c.View = config.View{Context: f.context, Modules: f.modules, Tools: f.tools, ReadOnly: f.readOnly}
	if f.verbose {
		c.Log.Level = min(c.Log.Level, slog.LevelDebug)
	}
	return c, nil
}

// doorFlags are the flags of serve that open doors.
type doorFlags struct {
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
}

func (f *doorFlags) add(set *pflag.FlagSet) {
	set.BoolVar(&f.http, "http", false, "serve HTTP, at /mcp")
	set.IntVarP(&f.port, "port", "p", 3000, "port to listen on, 0 for any free one; needs --http")
	set.StringVar(&f.host, "host", "127.0.0.1", "address to bind to; needs --http")
	set.StringSliceVar(&f.origins, "origin", nil, "web origins that may call, comma-separated, * for every one; needs --http")
	set.BoolVar(&f.noSession, "no-session", false, "serve without sessions; needs --http")
	set.BoolVar(&f.tls.On, "tls", false, "serve HTTPS, self-signed unless --cert or --acme-domain says otherwise; needs --http")
	set.StringVar(&f.tls.Cert, "cert", "", "PEM `file` with the certificate; needs --tls and --key")
	set.StringVar(&f.tls.Key, "key", "", "PEM `file` with the certificate's key; needs --tls and --cert")
	set.StringVar(&f.tls.ClientCA, "client-ca", "", "PEM `file` of authorities that sign clients' certificates; needs --tls")
	set.StringSliceVar(&f.tls.ACME.Domains, "acme-domain", nil, "public names to get a certificate for from Let's Encrypt, whose terms that agrees to; needs --tls and port 443")
	set.StringVar(&f.tcp, "tcp", "", "serve lines over TCP on this `address`, host:port")
	set.StringVar(&f.unix, "unix", "", "serve lines over a Unix socket at this `path`")
	set.BoolVar(&f.auth.Required, "require-auth", false, "let nobody in without credentials, also not from this machine")
	set.StringVar(&f.auth.Token, "auth-token", "", "a `token` that lets its bearer in, at least 16 characters; better: gatehouse token create")
	set.BoolVar(&f.auth.Insecure, "insecure", false, "let everybody in, from wherever: only behind something that has a login")
	set.BoolVar(&f.stdio, "stdio", false, "serve standard input and output (default when no door is named)")
}

// apply opens the doors that were named. Naming one on the command line
// closes those that the environment opens; a setting of a door stays what the
// environment says until a flag says otherwise.
func (f *doorFlags) apply(c *cobra.Command, cfg *config.Config) error {
	d, given := &cfg.Doors, c.Flags().Changed
	if given("http") || given("tcp") || given("unix") || given("stdio") {
		d.Stdio, d.HTTP.Open, d.TCP, d.Unix = f.stdio, f.http, "", f.unix
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
	for _, name := range []string{"port", "host", "origin", "no-session", "tls", "cert", "key", "client-ca", "acme-domain"} {
		if given(name) && !d.HTTP.Open {
			return usagef("--%s needs --http", name)
		}
	}
	if given("port") {
		d.HTTP.Port = f.port
	}
	if given("host") {
		d.HTTP.Host = strings.Trim(f.host, "[]")
	}
	d.HTTP.Origins = f.origins
	d.HTTP.TLS = f.tls
	cfg.Sessions.Off = f.noSession
	cfg.Auth = f.auth
	return nil
}

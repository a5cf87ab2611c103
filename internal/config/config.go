package config

import (
	"log/slog"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/packages"
	"gatehouse/internal/sandbox/manager"
)

// Config is one host's settings. Make it with Default, FromEnv or Load: the
// zero value has limits of zero.
//
// The tags are the one definition of each setting: its name in the file, its
// text in the schema and in docs/settings.md, its variable where that is not
// GATEHOUSE_ and its path, and live where it follows the file while the host
// runs.
type Config struct {
	Doors     Listeners           `yaml:"listen" doc:"Where callers come in. Any number of doors may be open; naming one on the command line or with GATEHOUSE_TRANSPORT closes those named here."`
	Auth      Auth                `doc:"Who is let in."`
	Roots     Roots               `doc:"The folders the tools may touch."`
	View      View                `doc:"What callers see by default."`
	Sessions  Sessions            `doc:"What is kept for clients of the revisions that have sessions."`
	Limits    Limits              `doc:"What one caller can take."`
	Contexts  []Context           `doc:"Named views. When there are some, they are all there are; the first is for callers who name none. Without any, there is one with everything and one for each module." live:"yes"`
	Rules     []Rule              `doc:"Who may do what. The first rule that fits decides; what no rule fits is allowed." live:"yes"`
	Modules   Modules             `doc:"What single modules are told."`
	Packages  []packages.Declared `doc:"Third-party MCP servers that this host installs. One that is no longer named is removed, and its data are kept. Packages that were installed otherwise stay." live:"yes"`
	Log       Log                 `doc:"What the host says of itself, on standard error."`
	Audit     Audit               `doc:"What is remembered of what was done."`
	Observe   Observe             `doc:"What the host shows to those who watch it."`
	Daemon    Daemon              `doc:"What a host in the background is told besides."`
	Secrets   Secrets             `doc:"Where the named secrets are."`
	Update    Update              `doc:"Where newer releases of this program come from."`
	Approvals Approvals           `doc:"How people say yes to calls that need it."`
	Children  Children            `doc:"What child processes of the host may reach: commands, processes, packages, programs of contexts."`
	Folders   Folders             `yaml:"-"` // by environment alone: they say where the file is
}

// Listeners are where callers come in. Any number may be open at once.
type Listeners struct {
	Stdio bool   `doc:"Serve standard input and output." env:"-"`
	HTTP  HTTP   `doc:"Serve Streamable HTTP at /mcp. The section opens the door."`
	TCP   string `doc:"Serve lines on this host:port, to those who bring a token in _meta. An empty host means loopback." env:"MCP_ADDR" kind:"address"`
	Unix  string `doc:"Serve lines on a Unix socket at this path." env:"MCP_UNIX_SOCKET" kind:"path"`
}

// Any reports whether a door is open.
func (l Listeners) Any() bool { return l.Stdio || l.HTTP.Open || l.TCP != "" || l.Unix != "" }

// HTTP is the door for Streamable HTTP.
type HTTP struct {
	Open    bool     `doc:"Whether the door is open; true when the section is there." env:"-"`
	Host    string   `doc:"Address to bind to. Beyond loopback everyone on the network can reach it." env:"GATEHOUSE_HTTP_HOST"`
	Port    int      `doc:"Port to listen on; 0 takes any free one." env:"GATEHOUSE_HTTP_PORT" kind:"port"`
	Hosts   []string `doc:"Names of this machine that requests may use besides those of loopback."`
	Origins []string `doc:"Web origins that may call besides the listener's own on loopback: scheme://host[:port], or * for every one, then without credentials."`
	TLS     TLS      `doc:"Serve HTTPS. The section turns it on; alone, with a self-signed certificate."`
}

// TLS is how the HTTP door proves who it is, and asks clients to.
type TLS struct {
	On       bool   `doc:"Whether HTTPS is served; true when the section is there."`
	Cert     string `doc:"PEM file with the certificate; read again when it changes." kind:"path"`
	Key      string `doc:"PEM file with the certificate's key; read again when it changes." kind:"path"`
	ClientCA string `doc:"PEM file of authorities that sign clients' certificates; read again when it changes." kind:"path"`
	ACME     ACME   `doc:"Certificates for public names."`
}

// ACME is where certificates for public names come from. Naming a domain
// agrees to the terms of the authority.
type ACME struct {
	Domains   []string `doc:"Public names to get a certificate for, which agrees to the authority's terms. The door must be reachable at port 443."`
	Email     string   `doc:"Where the authority writes to."`
	Directory string   `doc:"URL of the authority; left out, Let's Encrypt."`
}

// Auth says who is let in.
type Auth struct {
	Required  bool        `doc:"Refuse callers without credentials, also from this machine."`
	Insecure  bool        `doc:"Serve every caller without credentials, from any address: only behind a proxy that authenticates."`
	Token     secret.Text `doc:"A token set by hand that lets its bearer in, at least 16 characters." secret:"yes"`
	BehindTLS bool        `doc:"A proxy in front speaks TLS, so cookies are for HTTPS alone."`
	OAuth     OAuth       `yaml:"oauth" doc:"A provider whose access tokens are taken."`
}

// OAuth is an authorization server whose access tokens are taken. Without an
// Issuer there is none.
type OAuth struct {
	Issuer     string              `doc:"The provider, exactly as in its metadata."`
	Resource   string              `doc:"Where callers reach this server, such as https://tools.example.com/mcp; tokens must be issued for it."`
	Audiences  []string            `doc:"What tokens may be issued for besides resource."`
	JWKS       string              `doc:"URL of the provider's keys; left out, its metadata tells."`
	Scopes     []string            `doc:"What clients are told there is to ask for."`
	Required   []string            `doc:"Scopes that every token needs."`
	Grants     map[string][]string `doc:"What a scope of the provider is good for here, in the words of tokens' scopes."`
	UserClaim  string              `doc:"The claim that names the caller; left out, sub."`
	RolesClaim string              `doc:"The claim with the caller's roles here."`
}

// Roots are the folders the tools may touch.
type Roots struct {
	Folders      []string `doc:"Folders; relative paths start in the first. None means the current one." kind:"path"`
	Unrestricted bool     `doc:"Open the whole file system; folders then only say where relative paths start."`
	Fixed        bool     `doc:"Keep the preset filesystem to these folders. By default the folders that a client announces (roots/list) over standard input, or over the socket of a daemon that names no folders, replace them, as in the original server; never those of a client over HTTP or TCP." live:"yes"`
	Client       bool     `doc:"Leave each call only those of its context's folders in which its client says it works (roots/list), for every context. Clients that cannot say have them all; nothing is ever added." live:"yes"`
}

// View is what callers see by default.
type View struct {
	Context  string   `doc:"The context of callers who name none; left out, the first." live:"yes"`
	Modules  []string `doc:"Modules to build; none means the standard ones and those that contexts name."`
	Tools    []string `doc:"Tools to offer, names and patterns; ! in front excludes. Only without contexts, which have a list of their own." live:"yes"`
	ReadOnly bool     `doc:"Refuse every tool that does not promise to change nothing." live:"yes"`
	Results  string   `doc:"What is sent of a tool whose product is text: text alone (the default), or the whole output as structured content with its schema. Only without contexts, which have a setting of their own." enum:"text,structured" live:"yes"`
}

// Sessions are what is kept for clients of the revisions that have sessions.
type Sessions struct {
	Off   bool          `doc:"Serve without sessions."`
	Idle  time.Duration `doc:"A session ends after this long without a sign of life."`
	Sweep time.Duration `doc:"How often idle sessions are looked for."`
	Max   int           `doc:"Sessions at once, which callers share: each may have as many as it leaves free, and a sixteenth is for administrators."`
}

// Limits bound what one caller can take.
type Limits struct {
	Message      int           `doc:"Size of one message, at every door." unit:"bytes"`
	Result       int           `doc:"Size of the text in one tool result; the rest goes to the spool." unit:"bytes"`
	Deadline     time.Duration `doc:"Time for one tool call, unless the tool says otherwise."`
	SpoolEntry   int64         `doc:"How much is kept of one long output." unit:"bytes"`
	SpoolTotal   int64         `doc:"How much is kept of all of them." unit:"bytes"`
	SpoolKeep    time.Duration `doc:"How long a long output can be read."`
	JobKeep      time.Duration `doc:"How long the result of a finished job can be read."`
	StopPatience time.Duration `doc:"How long each part of the host may take to stop."`

	Rate         *float64 `doc:"Requests a second of one principal, and of one session; 0 means no limit. Left out, there is none on standard input and loopback, and 50 elsewhere." live:"yes"`
	Burst        int      `doc:"Requests that may come at once; 0 means twice the rate." live:"yes"`
	Calls        int      `doc:"Calls that run at once on this host, which callers share: each may have as many as it leaves free, and a sixteenth is for administrators; 0 means 1024."`
	CallsSession int      `doc:"Calls that run at once for one session; 0 means 64."`
	CallsTool    int      `doc:"Calls that run at once of one tool, which callers share in the same way; 0 means as many as on the host."`
	Bytes        int64    `doc:"Memory for messages that are being read or have not been answered, which callers share; 0 means 128 MiB. It is never less than four messages of the largest size." unit:"bytes"`
	Streams      int      `doc:"Event streams that are open at once, which callers share; 0 means 40000."`
	CallsWaiting int      `doc:"Calls that wait for their turn on this host; 0 means sixteen times calls."`
}

// Log is what the host says of itself, always on standard error.
type Log struct {
	Level  slog.Level `doc:"What is worth saying." enum:"debug,info,warn,error" env:"GATEHOUSE_LOG" live:"yes"`
	Format string     `doc:"How it is written." enum:"text,json"`
}

// Audit is what is remembered of what was done.
type Audit struct {
	Lenient bool          `doc:"Let calls that change something go on while nothing can be written."`
	Node    string        `doc:"Name of this node in the ledger; left out, the machine's."`
	Keep    time.Duration `doc:"Lines older than this are removed; 0 means never."`
	MaxSize int64         `doc:"Size of the lines that are kept; 0 means 4 GiB." unit:"bytes"`
	Archive string        `doc:"Folder that removed lines are written to first." kind:"path"`
}

// Observe is what the host shows to those who watch it.
type Observe struct {
	Metrics bool   `doc:"Serve /metrics for Prometheus at the HTTP door, to admins and to tokens with the scope metrics, or to every client if no authentication is set up."`
	Traces  Traces `doc:"Send traces to an OpenTelemetry collector."`
}

// Traces are sent to a collector by OTLP over HTTP, as JSON. Without an
// Endpoint there are none. The OTEL_ variables go before the file; see otel.go.
type Traces struct {
	Endpoint string            `doc:"URL of the collector's traces, such as http://127.0.0.1:4318/v1/traces."`
	Sample   float64           `doc:"Part of the calls that are traced when the caller does not say, from 0 to 1."`
	Headers  map[string]string `doc:"Headers of each request to the collector." secret:"yes"`
	Service  string            `doc:"What this host is called in traces; left out, gatehouse."`
	// Attributes are what else is known of this host.
	Attributes map[string]string `doc:"What else is to be said of this host in traces."`
}

// Secrets are where the named secrets are.
type Secrets struct {
	KeyFile string `doc:"File with the key that opens them; left out, secrets.key in the config folder." env:"GATEHOUSE_SECRET_KEY_FILE" kind:"path"`
}

// Approvals are how people say yes.
type Approvals struct {
	Proof       string `doc:"What every yes needs besides: passphrase has an operator type one at a terminal (gatehouse approvals passphrase sets it), and no client's answer counts; none means that any process of this account can say yes, and the ledger says so." enum:"none,passphrase"`
	CallersWord bool   `doc:"Let a caller whose client cannot ask say itself that its person agreed, by the argument confirm. Otherwise such a call waits for an operator."`
}

// Children are what child processes may reach.
type Children struct {
	HostFiles bool `doc:"Let child processes read and change the host's own files: settings, secrets, stores, sockets. Otherwise the kernel keeps them away, with a mount namespace and Landlock where the host has CAP_SYS_ADMIN, else with Landlock alone; gatehouse doctor says which, and when neither works. They can then mount nothing and trace only one another; with Landlock alone sudo does not work in them, and they create nothing in the folders above the closed ones, the home folder for one."`
}

// Folders are where the host keeps things, by the platform's convention.
type Folders struct {
	Config  string // what a person wrote
	Data    string // what must outlive everything: keys, the state tree
	Cache   string // what can be made again
	State   string // what should outlive a restart: jobs, logs
	Runtime string // what lives as long as the login: sockets
}

// Default is a host with every setting at its default, no door open and
// Folders empty.
func Default() Config {
	return Config{
		Doors: Listeners{HTTP: HTTP{Host: "127.0.0.1", Port: 3000}},
		Sessions: Sessions{
			Idle:  30 * time.Minute,
			Sweep: 30 * time.Second,
			Max:   100_000,
		},
		Limits: Limits{
			Message:      24 << 20,
			Result:       32_000,
			Deadline:     60 * time.Second,
			SpoolEntry:   64 << 20,
			SpoolTotal:   1 << 30,
			SpoolKeep:    30 * time.Minute,
			JobKeep:      time.Hour,
			StopPatience: 10 * time.Second,
		},
		Log:     Log{Level: slog.LevelInfo, Format: "text"},
		Modules: Modules{Sandbox: manager.DefaultSettings()},
		Observe: Observe{Traces: Traces{Sample: 1}},
	}
}

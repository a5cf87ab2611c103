package config

import (
	"log/slog"
	"time"

	"gatehouse/internal/access/guardrail"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/packages"
	"gatehouse/internal/sandbox/manager"
)

// Config holds the settings of one host. Make it with Default, FromEnv or Load, because the limits of the zero
// value are zero.
//
// The struct tags define each setting once: its name in the file, its text in the schema and in docs/settings.md,
// its environment variable if that is not GATEHOUSE_ and its path, and live if a running host applies a change of
// the file.
type Config struct {
	Listen    Listeners           `yaml:"listen" doc:"Where the host listens. Any number of listeners may be open; a transport named on the command line or in GATEHOUSE_TRANSPORT closes those named here."`
	Auth      Auth                `doc:"How callers authenticate."`
	Roots     Roots               `doc:"The folders the tools may access."`
	View      View                `doc:"What callers see by default."`
	Sessions  Sessions            `doc:"What the host keeps for clients of the protocol revisions that have sessions."`
	Limits    Limits              `doc:"Limits of what one caller can use."`
	Contexts  []Context           `doc:"Named views. If there are any, there are no others, and the first is used for callers who name none. Without any, there is one context with everything and one for each module." live:"yes"`
	Rules     []Rule              `doc:"Who may do what. The first rule that matches decides; a call that no rule matches is allowed." live:"yes"`
	Guards    guardrail.Settings  `yaml:"guardrails" doc:"What judges the arguments and results of calls: searches for secrets and personal data, and programs and addresses that are asked."`
	Modules   Modules             `doc:"Settings of single modules."`
	Packages  []packages.Declared `doc:"Third-party MCP servers that this host installs. A package that is no longer named is removed, and its data are kept. Packages that were installed otherwise stay." live:"yes"`
	Cluster   Cluster             `doc:"The cluster of which this host is a node. Without a name it is none."`
	Log       Log                 `doc:"What the host logs on standard error."`
	Audit     Audit               `doc:"What the host records about the calls it runs."`
	Observe   Observe             `doc:"What the host publishes for monitoring."`
	Daemon    Daemon              `doc:"Settings of a host that runs in the background."`
	Secrets   Secrets             `doc:"Where the named secrets are stored."`
	Update    Update              `doc:"Where newer releases of this program come from."`
	Approvals Approvals           `doc:"How an operator approves a call that needs approval."`
	Children  Children            `doc:"What child processes of the host can access: commands, processes, packages, programs of contexts."`
	Stage     Stage               `doc:"How calls are staged that a rule or a context stages."`
	Folders   Folders             `yaml:"-"` // set by the environment alone, because they locate the file
}

// Listeners configures where the host listens. Any number of listeners may be open at once.
type Listeners struct {
	Stdio bool   `doc:"Serve standard input and output." env:"-"`
	HTTP  HTTP   `doc:"Serve Streamable HTTP at /mcp. The presence of the section opens the listener."`
	TCP   string `doc:"Serve newline-delimited messages on this host:port to callers that send a token in _meta. An empty host means loopback." env:"MCP_ADDR" kind:"address"`
	Unix  string `doc:"Serve newline-delimited messages on a Unix socket at this path." env:"MCP_UNIX_SOCKET" kind:"path"`
}

// Any reports whether a listener is open.
func (l Listeners) Any() bool { return l.Stdio || l.HTTP.Open || l.TCP != "" || l.Unix != "" }

// HTTP configures the listener for Streamable HTTP.
type HTTP struct {
	Open    bool     `doc:"Whether the listener is open; true if the section is present." env:"-"`
	Host    string   `doc:"Address to bind to. If it is not a loopback address, the whole network can reach the listener." env:"GATEHOUSE_HTTP_HOST"`
	Port    int      `doc:"Port to listen on; 0 means any free one." env:"GATEHOUSE_HTTP_PORT" kind:"port"`
	Hosts   []string `doc:"Names of this machine that requests may use besides those of loopback."`
	Origins []string `doc:"Web origins that may call besides the listener's own on loopback: scheme://host[:port], or * for every origin, then without credentials."`
	TLS     TLS      `doc:"Serve HTTPS. The presence of the section turns it on; without a certificate, the host makes a self-signed one."`
}

// TLS configures the certificate of the HTTP listener and the certificates it requires of clients.
type TLS struct {
	On       bool   `doc:"Whether HTTPS is served; true if the section is present."`
	Cert     string `doc:"PEM file with the certificate; read again when it changes." kind:"path"`
	Key      string `doc:"PEM file with the certificate's key; read again when it changes." kind:"path"`
	ClientCA string `doc:"PEM file of authorities that sign clients' certificates; read again when it changes." kind:"path"`
	ACME     ACME   `doc:"Certificates for public names."`
}

// ACME configures the authority that issues certificates for public names. A domain named here states agreement to
// the terms of the authority.
type ACME struct {
	Domains   []string `doc:"Public names to get a certificate for, which agrees to the authority's terms. The listener must be reachable at port 443."`
	Email     string   `doc:"E-mail address at which the authority contacts the administrator."`
	Directory string   `doc:"URL of the authority's ACME directory; empty means Let's Encrypt."`
}

// Auth configures authentication.
type Auth struct {
	Required  bool        `doc:"Refuse callers without credentials, including those on this machine."`
	Insecure  bool        `doc:"Serve every caller without credentials, from any address: only behind a proxy that authenticates."`
	Token     secret.Text `doc:"A token that authenticates its bearer, at least 16 characters." secret:"yes"`
	BehindTLS bool        `doc:"A proxy in front of the host terminates TLS, so cookies are marked for HTTPS only."`
	Server    string      `doc:"Scheme and host at which MCP clients of this host's users reach it, such as https://tools.example.com. The host then issues tokens to clients that their users allow on its consent page."`
	Login     SignIn      `doc:"An OpenID provider at which people log in to the pages of the host, besides their password."`
	OAuth     OAuth       `yaml:"oauth" doc:"An authorization server whose access tokens are accepted."`
}

// SignIn configures an OpenID provider at which people log in. Without an Issuer there is none.
type SignIn struct {
	Issuer       string      `doc:"The provider's issuer, exactly as in its metadata."`
	ClientID     string      `doc:"The id of this host at the provider, where SERVER/auth/oidc/callback is registered as the address to return to."`
	ClientSecret secret.Text `doc:"The secret of this host at the provider; empty for a public client." secret:"yes"`
	Title        string      `doc:"Name of the provider for people; empty means its host."`
	Server       string      `doc:"Scheme and host at which browsers reach this host, such as https://tools.example.com."`
	Scopes       []string    `doc:"Scopes to ask for besides openid."`
	UserClaim    string      `doc:"The claim that names the person; empty means sub. A user who is linked to it with gatehouse user link logs in as that user."`
	RolesClaim   string      `doc:"The claim with the roles of a person who is no user of this host."`
}

// OAuth configures an authorization server whose access tokens are accepted. Without an Issuer no access tokens
// are accepted.
type OAuth struct {
	Issuer     string              `doc:"The authorization server's issuer, exactly as in its metadata."`
	Resource   string              `doc:"The URL at which callers reach this server, such as https://tools.example.com/mcp; tokens must be issued for it."`
	Audiences  []string            `doc:"Audiences that tokens may be issued for besides resource."`
	JWKS       string              `doc:"URL of the authorization server's keys; empty means the URL in its metadata."`
	Scopes     []string            `doc:"Scopes that clients are told they can request."`
	Required   []string            `doc:"Scopes that every token must have."`
	Grants     map[string][]string `doc:"What a scope of the authorization server permits here, in the scopes of this host's tokens."`
	UserClaim  string              `doc:"The claim that names the caller; empty means sub."`
	RolesClaim string              `doc:"The claim with the caller's roles here."`
}

// Roots configures the folders the tools may access.
type Roots struct {
	Folders      []string `doc:"Folders; relative paths are resolved in the first. None means the working directory." kind:"path"`
	Unrestricted bool     `doc:"Open the whole file system; folders then only set where relative paths are resolved."`
	Fixed        bool     `doc:"Keep the preset filesystem to these folders. By default the folders that a client announces (roots/list) over standard input, or over the socket of a daemon that names no folders, replace them, as in the original server; those of a client over HTTP or TCP never do." live:"yes"`
	Client       bool     `doc:"Restrict each call to the folders of its context in which its client says it works (roots/list), for every context. A client that cannot list roots has all of them; no folder is ever added." live:"yes"`
}

// View configures what callers see by default.
type View struct {
	Context  string   `doc:"The context of callers who name none; empty means the first." live:"yes"`
	Modules  []string `doc:"Modules to build; none means the standard ones and those that contexts name."`
	Tools    []string `doc:"Tools to offer, names and patterns; ! in front excludes. Only for a host without contexts, because each context has its own list." live:"yes"`
	ReadOnly bool     `doc:"Refuse every tool that is not declared read-only." live:"yes"`
	Results  string   `doc:"What is sent of a tool that produces text: text alone (the default), or the whole output as structured content with its schema. Only for a host without contexts, because each context has its own setting." enum:"text,structured" live:"yes"`
	List     string   `doc:"Which tools are listed: all (the default); search, the pinned tools and those that find and call the others; or auto, which is search for long lists and clients that do not search themselves. Only for a host without contexts, because each context has its own setting." enum:"all,search,auto" live:"yes"`
	Pinned   []string `doc:"Patterns of tools that a short list has. Only for a host without contexts." live:"yes"`
	// ProgramsAsk concerns programs of the module code.
	ProgramsAsk bool `doc:"Let programs of code_run call tools that ask the user or need an approval. Only for a host without contexts." live:"yes"`
}

// Sessions configures the sessions of protocol revisions that have them.
type Sessions struct {
	Off   bool          `doc:"Serve without sessions."`
	Idle  time.Duration `doc:"A session ends after this long without a request."`
	Sweep time.Duration `doc:"How often the host looks for idle sessions."`
	Max   int           `doc:"Sessions at once, which callers share: each may have as many as it leaves free, and a sixteenth is for administrators."`
}

// Limits bounds what one caller can use.
type Limits struct {
	Message      int           `doc:"Size of one message, on every listener." unit:"bytes"`
	Result       int           `doc:"Size of the text in one tool result; the rest is kept in the spool." unit:"bytes"`
	Deadline     time.Duration `doc:"Time limit of one tool call, unless the tool sets its own."`
	SpoolEntry   int64         `doc:"How much of one long output is kept." unit:"bytes"`
	SpoolTotal   int64         `doc:"How much of all long outputs together is kept." unit:"bytes"`
	SpoolKeep    time.Duration `doc:"How long a long output can be read."`
	JobKeep      time.Duration `doc:"How long the result of a finished job can be read."`
	StopPatience time.Duration `doc:"How long each part of the host may need to stop."`

	Rate         *float64 `doc:"Requests per second of one principal, and of one session; 0 means no limit. If unset, there is no limit on standard input and loopback, and 50 elsewhere." live:"yes"`
	Burst        int      `doc:"Requests that may arrive at once; 0 means twice the rate." live:"yes"`
	Calls        int      `doc:"Calls that run at once on this host, which callers share: each may have as many as it leaves free, and a sixteenth is for administrators; 0 means 1024."`
	CallsSession int      `doc:"Calls that run at once for one session; 0 means 64."`
	CallsTool    int      `doc:"Calls that run at once of one tool, which callers share in the same way; 0 means the limit of the host."`
	Bytes        int64    `doc:"Memory for messages that are being read or are not answered yet, which callers share; 0 means 128 MiB. It is never less than four messages of the largest size." unit:"bytes"`
	Streams      int      `doc:"Event streams that are open at once, which callers share; 0 means 40000."`
	CallsWaiting int      `doc:"Calls that wait to run on this host; 0 means sixteen times calls."`
}

// Cluster configures this host as a node of a cluster. Without a Name it is none.
type Cluster struct {
	Name      string        `doc:"Name of the cluster, the same on all of its nodes."`
	Listen    string        `doc:"host:port at which other nodes reach the engine of this one." kind:"address"`
	Advertise string        `doc:"host:port that other nodes are told, if it is not that of listen." kind:"address"`
	Direct    string        `doc:"host:port at which the hosts of other nodes connect to this one, for calls that cross nodes. Empty means the host of listen and any free port, and with nats.address none; none means that calls go through the engines."`
	Join      []string      `doc:"host:port of other nodes. The first node of a cluster has none."`
	TokenFile string        `doc:"File with the token by which this node joins for the first time; gatehouse cluster join-token makes one." kind:"path"`
	TLS       bool          `doc:"Require certificates of nodes on loopback too; elsewhere they are always required."`
	Lease     time.Duration `doc:"How long a node that is not heard counts as alive, the same on all nodes; 0 means 1 s."`
	Labels    []string      `doc:"What this node has, as key=value, for packages and sandboxes that must run where that is: zone=a. It also has os, arch, gpu, and a label driver for each driver of sandboxes."`
	Program   string        `doc:"The engine, a path or a name. Empty means gatehouse-nats beside this program, or else in the PATH." kind:"path"`
	NATS      NATS          `yaml:"nats" doc:"A NATS server with JetStream to use in place of the embedded one."`
}

// NATS configures an external NATS. Without an Address the embedded one is used.
type NATS struct {
	Address     string `doc:"URLs of its servers, separated by commas."`
	Credentials string `doc:"File with the credentials of NATS." kind:"path"`
	CA          string `doc:"PEM file of authorities that sign its certificate." kind:"path"`
	Replicas    int    `doc:"How many of its servers keep each record; 0 means 3."`
}

// Log configures the log, which is always written to standard error.
type Log struct {
	Level  slog.Level `doc:"Lowest level that is logged." enum:"debug,info,warn,error" env:"GATEHOUSE_LOG" live:"yes"`
	Format string     `doc:"Format of the log." enum:"text,json"`
}

// Audit configures the audit ledger.
type Audit struct {
	Lenient bool          `doc:"Allow calls that change something even if the ledger cannot be written."`
	Node    string        `doc:"Name of this node in the ledger; empty means the name of the machine."`
	Keep    time.Duration `doc:"Entries older than this are removed; 0 means never."`
	MaxSize int64         `doc:"Total size of the entries that are kept; 0 means 4 GiB." unit:"bytes"`
	Archive string        `doc:"Folder to which entries are written before they are removed." kind:"path"`
}

// Observe configures what the host publishes for monitoring.
type Observe struct {
	Metrics bool   `doc:"Serve /metrics for Prometheus on the HTTP listener, to admins and to tokens with the scope metrics, or to every client if no authentication is set up."`
	Traces  Traces `doc:"Send traces to an OpenTelemetry collector."`
}

// Traces configures traces that are sent to a collector by OTLP over HTTP, as JSON. Without an Endpoint no trace
// is sent. The OTEL_ variables override the file; see otel.go.
type Traces struct {
	Endpoint string            `doc:"URL of the collector's trace endpoint, such as http://127.0.0.1:4318/v1/traces."`
	Sample   float64           `doc:"Share of the calls that are traced if the caller does not decide, from 0 to 1."`
	Headers  map[string]string `doc:"Headers of each request to the collector." secret:"yes"`
	Service  string            `doc:"Service name of this host in traces; empty means gatehouse."`
	// Attributes are added to the resource attributes of this host.
	Attributes map[string]string `doc:"Further resource attributes of this host in traces."`
}

// Secrets configures where the named secrets are stored.
type Secrets struct {
	KeyFile string `doc:"File with the key that decrypts them; empty means secrets.key in the config folder." env:"GATEHOUSE_SECRET_KEY_FILE" kind:"path"`
}

// Approvals configures how an operator approves a call.
type Approvals struct {
	Proof       string `doc:"What every approval requires in addition: passphrase makes an operator type a passphrase at a terminal (gatehouse approvals passphrase sets it), and no answer of a client counts; passkey makes an administrator use a passkey for each one on the page of the host, which counts those that were registered before it started; none means that any process of this account can approve, and the ledger records that." enum:"none,passphrase,passkey"`
	Webhook     string `doc:"URL that is told by a POST that a call waits for an operator: JSON with the members text and link, where link leads to the page that decides. Neither the tool nor its arguments nor the caller are in it." secret:"yes"`
	CallersWord bool   `doc:"Let a caller whose client cannot ask its user state by the argument confirm that the user agreed. Otherwise such a call waits for an operator."`
}

// Children configures what child processes can access.
type Children struct {
	HostFiles bool `doc:"Let child processes read and change the host's own files: settings, secrets, stores, sockets. Otherwise the kernel denies access, with a mount namespace and Landlock if the host has CAP_SYS_ADMIN, else with Landlock alone; gatehouse doctor reports which is used, and whether neither works. Child processes then cannot mount anything and can trace only each other; with Landlock alone sudo does not work in them, and they cannot create entries in the folders above the denied ones, such as the home folder."`
}

// Values of Stage.Unattended; "" means that it is known.
const (
	UnattendedAll = "all"
	UnattendedOff = "off"
)

// LayerCopies is the value of Stage.Layer that keeps copies also where overlay file systems can be mounted.
const LayerCopies = "copies"

// Stage configures the tasks of staged calls.
type Stage struct {
	Expire     time.Duration `doc:"How long a task waits for a review after its last call; then it is dropped. 0 means 14 days."`
	Bytes      int64         `doc:"What one task may hold; 0 means 20 GiB." unit:"bytes"`
	Tasks      int           `doc:"Open tasks of one principal; 0 means 50."`
	Layer      string        `doc:"How changes are kept apart: auto (the default) mounts overlay file systems over folders where the machine can, and otherwise keeps copies of what file tools write, which programs do not see, so that calls which start programs ask; copies always does the latter." enum:"auto,copies"`
	Network    bool          `doc:"Let programs of staged calls use the network. What they do there cannot be taken back. Otherwise they have the loopback interface alone."`
	Sockets    []string      `doc:"Unix sockets outside of the folders of the tools to which programs of staged calls may connect. What they do there cannot be taken back. Others cannot be reached." kind:"path"`
	Unattended string        `doc:"Stage what no rule decides also for callers that no person is beside, in every context but that of administration: known (the default) for those of which the host knows it, by a token that was made for it or an access token that a provider issued to a program; all also for each whose client cannot ask its user and that did not log in as a person; off for none. What cannot be staged then waits for an operator." enum:"known,all,off" former:"true=all,false=off"`
	Scratch    []string      `doc:"Folders outside of those of the tools that programs of staged calls may change, and whose changes are dropped with the task; the default is the caches of the user. Everything else outside is read-only for them." kind:"path"`
}

// Folders are the directories in which the host stores its data, by the platform's convention.
type Folders struct {
	Config  string // written by the administrator
	Data    string // must never be lost: keys, the state tree
	Cache   string // can be made again
	State   string // should survive a restart: jobs, logs
	Runtime string // lasts as long as the login: sockets
}

// Default returns a host with every setting at its default. No listener is open, and Folders is empty.
func Default() Config {
	return Config{
		Listen: Listeners{HTTP: HTTP{Host: "127.0.0.1", Port: 3000}},
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

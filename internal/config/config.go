// Package config is everything a host can be told before it starts: one plain
// struct per room, their defaults in one place, and where they come from.
//
// Nothing here opens, listens or creates. Whoever starts a host takes Default,
// or FromEnv for what the environment says, changes what its own flags say,
// and calls Validate. Mistakes name the setting, what it holds and what was
// expected; several are reported at once.
package config

import (
	"log/slog"
	"time"
)

// Config is one host's settings. Make it with Default or FromEnv: the zero
// value has limits of zero.
type Config struct {
	Doors    Doors
	Roots    Roots
	View     View
	Sessions Sessions
	Limits   Limits
	Auth     Auth
	Folders  Folders
	Log      Log
	Secrets  Secrets
}

// Doors are where callers come in. Any number may be open at once.
type Doors struct {
	Stdio bool // requests on standard input, answers on standard output
	HTTP  HTTP
	TCP   string // host:port; "" keeps the door closed. An empty host means loopback
	Unix  string // path of the socket; "" keeps the door closed
}

// Any reports whether a door is open.
func (d Doors) Any() bool { return d.Stdio || d.HTTP.Open || d.TCP != "" || d.Unix != "" }

// HTTP is the door for Streamable HTTP.
type HTTP struct {
	Open bool
	Host string // where to listen; beyond loopback everyone on the network is let in
	Port int    // 0 means any free one
	// Origins are the web origins that may call besides loopback ones:
	// scheme://host[:port], or "*" for every one, then without credentials.
	Origins []string
	TLS     TLS
}

// TLS is how the HTTP door proves who it is, and asks clients to.
type TLS struct {
	On        bool   // HTTPS; alone, with a self-signed certificate
	Cert, Key string // PEM files, both or neither
	ClientCA  string // PEM file of those who sign clients' certificates; "" asks for none
	ACME      ACME
}

// ACME is where certificates for public names come from. Naming a domain
// agrees to the terms of the authority.
type ACME struct {
	Domains   []string
	Email     string // where the authority writes to
	Directory string // URL of the authority; "" means Let's Encrypt
}

// Roots are the folders the tools may touch.
type Roots struct {
	// Folders are paths; the first is where relative paths start. None means
	// the current folder.
	Folders []string
	// Unrestricted opens the whole file system; Folders then only says where
	// relative paths start.
	Unrestricted bool
}

// View is what callers see by default.
type View struct {
	Context  string   // the named view at every door; "" means the default one
	Modules  []string // which modules are built; none means the standard ones
	Tools    []string // names and patterns of tools, "!" in front excludes; none means all
	ReadOnly bool     // refuse every tool that does not promise to change nothing
}

// Sessions are what is kept for clients of the revisions that have sessions.
type Sessions struct {
	Off   bool          // serve without any
	Idle  time.Duration // ends after this long without any sign of life
	Sweep time.Duration // how often idle ones are looked for
	Max   int           // at once
}

// Limits bound what one caller can take.
type Limits struct {
	Message      int           // bytes of one message, at every door
	Result       int           // bytes of text in one tool result; the rest goes to the spool
	Deadline     time.Duration // of one tool call's work, unless the tool says otherwise
	SpoolEntry   int64         // bytes kept of one long output
	SpoolTotal   int64         // bytes kept of all of them
	SpoolKeep    time.Duration // how long a long output can be read
	JobKeep      time.Duration // how long the result of a finished job can be read
	StopPatience time.Duration // how long each part of the host may take to stop
}

// Folders are where the host keeps things, by the platform's convention.
type Folders struct {
	Config  string // what a person wrote
	Data    string // what must outlive everything: keys, the state tree
	Cache   string // what can be made again
	State   string // what should outlive a restart: jobs, logs
	Runtime string // what lives as long as the login: sockets
}

// Log is what the host says of itself, always on standard error.
type Log struct {
	Level slog.Level
}

// Secrets are where the named secrets are.
type Secrets struct {
	KeyFile string // of the key that opens them; "" means secrets.key in the config folder
}

// Auth says who is let in.
type Auth struct {
	Required bool   // nobody without credentials, also not from this machine
	Insecure bool   // everybody, from wherever: only behind something that has a login of its own
	Token    string // a token set by hand; "" means none
}

// Default is a host with every setting at its default, no door open and
// Folders empty.
func Default() Config {
	return Config{
		Doors: Doors{HTTP: HTTP{Host: "127.0.0.1", Port: 3000}},
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
		Log: Log{Level: slog.LevelInfo},
	}
}

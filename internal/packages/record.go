package packages

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/cluster"
	"gatehouse/internal/dispatch/progress"
	"gatehouse/internal/packages/pins"
	"gatehouse/tool"
)

// Record is what is remembered of a package. One struct, because it is stored, compared and shown as one.
type Record struct {
	ID      string            `json:"id"`
	Title   string            `json:"title,omitempty"`
	Version string            `json:"version,omitempty"`
	Source  Source            `json:"source"`
	Command string            `json:"command,omitempty"` // "" means what the program itself names
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`     // values may refer to secrets: ${secret:NAME}
	Headers map[string]string `json:"headers,omitempty"` // of requests to a remote server; values may refer to secrets
	// PassHeaders are the headers of a client's request that go on to a remote server with it, by
	// their names.
	PassHeaders []string `json:"pass_headers,omitempty"`
	// Login says whose login is used at a remote server that requires one: SharedLogin or
	// PrincipalLogin; "" means SharedLogin.
	Login string `json:"login,omitempty"`
	OAuth *OAuth `json:"oauth,omitempty"` // nil means that this host registers itself
	// AsksLogin says that the server required a login when the package was installed.
	AsksLogin bool   `json:"asks_login,omitempty"`
	Start     string `json:"start"` // OnDemand or Always
	Stopped   bool   `json:"stopped,omitempty"`
	Results   string `json:"results,omitempty"` // TextResults, or "" for results as the server sends them
	// Instances says whom one instance of its server serves: AutoInstances, SharedInstances,
	// PrincipalInstances or SessionInstances. "" means AutoInstances.
	Instances string `json:"instances,omitempty"`
	Timeout   string `json:"timeout,omitempty"` // of one request, such as 30s; "" means Settings.Answer
	// TrustHints says that an administrator believes what the server says that its tools do.
	TrustHints bool     `json:"trust_hints,omitempty"`
	Off        []string `json:"off,omitempty"` // tools that are not offered, by their names on this host

	// Config are the values of what a bundle lets its user configure, by name. They may refer to secrets.
	Config Config `json:"config,omitempty"`
	// Image changes the configuration of an image; nil leaves it as it is.
	Image *ImageOptions `json:"image,omitempty"`
	// Digest is that of what was fetched from an address or a registry of images: sha256:... An installation
	// from the same source requires the same, unless it is an update.
	Digest string `json:"digest,omitempty"`

	// Shared says that the program has files that other packages may have too, so that
	// its server cannot write there. Writable says that the server has to, so that a
	// program of it is not shared.
	Shared   bool `json:"shared,omitempty"`
	Writable bool `json:"writable,omitempty"`

	// Confinement is Sandboxed or Trusted. "" is of a package that was installed before there was a choice: it runs as
	// one that is trusted.
	Confinement string `json:"confinement,omitempty"`
	Grants      Grants `json:"grants,omitzero"` // what it may use if it is Sandboxed

	// Nodes says where its server runs in a cluster: OneNode or EachNode; "" means OneNode. Labels are what such a node
	// must have, as KEY=VALUE.
	Nodes  string   `json:"nodes,omitempty"`
	Labels []string `json:"labels,omitempty"`

	// Declared says that the settings name it: it goes when they no longer do.
	Declared bool `json:"declared,omitempty"`
	// DeclaredBy is the file of the settings that name it; "" is not known.
	DeclaredBy string `json:"declared_by,omitempty"`

	State string `json:"state"` // Installing, Installed, Updating or Removing
	// the folder in the package's that holds the program; "" for a command
	Program   string    `json:"program,omitempty"`
	Keep      bool      `json:"keep,omitempty"` // Removing, or giving up Installing, leaves the data
	Installed time.Time `json:"installed,omitzero"`
	By        string    `json:"by,omitempty"`
	// Job is the job that installed it or is installing it; "" is not known.
	Job string `json:"job,omitempty"`

	Server Server `json:"server,omitzero"`

	// Pins are what an administrator has approved of it. nil, of a package that an earlier version
	// installed, approves what its server lists first.
	Pins *pins.Pins `json:"pins,omitempty"`
	// NewTools says what becomes of tools and prompts that its server did not list before: AskNew
	// leaves them out until an administrator approves them, AllowNew offers them. "" means AskNew.
	NewTools string `json:"new_tools,omitempty"`
	// Actions are what administrators can do with it besides calling its tools. Cleared are tasks that are done.
	Actions []Action `json:"actions,omitempty"`
	Cleared []string `json:"cleared,omitempty"`
	// Outbound is the interface of this machine that its connections use; "" means that of the system.
	Outbound string `json:"outbound,omitempty"`

	// announced are the folders of the caller that an instance is started for, if its grants depend on them.
	announced []string
	// staged is the task that an instance is started for; nil if it serves none.
	staged *stagedStart
	// Previous is the program before the last update, which Rollback brings back; nil if there is none.
	Previous *Previous `json:"previous,omitempty"`
}

// What becomes of tools that a server did not list before.
const (
	AskNew   = "ask"
	AllowNew = "allow"
)

// Previous is the program of a package that an update has replaced, and what was approved of it.
type Previous struct {
	Version   string     `json:"version,omitempty"`
	Source    Source     `json:"source"`
	Command   string     `json:"command,omitempty"`
	Args      []string   `json:"args,omitempty"`
	Program   string     `json:"program"`
	Shared    bool       `json:"shared,omitempty"`
	Writable  bool       `json:"writable,omitempty"`
	Installed time.Time  `json:"installed,omitzero"`
	By        string     `json:"by,omitempty"`
	Server    Server     `json:"server,omitzero"`
	Pins      *pins.Pins `json:"pins,omitempty"`

	Digest string        `json:"digest,omitempty"`
	Image  *ImageOptions `json:"image,omitempty"`
}

// TextResults has the results of a package sent as text alone: without their
// structured content, which the most used clients hand the model instead of
// the text, and without the output schemas that promise it.
const TextResults = "text"

// Server is what a server says of itself, cut to what can be shown.
type Server struct {
	Name     string `json:"name,omitempty"`
	Title    string `json:"title,omitempty"`
	Version  string `json:"version,omitempty"`
	Protocol string `json:"protocol,omitempty"`
}

// Config are values of what a bundle lets its user configure, by name.
type Config map[string][]string

// Source is where a program comes from.
type Source struct {
	Kind string `json:"kind"`           // one of the kinds below
	From string `json:"from,omitempty"` // name@version, a path, or an address
}

// Kinds of sources.
const (
	Command = "command" // a program of the host
	NPM     = "npm"     // a package that the host's npm installs
	PyPI    = "pypi"    // a package of PyPI with what it needs, installed by uv or pip
	Crate   = "crate"   // a crate that the host's cargo builds
	Go      = "go"      // a Go program that the host's go builds
	OCI     = "oci"     // an image of a registry, which runs in a sandbox
	Bundle  = "mcpb"    // an MCP bundle: a file, or an https address
	Binary  = "binary"  // one program: a file, or an https address
	Folder  = "folder"  // copied
	Archive = "archive" // unpacked: .tar.gz, .tgz, .tar or .zip; a file, or an https address
	OpenAPI = "openapi" // a document of OpenAPI 3, whose operations are tools
	URL     = "url"     // a remote server, by Streamable HTTP or the older HTTP+SSE
	Unix    = "unix"    // a running server, by newline-framed messages over a Unix socket
	TCP     = "tcp"     // the same over TCP, at HOST:PORT
)

// When a server is started.
const (
	OnDemand = "demand" // by the first call, and ended when it has nothing to do
	Always   = "always" // with the host, and again when it ends
)

// States of a package.
const (
	Installing = "installing"
	Installed  = "installed"
	Updating   = "updating"
	Removing   = "removing"
)

// IsRemote reports whether the server runs already, so that nothing is installed and no
// process is started.
func (s Source) IsRemote() bool { return s.Kind == URL || s.Kind == Unix || s.Kind == TCP }

// ParseSource parses a source: command, or a kind, a colon, and what expectedSource lists.
func ParseSource(text string) (Source, error) {
	if text == "" || text == Command {
		return Source{Kind: Command}, nil
	}
	kind, from, _ := strings.Cut(text, ":")
	switch is, known := sourceKinds[kind]; {
	case len(from) > longestSource:
		return Source{Kind: kind}, fmt.Errorf("source: it has more than %d bytes", longestSource)
	case !known || kind == Command || from == "":
		return Source{kind, from}, fmt.Errorf("source %q: expected %s", text, expectedSources())
	case is.form != nil && !is.form(from):
		return Source{kind, from}, fmt.Errorf("source %q: expected %s", text, is.expected)
	case kind == TCP:
		from = strings.TrimPrefix(from, "//") // a host prints its listener as tcp://HOST:PORT
	}
	return Source{kind, from}, nil
}

// String is the source as ParseSource reads it.
func (s Source) String() string {
	if s.From == "" {
		return s.Kind
	}
	return s.Kind + ":" + s.From
}

var (
	idForm  = lazy(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)
	envForm = lazy(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

const (
	longestID = 32

	longestSource = 4096 // bytes
	mostArgs      = 200
	maxEnv        = 100
	maxText       = 32 << 10 // bytes of all arguments, or of the environment
	maxTitle      = 200
)

// prefix is what the names of a package's tools begin with, before the _.
func prefix(id string) string { return strings.ReplaceAll(id, "-", "_") }

// Check validates a record. The error is a *tool.Refusal.
func (r *Record) Check() error { return r.checkRecord() }

// checkRecord validates a record.
func (r *Record) checkRecord() error {
	switch {
	case len(r.ID) > longestID || !idForm().MatchString(r.ID):
		return invalid(
			"id %q: expected a-z, 0-9 and single - between, beginning with a letter, at most %d characters",
			r.ID,
			longestID,
		)
	case r.Timeout != "" && r.timeLimit() <= 0:
		return invalid("timeout %q: expected a time above 0 such as 30s or 2m, at most %v", r.Timeout, maxTimeLimit)
	case r.Results != "" && r.Results != TextResults:
		return invalid("results %q: expected %s, or nothing", r.Results, TextResults)
	case r.Instances != "" && r.Instances != AutoInstances && r.Instances != SharedInstances &&
		r.Instances != PrincipalInstances && r.Instances != SessionInstances:
		return invalid("instances %q: expected %s, %s, %s or %s", r.Instances, AutoInstances, SharedInstances,
			PrincipalInstances, SessionInstances)
	case r.NewTools != "" && r.NewTools != AskNew && r.NewTools != AllowNew:
		return invalid("new_tools %q: expected %s or %s", r.NewTools, AskNew, AllowNew)
	case r.Nodes != "" && r.Nodes != OneNode && r.Nodes != EachNode:
		return invalid("nodes %q: expected %s or %s", r.Nodes, OneNode, EachNode)
	case r.Start != OnDemand && r.Start != Always:
		return invalid("start %q: expected %s or %s", r.Start, OnDemand, Always)
	case r.Source.Kind == Command && r.Command == "":
		return invalid("command is missing: the source is a program of the host")
	case len(r.Args) > mostArgs || totalSize(r.Args) > maxText:
		return invalid("args: at most %d, with %d bytes together", mostArgs, maxText)
	case len(r.Off) > mostTools:
		return invalid("off: at most %d tools", mostTools)
	case len(r.Env) > maxEnv || totalSize(slices.Collect(maps.Values(r.Env))) > maxText:
		return invalid("env: at most %d variables, with %d bytes together", maxEnv, maxText)
	}
	if r.Instances == SharedInstances && r.Confinement != Trusted && r.Grants.haveAnnounced() {
		return invalid("instances %q: one instance for all clients has the roots of none; grant folders without :roots, "+
			"or choose %s", r.Instances, SessionInstances)
	}
	if err := cluster.CheckLabels(r.Labels); err != nil {
		return invalid("labels: %v", err)
	}
	if err := r.checkRemote(); err != nil {
		return err
	}
	if err := r.checkLogin(); err != nil {
		return err
	}
	if r.Confinement != "" && r.Confinement != Sandboxed && r.Confinement != Trusted {
		return invalid("confinement %q: expected %s or %s", r.Confinement, Sandboxed, Trusted)
	}
	if err := r.Grants.checkGrants(); err != nil {
		return err
	}
	if r.Confinement == Trusted && !r.Grants.IsZero() {
		return invalid("a trusted package has every right of this host's user: leave out the grants, or the trust")
	}
	if err := r.checkImage(); err != nil {
		return err
	}
	if err := r.checkActions(); err != nil {
		return err
	}
	for _, text := range append([]string{r.Command}, r.Args...) {
		if strings.ContainsRune(text, 0) {
			return invalid("command and args hold no zero byte")
		}
		if names, err := secret.Names(text); err != nil || len(names) > 0 {
			return invalid("a secret in command or args would be seen by every user of the machine: refer to it in env")
		}
	}
	if err := checkConfig(r.Config); err != nil {
		return err
	}
	for name, value := range r.Env {
		if !envForm().MatchString(name) || strings.ContainsRune(value, 0) {
			return invalid("env: %q is no variable", name)
		}
		if _, err := secret.Names(value); err != nil {
			return invalid("env %s: %v", name, err)
		}
	}
	return nil
}

// checkConfig validates the values of a bundle's configuration, without the bundle.
func checkConfig(values map[string][]string) error {
	total := 0
	for name, all := range values {
		if total += len(all); !fieldName().MatchString(name) || total > maxEnv || totalSize(all) > maxText {
			return invalid("config: at most %d values, with %d bytes each field, of names such as api_key", maxEnv,
				maxText)
		}
		for _, one := range all {
			if _, err := secret.Names(one); err != nil {
				return invalid("config %s: %v", name, err)
			}
		}
	}
	return nil
}

func totalSize(all []string) (n int) {
	for _, s := range all {
		n += len(s)
	}
	return n
}

func invalid(format string, args ...any) error {
	return tool.Refuse(tool.CodeInvalidArguments, format, args...)
}

func compare(a, b string) int { return cmp.Compare(a, b) }

// reserved are ids whose tools could be mistaken for those of this host or of its
// administration.
var reserved = []string{"gatehouse", "admin"}

// Readable returns the variables and headers of a record that look like secrets, by
// their names or values, and do not refer to one. Records, and backups of them, store them
// unencrypted.
func (r *Record) Readable() (names []string) {
	for _, of := range []map[string]string{r.Env, r.Headers} {
		for name, value := range of {
			if refers, err := secret.Names(value); err == nil && len(refers) == 0 && secret.Suspicious(name, value) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// collides finds a name among others whose tools' names could be a package's.
func collides(id string, others []string) (string, bool) {
	mine := prefix(id)
	i := slices.IndexFunc(others, func(o string) bool {
		o = prefix(o)
		return o == mine || strings.HasPrefix(mine, o+"_") || strings.HasPrefix(o, mine+"_")
	})
	if i < 0 {
		return "", false
	}
	return others[i], true
}

// Public is the part of a package's state that every user may see.
type Public struct {
	Title   string `json:"title,omitempty"`
	Version string `json:"version,omitempty"`
	Source  string `json:"source"` // its kind; of npm also the name
	State   string `json:"state"`
	Status  string `json:"status"` // stopped, idle, starting, running, waiting or broken
	Start   string `json:"start"`
	// Confinement is sandbox, trusted, unconfined (installed before there was a choice) or remote.
	Confinement string `json:"confinement"`
	Tools       int    `json:"tools"`
	// Quarantined counts tools and prompts that are not offered because no administrator has
	// approved them as they are.
	Quarantined int `json:"quarantined,omitempty"`
	// Tasks are what it still needs, and Actions what an administrator can do with it.
	Tasks    []PackageTask           `json:"tasks,omitempty"`
	Actions  map[string]PublicAction `json:"actions,omitempty"`
	Outbound string                  `json:"outbound_gateway,omitempty"`
	Started  *time.Time              `json:"started,omitempty"`
	Error    string                  `json:"error,omitempty"`
	Login    string                  `json:"login,omitempty"` // why a user has to log in; "" if none has to
	Health   Health                  `json:"health"`
	Progress *progress.Progress      `json:"progress,omitempty"` // of what is being done to it
}

// Info is the full state of a package, for administrators.
type Info struct {
	Record
	Public Public
	Data   string // its folder
	Names  []string
	Left   []string // tools that are not offered, each with the reason
	// Quarantined are the tools and prompts that no administrator has approved as they are.
	Quarantined []Change
	PID         int
	Node        string    // on which its server runs in a cluster; "" if it has no place
	Fails       int       // starts or lives that failed, one after the other
	Next        time.Time // before which it is not started again
}

// ShownConfinement returns how a package is confined, for users.
func (r *Record) ShownConfinement() string {
	switch {
	case r.Source.IsRemote():
		return "remote"
	case r.Confinement == "":
		return "unconfined"
	}
	return r.Confinement
}

const maxTimeLimit = 24 * time.Hour // of one request

// timeLimit returns how long one request may take; 0 means that the record does not say or is wrong.
func (r *Record) timeLimit() time.Duration {
	if d, err := time.ParseDuration(r.Timeout); err == nil && d > 0 && d <= maxTimeLimit {
		return d
	}
	return 0
}

// title is what a package is called.
func (r *Record) title() string {
	return cmp.Or(r.Title, r.Server.Title, r.Server.Name, r.ID)
}

func (r *Record) version() string { return cmp.Or(r.Version, r.Server.Version) }

func (s Source) public() string {
	if s.fromRegistry() {
		return s.String()
	}
	return s.Kind
}

// shorten makes text of a stranger's fit to be shown: one line, at most n
// bytes.
func shorten(text string, n int) string {
	text = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))), " ")
	return displaytext.Cut(text, n, "...")
}

// program is the folder of a program.
func (r *Record) program(folder string) string {
	if r.Program == "" {
		return ""
	}
	return filepath.Join(folder, r.Program)
}

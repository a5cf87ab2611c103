package packages

import "time"

// Settings are the settings of packages, which the configuration of a host
// embeds. Each 0 stands for the default.
type Settings struct {
	Begin   time.Duration `doc:"Time for a server to be ready; 0 means 30s."`
	Answer  time.Duration `doc:"Time for one call; 0 means 5m."`
	Idle    time.Duration `doc:"Time without calls, after which a server that is started on demand is ended; 0 means 10m."`
	Install time.Duration `doc:"Time for one installation; 0 means 15m."`
	Message int64         `doc:"Size of one message of a server; what is longer is answered by an error. 0 means 16 MiB, or the limit of the listener if that is less." unit:"bytes"`
	Most    int           `doc:"Packages on this host; 0 means 100."`

	Confinement string `doc:"How packages run whose installation does not say it: sandbox, in a sandbox with what they were granted (the default); trusted, as the user of this host." enum:"sandbox,trusted"`

	Instances int           `doc:"Instances of servers that serve one caller each, of all packages together; 0 means 64."`
	Parked    int           `doc:"Calls that wait for the answer to a question of their server; 0 means 1000."`
	Question  time.Duration `doc:"Time for a client to answer a question of a server; 0 means 5m."`

	Search Search `doc:"Where gatehouse search, gatehouse pick and package_search look."`
}

// Search are the sources of the search for packages.
type Search struct {
	Registries []string      `doc:"Base addresses of registries with the API of the official one (v0.1); left out, https://registry.modelcontextprotocol.io; off asks none."`
	Docker     []string      `doc:"Docker's catalogue files: paths or addresses."`
	Folders    []string      `doc:"Folders with server.json files." kind:"path"`
	NPM        string        `yaml:"npm" doc:"npm's registry; left out, that of npm's own configuration; off asks none."`
	PyPI       string        `yaml:"pypi" doc:"PyPI, or a mirror with its JSON API; left out, https://pypi.org; off asks none."`
	Crates     string        `doc:"crates.io, or a mirror with its API; left out, https://crates.io; off asks none."`
	Refresh    time.Duration `doc:"Age at which the listing of a registry is fetched again; 0 means 24h."`
}

// Off turns a source of the search off.
const Off = "off"

// The public sources, which are the defaults.
const (
	PublicRegistry = "https://registry.modelcontextprotocol.io"
	PublicPyPI     = "https://pypi.org"
	PublicCrates   = "https://crates.io"

	PublicPyPIFiles = "https://files.pythonhosted.org" // where PyPI has its files
)

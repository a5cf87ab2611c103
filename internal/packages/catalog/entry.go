package catalog

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/displaytext"
)

// Entry is one server that a source offers.
type Entry struct {
	Kind        string    `json:"kind"` // of its source
	From        string    `json:"from"` // the address or path of its source
	Name        string    `json:"name"`
	Title       string    `json:"title,omitempty"`
	Description string    `json:"description,omitempty"`
	Version     string    `json:"version,omitempty"`
	Status      string    `json:"status,omitempty"` // active, deprecated or deleted
	StatusNote  string    `json:"status_note,omitempty"`
	Publisher   string    `json:"publisher,omitempty"`
	Repository  string    `json:"repository,omitempty"`
	Website     string    `json:"website,omitempty"`
	Published   time.Time `json:"published,omitzero"`
	Updated     time.Time `json:"updated,omitzero"`
	Downloads   int64     `json:"downloads,omitempty"` // in a month
	Packages    []Package `json:"packages,omitempty"`
	Remotes     []string  `json:"remotes,omitempty"` // addresses at which it runs already
	Attested    string    `json:"attested,omitempty"`

	endpoints []Remote // what else is known of Remotes, in their order
}

// Remote is an address at which a server runs.
type Remote struct {
	Type      string // streamable-http or sse
	URL       string // with variables in braces
	Headers   []Input
	Variables []Input
}

// Package is one form in which a server can be had.
type Package struct {
	Type      string   `json:"type"` // npm, pypi, cargo, oci, mcpb or nuget
	Name      string   `json:"name"`
	Version   string   `json:"version,omitempty"`
	Base      string   `json:"base,omitempty"` // address of its registry, if not the usual one
	Hash      string   `json:"sha256,omitempty"`
	Transport string   `json:"transport,omitempty"`
	Args      []Input  `json:"args,omitempty"`
	Env       []Input  `json:"env,omitempty"`
	Domains   []string `json:"domains,omitempty"` // hosts that it reaches, if it says so
	Folders   []string `json:"folders,omitempty"` // folders that it uses, if it says so
	Runtime   []Input  `json:"runtime,omitempty"` // arguments of the program that would start it, such as docker
}

// Input is an argument or a variable of a package.
type Input struct {
	Name        string   `json:"name,omitempty"` // of a variable or option; "" for a positional argument
	Hint        string   `json:"hint,omitempty"` // what a positional argument is
	Description string   `json:"description,omitempty"`
	Value       string   `json:"value,omitempty"` // fixed
	Default     string   `json:"default,omitempty"`
	Choices     []string `json:"choices,omitempty"`
	Required    bool     `json:"required,omitempty"`
	Secret      bool     `json:"secret,omitempty"`
	Path        bool     `json:"path,omitempty"`
	Format      string   `json:"format,omitempty"` // string, number, boolean or filepath
	Repeated    bool     `json:"repeated,omitempty"`
	Variables   []Input  `json:"variables,omitempty"` // of Value, where they stand in braces
}

func sortInputs(all []Input) {
	slices.SortFunc(all, func(a, b Input) int { return cmp.Compare(a.Name, b.Name) })
}

// Label is what an input is called in a question.
func (i Input) Label() string { return cmp.Or(i.Name, i.Hint, "argument") }

const (
	longestText  = 1000 // bytes of a description
	longestField = 300  // bytes of names, addresses and versions
	mostInputs   = 100
	mostPackages = 20
)

// clean makes text of a stranger's fit to be shown on one line.
func clean(text string, n int) string {
	return displaytext.Cut(displaytext.Line(strings.Join(strings.Fields(text), " ")), n, "...")
}

// limit cuts all texts of an entry.
func (e *Entry) limit() {
	for _, s := range []*string{
		&e.Name, &e.Title, &e.Version, &e.Status, &e.StatusNote, &e.Publisher, &e.Repository, &e.Website, &e.Attested,
	} {
		*s = clean(*s, longestField)
	}
	e.Description = clean(e.Description, longestText)
	e.Packages = e.Packages[:min(len(e.Packages), mostPackages)]
	e.Remotes = e.Remotes[:min(len(e.Remotes), mostPackages)]
	e.endpoints = e.endpoints[:min(len(e.endpoints), mostPackages)]
	for i := range e.Packages {
		p := &e.Packages[i]
		p.Args, p.Env = p.Args[:min(len(p.Args), mostInputs)], p.Env[:min(len(p.Env), mostInputs)]
		p.Runtime = p.Runtime[:min(len(p.Runtime), mostInputs)]
		p.Domains, p.Folders = p.Domains[:min(len(p.Domains), mostInputs)], p.Folders[:min(len(p.Folders), mostInputs)]
		for _, all := range [][]Input{p.Args, p.Env, p.Runtime} {
			for j := range all {
				all[j].Description = clean(all[j].Description, longestField)
			}
		}
	}
}

// identity is the same for two entries that stand for the same program.
func (e *Entry) identity() string {
	for _, p := range e.Packages {
		if p.Type == NPM || p.Type == PyPI {
			return p.Type + ":" + p.Name
		}
	}
	return e.Kind + ":" + e.Name
}

// last is the part of a name after its publisher.
func (e *Entry) last() string { return strings.ToLower(e.Name[strings.LastIndexByte(e.Name, '/')+1:]) }

// withoutServer removes what the names of servers have in common.
var withoutServer = strings.NewReplacer(
	"mcp-server-", "", "-mcp-server", "", "server-", "", "-server", "", "mcp-", "", "-mcp", "",
)

// score is how well an entry fits a word; 0 means not at all.
func (e *Entry) score(word string) (n int) {
	word = strings.ToLower(strings.TrimSpace(word))
	name, title := strings.ToLower(e.Name), strings.ToLower(e.Title)
	last := e.last()
	switch {
	case name == word:
		n = 100
	case last == word || title == word:
		n = 90
	case strings.Contains(last, word) && withoutServer.Replace(last) == word:
		n = 80
	case strings.Contains(last, word):
		n = 60
	case strings.Contains(name, word) || strings.Contains(title, word):
		n = 40
	case matchesQuery(strings.ToLower(e.Name+" "+e.Title+" "+e.Description), word):
		n = 20
	}
	if n > 0 && e.Status == "deprecated" {
		n -= 15
	}
	return n
}

// matchesQuery reports whether text has all words of a query. Both are in lower case.
func matchesQuery(text, query string) bool {
	for w := range strings.FieldsSeq(query) {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// publisherOf is who may publish under a name of the registry, which verifies it.
func publisherOf(name string) string {
	space, _, ok := strings.Cut(name, "/")
	if !ok {
		return ""
	}
	if user, ok := strings.CutPrefix(space, "io.github."); ok {
		return "GitHub user " + user
	}
	parts := strings.Split(space, ".")
	slices.Reverse(parts)
	return "domain " + strings.Join(parts, ".")
}

// Facts are what a user should know of an entry before a yes, line by line.
func (e *Entry) Facts(p *Package, now time.Time) (lines []string) {
	say := func(name, value string) {
		if value != "" {
			lines = append(lines, name+": "+value)
		}
	}
	say("name", e.Name)
	say("publisher", cmp.Or(e.Publisher, "unknown"))
	say("found in", e.Kind+" "+e.From)
	say("version", e.Version)
	say("status", strings.TrimSpace(e.Status+" "+e.StatusNote))
	say("published", age(e.Published, now))
	say("updated", age(e.Updated, now))
	say("repository", e.Repository)
	say("website", e.Website)
	if e.Downloads > 0 {
		say("downloads", fmt.Sprintf("%d in a month", e.Downloads))
	}
	say("attestations", cmp.Or(e.Attested, "none"))
	if p == nil {
		return lines
	}
	say("installs", p.Type+" "+p.Name+versionSuffix(p.Version))
	var secrets, settings, folders []string
	for _, in := range p.Env {
		if in.Secret {
			secrets = append(secrets, in.Name)
		} else {
			settings = append(settings, in.Name)
		}
	}
	for _, in := range slices.Concat(p.Args, p.Env) {
		if in.Path {
			folders = append(folders, in.Label())
		}
	}
	say("secrets", cmp.Or(strings.Join(secrets, ", "), "none declared"))
	say("variables", strings.Join(settings, ", "))
	say("folders", cmp.Or(strings.Join(append(folders, p.Folders...), ", "), "none declared"))
	say("domains", cmp.Or(strings.Join(p.Domains, ", "), "none declared"))
	for i, line := range lines {
		lines[i] = clean(line, longestText)
	}
	return lines
}

func versionSuffix(v string) string {
	if v == "" {
		return ""
	}
	return "@" + v
}

// age is a day and how long ago it was.
func age(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	days := int(now.Sub(t) / (24 * time.Hour))
	switch {
	case days < 1:
		return t.Format("2006-01-02") + ", today"
	case days < 60:
		return fmt.Sprintf("%s, %d days ago", t.Format("2006-01-02"), days)
	}
	return fmt.Sprintf("%s, %d months ago", t.Format("2006-01-02"), days/30)
}

// hostOf is the host of an address.
func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

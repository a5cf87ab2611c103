package catalog

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/files/atomicfile"
	"gatehouse/internal/packages"
)

const npmTime = 15 * time.Second // for npm to say its registry

// errOffline is the error of a source that has no cache.
var errOffline = errors.New("it has no cache, and the search is offline")

func writeCache(path string, b []byte) error { return atomicfile.Write(path, b) }

// askNPM returns the registry of npm's own configuration.
func askNPM(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, npmTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, "npm", "config", "get", "registry").Output()
	if err != nil {
		return "", fmt.Errorf("npm cannot say its registry: %w", err)
	}
	return strings.TrimSpace(string(bytes.ToValidUTF8(out, nil))), nil
}

func (c *Catalog) npmBase(ctx context.Context) (string, error) {
	if c.opts.NPM != "" {
		return c.opts.NPM, nil
	}
	return c.npm(ctx)
}

var npmWord = regexp.MustCompile(`^(@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*$`)

// searchNPM uses the search API of the npm registry. A package of exactly the name that was
// searched for is looked up as well if it is not among the hits. Registries of companies and mirrors
// often have no search API: then this is all that is done, and the report says so.
func (c *Catalog) searchNPM(ctx context.Context, q Query) (found []Entry, r Report, err error) {
	if q.Offline {
		return nil, r, errOffline
	}
	base, err := c.npmBase(ctx)
	if err != nil {
		return nil, r, err
	}
	var page struct {
		Objects []struct {
			Package struct {
				Name, Version, Description string
				Date                       time.Time
				Keywords                   []string
				Publisher                  struct{ Username string }
				Links                      struct{ Repository, Homepage string }
			}
			Downloads struct{ Monthly, Weekly int64 }
		}
	}
	params := url.Values{"text": {q.Word + " mcp"}, "size": {fmt.Sprint(mostResults)}}
	searchErr := c.get(ctx, joinURL(base, "/-/v1/search?"+params.Encode()), &page)
	for _, o := range page.Objects {
		p := o.Package
		e := Entry{
			Name: p.Name, Version: p.Version, Description: p.Description, Updated: p.Date, Website: p.Links.Homepage,
			Repository: p.Links.Repository, Downloads: cmp.Or(o.Downloads.Monthly, 4*o.Downloads.Weekly),
			Packages: []Package{{Type: NPM, Name: p.Name, Version: p.Version}},
		}
		if p.Publisher.Username != "" {
			e.Publisher = "npm user " + p.Publisher.Username
		}
		e.limit()
		if npmWord.MatchString(e.Name) && aboutMCP(e, p.Keywords) && e.score(q.Word) > 0 {
			found = append(found, e)
		}
	}
	slices.SortStableFunc(found, func(a, b Entry) int { return cmp.Compare(b.Downloads, a.Downloads) })
	if notOffered(searchErr) {
		searchErr = nil
		r.Note = withoutSearch(hostOf(base), "/-/v1/search", q.Word, npmWord.MatchString(q.Word))
	}
	exact := func(e Entry) bool { return e.Name == q.Word }
	if npmWord.MatchString(q.Word) && !slices.ContainsFunc(found, exact) {
		e, err := c.npmPackage(ctx, base, q.Word)
		switch {
		case err == nil:
			found = append(found, e)
		case !errors.Is(err, errNotFound):
			searchErr = cmp.Or(searchErr, err)
		}
	}
	return found, r, searchErr
}

// withoutSearch says what was done with a word at a registry that has no search at a path. named says that the word can
// be the name of a package.
func withoutSearch(host, path, word string, named bool) string {
	did := fmt.Sprintf("only a package named exactly %q was looked for", word)
	if !named {
		did = fmt.Sprintf("nothing was looked for, because %q is no name of a package", word)
	}
	return fmt.Sprintf("%s has no search (%s): %s; search for the whole name of a package", host, path, did)
}

// aboutMCP reports whether a package says that it has to do with the protocol.
func aboutMCP(e Entry, keywords []string) bool {
	text := strings.ToLower(e.Name + " " + e.Description + " " + strings.Join(keywords, " "))
	return strings.Contains(text, "mcp") || strings.Contains(text, "model context protocol")
}

// npmPackage describes one package of npm.
func (c *Catalog) npmPackage(ctx context.Context, base, name string) (e Entry, err error) {
	name, version, pinned := cutVersion(name)
	var all struct {
		Description string
		Tags        map[string]string    `json:"dist-tags"`
		Time        map[string]time.Time `json:"time"`
		Maintainers []struct{ Name string }
		Versions    map[string]struct {
			Deprecated  any
			Description string
			Homepage    any
			Repository  any
			NPMUser     struct{ Name string } `json:"_npmUser"`
			Dist        struct {
				Attestations struct {
					Provenance struct {
						PredicateType string
					}
				}
				Signatures []json.RawMessage
			}
		}
	}
	if err := c.get(ctx, joinURL(base, "/"+strings.ReplaceAll(name, "/", "%2f")), &all); err != nil {
		return e, err
	}
	if !pinned {
		version = all.Tags["latest"]
	}
	v, ok := all.Versions[version]
	if !ok {
		return e, errNotFound
	}
	e = Entry{
		Name: name, Version: version, Description: cmp.Or(v.Description, all.Description),
		Published: all.Time["created"], Updated: all.Time[version], Repository: addressOf(v.Repository),
		Website:  addressOf(v.Homepage),
		Packages: []Package{{Type: NPM, Name: name, Version: version}},
	}
	if v.NPMUser.Name != "" {
		e.Publisher = "npm user " + v.NPMUser.Name
	} else if len(all.Maintainers) > 0 {
		e.Publisher = "npm user " + all.Maintainers[0].Name
	}
	if note, ok := v.Deprecated.(string); ok && note != "" {
		e.Status, e.StatusNote = "deprecated", note
	}
	switch {
	case v.Dist.Attestations.Provenance.PredicateType != "":
		e.Attested = "provenance (" + v.Dist.Attestations.Provenance.PredicateType +
			"), as the registry says; not verified"
	case len(v.Dist.Signatures) > 0:
		e.Attested = "signed by the registry; no provenance"
	}
	e.limit()
	return e, nil
}

func cutVersion(name string) (bare, version string, pinned bool) {
	if i := strings.LastIndexByte(name, '@'); i > 0 {
		return name[:i], name[i+1:], true
	}
	return name, "", false
}

// addressOf reads an address that is a string or has a member url.
func addressOf(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case map[string]any:
		s, _ := v["url"].(string)
		return strings.TrimPrefix(s, "git+")
	}
	return ""
}

var pypiWord = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

// searchPyPI looks for a project of exactly that name, because PyPI has no search.
func (c *Catalog) searchPyPI(ctx context.Context, q Query) (found []Entry, r Report, err error) {
	if q.Offline {
		return nil, r, errOffline
	}
	if !pypiWord.MatchString(q.Word) {
		return nil, r, nil
	}
	var p struct {
		Info struct {
			Name, Version, Summary, Author string
			AuthorEmail                    string            `json:"author_email"`
			HomePage                       string            `json:"home_page"`
			ProjectURLs                    map[string]string `json:"project_urls"`
			Yanked                         bool
		}
		URLs []struct {
			Uploaded time.Time `json:"upload_time_iso_8601"`
		}
	}
	base := cmp.Or(c.opts.PyPI, packages.PublicPyPI)
	err = c.get(ctx, joinURL(base, "/pypi/"+q.Word+"/json"), &p)
	if errors.Is(err, errNotFound) {
		return nil, r, nil
	}
	if err != nil || p.Info.Name == "" {
		return nil, r, err
	}
	e := Entry{
		Name: p.Info.Name, Version: p.Info.Version, Description: p.Info.Summary,
		Publisher: cmp.Or(p.Info.Author, p.Info.AuthorEmail), Website: p.Info.HomePage,
		Packages: []Package{{Type: PyPI, Name: p.Info.Name, Version: p.Info.Version}},
	}
	for _, name := range []string{"Repository", "Source", "repository", "source"} {
		e.Repository = cmp.Or(e.Repository, p.Info.ProjectURLs[name])
	}
	if p.Info.Yanked {
		e.Status = "deprecated"
	}
	if len(p.URLs) > 0 {
		e.Updated = p.URLs[0].Uploaded
	}
	e.limit()
	return []Entry{e}, r, nil
}

// crate is what the crates' API says of a crate.
type crate struct {
	Name, Description, Repository, Homepage string
	Version                                 string    `json:"max_stable_version"`
	Recent                                  int64     `json:"recent_downloads"` // in 90 days
	Created                                 time.Time `json:"created_at"`
	Updated                                 time.Time `json:"updated_at"`
	Keywords                                []string
}

func (k *crate) entry() Entry {
	e := Entry{
		Name: k.Name, Version: k.Version, Description: k.Description, Repository: k.Repository, Website: k.Homepage,
		Published: k.Created, Updated: k.Updated, Downloads: k.Recent / 3,
		Packages: []Package{{Type: "cargo", Name: k.Name, Version: k.Version}},
	}
	e.limit()
	return e
}

// searchCrates uses the search of the crates' API, and looks for a crate of exactly the name that was searched for if
// it is not among the hits. Mirrors often have no search; the report says so.
func (c *Catalog) searchCrates(ctx context.Context, q Query) (found []Entry, r Report, err error) {
	if q.Offline {
		return nil, r, errOffline
	}
	base := cmp.Or(c.opts.Crates, packages.PublicCrates)
	params := url.Values{"q": {q.Word + " mcp"}, "per_page": {fmt.Sprint(mostResults)}, "sort": {"downloads"}}
	var page struct{ Crates []crate }
	searchErr := c.get(ctx, joinURL(base, "/api/v1/crates?"+params.Encode()), &page)
	for _, k := range page.Crates {
		e := k.entry()
		if pypiWord.MatchString(e.Name) && aboutMCP(e, k.Keywords) && e.score(q.Word) > 0 {
			found = append(found, e)
		}
	}
	slices.SortStableFunc(found, func(a, b Entry) int { return cmp.Compare(b.Downloads, a.Downloads) })
	named := pypiWord.MatchString(q.Word)
	if notOffered(searchErr) {
		searchErr = nil
		r.Note = withoutSearch(hostOf(base), "/api/v1/crates", q.Word, named)
	}
	if named && !slices.ContainsFunc(found, func(e Entry) bool { return e.Name == q.Word }) {
		var p struct{ Crate crate }
		err := c.get(ctx, joinURL(base, "/api/v1/crates/"+q.Word), &p)
		switch {
		case err == nil && p.Crate.Name != "":
			found = append(found, p.Crate.entry())
		case err != nil && !errors.Is(err, errNotFound):
			searchErr = cmp.Or(searchErr, err)
		}
	}
	return found, r, searchErr
}

// Describe adds to an entry what a search does not say: of a package of npm, who
// published that version, when, and its attestations.
func (c *Catalog) Describe(ctx context.Context, e Entry) Entry {
	for _, p := range e.Packages {
		if p.Type != NPM {
			continue
		}
		base, err := c.npmBase(ctx)
		if err != nil {
			return e
		}
		from, err := c.npmPackage(ctx, base, p.Name+versionSuffix(p.Version))
		if err != nil {
			return e
		}
		e.Publisher = cmp.Or(e.Publisher, from.Publisher)
		e.Attested, e.Repository = cmp.Or(e.Attested, from.Attested), cmp.Or(e.Repository, from.Repository)
		if e.Published.IsZero() {
			e.Published = from.Published
		}
		if e.Updated.IsZero() {
			e.Updated = from.Updated
		}
		if from.Status != "" && (e.Status == "" || e.Status == "active") {
			e.Status, e.StatusNote = from.Status, from.StatusNote
		}
		break
	}
	return e
}

// FromNPM describes a package of npm by its name, with or without a version.
func (c *Catalog) FromNPM(ctx context.Context, name string) (Entry, error) {
	base, err := c.npmBase(ctx)
	if err != nil {
		return Entry{}, err
	}
	e, err := c.npmPackage(ctx, base, name)
	e.Kind, e.From = NPM, "npm"
	return e, err
}

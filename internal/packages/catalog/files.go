package catalog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
)

const mostFiles = 5000 // of a folder of server.json

// ReadServer reads a server.json.
func ReadServer(file string) (Entry, error) {
	f, err := os.Open(file)
	if err != nil {
		return Entry{}, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, longestEntry))
	if err != nil {
		return Entry{}, err
	}
	e, err := parseServer(b)
	if err != nil {
		return e, fmt.Errorf("%s is not a server.json: %s", file, clean(err.Error(), longestField))
	}
	return e, nil
}

// searchFiles searches a folder of server.json: files NAME.json in it, and server.json
// in folders below it.
func (c *Catalog) searchFiles(dir string, q Query) (found []Entry, r Report, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, r, err
	}
	defer root.Close()
	count := 0
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.Count(name, "/") >= 2 {
			return fs.SkipDir
		}
		top := !strings.Contains(name, "/")
		if !d.Type().IsRegular() || path.Ext(name) != ".json" || !top && path.Base(name) != "server.json" {
			return nil
		}
		if count++; count > mostFiles {
			return fmt.Errorf("it has more than %d files", mostFiles)
		}
		f, err := root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		b, err := io.ReadAll(io.LimitReader(f, longestEntry))
		if err != nil {
			return err
		}
		e, err := parseServer(b)
		if err == nil && e.Status != "deleted" && e.score(q.Word) > 0 {
			found = append(found, e)
		}
		return nil
	})
	return found, r, err
}

// dockerCatalog is a catalogue file of Docker's MCP toolkit.
type dockerCatalog struct {
	Registry map[string]dockerServer `yaml:"registry"`
}

type dockerServer struct {
	Description string         `yaml:"description"`
	Title       string         `yaml:"title"`
	Type        string         `yaml:"type"`
	DateAdded   string         `yaml:"dateAdded"`
	Image       string         `yaml:"image"`
	Source      string         `yaml:"source"`
	Upstream    string         `yaml:"upstream"`
	Command     []string       `yaml:"command"`
	Volumes     []string       `yaml:"volumes"`
	AllowHosts  []string       `yaml:"allowHosts"`
	Secrets     []dockerSecret `yaml:"secrets"`
	Env         []struct {
		Name  string `yaml:"name"`
		Value any    `yaml:"value"`
	} `yaml:"env"`
	Remote struct {
		URL string `yaml:"url"`
	} `yaml:"remote"`
	Metadata struct {
		Pulls int64  `yaml:"pulls"`
		Owner string `yaml:"owner"`
	} `yaml:"metadata"`
}

type dockerSecret struct {
	Name string `yaml:"name"`
	Env  string `yaml:"env"`
}

// searchDocker searches a catalogue file of Docker's, a path or an address.
func (c *Catalog) searchDocker(ctx context.Context, from string, q Query) (found []Entry, r Report, err error) {
	b, r, err := c.catalogFile(ctx, from, q.Offline)
	if err != nil {
		return nil, r, err
	}
	var catalog dockerCatalog
	if err := yaml.Unmarshal(b, &catalog); err != nil {
		return nil, r, fmt.Errorf("it is not a catalogue: %s", clean(err.Error(), longestField))
	}
	for _, name := range slices.Sorted(maps.Keys(catalog.Registry)) {
		e := catalog.Registry[name].catalogEntry(name)
		if e.score(q.Word) > 0 {
			found = append(found, e)
		}
	}
	return found, r, nil
}

func (s dockerServer) catalogEntry(name string) Entry {
	e := Entry{
		Name: name, Title: s.Title, Description: s.Description, Publisher: s.Metadata.Owner, Repository: s.Source,
		Website: s.Upstream, Downloads: 0,
	}
	e.Published, _ = time.Parse(time.RFC3339, s.DateAdded)
	if s.Remote.URL != "" {
		e.Remotes = []string{s.Remote.URL}
	}
	if s.Image != "" {
		image, digest, pinned := strings.Cut(s.Image, "@")
		p := Package{Type: "oci", Name: s.Image, Transport: "stdio", Folders: s.Volumes, Domains: s.AllowHosts}
		if pinned {
			e.Version, e.Attested = digest, "image "+image+" pinned by digest"
		}
		for _, a := range s.Command {
			p.Args = append(p.Args, Input{Value: a})
		}
		for _, secret := range s.Secrets {
			p.Env = append(p.Env, Input{Name: secret.Env, Secret: true, Required: true})
		}
		for _, v := range s.Env {
			p.Env = append(p.Env, Input{Name: v.Name, Default: fmt.Sprint(v.Value)})
		}
		e.Packages = []Package{p}
	}
	e.limit()
	return e
}

// catalogFile reads a file, or fetches it and keeps it for when its server does not
// answer.
func (c *Catalog) catalogFile(ctx context.Context, from string, offline bool) (b []byte, r Report, err error) {
	if !strings.HasPrefix(from, "http://") && !strings.HasPrefix(from, "https://") {
		f, err := os.Open(from)
		if err != nil {
			return nil, r, err
		}
		defer f.Close()
		b, err = io.ReadAll(io.LimitReader(f, maxBody+1))
		if err == nil && len(b) > maxBody {
			err = fmt.Errorf("it is longer than %d bytes", maxBody)
		}
		return b, r, err
	}
	kept := c.cacheFile(from)
	if !offline {
		if b, err = c.fetch(ctx, from); err == nil {
			return b, r, c.saveFile(kept, b)
		}
	}
	info, statErr := os.Stat(kept)
	if kept == "" || statErr != nil {
		return nil, r, errors.Join(err, errors.New("it is not in the cache"))
	}
	b, readErr := os.ReadFile(kept)
	r.Offline, r.At = true, info.ModTime().UTC()
	if err != nil {
		r.Error = clean(err.Error(), longestField)
	}
	return b, r, readErr
}

func (c *Catalog) saveFile(path string, b []byte) error {
	if path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return writeCache(path, b)
}

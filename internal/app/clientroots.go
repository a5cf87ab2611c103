package app

import (
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"gatehouse/internal/config"
	"gatehouse/internal/roots"
	"gatehouse/tool"
)

const (
	announcedKey  = "gatehouse.roots" // names the question which folders a client works in
	announcedMost = 100               // folders that are looked at
)

// announced is what a client says of the folders it works in.
type announced struct {
	all   bool // it cannot say, and has them all
	paths []string
}

// narrowing says in which contexts calls are narrowed to what clients announce.
type narrowing struct {
	everywhere bool
	in         map[string]bool
}

func narrowingOf(cfg config.Config) *narrowing {
	n := &narrowing{everywhere: cfg.Roots.Client, in: map[string]bool{}}
	for _, c := range cfg.Contexts {
		if c.ClientRoots {
			n.in[c.Name] = true
		}
	}
	return n
}

// narrow leaves a call the folders in which its client works, and of these
// those that the client announced, where the settings want that. The client is asked for each call, so that what
// it says holds from then on. Calls inside calls and jobs go by what was said
// for the call they came from; where nobody knows, there are none. The host's own modules touch none anyway.
func (a *App) narrow(module string, c *tool.Call, inner bool, from any) (how any, done func(), err error) {
	if slices.Contains([]string{houseModule, jobModule, publicModule, contextModule}, module) {
		return from, func() {}, nil
	}
	if done, err = a.inClientFolders(c); err != nil {
		return nil, nil, err
	}
	n := a.narrowing.Load()
	if !n.everywhere && !n.in[c.Caller.Context] {
		return from, done, nil
	}
	said, ok := from.(*announced)
	if !ok {
		if said, err = announcedBy(c, inner); err != nil {
			done()
			return nil, nil, err
		}
	}
	set, ok := c.Roots.(*roots.Set)
	if said.all || !ok {
		return said, done, nil
	}
	part := set.Narrow(said.paths)
	if part == nil {
		c.Roots = unannounced{}
		return said, done, nil
	}
	c.Roots = part
	outer := done
	return said, func() { part.Close(); outer() }, nil
}

// announcedBy asks the client of a call.
func announcedBy(c *tool.Call, inner bool) (*announced, error) {
	switch {
	case inner, c.Method == "completion/complete", c.Method == "resources/subscribe": // which ask nobody
		return &announced{}, nil
	case c.Caller.Can&tool.CanListRoots == 0:
		return &announced{all: true}, nil
	}
	answers, err := c.Peer.Ask(tool.ListRoots(announcedKey))
	if err != nil {
		return nil, err
	}
	var r struct {
		Roots []struct {
			URI string `json:"uri"`
		} `json:"roots"`
	}
	if err := json.Unmarshal(answers[announcedKey], &r); err != nil {
		return nil, tool.Refuse("invalid_arguments", "the client's list of roots: %v", err)
	}
	said := &announced{}
	for _, one := range r.Roots[:min(len(r.Roots), announcedMost)] {
		if path, ok := pathOf(one.URI); ok {
			said.paths = append(said.paths, path)
		}
	}
	return said, nil
}

// pathOf is the path that a file URI of this machine stands for.
func pathOf(uri string) (string, bool) {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "file" || u.Host != "" && u.Host != "localhost" || u.Path == "" {
		return "", false
	}
	path := u.Path
	if runtime.GOOS == "windows" {
		path = strings.TrimPrefix(path, "/")
	}
	return filepath.FromSlash(path), true
}

// unannounced is what is left of a context's folders when its client works in
// none of them.
type unannounced struct{}

func (unannounced) List() []tool.Root { return nil }
func (unannounced) Resolve(string) (*os.Root, string, error) {
	return nil, "", &tool.Refusal{
		Code: "outside_root", Message: "the client has announced none of the folders that can be used here",
		Next: "Open a folder of the workspace in the client.",
	}
}

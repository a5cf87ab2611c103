package app

import (
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/config"
	"gatehouse/internal/files/roots"
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
	fixed      bool // nothing that a client announces replaces folders of the host
}

func narrowingOf(cfg config.Config) *narrowing {
	n := &narrowing{everywhere: cfg.Roots.Client, in: map[string]bool{}, fixed: cfg.Roots.Fixed}
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
	n := a.narrowing.Load()
	narrows := n.everywhere || n.in[c.Caller.Context]
	said, ok := from.(*announced)
	if !narrows && !n.fixed && a.replaceable(module, c) {
		if !ok {
			if said, err = announcedBy(c, inner, true); err != nil {
				return nil, nil, err
			}
		}
		if set := a.openAnnounced(said); set != nil {
			c.Roots = set
			return said, func() { set.Close() }, nil
		}
		from = said
	}
	if done, err = a.inClientFolders(c); err != nil {
		return nil, nil, err
	}
	if !narrows {
		return from, done, nil
	}
	if !ok {
		if said, err = announcedBy(c, inner, false); err != nil {
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

// replaceable reports whether the folders of a call give way to those that its
// client announces, as in the server that the module filesystem stands in for.
// The client must be a program of this user, which could start a host with
// these folders itself; a remote one could name the root folder. Folders that
// the administrator gave a context or a daemon do not give way.
func (a *App) replaceable(module string, c *tool.Call) bool {
	set, ok := c.Roots.(*roots.Set)
	return ok && set == a.roots && module == "filesystem" && c.Caller.Local && !c.Caller.Child &&
		(a.opts.AnyFolder || c.Caller.Credential == identity.StdioID)
}

// openAnnounced opens those of the announced folders that exist; nil if there
// are none. The caller closes them.
func (a *App) openAnnounced(said *announced) *roots.Set {
	var dirs []roots.Dir
	for _, path := range said.paths {
		one := roots.Dir{Path: path}
		if set, err := roots.Open([]roots.Dir{one}, a.rootOptions()); err == nil {
			set.Close()
			dirs = append(dirs, one)
		}
	}
	if len(dirs) == 0 {
		return nil
	}
	set, err := roots.Open(dirs, a.rootOptions())
	if err != nil {
		return nil // one of them has just gone
	}
	return set
}

// announcedBy asks the client of a call. One that answers with an error has
// announced nothing, if the question is optional; else the call fails.
func announcedBy(c *tool.Call, inner, optional bool) (*announced, error) {
	switch {
	case inner, c.Method == "completion/complete", c.Method == "resources/subscribe": // which ask nobody
		return &announced{}, nil
	case c.Caller.Can&tool.CanListRoots == 0:
		return &announced{all: true}, nil
	}
	q := tool.ListRoots(announcedKey)
	q.Optional = optional
	answers, err := c.Peer.Ask(q)
	if err != nil {
		return nil, err
	}
	if string(answers[announcedKey]) == "null" {
		return &announced{}, nil
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

// Package clientroots narrows the folders of a call to those in which its client
// works: the folders that the client was started in, and those that it announces
// by roots/list.
package clientroots

import (
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

const (
	// AnnouncedKey names the question for the folders of a client.
	AnnouncedKey = "gatehouse.roots"
	maxAnnounced = 100 // folders of one answer that are used
)

// announced are the folders in which a client works, as it reports them.
type announced struct {
	all   bool // the client cannot be asked, so that nothing is narrowed
	paths []string
}

// Options configures a Narrower.
type Options struct {
	Roots   *roots.Set    // the folders of the host
	Folders roots.Options // how folders of clients are opened
	// AnyFolder opens any folder in which a client works, instead of only those
	// inside the folders of the host.
	AnyFolder bool
	// Exempt are modules whose calls are never narrowed, because they use no
	// folders.
	Exempt []string
	// Replacing is the module in which announced folders replace those of the host, as in the server that it
	// replaces.
	Replacing string
	// Stdio is the credential of the client on standard input and output.
	Stdio string
}

// Settings determine which calls are narrowed to the folders that clients announce.
type Settings struct {
	Everywhere bool            // in every context
	In         map[string]bool // in these contexts
	Fixed      bool            // announced folders replace no folders of the host
}

// Narrower narrows calls. It is safe for concurrent use.
type Narrower struct {
	opts     Options
	settings atomic.Pointer[Settings]
}

// New returns a Narrower.
func New(o Options, s Settings) *Narrower {
	n := &Narrower{opts: o}
	n.settings.Store(&s)
	return n
}

// Set changes the settings for calls that start from now on.
func (n *Narrower) Set(s Settings) { n.settings.Store(&s) }

// Asks reports whether the client of a call is asked for its folders.
func (n *Narrower) Asks(c *tool.Caller) bool {
	s := n.settings.Load()
	return (s.Everywhere || s.In[c.Context]) && c.Can&tool.CanListRoots != 0
}

// Narrow implements modulehost.Narrower. It leaves a call the folders in which
// its client works, and of these only those that the client announces, if the
// settings say so. The client is asked for each call, because its folders may
// change. Calls inside calls, and jobs, use the answer for the call that they came
// from; without an answer they have no folders.
func (n *Narrower) Narrow(module string, c *tool.Call, inner bool, from any) (how any, done func(), err error) {
	if slices.Contains(n.opts.Exempt, module) {
		return from, func() {}, nil
	}
	s := n.settings.Load()
	narrows := s.Everywhere || s.In[c.Caller.Context]
	said, ok := from.(*announced)
	if !narrows && !s.Fixed && n.replaceable(module, c) {
		if !ok {
			if said, err = announcedBy(c, inner, true); err != nil {
				return nil, nil, err
			}
		}
		if set := n.openAnnounced(said); set != nil {
			c.Roots = set
			return said, func() { set.Close() }, nil
		}
		from = said
	}
	if done, err = n.Working(c); err != nil {
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

// replaceable reports whether the folders that the client of a call announces
// replace those of the call. The client must be a program of this user, which
// could start a host with these folders itself; a remote one could name the root
// folder. Folders that the administrator gave a context or a daemon are not
// replaced.
func (n *Narrower) replaceable(module string, c *tool.Call) bool {
	set, ok := c.Roots.(*roots.Set)
	return ok && set == n.opts.Roots && module == n.opts.Replacing && c.Caller.Local && !c.Caller.Child &&
		(n.opts.AnyFolder || c.Caller.Credential == n.opts.Stdio)
}

// openAnnounced opens those of the announced folders that exist; nil if there
// are none. The caller closes them.
func (n *Narrower) openAnnounced(said *announced) *roots.Set {
	var dirs []roots.Dir
	for _, path := range said.paths {
		one := roots.Dir{Path: path}
		if set, err := roots.Open([]roots.Dir{one}, n.opts.Folders); err == nil {
			set.Close()
			dirs = append(dirs, one)
		}
	}
	if len(dirs) == 0 {
		return nil
	}
	set, err := roots.Open(dirs, n.opts.Folders)
	if err != nil {
		return nil // one of them was removed meanwhile
	}
	return set
}

// announcedBy asks the client of a call. If the client answers with an error, it
// has announced nothing, provided that the question is optional; otherwise the
// call fails.
func announcedBy(c *tool.Call, inner, optional bool) (*announced, error) {
	switch {
	case inner, c.Method == "completion/complete", c.Method == "resources/subscribe": // which cannot ask the client
		return &announced{}, nil
	case c.Caller.Can&tool.CanListRoots == 0:
		return &announced{all: true}, nil
	}
	q := tool.ListRoots(AnnouncedKey)
	q.Optional = optional
	answers, err := c.Peer.Ask(q)
	if err != nil {
		return nil, err
	}
	if string(answers[AnnouncedKey]) == "null" {
		return &announced{}, nil
	}
	var r struct {
		Roots []struct {
			URI string `json:"uri"`
		} `json:"roots"`
	}
	if err := json.Unmarshal(answers[AnnouncedKey], &r); err != nil {
		return nil, tool.Refuse(tool.CodeInvalidArguments, "the client's list of roots: %v", err)
	}
	said := &announced{}
	for _, one := range r.Roots[:min(len(r.Roots), maxAnnounced)] {
		if path, ok := PathOf(one.URI); ok {
			said.paths = append(said.paths, path)
		}
	}
	return said, nil
}

// PathOf returns the path of a file URI of this machine.
func PathOf(uri string) (string, bool) {
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

// unannounced returns the folders of a call whose client works in none of those of its context.
type unannounced struct{}

func (unannounced) List() []tool.Root { return nil }
func (unannounced) Resolve(string) (*os.Root, string, error) {
	return nil, "", &tool.Refusal{
		Code: tool.CodeOutsideRoot, Message: "the client has announced none of the folders that can be used here",
		Next: "Open a folder of the workspace in the client.",
	}
}

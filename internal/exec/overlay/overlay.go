// Package overlay gives a host and its child processes one copy-on-write view of folders.
//
// A Holder is this program started again in a user namespace and a mount namespace of its own. There it mounts an
// overlay file system over each folder: what is written goes to the layer's upper folder, and the folder itself stays
// as it is. The host reaches the view by an open folder that the holder sends, and a child by clones of the same
// mounts, which it attaches in namespaces of its own before its program begins. So all of them see one truth.
//
// A child has a root of its own, see tree. In it everything else of the file system is read-only, and no socket or pipe
// outside of the layers can be reached by its path; devices but a few are absent, temporary folders are the layer's,
// the folders in Plan.Covers are empty, and there is no network but the loopback interface. A child cannot take the
// mounts away: it has no CAP_SYS_ADMIN in the namespace that owns them, and in a namespace that it makes below they are
// locked. It has no shared memory or message queues with others and, from Linux 6.12 on, sends signals only to what it
// started.
//
// The package imports nothing of the project, and begins in init, as package keeper does.
package overlay

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// ErrNone is returned where this system cannot mount an overlay for this user.
var ErrNone = errors.New("overlay file systems cannot be mounted here")

// Layer is one folder and where the changes to it are stored. Upper and Work are on one file system, and not in Lower.
type Layer struct {
	Lower string // absolute, without links
	Upper string
	Work  string
}

// Bind is a folder that a child sees at another path.
type Bind struct{ From, To string }

// Plan describes a view.
type Plan struct {
	Layers []Layer
	Binds  []Bind   // temporary folders
	Covers []string // files and folders that a child must not see
	// Sockets are those outside of the layers at which a child can reach what listens.
	Sockets []string
	// Network leaves children the network of the host.
	Network bool
}

// Space is what a child needs to enter a view. The caller closes it when the child was started.
type Space struct {
	Mounts []*os.File // the root, and what Prepare adds
	Net    bool
	User   bool // the child needs a user namespace; always set
}

// Close closes the mounts, which a child that was started keeps.
func (s *Space) Close() {
	if s == nil {
		return
	}
	for _, f := range s.Mounts {
		f.Close()
	}
}

// Probe tries whether views can be made whose changes are stored in a folder, which it makes, and whether programs can
// run in them, with the network of the host if network is set.
func Probe(dir string, network bool) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	base, err := os.MkdirTemp(dir, "probe-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(base)
	var l Layer
	for name, into := range map[string]*string{"lower": &l.Lower, "upper": &l.Upper, "work": &l.Work} {
		*into = filepath.Join(base, name)
		if err := os.Mkdir(*into, 0o700); err != nil {
			return err
		}
	}
	h, err := Hold(Plan{Layers: []Layer{l}, Network: network})
	if err != nil {
		return err
	}
	root, err := h.Root(l.Lower)
	if err == nil {
		err = errors.Join(root.WriteFile("probe", nil, 0o600), root.Close(), h.probe(l.Lower))
	}
	h.Close()
	os.Chmod(filepath.Join(l.Work, "work"), 0o700)
	return err
}

// Mountpoint makes the folders below a bind's From at which the layers below its To are mounted.
func (b Bind) Mountpoint(lower string) error {
	if !within(b.To, lower) {
		return nil
	}
	rel, err := filepath.Rel(b.To, lower)
	if err != nil {
		return err
	}
	return os.MkdirAll(filepath.Join(b.From, rel), 0o755)
}

func within(dir, p string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

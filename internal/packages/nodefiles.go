package packages

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/files/atomicfile"
	"gatehouse/internal/packages/pins"
	"gatehouse/tool"
)

// What nodes have in common of a package besides its record, compressed, in the bucket Cluster.Shared:
//
//	<id>/listing         what its server offers
//	<id>/lock/<program>  the lock files of npm or uv by which every node installs the same
//	<id>/kept            the package was removed, and its data stay
//	<id>/fence           the newest holder of the lease of the package, see fenced

// cutShared splits a key of the bucket.
func cutShared(key string) (id, what, program string) {
	id, what, _ = strings.Cut(key, "/")
	what, program, _ = strings.Cut(what, "/")
	return id, what, program
}

// shareTime bounds a change of what nodes have in common: longer than the election of a leader.
const shareTime = 20 * time.Second

// encodeShared encodes a part of a package for the other nodes.
func encodeShared(v any) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if err := errors.Join(json.NewEncoder(z).Encode(v), z.Close()); err != nil {
		return nil, err
	}
	if b.Len() > cluster.MaxMessage {
		return nil, fmt.Errorf("it has %d bytes compressed; at most %d in a cluster", b.Len(), cluster.MaxMessage)
	}
	return b.Bytes(), nil
}

// openShared decodes what encodeShared has encoded.
func openShared(raw []byte, v any) error {
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		return err
	}
	return json.NewDecoder(io.LimitReader(z, 5*maxListing)).Decode(v)
}

// shareListing gives the other nodes what a server offers.
func (p *managedPackage) shareListing(l listing) {
	h := p.manager
	if h.opts.Cluster == nil {
		return
	}
	h.goWork(func(ctx context.Context) {
		raw, err := encodeShared(l)
		if err == nil {
			ctx, cancel := context.WithTimeout(ctx, shareTime)
			defer cancel()
			_, err = h.opts.Cluster.Shared.Put(ctx, p.id+"/listing", raw)
		}
		if err != nil && ctx.Err() == nil {
			h.log.Warn("other nodes do not hear what a package offers", "package", p.id, "err", err)
		}
	})
}

// followShared applies what other nodes say that packages offer, until ctx is done.
func (h *Manager) followShared(ctx context.Context) {
	for r := range h.opts.Cluster.Shared.Watch(ctx) {
		id, what, _ := cutShared(r.Key)
		if what != "listing" || r.Deleted {
			continue
		}
		if p, err := h.findPackage(id); err == nil {
			p.useListing(r.Value)
		}
	}
}

// fetchListing gets what another node knows that a package offers.
func (p *managedPackage) fetchListing() {
	ctx, cancel := context.WithTimeout(p.manager.ctx, shareTime)
	defer cancel()
	r, err := p.manager.opts.Cluster.Shared.Get(ctx, p.id+"/listing")
	if err == nil {
		p.useListing(r.Value)
	}
}

// useListing offers what another node says that the server of a package offers, unless it runs here.
func (p *managedPackage) useListing(raw []byte) {
	var l listing
	if err := openShared(raw, &l); err != nil {
		p.manager.log.Warn("what a package offers cannot be read", "package", p.id, "err", err)
		return
	}
	tools, hidden := makeTools(p.manager.naming(p.id), l.Tools)
	offer, left := makeOffer(p.manager.naming(p.id), &l)
	p.mu.Lock()
	if p.shared.running != nil || p.removed || sameTools(p.tools, tools) && sameOffer(p.offer, offer) {
		p.mu.Unlock()
		return
	}
	p.tools, p.offer, p.hidden = tools, offer, append(hidden, left...)
	approved, listed := p.rec.Pins, p.approvableListing()
	p.mu.Unlock()
	if b, err := json.Marshal(l); err == nil {
		err = errors.Join(os.MkdirAll(p.folder(), 0o700), atomicfile.Write(filepath.Join(p.folder(), listingFile), b))
		if err != nil {
			p.manager.log.Warn("the tools of a package cannot be stored", "package", p.id, "err", err)
		}
	}
	if approved != nil {
		p.storeDefinitions(approved, listed)
	}
	p.manager.invalidateTools()
	p.publishState()
}

// shareLock gives the other nodes the lock files by which a program was installed.
func (p *managedPackage) shareLock(ctx context.Context, r *Record) error {
	h := p.manager
	if h.opts.Cluster == nil || r.Source.Kind != NPM && r.Source.Kind != PyPI {
		return nil
	}
	fence, err := h.fenceOf(p.id)
	if err != nil {
		return err
	}
	l, _, err := h.lockOne(r)
	if err == nil {
		var raw []byte
		if raw, err = encodeShared(pins.Locked{NPMLock: l.NPMLock, PyPILock: l.PyPILock}); err == nil {
			ctx, cancel := context.WithTimeout(ctx, shareTime)
			defer cancel()
			err = fence.Put(ctx, p.id+"/lock/"+programTop(r.Program), raw)
		}
	}
	if err != nil {
		return fmt.Errorf("give the other nodes the lock file of package %s: %w", p.id, err)
	}
	p.mu.Lock()
	kept := []string{programTop(r.Program), programTop(p.rec.Program)} // until the record names another one
	p.mu.Unlock()
	if r.Previous != nil {
		kept = append(kept, programTop(r.Previous.Program))
	}
	all, err := h.opts.Cluster.Shared.List(ctx)
	for _, one := range all {
		if id, what, program := cutShared(one.Key); id == p.id && what == "lock" && !slices.Contains(kept, program) {
			err = errors.Join(err, fence.Purge(ctx, one.Key))
		}
	}
	return err
}

// prefetch installs the program of a package in the background if its source is a path of another node, because no
// node can install it once that one is dead.
func (p *managedPackage) prefetch() {
	p.mu.Lock()
	r := p.rec
	p.mu.Unlock()
	if r.State != Installed || !r.Source.FromPath() || p.hasProgram(&r) {
		return
	}
	p.manager.goWork(func(ctx context.Context) {
		if err := p.ensureProgram(ctx, &r); err != nil && ctx.Err() == nil {
			p.manager.log.Warn("a package is not installed on this node yet", "package", p.id, "err", err)
		}
	})
}

// ensureProgram installs on this node the program that a record names, if another node has installed it: with the same
// digest, by its lock file or from a node that has it.
func (p *managedPackage) ensureProgram(ctx context.Context, r *Record) error {
	if p.manager.opts.Cluster == nil || r.Program == "" || p.hasProgram(r) {
		return nil
	}
	p.fetching.Lock()
	defer p.fetching.Unlock()
	if p.hasProgram(r) {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.manager.opts.Install,
		fmt.Errorf("it was not installed within %v", p.manager.opts.Install))
	defer cancel()
	err := os.MkdirAll(p.folder(), 0o700)
	if err == nil {
		err = os.WriteFile(p.incomplete(r.Program), nil, 0o600)
	}
	if err != nil {
		return err
	}
	ways := []func(context.Context, *Record) error{p.installLocked, p.copyProgram}
	switch r.Source.Kind {
	case PyPI, OCI: // its files name paths of the node, or are many layers
		ways = ways[:1]
	case Crate, Go: // not every machine builds the same
		ways = []func(context.Context, *Record) error{p.copyProgram, p.installLocked}
	}
	if r.Source.FromPath() {
		ways = ways[len(ways)-1:]
	}
	var errs []error
	top := filepath.Join(p.folder(), programTop(r.Program))
	for _, way := range ways {
		if err = os.RemoveAll(top); err == nil {
			err = way(ctx, r)
		}
		if err == nil {
			err = p.checkFetched(ctx, r)
		}
		if err == nil {
			p.journal.writeLine("[host] this node has installed the program")
			return os.Remove(p.incomplete(r.Program))
		}
		errs = append(errs, cause(ctx, err))
	}
	return fmt.Errorf("install package %s on this node: %w", p.id, errors.Join(append(errs, os.RemoveAll(top))...))
}

// checkFetched refuses a program that is another than what was approved, and gives it files in common with others.
func (p *managedPackage) checkFetched(ctx context.Context, r *Record) error {
	digest, err := p.digest(ctx, r)
	if err == nil && r.Pins != nil && r.Pins.Digest != "" && r.Pins.Digest != digest {
		err = tool.Refuse(tool.CodeDenied, "its digest is %s, and %s was approved", digest, r.Pins.Digest)
	}
	if err == nil && r.Shared && p.manager.opts.Share {
		_, err = p.manager.store.share(ctx, filepath.Join(p.folder(), programTop(r.Program)))
	}
	return err
}

// installLocked installs a program from its source, in the version and by the lock file that every node has.
func (p *managedPackage) installLocked(ctx context.Context, r *Record) error {
	now := *r
	now.Program = programTop(r.Program)
	plan := Plan{Record: now, Expect: r.Pins}
	if r.Source.Kind == NPM || r.Source.Kind == PyPI {
		shared, err := p.manager.opts.Cluster.Shared.Get(ctx, p.id+"/lock/"+now.Program)
		if err == nil {
			plan.locked = new(pins.Locked)
			err = openShared(shared.Value, plan.locked)
		}
		if err != nil {
			return err
		}
	}
	if now.Source.fromRegistry() && r.Version != "" && r.Source.Kind != OCI {
		now.Source = now.Source.WithVersion(r.Version)
	}
	if err := p.fetch(ctx, &now, plan, func(int64, int64, string) {}); err != nil {
		return err
	}
	if now.Program != r.Program {
		return fmt.Errorf("its program is in %s, and was in %s", now.Program, r.Program)
	}
	return nil
}

// copyProgram gets a program from a node that has it.
func (p *managedPackage) copyProgram(ctx context.Context, r *Record) error {
	c := p.manager.opts.Cluster
	why := errors.New("no node that is heard has the program")
	for _, n := range c.Nodes()[1:] {
		if !n.Alive {
			continue
		}
		err := p.copyFrom(ctx, n.ID, programTop(r.Program))
		if err == nil {
			return nil
		}
		why = fmt.Errorf("node %s: %w", n.ID, err)
		if err := os.RemoveAll(filepath.Join(p.folder(), programTop(r.Program))); err != nil {
			return err
		}
	}
	return why
}

func (p *managedPackage) copyFrom(ctx context.Context, node, top string) error {
	q := url.Values{"package": {p.id}, "program": {top}, "platform": {platform()}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+node+".node/program?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	answer, err := p.manager.opts.Cluster.Transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
		return errors.New(cmp.Or(strings.TrimSpace(string(said)), answer.Status))
	}
	dir := filepath.Join(p.folder(), top)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	to, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer to.Close()
	return (&copying{ctx: ctx, to: to, report: func(int64, int64, string) {}}).tar(answer.Body)
}

// NodeHandler serves what other nodes need of packages. Only nodes may reach it.
func (h *Manager) NodeHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /program", h.serveProgram)
	mux.HandleFunc("POST /watch", h.serveWatch)
	return mux
}

// serveProgram sends the files of a program as a tar archive.
func (h *Manager) serveProgram(w http.ResponseWriter, q *http.Request) {
	top := q.FormValue("program")
	p, err := h.findPackage(q.FormValue("package"))
	if err != nil || !strings.HasPrefix(top, programPrefix) || !filepath.IsLocal(top) || programTop(top) != top ||
		!p.hasProgram(&Record{Program: top}) {
		http.Error(w, "it does not have the program", http.StatusNotFound)
		return
	}
	p.mu.Lock()
	here := p.rec.Source.FromPath()
	p.mu.Unlock()
	if !here && q.FormValue("platform") != platform() {
		http.Error(w, "it has the program for "+platform(), http.StatusNotFound)
		return
	}
	t := tar.NewWriter(w)
	err = addTree(t, filepath.Join(p.folder(), top))
	if err == nil {
		err = t.Close()
	}
	if err != nil {
		h.log.Warn("a node did not get a program", "package", p.id, "err", err)
		panic(http.ErrAbortHandler) // so that the node does not take it for complete
	}
}

// addTree adds the folders and files below a folder to an archive.
func addTree(t *tar.Writer, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." || !d.IsDir() && !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		head, err := tar.FileInfoHeader(info, "")
		if err != nil {
			return err
		}
		head.Name = name
		if err := t.WriteHeader(head); err != nil || d.IsDir() {
			return err
		}
		f, err := root.Open(filepath.FromSlash(name))
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(t, f)
		return err
	})
}

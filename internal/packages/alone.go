package packages

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gatehouse/internal/files/atomicfile"
	"gatehouse/internal/mcp/client"
	"gatehouse/internal/state"
)

// Alone makes a manager run one package alone, for the program that started this host: the
// server works in that program's folder and with its environment, and what it offers keeps
// its own names and URIs.
type Alone struct {
	Dir string   // the working directory of the server
	Env []string // its environment, before that of the record
	// Described is called with what the server says of itself (the result of
	// server/discover or initialize), before it is used. It must not block.
	Described func(revision string, about json.RawMessage)
}

// mostAlone is how many hosts may run one package alone at once.
const mostAlone = 100

// aloneFile holds the record of the package in a folder of OpenAlone.
const aloneFile = "alone.json"

// OpenAlone opens the manager of one package that is run alone. Its folder is the first below
// base that no other host uses, so that what was installed there is used again. o.Alone is
// required; o.Folder and o.Records are set here. StartAlone makes the package available.
func OpenAlone(ctx context.Context, base string, o Options) (*Manager, error) {
	for n := range mostAlone {
		o.Folder = filepath.Join(base, strconv.Itoa(n))
		var err error
		if o.Records, err = aloneRecords(ctx, o.Folder); err != nil {
			return nil, err
		}
		h := newManager(o)
		got, err := h.acquire()
		switch {
		case err != nil:
			return nil, fmt.Errorf("packages: %w", err)
		case got:
			return h, nil
		}
		h.end(errClosing)
	}
	return nil, fmt.Errorf("%d hosts run this server already; end one of them", mostAlone)
}

// aloneRecords are the records of a manager of OpenAlone: what was installed in its folder.
func aloneRecords(ctx context.Context, folder string) (*state.Mount[map[string]Record], error) {
	records, err := state.Attach[map[string]Record](ctx, state.New(state.Options{}), "/private/packages", state.Durable)
	if err != nil {
		return nil, err
	}
	kept, err := readAlone(folder)
	if err != nil || !isFolder(kept.program(filepath.Join(folder, kept.ID))) {
		return records, nil // it is installed again
	}
	return records, state.Put(ctx, records, kept.ID, kept)
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func readAlone(folder string) (r Record, err error) {
	b, err := atomicfile.Read(filepath.Join(folder, aloneFile), maxListing)
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	return r, err
}

// StartAlone makes r the package of a manager that OpenAlone opened, and starts its server. A
// program that is installed already from the same source is used as it is, unless again is
// set. The arguments, variables and headers of the record are not stored.
func (h *Manager) StartAlone(ctx context.Context, r Record, again bool, report Report) error {
	r.Start = Always
	p, err := h.placeAlone(ctx, r, again, report)
	if err != nil {
		return err
	}
	h.invalidateTools()
	if err := p.shared.startNow(ctx); err != nil {
		return err
	}
	kept := p.info().Record
	if kept.Program == "" {
		return nil
	}
	kept.Args, kept.Env, kept.Headers, kept.Start = nil, nil, nil, OnDemand
	b, err := json.Marshal(kept)
	if err == nil {
		err = atomicfile.Write(filepath.Join(h.opts.Folder, aloneFile), b)
	}
	if err != nil {
		return fmt.Errorf("store what was installed: %w", err)
	}
	return nil
}

// placeAlone installs the package unless it is there.
func (h *Manager) placeAlone(ctx context.Context, r Record, again bool, report Report) (*managedPackage, error) {
	p, err := h.findPackage(r.ID)
	switch {
	case err == nil:
	case r.Source.Kind == Command || r.Source.IsRemote():
		if err := r.checkRecord(); err != nil {
			return nil, err
		}
		r.State = Installed
		p = h.newPackage(r)
		h.addPackage(p)
		return p, nil
	default:
		if _, err := h.Install(ctx, Plan{Record: r}, report); err != nil {
			return nil, err
		}
		return h.findPackage(r.ID)
	}
	done, err := p.claim(Updating)
	if err != nil {
		return nil, err
	}
	defer done()
	p.mu.Lock()
	was := p.rec
	p.mu.Unlock()
	if again || was.Source != r.Source {
		return p, p.reinstall(ctx, Plan{Record: r, fresh: true}, report)
	}
	r.State, r.Program, r.Shared, r.Writable = was.State, was.Program, was.Shared, was.Writable
	r.Installed, r.Server = was.Installed, was.Server
	if err := r.checkRecord(); err != nil {
		return nil, err
	}
	return p, p.saveRecord(r)
}

// startNow starts the server unless it runs, and returns why the first attempt failed.
func (i *instance) startNow(ctx context.Context) error {
	p := i.pkg
	p.mu.Lock()
	wait := i.starting
	if i.running == nil && wait == nil {
		wait = i.startInstance()
	}
	p.mu.Unlock()
	if wait != nil {
		select {
		case <-wait:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i.running == nil {
		return i.why
	}
	return nil
}

// aloneEnvironment is the environment of a server that is run alone, before that of its
// record: without the variables that are this host's own.
func (a *Alone) aloneEnvironment() (env []string) {
	for _, kv := range a.Env {
		if !strings.HasPrefix(kv, "GATEHOUSE_") {
			env = append(env, kv)
		}
	}
	return env
}

// LocalServer returns the command that starts the server whose program is in a folder with a
// package.json.
func LocalServer(folder string) (command string, args []string, err error) {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return "", nil, err
	}
	defer root.Close()
	return startManifest(root, ".")
}

// describeConnection passes on what the server said of itself.
func (a *Alone) describeConnection(c *client.Conn) {
	if a != nil && a.Described != nil {
		a.Described(c.Revision(), c.Info())
	}
}

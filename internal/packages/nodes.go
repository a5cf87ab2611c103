package packages

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/state"
	"gatehouse/tool"
)

// The records of packages are the same on all nodes of a cluster, because their mount is. A record is replaced only if
// it is still as this node knows it, so that of two nodes that change it at once one is refused. What takes long
// (installing, updating and removing) is done by one node at a time, which has the lease of the package. Everything
// else of a package is each node's own: its folder, and the instances of its server.

// Cluster is what a manager needs of the cluster of its host.
type Cluster struct {
	*cluster.Node
	Shared *cluster.Bucket // what nodes need of a package besides its record; see encodeShared
	Places *cluster.Bucket // on which nodes packages run; see place
	Logins *cluster.Bucket // that were begun and are not finished; see shareLogin
	// Seal encrypts what another node opens until it expires, for the same purpose and binding.
	Seal func(purpose string, bind, plain []byte, expires time.Time) string
	Open func(purpose string, bind []byte, token string, now time.Time) ([]byte, error)
	// Transport reaches what NodeHandler serves on a node; the host of the URL is the node's id and ".node".
	Transport http.RoundTripper
}

// packageLease is how long a node that died blocks changes of the packages that it was installing.
const packageLease = 10 * time.Second

// exclusive are the operations during which no other node changes a package.
var exclusive = []string{Installing, Updating, Removing}

// putRecord stores a record durably. In a cluster it is stored only if the stored one is still was; nil means that
// there is none.
func (h *Manager) putRecord(r Record, was []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
	defer cancel()
	if h.opts.Cluster == nil {
		return state.Put(ctx, h.opts.Records, r.ID, r)
	}
	return h.swapRecord(ctx, r.ID, &r, was)
}

// deleteRecord removes a record, in a cluster only if it is still was.
func (h *Manager) deleteRecord(id string, was []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
	defer cancel()
	if h.opts.Cluster == nil {
		return state.Drop(ctx, h.opts.Records, id)
	}
	return h.swapRecord(ctx, id, nil, was)
}

// swapRecord replaces the record was of a package by r; nil removes it.
func (h *Manager) swapRecord(ctx context.Context, id string, r *Record, was []byte) error {
	_, err := h.opts.Records.Update(ctx, state.Any, func(all *map[string]Record) error {
		is, there := (*all)[id]
		if there != (was != nil) || there && !bytes.Equal(encodeRecord(is), was) {
			return &tool.Refusal{
				Code:    tool.CodeStale,
				Message: "another node has changed package " + id + " meanwhile; nothing was changed",
				Next:    "Look at it again with package_info, and repeat what is still to be done.",
			}
		}
		if r == nil {
			delete(*all, id)
			return nil
		}
		if *all == nil {
			*all = map[string]Record{}
		}
		(*all)[id] = *r
		return nil
	})
	return err
}

// encodeRecord returns a record as it is compared: as it is after it was stored.
func encodeRecord(r Record) []byte {
	b, err := json.Marshal(r)
	var again Record
	if err == nil {
		err = json.Unmarshal(b, &again)
	}
	if err == nil {
		b, err = json.Marshal(again)
	}
	if err != nil { // a record has only texts, numbers and times
		panic(fmt.Sprintf("encode the record of package %s: %v", r.ID, err))
	}
	return b
}

// lockPackage makes this node the only one that changes a package, until release. It waits for the lease of a node that
// died. Without a cluster it does nothing.
func (h *Manager) lockPackage(id string) (release func(), err error) {
	c := h.opts.Cluster
	if c == nil {
		return func() {}, nil
	}
	ctx, cancel := context.WithTimeoutCause(h.ctx, 3*packageLease, errors.New("most nodes of the cluster do not answer"))
	defer cancel()
	name := "package/" + id
	l, err := c.TryAcquire(ctx, name, packageLease)
	if errors.Is(err, cluster.ErrHeld) || errors.Is(err, cluster.ErrConflict) {
		holder, _, e := c.Holder(ctx, name)
		if e == nil && holder != c.ID() && c.Alive(holder) {
			return nil, &tool.Refusal{
				Code:    tool.CodeBusy,
				Message: fmt.Sprintf("node %s is changing package %s; nothing was changed", holder, id),
				Next:    "Try again when that has ended.",
			}
		}
		l, err = c.Acquire(ctx, name, packageLease)
	}
	if err != nil {
		return nil, fmt.Errorf("package %s: %w", id, err)
	}
	fence, err := c.Shared.Fence(ctx, id+"/fence", l)
	if err != nil {
		l.Release(context.WithoutCancel(ctx))
		return nil, fmt.Errorf("package %s: %w", id, err)
	}
	h.fences.Store(id, fence)
	return func() {
		h.fences.CompareAndDelete(id, fence)
		ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
		defer cancel()
		if err := l.Release(ctx); err != nil {
			h.log.Debug("the lease of a package ends by itself", "package", id, "err", err)
		}
	}, nil
}

// fenceOf returns the fence of a package that this node changes: what it writes for the other nodes is refused once
// another node has begun to change the package, because the lease of this one ended while it was paused.
func (h *Manager) fenceOf(id string) (*cluster.Fence, error) {
	fence, ok := h.fences.Load(id)
	if !ok {
		return nil, fmt.Errorf("package %s: this node does not have its lease", id)
	}
	return fence.(*cluster.Fence), nil
}

// claimOnNodes makes this node the only one that changes a package which it has claimed, and the package what it is on
// the other nodes.
func (p *managedPackage) claimOnNodes() (release func(), err error) {
	release, err = p.manager.lockPackage(p.id)
	if err != nil || p.manager.opts.Cluster == nil {
		return release, err
	}
	all, _, err := p.manager.opts.Records.Get()
	if err != nil {
		release()
		return nil, err
	}
	now, there := all[p.id]
	if !there {
		release()
		return nil, errNoPackage(p.id)
	}
	p.adoptRecord(now)
	return release, nil
}

// FollowNodes applies what other nodes do to packages until ctx is done. changes yields when records have changed.
func (h *Manager) FollowNodes(ctx context.Context, changes <-chan struct{}) {
	var shared sync.WaitGroup
	defer shared.Wait()
	shared.Go(func() { h.followShared(ctx) })
	shared.Go(func() { h.followPlaces(ctx) })
	for {
		select {
		case <-changes:
			h.applyRecords()
		case <-ctx.Done():
			return
		}
	}
}

// applyRecords makes the packages of this node what the records say. Packages that an operation on this node changes
// are left until it has ended.
func (h *Manager) applyRecords() {
	leave, err := h.addWork()
	if err != nil {
		return
	}
	defer leave()
	h.following.Lock()
	defer h.following.Unlock()
	records, _, err := h.opts.Records.Get()
	if err != nil {
		h.log.Error("the packages of the cluster cannot be read", "err", err)
		return
	}
	changed := false
	for _, p := range h.sortedPackages() {
		r, there := records[p.id]
		delete(records, p.id)
		p.mu.Lock()
		same := there && bytes.Equal(encodeRecord(r), p.stored)
		p.mu.Unlock()
		if !same && p.follow() {
			changed = true
		}
	}
	for id, r := range records {
		if r.ID != id || !idForm().MatchString(id) {
			continue
		}
		p := h.newPackage(r)
		p.stored = encodeRecord(r)
		p.loadListing()
		if !h.addPackage(p) {
			continue
		}
		changed = true
		p.fetchListing()
		p.publishState()
		p.prefetch()
	}
	if changed {
		h.invalidateTools()
	}
}

// follow makes a package what its record says now. It returns false if that has to wait.
func (p *managedPackage) follow() bool {
	done, err := p.claimHere("following another node")
	if err != nil {
		return false
	}
	all, _, err := p.manager.opts.Records.Get()
	now, there := all[p.id]
	switch {
	case err != nil:
		done()
		return false
	case there:
		p.mu.Lock()
		ran := p.shared.running != nil
		p.mu.Unlock()
		p.adoptRecord(now)
		done()
		p.startIfWanted(ran)
		p.prefetch()
		return true
	}
	p.dropHere()
	done()
	h := p.manager
	h.goCollect()
	if slices.ContainsFunc(h.declaredNow(), func(d Declared) bool { return d.Name == p.id }) {
		h.wakeApply() // the settings of this node want it
	}
	return true
}

// adoptRecord makes a record that another node has stored that of a package, which is claimed. Instances that it
// concerns are stopped.
func (p *managedPackage) adoptRecord(now Record) {
	stored := encodeRecord(now)
	p.mu.Lock()
	if bytes.Equal(stored, p.stored) {
		p.mu.Unlock()
		return
	}
	was := p.rec
	p.rec, p.stored = now, stored
	listed := p.approvableListing()
	p.mu.Unlock()
	if !sameServer(was, now) {
		if err := p.stopServers(); err != nil {
			p.manager.log.Warn("a package does not end", "package", p.id, "err", err)
		}
		p.resetFailures()
	}
	if now.Pins != nil {
		p.storeDefinitions(now.Pins, listed)
	}
	if now.State == Installed {
		p.removeOldPrograms()
	}
	p.manager.invalidateTools()
}

// sameServer reports whether a server that was started by one record is as if it were started by the other.
func sameServer(a, b Record) bool {
	for _, r := range []*Record{&a, &b} {
		r.Title, r.Version, r.Results, r.Timeout, r.NewTools, r.State, r.By, r.DeclaredBy = "", "", "", "", "", "", "", ""
		r.Job = ""
		r.TrustHints, r.Keep, r.Declared, r.AsksLogin, r.Shared, r.Writable = false, false, false, false, false, false
		r.Off, r.Actions, r.Cleared, r.Pins, r.Previous = nil, nil, nil, nil, nil
		r.Server, r.Installed, r.Digest = Server{}, time.Time{}, ""
	}
	return bytes.Equal(encodeRecord(a), encodeRecord(b))
}

// dropHere removes what this node has of a package that another node has removed.
func (p *managedPackage) dropHere() {
	h := p.manager
	err := p.stopServers()
	err = errors.Join(err, p.erase(h.keptData(p.id)))
	h.unregister(p)
	if err != nil {
		h.log.Warn("a package that another node has removed is left in part", "package", p.id, "err", err)
	}
}

// loadNode loads the packages of a node; h.mu is held. Folders of packages that were removed while it was away are
// removed.
func (h *Manager) loadNode(records map[string]Record) error {
	for id, r := range records {
		if r.ID != id || !idForm().MatchString(id) {
			h.log.Warn("a record of a package is left out", "package", id)
			continue
		}
		h.loadOfNode(r)
	}
	entries, err := os.ReadDir(h.opts.Folder)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if h.all[e.Name()] != nil || !e.IsDir() || !idForm().MatchString(e.Name()) || e.Name() == storeFolder {
			continue
		}
		p := h.newPackage(Record{ID: e.Name()})
		if inside, err := os.ReadDir(p.folder()); err != nil || len(inside) == 1 && inside[0].Name() == "data" {
			continue // the data that a removal left
		}
		if err := p.erase(h.keptData(p.id)); err != nil {
			h.log.Warn("a package that was removed is left in part", "package", e.Name(), "err", err)
		}
	}
	return nil
}

// loadOfNode makes a package of a record of all nodes; h.mu is held.
func (h *Manager) loadOfNode(r Record) {
	p := h.newPackage(r)
	p.stored = encodeRecord(r)
	if r.State == Installed {
		p.removeOldPrograms()
	}
	p.loadListing()
	h.all[r.ID] = p
}

// settleInterrupted finishes or undoes what a node has left incomplete that died.
func (h *Manager) settleInterrupted() {
	if h.opts.Cluster == nil {
		return
	}
	for _, p := range h.sortedPackages() {
		p.mu.Lock()
		wait := p.rec.State == Installed || p.activity != ""
		p.mu.Unlock()
		if wait {
			continue
		}
		if err := p.settle(); err != nil {
			h.log.Debug("a package is being changed", "package", p.id, "err", err)
		}
	}
}

func (p *managedPackage) settle() error {
	done, err := p.claim(Updating)
	if err != nil {
		return err
	}
	p.mu.Lock()
	r, stored := p.rec, p.stored
	p.mu.Unlock()
	switch r.State {
	case Updating:
		r.State, r.Job = Installed, "" // the job has not done it
		err = p.saveRecord(r)
	case Installing, Removing:
		// The others remove what they have of it once there is no record, and must know then whether its data stay.
		err = p.manager.forgetShared(p.id, r.Keep || r.State == Installing && p.manager.keptData(p.id))
		if err == nil {
			err = p.manager.deleteRecord(p.id, stored)
		}
		if err == nil {
			p.dropHere()
		}
	}
	done()
	if err == nil {
		p.manager.log.Info("an operation on a package that a node had left incomplete was settled", "package", p.id,
			"state", r.State)
		p.manager.invalidateTools()
	}
	return err
}

// Reclaim finishes or undoes what a job of a node that has died was doing to a package, so that the job can begin
// again. done says that the job had ended with the package installed. It waits until the lease of that node has ended.
func (h *Manager) Reclaim(ctx context.Context, id, job string) (done bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 3*packageLease, errors.New("package "+id+" is still being changed"))
	defer cancel()
	for {
		p, err := h.findPackage(id)
		if err != nil {
			return false, nil // it was undone
		}
		p.mu.Lock()
		r := p.rec
		p.mu.Unlock()
		if r.Job != job || r.State == Installed {
			return r.Job == job, nil
		}
		if err := p.settle(); err != nil {
			h.log.Debug("a package is being changed", "package", id, "err", err)
		}
		if err := sleep(ctx, movePause); err != nil {
			return false, context.Cause(ctx)
		}
	}
}

// ReclaimAll is Reclaim for all packages that a job was changing.
func (h *Manager) ReclaimAll(ctx context.Context, job string) error {
	for _, p := range h.sortedPackages() {
		p.mu.Lock()
		r := p.rec
		p.mu.Unlock()
		if r.Job != job || r.State == Installed {
			continue
		}
		if _, err := h.Reclaim(ctx, p.id, job); err != nil {
			return err
		}
	}
	return nil
}

// declaredByNode reports whether by names the settings of another node of the cluster.
func (h *Manager) declaredByNode(by string) bool {
	c := h.opts.Cluster
	if c == nil {
		return false
	}
	for _, n := range c.Nodes()[1:] {
		if n.Member && strings.HasPrefix(by, n.ID+":") {
			return true
		}
	}
	return false
}

// keptData reports whether a package that was removed left its data on the nodes.
func (h *Manager) keptData(id string) bool {
	ctx, cancel := context.WithTimeout(h.ctx, recordTimeout)
	defer cancel()
	_, err := h.opts.Cluster.Shared.Get(ctx, id+"/kept")
	return err == nil || !errors.Is(err, cluster.ErrNotFound) // what is not known is not erased
}

// forgetShared removes what nodes have in common of a package that is removed, and remembers whether they keep its
// data.
func (h *Manager) forgetShared(id string, keep bool) error {
	if h.opts.Cluster == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
	defer cancel()
	fence, err := h.fenceOf(id)
	if err != nil {
		return err
	}
	var errs []error
	if keep {
		errs = append(errs, fence.Put(ctx, id+"/kept", []byte("yes")))
	}
	all, err := h.opts.Cluster.Shared.List(ctx)
	errs = append(errs, err)
	for _, r := range all {
		if of, what, _ := cutShared(r.Key); of == id && what != "fence" && (what != "kept" || !keep) {
			errs = append(errs, fence.Purge(ctx, r.Key))
		}
	}
	if err := errors.Join(errs...); errors.Is(err, cluster.ErrFenced) {
		return err // the place is that of the package which another node has installed
	}
	if at, err := h.opts.Cluster.Places.Get(ctx, id); err == nil {
		errs = append(errs, h.opts.Cluster.Places.Purge(ctx, id, at.Revision))
	}
	return errors.Join(errs...)
}

// putRestoredRecord stores the record of a package that was restored, whatever it was.
func (h *Manager) putRestoredRecord(r Record) error {
	if h.opts.Cluster == nil {
		return h.putRecord(r, nil)
	}
	all, _, err := h.opts.Records.Get()
	if err != nil {
		return err
	}
	if was, there := all[r.ID]; there {
		return h.putRecord(r, encodeRecord(was))
	}
	return h.putRecord(r, nil)
}

// platform says for what the programs of this machine are.
func platform() string { return runtime.GOOS + "/" + runtime.GOARCH }

func errNoPackage(id string) *tool.Refusal {
	return &tool.Refusal{
		Code:    tool.CodeNotFound,
		Message: fmt.Sprintf("there is no package %q", id),
		Next:    "package_list lists the packages.",
	}
}

// hasProgram reports whether the program of a record is complete on this node.
func (p *managedPackage) hasProgram(r *Record) bool {
	_, err := os.Stat(p.incomplete(r.Program))
	return isFolder(r.program(p.folder())) && err != nil
}

// incomplete is the path of a file that exists while a program is fetched.
func (p *managedPackage) incomplete(program string) string {
	return filepath.Join(p.folder(), "fetching-"+programTop(cmp.Or(program, programPrefix)))
}

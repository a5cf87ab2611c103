package packages

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/tool"
)

// Where the server of a package runs in a cluster; see Record.Nodes.
const (
	OneNode  = "one"  // of all nodes, one that fits
	EachNode = "each" // on each node that fits, for its own callers
)

// place is where the server of a package runs. It stays when the server is stopped as idle, because the data folder of
// the package is there.
type place struct {
	Node   string   `json:"node"`
	Labels []string `json:"labels,omitempty"` // of the package, for which the node was chosen
	Wanted []string `json:"wanted,omitempty"` // of the context of the call for which it was chosen

	revision uint64
}

// places are where packages run, as this node knows it. Nothing is decided by it: a place is changed by
// compare-and-set.
type places struct {
	mu sync.Mutex
	of map[string]place
}

func (p *places) get(id string) place {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of[id]
}

// set stores a place unless a newer one is known, and returns the one that was known.
func (p *places) set(id string, now place) (was place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if was = p.of[id]; was.revision >= now.revision {
		return was
	}
	if p.of == nil {
		p.of = map[string]place{}
	}
	p.of[id] = now
	return was
}

// LoadOf returns the load of nodes at this moment: what they tell, and one for each package that has its place there.
func (h *Manager) LoadOf() func(cluster.Peer) float64 {
	h.places.mu.Lock()
	defer h.places.mu.Unlock()
	n := map[string]int{}
	for _, at := range h.places.of {
		n[at.Node]++
	}
	return func(p cluster.Peer) float64 { return p.Load + float64(n[p.ID]) }
}

// Placed returns the packages that have their places on nodes, by node.
func (h *Manager) Placed() map[string][]string {
	all := map[string][]string{}
	h.places.mu.Lock()
	defer h.places.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(h.places.of)) {
		if at := h.places.of[id]; at.Node != "" {
			all[at.Node] = append(all[at.Node], id)
		}
	}
	return all
}

// followPlaces applies what nodes decide about places until ctx is done.
func (h *Manager) followPlaces(ctx context.Context) {
	for r := range h.opts.Cluster.Places.Watch(ctx) {
		now, ok := readPlace(r)
		if !ok {
			continue
		}
		was := h.places.set(r.Key, now)
		self := h.opts.Cluster.ID()
		p, err := h.findPackage(r.Key)
		switch {
		case err != nil:
		case was.Node == self && now.Node != self:
			p.moveAway()
		case now.Node == self:
			h.goWork(func(context.Context) { p.startIfWanted(false) })
		}
	}
}

func readPlace(r cluster.Record) (at place, ok bool) {
	if !r.Deleted && json.Unmarshal(r.Value, &at) != nil {
		return at, false
	}
	at.revision = r.Revision
	return at, true
}

// isProcess reports whether the server of a package is a process of a node.
func (r *Record) isProcess() bool { return !r.Source.IsRemote() && r.Source.Kind != OpenAPI }

// isPlaced reports whether the server of a package runs on one node for all.
func (r *Record) isPlaced() bool {
	return r.Nodes != EachNode && r.State != Installing && r.isProcess()
}

// runsHere reports whether the server of a package may be started here without a call: p.mu is held.
func (p *managedPackage) runsHere() bool {
	c := p.manager.opts.Cluster
	if c == nil {
		return true
	}
	if p.rec.isPlaced() {
		return p.manager.places.get(p.id).Node == c.ID()
	}
	return len(p.rec.Labels) == 0 || fits(p.rec.Labels, c.Nodes()[0])
}

func fits(labels []string, n cluster.Peer) bool {
	return !slices.ContainsFunc(labels, func(l string) bool { return !slices.Contains(n.Labels, l) })
}

// Place returns the node on which a call of a package has to run; "" means this one. wanted are the labels that the
// node must have for the context of the call, besides those of the package. If the package has no place, or its node is
// dead or drains, a node that fits is chosen: of those the one with the lowest load. A package that runs on a node
// without what is wanted is not moved, because its data folder is there: the call is refused.
func (h *Manager) Place(ctx context.Context, id string, wanted []string) (node string, err error) {
	c := h.opts.Cluster
	if c == nil {
		return "", nil
	}
	p, err := h.findPackage(id)
	if err != nil {
		return "", nil // the call says why
	}
	p.mu.Lock()
	r := p.rec
	p.mu.Unlock()
	switch {
	case r.isPlaced():
		return h.placeOnOne(ctx, &r, wanted)
	case !r.isProcess() && len(r.Labels) == 0:
		return "", nil
	case !r.isProcess():
		wanted = nil // its server is not on a node
	}
	wanted = slices.Concat(r.Labels, wanted)
	if fits(wanted, c.Nodes()[0]) {
		return "", nil
	}
	node, err = h.choose(id, wanted)
	return h.elsewhere(node), err
}

// placeOnOne is Place for a package whose server runs on one node for all.
func (h *Manager) placeOnOne(ctx context.Context, r *Record, wanted []string) (node string, err error) {
	for {
		at := h.places.get(r.ID)
		stays := at.Node != "" && slices.Equal(at.Labels, r.Labels)
		if stays && h.keepsPlace(at) {
			return h.elsewhere(at.Node), h.checkWanted(r.ID, at.Node, wanted)
		}
		best, err := h.choose(r.ID, slices.Concat(r.Labels, at.Wanted, wanted))
		if err != nil && len(at.Wanted) > 0 {
			at.Wanted = nil // its context lets it run nowhere now; others may have it
			best, err = h.choose(r.ID, slices.Concat(r.Labels, wanted))
		}
		if err != nil {
			return "", err
		}
		if best == at.Node && stays {
			return h.elsewhere(best), nil // it drains, and there is no other
		}
		if len(wanted) == 0 {
			wanted = at.Wanted
		}
		err = h.changePlace(ctx, r.ID, place{Node: best, Labels: r.Labels, Wanted: wanted, revision: at.revision})
		if err != nil && !errors.Is(err, cluster.ErrConflict) {
			return "", fmt.Errorf("place package %s on a node: %w", r.ID, err)
		}
	}
}

// checkWanted refuses a call of a package whose node lacks a label that the context of the call wants.
func (h *Manager) checkWanted(id, node string, wanted []string) error {
	for _, n := range h.opts.Cluster.Nodes() {
		if n.ID == node && !fits(wanted, n) {
			return &tool.Refusal{
				Code: tool.CodeUnavailable,
				Message: fmt.Sprintf("package %s runs on node %s, which lacks a label that this context wants (%s); "+
					"nothing was run", id, node, strings.Join(wanted, ", ")),
				Next: "Install the package with these labels, or with nodes: each.",
			}
		}
	}
	return nil
}

// keepsPlace reports whether the node of a place is heard and takes work.
func (h *Manager) keepsPlace(at place) bool {
	c := h.opts.Cluster
	if at.Node == c.ID() {
		return !c.Draining()
	}
	return c.Alive(at.Node) && !c.DrainingAt(at.Node)
}

func (h *Manager) elsewhere(node string) string {
	if node == h.opts.Cluster.ID() {
		return ""
	}
	return node
}

// changePlace stores a place if the stored one still has its revision. After a conflict the newer one is known.
func (h *Manager) changePlace(ctx context.Context, id string, at place) error {
	raw, err := json.Marshal(at)
	if err != nil {
		return err
	}
	b := h.opts.Cluster.Places
	was := at.revision
	if was == 0 {
		at.revision, err = b.Create(ctx, id, raw)
	} else {
		at.revision, err = b.Update(ctx, id, raw, was)
	}
	if err == nil {
		if old := h.places.set(id, at); old.Node == h.opts.Cluster.ID() && at.Node != old.Node {
			if p, err := h.findPackage(id); err == nil {
				p.moveAway()
			}
		}
		return nil
	}
	r, e := b.Get(ctx, id)
	if e != nil {
		if errors.Is(e, cluster.ErrNotFound) && errors.Is(err, cluster.ErrConflict) {
			return err // it is being written
		}
		return errors.Join(err, e)
	}
	if now, ok := readPlace(r); ok {
		h.places.set(id, now)
	}
	if errors.Is(err, cluster.ErrMayHaveRun) && r.Revision != was {
		return cluster.ErrConflict // by this write or another one
	}
	return err
}

// choose returns the node with the lowest load among those that fit.
func (h *Manager) choose(id string, labels []string) (string, error) {
	labels = append([]string{ModuleLabel}, labels...)
	return ChooseNode(h.opts.Cluster.Nodes(), labels, id, h.LoadOf())
}

// ChooseNode returns the node with the lowest load among those that are heard, take work and have all labels. A node
// that drains is chosen if there is no other. name spreads what is placed at once.
func ChooseNode(nodes []cluster.Peer, labels []string, name string, load func(cluster.Peer) float64) (string, error) {
	best, least := "", 0.0
	for _, drains := range []bool{false, true} {
		for _, n := range nodes {
			if !n.Alive || !n.Member || n.Draining != drains || !fits(labels, n) {
				continue
			}
			if l := load(n) + cluster.Spread(n.ID+name); best == "" || l < least {
				best, least = n.ID, l
			}
		}
		if best != "" {
			return best, nil
		}
	}
	return "", noNode(nodes, labels)
}

// noNode says which labels no node has, and which there are.
func noNode(nodes []cluster.Peer, labels []string) error {
	has := map[string]bool{}
	for _, n := range nodes {
		if n.Alive {
			for _, l := range n.Labels {
				has[l] = true
			}
		}
	}
	return &tool.Refusal{
		Code: tool.CodeUnavailable,
		Message: fmt.Sprintf("no node of the cluster has the labels %s; nothing was run",
			cmp.Or(strings.Join(labels, ", "), "that are needed")),
		Next: "The labels of the nodes are " + cmp.Or(strings.Join(slices.Sorted(maps.Keys(has)), ", "), "none") +
			"; gatehouse cluster status shows them, and the setting cluster.labels adds some.",
	}
}

// checkPlacement refuses labels that no node has.
func (h *Manager) checkPlacement(r *Record) error {
	if len(r.Labels) == 0 {
		return nil
	}
	if h.opts.Cluster == nil {
		return invalid("labels: this host is no node of a cluster, so that there is no choice of nodes")
	}
	_, err := h.choose(r.ID, r.Labels)
	return err
}

// ModuleLabel is the label of nodes that serve packages.
const ModuleLabel = "module=package"

// PackageOf returns the package that a request is for, by the name of the tool or prompt or the address of the
// resource; "" if it is for none.
func (h *Manager) PackageOf(name string) string {
	if h.opts.Cluster == nil {
		return ""
	}
	if rest, ok := strings.CutPrefix(name, "package://"); ok {
		id, _, _ := strings.Cut(rest, "/")
		return id
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range h.all {
		if own, ok := strings.CutPrefix(name, prefix(id)); ok && strings.HasPrefix(own, "_") {
			return id
		}
	}
	return ""
}

// Running returns how many servers of packages run here, without the first one of each package that has its place here:
// LoadOf counts it by its place.
func (h *Manager) Running() (n int) {
	for _, p := range h.sortedPackages() {
		of := 0
		p.mu.Lock()
		for _, i := range append(p.poolInstances(), p.shared) {
			if i.running != nil {
				of++
			}
		}
		p.mu.Unlock()
		if c := h.opts.Cluster; c != nil && of > 0 && h.places.get(p.id).Node == c.ID() {
			of--
		}
		n += of
	}
	return n
}

// movePause is how often a server that has to move is looked at.
const movePause = 100 * time.Millisecond

// moveAway stops the server of a package that has its place elsewhere now, when its calls have ended.
func (p *managedPackage) moveAway() {
	h := p.manager
	h.goWork(func(ctx context.Context) {
		end := time.Now().Add(h.Patience(p.id))
		for p.isBusy() && time.Now().Before(end) {
			if sleep(ctx, movePause) != nil {
				return
			}
		}
		p.mu.Lock()
		back := p.runsHere()
		p.mu.Unlock()
		if back {
			return
		}
		if err := p.stopServers(); err != nil {
			h.log.Warn("a package that runs on another node now does not end here", "package", p.id, "err", err)
		}
		p.publishState()
	})
}

// isBusy reports whether a call of the package runs here.
func (p *managedPackage) isBusy() bool {
	p.mu.Lock()
	all := append(p.poolInstances(), p.shared)
	busy := slices.ContainsFunc(all, func(i *instance) bool {
		return len(i.calls) > 0 || i.starting != nil || i.running != nil && i.running.idle() == 0
	})
	p.mu.Unlock()
	return busy
}

// LeavePlaces gives the places of this node to others, and returns how many packages still run here for calls that have
// not ended.
func (h *Manager) LeavePlaces(ctx context.Context) (left int) {
	self := h.opts.Cluster.ID()
	for _, p := range h.sortedPackages() {
		if h.places.get(p.id).Node == self {
			if _, err := h.Place(ctx, p.id, nil); err != nil {
				h.log.Warn("a package keeps its place on this node", "package", p.id, "err", err)
			}
		}
		if h.places.get(p.id).Node != self && p.isBusy() {
			left++
		}
	}
	return left
}

// placeWanted finds places for packages that run always.
func (h *Manager) placeWanted(ctx context.Context) {
	for _, p := range h.sortedPackages() {
		p.mu.Lock()
		wanted := p.rec.Start == Always && !p.rec.Stopped && p.rec.State == Installed && p.rec.isPlaced()
		p.mu.Unlock()
		if !wanted {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, shareTime)
		_, err := h.Place(ctx, p.id, nil)
		cancel()
		if err != nil {
			h.log.Debug("a package has no place", "package", p.id, "err", err)
		}
		p.startIfWanted(false)
	}
}

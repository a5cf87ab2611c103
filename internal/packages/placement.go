package packages

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
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

const (
	mostLabels   = 20
	longestLabel = 100
)

// labelForm is a label: KEY=VALUE.
var labelForm = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-z][a-z0-9._-]{0,39}=[A-Za-z0-9][A-Za-z0-9._/-]{0,59}$`)
})

// CheckLabels refuses texts that are no labels.
func CheckLabels(labels []string) error {
	if len(labels) > mostLabels {
		return invalid("labels: at most %d", mostLabels)
	}
	for _, l := range labels {
		if len(l) > longestLabel || !labelForm().MatchString(l) {
			return invalid("label %q: expected KEY=VALUE, such as zone=a or driver=firecracker", shorten(l, longestLabel))
		}
	}
	return nil
}

// place is where the server of a package runs. It stays when the server is stopped as idle, because the data folder of
// the package is there.
type place struct {
	Node   string   `json:"node"`
	Labels []string `json:"labels,omitempty"` // for which the node was chosen

	revision uint64
}

// places are where packages run, as this node knows it. Nothing is decided by it: a place is changed by compare-and-set.
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

// countOn returns how many packages have their places on each node.
func (p *places) countOn() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := map[string]int{}
	for _, at := range p.of {
		n[at.Node]++
	}
	return n
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

// isPlaced reports whether the server of a package runs on one node for all: it is a process of a node.
func (r *Record) isPlaced() bool {
	return r.Nodes != EachNode && r.State != Installing && !r.Source.IsRemote() && r.Source.Kind != OpenAPI
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

// Place returns the node on which a call of a package has to run; "" means this one. If the package has no place, or its
// node is dead or drains, a node that fits is chosen: of those the one with the lowest load.
func (h *Manager) Place(ctx context.Context, id string) (node string, err error) {
	c := h.opts.Cluster
	if c == nil {
		return "", nil
	}
	p, err := h.findPackage(id)
	if err != nil {
		return "", nil // the call says why
	}
	p.mu.Lock()
	placed, labels, each := p.rec.isPlaced(), p.rec.Labels, p.runsHere()
	p.mu.Unlock()
	if !placed && each {
		return "", nil
	}
	for placed {
		at := h.places.get(id)
		if at.Node != "" && slices.Equal(at.Labels, labels) && h.keepsPlace(at) {
			return h.elsewhere(at.Node), nil
		}
		best, err := h.choose(id, labels)
		if err != nil {
			return "", err
		}
		if best == at.Node && slices.Equal(at.Labels, labels) {
			return h.elsewhere(best), nil // it drains, and there is no other
		}
		err = h.changePlace(ctx, id, place{Node: best, Labels: labels, revision: at.revision})
		if err != nil && !errors.Is(err, cluster.ErrConflict) {
			return "", fmt.Errorf("place package %s on a node: %w", id, err)
		}
	}
	node, err = h.choose(id, labels)
	return h.elsewhere(node), err
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
	count := h.places.countOn()
	labels = append([]string{ModuleLabel}, labels...)
	return ChooseNode(h.opts.Cluster.Nodes(), labels, id, func(n cluster.Peer) float64 {
		return n.Load + float64(count[n.ID])
	})
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

// PackageOf returns the package that a request is for, by the name of the tool or prompt or the address of the resource;
// "" if it is for none.
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

// Running returns how many servers of packages run here.
func (h *Manager) Running() (n int) {
	for _, p := range h.sortedPackages() {
		p.mu.Lock()
		for _, i := range append(p.poolInstances(), p.shared) {
			if i.running != nil {
				n++
			}
		}
		p.mu.Unlock()
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
			if _, err := h.Place(ctx, p.id); err != nil {
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
		_, err := h.Place(ctx, p.id)
		cancel()
		if err != nil {
			h.log.Debug("a package has no place", "package", p.id, "err", err)
		}
		p.startIfWanted(false)
	}
}

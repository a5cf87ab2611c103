package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Peer is a node as another one sees it.
type Peer struct {
	ID       string        `json:"id"`
	Host     string        `json:"host"` // the name of its machine
	Boot     string        `json:"boot"` // differs in every run
	Version  string        `json:"version"`
	Format   int           `json:"format,omitempty"`  // see Format; 0 is 1
	Address  string        `json:"address,omitempty"` // URL for clients
	Cluster  string        `json:"cluster,omitempty"` // HOST:PORT for nodes
	Direct   string        `json:"direct,omitempty"`  // HOST:PORT for their hosts, without NATS
	Key      string        `json:"key,omitempty"`     // hash of its certificate there
	Single   bool          `json:"single,omitempty"`  // it accepts connections of single streams there
	Keys     bool          `json:"keys,omitempty"`    // it reads secrets of an earlier key
	Started  time.Time     `json:"started"`
	Draining bool          `json:"draining,omitempty"`
	Load     float64       `json:"load"`          // see SetLoad
	Labels   []string      `json:"has,omitempty"` // see SetLabels; nodes of format 1 read "labels" as an object
	Alive    bool          `json:"alive"`
	Linked   bool          `json:"linked,omitempty"` // its host is connected to this one without NATS
	Member   bool          `json:"member"`
	Silent   time.Duration `json:"silent,omitempty"` // since it was last heard
	Removed  *time.Time    `json:"removed,omitempty"`
}

// beat is what a node tells all others a few times within each lease.
type beat struct {
	Peer
	Seq     uint64            `json:"seq"`
	Acks    map[string]uint64 `json:"acks"`             // by boot: the newest beat that was heard of it
	Applied map[string]uint64 `json:"applied"`          // by feed: see SetApplied
	Epoch   uint64            `json:"epoch,omitempty"`  // of this node; see epochs
	Epochs  map[string]uint64 `json:"epochs,omitempty"` // of other members, by id: the greatest that was heard
	Ends    bool              `json:"ends,omitempty"`
	Beat    int               `json:"beat,omitempty"` // format of this message; one that is not known is not heard
}

// peers is what a node hears of the others. Nothing is decided by it alone.
type peers struct {
	n     *Node
	lease time.Duration
	host  string // the name of this machine

	draining atomic.Bool
	load     atomic.Pointer[func() float64]
	labels   atomic.Pointer[[]string]
	started  time.Time
	double   atomic.Bool // another process has this node's id
	behind   atomic.Bool // see Options.Behind; CaughtUp clears it

	mu       sync.Mutex
	seq      uint64
	sent     map[uint64]moment // of recent own beats
	heard    map[string]*heard // by id
	applied  map[string]uint64
	lapses   uint64 // how often this node became fresh
	address  string
	members  map[string]Peer
	removed  map[string]bool // nodes that were members
	out      chan struct{}   // closed when this node must serve nothing more
	outCause error           // why
	changed  chan struct{}   // closed and replaced when anything changes
	onChange []func(Peer)
}

// moment is a time by the monotonic clock and by that of the host.
type moment struct{ mono, wall time.Time }

func (n *Node) now() moment { return moment{time.Now(), n.opts.Now().Round(0)} }

// within reports whether less than a lease has passed since m by both clocks. One that was set back counts for nothing.
func (m moment) within(now moment, lease time.Duration) bool {
	return !m.mono.IsZero() && now.mono.Sub(m.mono) < lease && now.wall.Sub(m.wall) < lease
}

// heard is one other node.
type heard struct {
	beat  beat
	at    time.Time
	acked moment // when the newest own beat that it has heard was sent
	alive bool
	gone  context.Context // a field, because it ends when the node is dead, not with a call
	end   context.CancelCauseFunc
}

func newPeers(n *Node) *peers {
	host, _ := os.Hostname()
	p := &peers{
		n: n, host: host, lease: n.opts.Lease, started: time.Now().UTC(), sent: map[uint64]moment{}, heard: map[string]*heard{},
		applied: map[string]uint64{}, members: map[string]Peer{}, removed: map[string]bool{}, out: make(chan struct{}),
		changed: make(chan struct{}),
	}
	p.behind.Store(n.opts.Behind)
	return p
}

// hearsTopic is the topic of the question whether a node hears another one.
const hearsTopic = "hears"

// beatsPerLease is how often a node is heard within the time after which it counts as dead.
const beatsPerLease = 5

func (p *peers) start(ctx context.Context) error {
	_, _, err := p.n.Follow("beat", func(from, _ string, data []byte) {
		var b beat
		if json.Unmarshal(data, &b) == nil && ValidID(b.ID) && b.ID == from && CheckFormat("", b.Beat) == nil {
			p.hear(b)
		}
	})
	if err != nil {
		return err
	}
	_, err = p.n.Handle(hearsTopic, func(_ context.Context, _ string, id []byte) ([]byte, error) {
		if p.n.Alive(string(id)) {
			return []byte("yes"), nil
		}
		return []byte("no"), nil
	})
	if err != nil {
		return err
	}
	_, err = p.n.HandleAny("confirm", func(ctx context.Context, _ string, raw []byte) ([]byte, error) {
		var c confirmation
		if err := json.Unmarshal(raw, &c); err != nil {
			return nil, err
		}
		return nil, p.n.Confirm(ctx, c.Feed, c.Revision)
	})
	if err != nil {
		return err
	}
	p.n.running.Go(func() {
		tick := time.NewTicker(p.lease / beatsPerLease)
		defer tick.Stop()
		for {
			p.beat(false)
			p.sweep(time.Now())
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return nil
}

// confirmation is the request of a visitor, which does not hear the nodes itself.
type confirmation struct {
	Feed     string `json:"feed"`
	Revision uint64 `json:"revision"`
}

// self returns this node. p.mu must be held.
func (p *peers) self() Peer {
	o := p.n.opts
	self := Peer{
		ID: p.n.id, Host: p.host, Boot: p.n.boot, Version: o.Version, Format: Format, Address: p.address,
		Cluster: cmp.Or(o.Advertise, o.Listen), Started: p.started, Draining: p.draining.Load(), Alive: true,
		Keys: true,
	}
	if own := p.n.direct.own.Load(); own != nil {
		self.Direct, self.Key, self.Single = p.n.direct.address, own.hash, true
	}
	if l := p.labels.Load(); l != nil {
		self.Labels = *l
	}
	if f := p.load.Load(); f != nil {
		self.Load = (*f)()
	}
	return self
}

func (p *peers) beat(ends bool) {
	p.mu.Lock()
	b := beat{Peer: p.self(), Acks: p.acks(), Ends: ends, Beat: Format}
	p.seq++
	b.Seq, b.Applied = p.seq, maps.Clone(p.applied)
	b.Epoch, b.Epochs = p.n.epochs.get()
	p.sent[p.seq] = p.n.now()
	delete(p.sent, p.seq-16*beatsPerLease)
	p.mu.Unlock()
	if raw, err := json.Marshal(b); err == nil {
		p.n.Publish("beat", raw)
	}
}

// acks returns the newest beat that was heard of each node, by boot, but of none that lacks a change. p.mu must be
// held.
func (p *peers) acks() map[string]uint64 {
	all := map[string]uint64{}
	if p.behind.Load() {
		// Confirm may have counted this node, before it was started again, among those that have a change. Until it
		// knows what it has, it cannot know which nodes lack it.
		return all
	}
	for _, h := range p.heard {
		if !p.lacks(h.beat) { // otherwise it must not let in what was revoked
			all[h.beat.Boot] = h.beat.Seq
		}
	}
	return all
}

// CaughtUp says that this node has told what it had applied of each feed; see Options.Behind.
func (n *Node) CaughtUp() {
	n.peers.behind.Store(false)
	n.peers.beat(false)
}

// lacks reports whether a node has not applied a change that this one has. p.mu must be held.
func (p *peers) lacks(b beat) bool {
	for feed, at := range p.applied {
		if b.Applied[feed] < at {
			return true
		}
	}
	return false
}

func (p *peers) hear(b beat) {
	if b.ID == p.n.id {
		if b.Boot != p.n.boot && p.double.CompareAndSwap(false, true) {
			p.n.log.Error("another process is this node; its data folder was copied: stop one of them", "node", b.ID,
				"host", b.Host)
		}
		return
	}
	p.mu.Lock()
	now := time.Now()
	h := p.heard[b.ID]
	if p.removed[b.ID] || !p.checkEpochs(b) {
		p.mu.Unlock()
		return
	}
	if h == nil {
		if len(p.heard) >= maxNodes {
			p.mu.Unlock()
			return
		}
		h = &heard{}
		p.heard[b.ID] = h
	}
	same := h.beat.Boot == b.Boot
	if same && b.Seq <= h.beat.Seq {
		p.mu.Unlock()
		return
	}
	was := h.alive && same
	if h.alive && !same {
		h.end(errRestarted)
	}
	h.beat, h.at, h.alive = b, now, !b.Ends
	if sent, ok := p.sent[b.Acks[p.n.boot]]; ok && sent.mono.After(h.acked.mono) {
		if p.acknowledged(p.n.now()) < p.majority() {
			p.lapses++
		}
		h.acked = sent
	}
	if h.alive && !was {
		h.gone, h.end = context.WithCancelCause(context.Background())
	}
	if b.Ends && was {
		h.end(errEnded)
	}
	told := h.peer(now, p.members)
	p.signal()
	watchers := slices.Clone(p.onChange)
	p.mu.Unlock()
	if was != told.Alive {
		p.tell(watchers, told)
	}
}

// checkEpochs reports whether a node has the disk of which this one has heard before, and stops this one if the other
// knows that it has not. p.mu must be held.
func (p *peers) checkEpochs(b beat) bool {
	own, _ := p.n.epochs.get()
	if b.Epochs[p.n.id] > own && p.outCause == nil {
		p.n.log.Error(ErrOldImage.Error(), "node", p.n.id, "epoch", own, "known", b.Epochs[p.n.id])
		p.leave(ErrOldImage)
	}
	if _, member := p.members[b.ID]; !member {
		return true
	}
	return p.n.epochs.hear(b.ID, b.Epoch)
}

// leave makes this node serve nothing more, for a reason. p.mu must be held.
func (p *peers) leave(cause error) {
	if p.outCause == nil {
		p.outCause = cause
		close(p.out)
	}
}

// maxNodes bounds what is remembered of nodes.
const maxNodes = 1000

var (
	errSilent    = errors.New("the node is silent")
	errEnded     = errors.New("the node has ended")
	errRestarted = errors.New("the node has been restarted")
)

func (p *peers) signal() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *peers) tell(watchers []func(Peer), told Peer) {
	p.n.log.Info("a node of the cluster changed", "node", told.ID, "host", told.Host, "alive", told.Alive)
	for _, f := range watchers {
		f(told)
	}
}

// sweep declares the silent nodes dead.
func (p *peers) sweep(now time.Time) {
	p.mu.Lock()
	var dead []Peer
	for _, h := range p.heard {
		if h.alive && now.Sub(h.at) > p.lease {
			h.alive = false
			h.end(errSilent)
			dead = append(dead, h.peer(now, p.members))
		}
	}
	if len(dead) > 0 {
		p.signal()
	}
	watchers := slices.Clone(p.onChange)
	p.mu.Unlock()
	for _, d := range dead {
		p.tell(watchers, d)
	}
}

func (h *heard) peer(now time.Time, members map[string]Peer) Peer {
	peer := h.beat.Peer
	peer.Alive, peer.Silent = h.alive, now.Sub(h.at)
	_, peer.Member = members[peer.ID]
	return peer
}

// whileAlive returns a context that ends with its parent or when the node dies, and whether the node is alive.
func (p *peers) whileAlive(ctx context.Context, id string) (context.Context, context.CancelFunc, bool) {
	if id == p.n.id {
		return ctx, func() {}, true
	}
	p.mu.Lock()
	h := p.heard[id]
	if h == nil || !h.alive {
		p.mu.Unlock()
		return ctx, func() {}, false
	}
	gone := h.gone
	p.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(gone, func() { cancel(context.Cause(gone)) })
	return ctx, func() { stop(); cancel(nil) }, true
}

// registerNode records this node as a member, and follows the members from now on.
func (p *peers) registerNode(ctx context.Context, b *Bucket) error {
	p.mu.Lock()
	self := p.self()
	p.mu.Unlock()
	self.Load, self.Draining, self.Member = 0, false, true
	raw, err := json.Marshal(self)
	if err != nil {
		return err
	}
	for {
		r, err := b.Get(ctx, p.n.id)
		var was Peer
		if err == nil && json.Unmarshal(r.Value, &was) == nil && was.Removed != nil {
			return fmt.Errorf("%w: %w", ErrRemoved, errRefused)
		}
		if errors.Is(err, ErrNotFound) {
			_, err = b.Create(ctx, p.n.id, raw)
		} else if err == nil {
			_, err = b.Update(ctx, p.n.id, raw, r.Revision)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, ErrConflict) {
			return err
		}
	}
	all, err := b.List(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	for _, r := range all {
		p.setMember(r)
	}
	p.mu.Unlock()
	p.n.running.Go(func() { p.followMembers(p.n.life, b) })
	return nil
}

func (p *peers) followMembers(ctx context.Context, b *Bucket) {
	for r := range b.Watch(ctx) {
		p.mu.Lock()
		p.setMember(r)
		p.signal()
		p.mu.Unlock()
	}
}

func (p *peers) setMember(r Record) {
	var m Peer
	if !ValidID(r.Key) { // it is no node
		return
	}
	if r.Deleted {
		delete(p.members, r.Key)
		p.n.epochs.forget(r.Key)
	} else if json.Unmarshal(r.Value, &m) != nil {
		return
	} else if m.Removed != nil {
		p.noteRemoved(r.Key)
	} else {
		m.Alive = false
		p.members[r.Key] = m
		if r.Key != p.n.id {
			p.n.epochs.hear(r.Key, 0)
		}
	}
}

func (p *peers) farewell() {
	if p.n.conn == nil {
		return
	}
	p.beat(true)
	p.n.conn.FlushTimeout(time.Second)
}

// Nodes returns the nodes that are or were heard and the members that are not, this one first.
func (n *Node) Nodes() []Peer {
	p := n.peers
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []Peer
	for _, h := range p.heard {
		if _, member := p.members[h.beat.ID]; h.alive || member {
			peer := h.peer(now, p.members)
			peer.Linked = n.direct.to(peer.ID) != nil
			all = append(all, peer)
		}
	}
	for id, m := range p.members {
		if p.heard[id] == nil && id != n.id {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b Peer) int { return cmp.Compare(a.ID, b.ID) })
	self := p.self()
	_, self.Member = p.members[n.id]
	return append([]Peer{self}, all...)
}

// Known reports whether an id is that of a node, and whether it is heard.
func (n *Node) Known(id string) (known, alive bool) {
	if id == n.id {
		return true, true
	}
	n.peers.mu.Lock()
	defer n.peers.mu.Unlock()
	h := n.peers.heard[id]
	_, member := n.peers.members[id]
	alive = h != nil && h.alive
	return alive || member, alive
}

// Alive reports whether a node is heard.
func (n *Node) Alive(id string) bool {
	if id == n.id {
		return true
	}
	n.peers.mu.Lock()
	defer n.peers.mu.Unlock()
	h := n.peers.heard[id]
	return h != nil && h.alive
}

// OnChange calls f when a node has appeared or died, one call at a time for each node. f must not block.
func (n *Node) OnChange(f func(Peer)) {
	n.peers.mu.Lock()
	defer n.peers.mu.Unlock()
	n.peers.onChange = append(n.peers.onChange, f)
}

// Spread returns a number from 0 to 1 that depends on a text alone. Added to the loads of nodes it spreads what is
// decided at once, before the loads have changed.
func Spread(text string) float64 {
	h := fnv.New32a()
	h.Write([]byte(text))
	return float64(h.Sum32()) / (1 << 32)
}

// SetLoad sets what other nodes learn of this one's load: by convention its jobs, and the servers of packages and the
// sandboxes that run.
func (n *Node) SetLoad(f func() float64) { n.peers.load.Store(&f) }

// SetLabels sets what other nodes learn that this one has, as KEY=VALUE. The slice must not be changed.
func (n *Node) SetLabels(labels []string) {
	n.peers.labels.Store(&labels)
	n.peers.beat(false)
}

// SetDraining tells the other nodes that this one takes no new work.
func (n *Node) SetDraining(on bool) {
	if n.peers.draining.Swap(on) != on {
		n.peers.beat(false)
	}
}

// Draining reports whether this node takes no new work.
func (n *Node) Draining() bool { return n.peers.draining.Load() }

// DrainingAt reports whether another node has said that it takes no new work.
func (n *Node) DrainingAt(id string) bool {
	n.peers.mu.Lock()
	defer n.peers.mu.Unlock()
	h := n.peers.heard[id]
	return h != nil && h.beat.Draining
}

// SetApplied records that this node has applied every change of a feed up to a revision, such as the removals of
// tokens. A node that has not applied what most others have stops being fresh.
func (n *Node) SetApplied(feed string, revision uint64) {
	if n.peers == nil { // a visitor serves nothing
		return
	}
	n.peers.mu.Lock()
	n.peers.applied[feed] = max(n.peers.applied[feed], revision)
	n.peers.signal()
	n.peers.mu.Unlock()
	n.peers.beat(false)
}

// Fresh returns nil if this node knows every change that Confirm has reported as confirmed: within the last lease
// most members have heard it, and none of them had applied more. Otherwise it returns ErrStale.
func (n *Node) Fresh() error {
	p := n.peers
	if p.double.Load() {
		return ErrStale
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.outCause != nil {
		return p.outCause
	}
	if by := p.acknowledged(n.now()); by < p.majority() {
		return fmt.Errorf("%d of %d nodes: %w", by, len(p.members), ErrStale)
	}
	return nil
}

// acknowledged returns how many members have heard this node within the lease, itself included. p.mu must be held.
func (p *peers) acknowledged(now moment) int {
	by := 1
	for id := range p.members {
		if h := p.heard[id]; h != nil && h.acked.within(now, p.lease) {
			by++
		}
	}
	return by
}

// Lapses counts how often this node became fresh. What it did not do while it was not fresh, another node may have.
func (n *Node) Lapses() uint64 {
	n.peers.mu.Lock()
	defer n.peers.mu.Unlock()
	return n.peers.lapses
}

// Dead reports whether most members have not heard a node for a lease, so that it is not fresh. The error says that
// too few answered.
func (n *Node) Dead(ctx context.Context, id string) (bool, error) {
	if n.Alive(id) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, n.opts.Lease)
	defer cancel()
	votes := make(chan bool)
	asked := 0
	for _, peer := range n.Nodes()[1:] {
		if peer.ID == id || !peer.Alive || !peer.Member {
			continue
		}
		asked++
		go func() {
			raw, err := n.Request(ctx, peer.ID, hearsTopic, []byte(id))
			votes <- err == nil && string(raw) == "no"
		}()
	}
	dead := 1
	for range asked {
		if <-votes {
			dead++
		}
	}
	n.peers.mu.Lock()
	most := n.peers.majority()
	n.peers.mu.Unlock()
	if dead < most {
		return false, fmt.Errorf("node %s: %d of the %d nodes that it takes do not hear it", id, dead, most)
	}
	return true, nil
}

// SetAddress sets the URL at which clients reach this host.
func (n *Node) SetAddress(url string) {
	n.peers.mu.Lock()
	defer n.peers.mu.Unlock()
	n.peers.address = url
}

// majority returns how many of the members are most of them. p.mu must be held.
func (p *peers) majority() int { return max(len(p.members), MinNodes)/2 + 1 }

// Confirm returns when no node that still serves is without the revision of a feed: each member has applied it, or
// most have, and the lease of the others has ended. This node must have applied it.
func (n *Node) Confirm(ctx context.Context, feed string, revision uint64) error {
	p := n.peers
	if p == nil {
		raw, err := json.Marshal(confirmation{feed, revision})
		if err == nil {
			_, err = n.RequestAny(ctx, "confirm", raw)
		}
		return err
	}
	var most time.Time
	for {
		p.mu.Lock()
		missing, has := 0, 0
		for id := range p.members {
			applied := p.applied[feed]
			if id != n.id {
				applied = 0
				if h := p.heard[id]; h != nil {
					applied = h.beat.Applied[feed]
				}
			}
			if applied < revision {
				missing++
			} else {
				has++
			}
		}
		enough, changed := has >= p.majority(), p.changed
		p.mu.Unlock()
		if missing == 0 && enough {
			return nil
		}
		var end <-chan time.Time
		if enough {
			if most.IsZero() {
				most = time.Now()
			}
			left := time.Until(most.Add(p.lease + p.lease/4)) // clocks run at different rates
			if left <= 0 {
				return nil
			}
			end = time.After(left)
		}
		select {
		case <-changed:
		case <-end:
		case <-ctx.Done():
			return fmt.Errorf("%d nodes have not confirmed: %w", missing, context.Cause(ctx))
		}
	}
}

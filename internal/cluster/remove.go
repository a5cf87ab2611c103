package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"gatehouse/internal/files/atomicfile"
)

// ErrRemoved means that the other nodes have removed this one.
var ErrRemoved = errors.New("this node was removed from its cluster: run gatehouse cluster leave, then start it to join " +
	"as a new node")

// removeTopic is the topic of the request to remove a member, by its id, which any node answers.
const removeTopic = "remove"

// membersFence is the record of the fence of removals among the members.
const membersFence = "fence"

// evictTime is how long the engine may take to remove a peer: longer than the election of a leader.
const evictTime = 30 * time.Second

// removedFile is the name of the file in a node's folder that lists the removed nodes, one a line: the engine refuses
// their certificates. The program gatehouse-nats reads it, too.
const removedFile = "removed"

// Remove removes a member, by way of any node: it does not count any more where most nodes must agree, cannot connect
// again, and its copies of records are made on other nodes. It fails while the member is heard, except if it drains;
// and if fewer than MinNodes would remain.
func (n *Node) Remove(ctx context.Context, id string) error {
	_, err := n.RequestAny(ctx, removeTopic, []byte(id))
	return err
}

// serveRemovals answers the requests of Remove.
func (n *Node) serveRemovals() error {
	_, err := n.HandleAny(removeTopic, func(ctx context.Context, _ string, raw []byte) ([]byte, error) {
		return nil, n.removeMember(ctx, string(raw))
	})
	return err
}

func (n *Node) removeMember(ctx context.Context, id string) error {
	if !ValidID(id) {
		return fmt.Errorf("%q is not the id of a node; gatehouse cluster status lists them", id)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*evictTime)
	defer cancel()
	if err := n.mayMiss(ctx, id); err != nil {
		return err
	}
	lease, err := n.Acquire(ctx, "members", 10*time.Second) // two removals at once would each count the other's node
	if err != nil {
		return err
	}
	defer lease.Release(context.WithoutCancel(ctx))
	fence, err := n.members.Fence(ctx, membersFence, lease)
	if err != nil {
		return err
	}
	r, err := n.members.Get(ctx, id)
	if errors.Is(err, ErrNotFound) {
		return fmt.Errorf("node %s is no member; gatehouse cluster status lists them", id)
	}
	var member Peer
	if err == nil {
		err = json.Unmarshal(r.Value, &member)
	}
	if err != nil {
		return err
	}
	if member.Removed == nil {
		if err := n.mayRemove(ctx, id); err != nil {
			return err
		}
		now := time.Now().UTC()
		member.Removed = &now
		raw, err := json.Marshal(member)
		if err != nil {
			return err
		}
		if err := fence.Put(ctx, id, raw); err != nil {
			return err
		}
		n.log.Warn("a node was removed from the cluster", "node", id, "host", member.Host)
	}
	if err := n.shrink(ctx); err != nil {
		return err
	}
	return n.evict(ctx, id)
}

// shrink makes the buckets have no more copies than the remaining members take, so that the engine can remove a peer.
func (n *Node) shrink(ctx context.Context) error {
	if n.engine == nil {
		return nil
	}
	left, err := n.remaining(ctx, "")
	if err != nil {
		return err
	}
	err = n.setReplicas(ctx, replicasOf(left))
	if errors.Is(err, ErrHeld) || errors.Is(err, ErrConflict) { // another node does it
		return nil
	}
	return err
}

// remaining returns how many members there are without one.
func (n *Node) remaining(ctx context.Context, without string) (left int, err error) {
	all, err := n.members.List(ctx)
	for _, r := range all {
		var m Peer
		if ValidID(r.Key) && json.Unmarshal(r.Value, &m) == nil && m.Removed == nil && r.Key != without {
			left++
		}
	}
	return left, err
}

// tooFewLeft is the error of a removal after which too few members would be left.
func tooFewLeft(id string, left int) error {
	return fmt.Errorf("without node %s the cluster would have %d members, and it needs at least %d: let another node "+
		"join first", id, left, MinNodes)
}

// mayMiss refuses a removal within a lease, by what this node has heard of the members: the answer by the records waits
// for their leader. It waits so long because this node may not have heard yet of a member that has just joined.
func (n *Node) mayMiss(ctx context.Context, id string) error {
	for begun := time.Now(); ; {
		n.peers.mu.Lock()
		_, is := n.peers.members[id]
		left := len(n.peers.members) - 1
		n.peers.mu.Unlock()
		if !is || left >= MinNodes {
			return nil
		}
		if time.Since(begun) > n.opts.Lease {
			return tooFewLeft(id, left)
		}
		select {
		case <-time.After(n.opts.Lease / beatsPerLease):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// mayRemove returns why a member must stay.
func (n *Node) mayRemove(ctx context.Context, id string) error {
	left, err := n.remaining(ctx, id)
	if err != nil {
		return err
	}
	if left < MinNodes {
		return tooFewLeft(id, left)
	}
	if n.DrainingAt(id) {
		return nil
	}
	for begun := time.Now(); ; { // it may just have died
		dead, err := n.Dead(ctx, id)
		if dead {
			return nil
		}
		if err == nil && time.Since(begun) > n.opts.Lease+n.opts.Lease/4 {
			return fmt.Errorf("node %s is heard: stop it first, or run gatehouse cluster drain on its machine", id)
		}
		select {
		case <-time.After(n.opts.Lease / beatsPerLease):
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// evict removes a node from the engine's peers. The engine makes its copies of records on other nodes.
func (n *Node) evict(ctx context.Context, id string) error {
	if n.engine == nil {
		return nil // the peers of an external engine are its own
	}
	ctx, cancel := context.WithTimeout(ctx, evictTime)
	defer cancel()
	conn, err := nats.Connect(n.engine.client, nats.UserInfo(systemUser, n.engine.password))
	if err != nil {
		return err
	}
	defer conn.Close()
	raw, err := json.Marshal(map[string]string{"peer_id": peerID(id)})
	if err != nil {
		return err
	}
	for {
		once, cancel := context.WithTimeout(ctx, attempt)
		reply, err := conn.RequestWithContext(once, "$JS.API.SERVER.REMOVE", raw)
		cancel()
		var answer struct {
			Error *struct {
				Code        int    `json:"err_code"`
				Description string `json:"description"`
			} `json:"error"`
		}
		if err == nil {
			err = json.Unmarshal(reply.Data, &answer)
		}
		const noMember = 10044
		if err == nil && (answer.Error == nil || answer.Error.Code == noMember) {
			return nil
		}
		if err == nil {
			err = errors.New(answer.Error.Description)
		}
		select {
		case <-time.After(200 * time.Millisecond): // there is no leader, or it changes the peers just now
		case <-ctx.Done():
			return fmt.Errorf("node %s is no member any more, but the engine has not removed its copies: %w; remove it again",
				id, err)
		}
	}
}

// peerID returns what the engine calls a server of this name among its peers.
func peerID(name string) string {
	const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	sum := sha256.Sum256([]byte(name))
	id := make([]byte, 8)
	for i := range id {
		id[i] = digits[int(sum[i])%len(digits)]
	}
	return string(id)
}

// noteRemoved notes that a node was removed, so that the engine refuses its certificate. p.mu must be held.
func (p *peers) noteRemoved(id string) {
	delete(p.members, id)
	p.n.epochs.forget(id)
	if h := p.heard[id]; h != nil && h.alive {
		h.alive = false
		h.end(ErrRemoved)
	}
	if p.removed[id] {
		return
	}
	p.removed[id] = true
	var all []string
	for id := range p.removed {
		all = append(all, id)
	}
	slices.Sort(all)
	text := strings.Join(all, "\n") + "\n"
	if err := atomicfile.Write(filepath.Join(p.n.opts.Dir, removedFile), []byte(text)); err != nil {
		p.n.log.Error("the engine is not told of a removed node", "node", id, "err", err)
	}
	if id == p.n.id {
		p.n.log.Error(ErrRemoved.Error(), "node", id)
		p.leave(ErrRemoved)
	}
}

// Removed reports whether a node was a member and was removed.
func (n *Node) Removed(id string) bool {
	n.peers.mu.Lock()
	defer n.peers.mu.Unlock()
	return n.peers.removed[id]
}

// Out is closed when this node must serve nothing more, because the other nodes have removed it or it is one of an old
// image; see OutCause.
func (n *Node) Out() <-chan struct{} { return n.peers.out }

// OutCause returns why Out is closed: ErrRemoved or ErrOldImage; nil while it is not.
func (n *Node) OutCause() error {
	n.peers.mu.Lock()
	defer n.peers.mu.Unlock()
	return n.peers.outCause
}

// Resume starts the engine of a node whose host does not run, if it is embedded, and returns a visitor by way of it. It
// is for a node that leaves.
func Resume(ctx context.Context, dir, program string) (*Node, error) {
	if _, x, err := readExternal(dir); err != nil || x != nil {
		if err != nil {
			return nil, err
		}
		return Visitor(dir)
	}
	program, err := FindProgram(program)
	if err != nil {
		return nil, err
	}
	e, err := reopenEngine(dir, program)
	if err != nil {
		return nil, err
	}
	delete(e.config, "jetstream") // the others remove this node, and its records may be those of an old image
	if err := e.start(ctx); err != nil {
		return nil, err
	}
	n, err := Visitor(dir)
	if err != nil {
		e.close()
		return nil, err
	}
	n.engine = e
	return n, nil
}

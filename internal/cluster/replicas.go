package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// replicasOf returns how many copies of each record a cluster with so many members has. Most of the copies must be
// there: of three one may be lost, of five two. More than five the engine does not make.
func replicasOf(members int) int {
	if members >= 5 {
		return 5
	}
	return 3
}

// copies returns how many copies a new bucket gets.
func (n *Node) copies() int {
	if n.opts.External != nil || n.peers == nil {
		return n.replicas
	}
	n.peers.mu.Lock()
	defer n.peers.mu.Unlock()
	return replicasOf(len(n.peers.members))
}

// replicasCheck is how often a node looks whether all buckets have as many copies as the cluster has members for: a
// member that has just joined may not take copies yet.
const replicasCheck = 30 * time.Second

// keepReplicas gives the buckets as many copies as the members are enough for, until ctx is done. With an external
// engine their number is a setting.
func (n *Node) keepReplicas(ctx context.Context) {
	if n.opts.External != nil {
		return
	}
	var done int // members for which all buckets have their copies
	for {
		n.peers.mu.Lock()
		members, changed := len(n.peers.members), n.peers.changed
		n.peers.mu.Unlock()
		if members != done && members > 0 {
			switch err := n.setReplicas(ctx, replicasOf(members)); {
			case err == nil:
				done = members
				continue
			case !errors.Is(err, ErrHeld) && !errors.Is(err, ErrConflict) && ctx.Err() == nil:
				n.log.Info("records do not have all their copies yet", "members", members, "err", err)
			}
			changed = nil // of a beat, which comes often
		}
		select {
		case <-changed:
		case <-time.After(replicasCheck):
		case <-ctx.Done():
			return
		}
	}
}

// setReplicas makes each bucket of the cluster have so many copies. One node at a time does it.
func (n *Node) setReplicas(ctx context.Context, copies int) error {
	ctx, cancel := context.WithTimeout(ctx, evictTime)
	defer cancel()
	wrong, err := n.bucketsWithout(ctx, copies)
	if err != nil || len(wrong) == 0 {
		return err
	}
	lease, err := n.TryAcquire(ctx, "replicas", 10*time.Second)
	if err != nil {
		return err
	}
	defer lease.Release(context.WithoutCancel(ctx))
	var all []error
	for _, name := range wrong {
		s, err := n.js.Stream(ctx, name)
		if err == nil {
			c := s.CachedInfo().Config
			was := c.Replicas
			if c.Replicas = copies; was != copies { // the engine refuses what another node has changed since
				_, err = n.js.UpdateStream(ctx, c)
			}
			if err == nil {
				n.log.Info("a bucket of the cluster has more or fewer copies", "bucket", name, "before", was, "now", copies)
			}
		}
		if err != nil {
			all = append(all, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(all...)
}

// bucketsWithout returns the streams of this cluster's buckets that do not have so many copies.
func (n *Node) bucketsWithout(ctx context.Context, copies int) (names []string, err error) {
	list := n.js.ListStreams(ctx)
	for s := range list.Info() {
		if strings.HasPrefix(s.Config.Name, "KV_"+n.stream("")) && s.Config.Replicas != copies {
			names = append(names, s.Config.Name)
		}
	}
	return names, list.Err()
}

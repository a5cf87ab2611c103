package cluster

import (
	"context"
	"fmt"
	"time"
)

// The paths of streams to another node.
const (
	Direct   = "direct" // a link of both hosts
	OverNATS = "nats"
)

const (
	// pathTopic is the topic of the question why a node has no link to the one that asks, which it has to connect.
	pathTopic = "path"
	pathTime  = time.Second
)

// PathTo returns which way streams to a node take, and why they go over NATS if they do.
func (n *Node) PathTo(ctx context.Context, p Peer) (path, why string) {
	d := &n.direct
	switch {
	case d.to(p.ID) != nil:
		return Direct, ""
	case d.ln == nil:
		return OverNATS, "this node has no cluster.direct"
	case p.Direct == "":
		return OverNATS, "the node has no cluster.direct"
	case p.ID > n.id:
		return OverNATS, d.whyNot(p.ID, p.Direct)
	}
	ctx, cancel := context.WithTimeout(ctx, pathTime)
	defer cancel()
	raw, err := n.Request(ctx, p.ID, pathTopic, []byte(n.id))
	if err != nil {
		return OverNATS, fmt.Sprintf("it has to connect to %s of this node, and does not say why it is not connected: %v",
			d.address, err)
	}
	return OverNATS, string(raw)
}

// answerPaths answers other nodes why this one has no link to them.
func (n *Node) answerPaths() error {
	_, err := n.Handle(pathTopic, func(_ context.Context, _ string, raw []byte) ([]byte, error) {
		id := string(raw)
		n.peers.mu.Lock()
		address := ""
		if h := n.peers.heard[id]; h != nil {
			address = h.beat.Direct
		}
		n.peers.mu.Unlock()
		return []byte(n.direct.whyNot(id, address)), nil
	})
	return err
}

// whyNot returns why this node has no link to one that it has to connect.
func (d *direct) whyNot(node, address string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if last := d.tried[node]; last.err != nil {
		return fmt.Sprintf("node %s cannot connect to %s: %v", d.n.id, address, last.err)
	}
	return fmt.Sprintf("node %s is connecting to %s", d.n.id, address)
}

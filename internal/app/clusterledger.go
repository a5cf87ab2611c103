package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/audit"
	"gatehouse/internal/cluster"
	"gatehouse/internal/config"
)

// Topics of requests for one node's ledger.
const (
	topicLedgerLines  = "ledger.lines"
	topicLedgerVerify = "ledger.verify"
)

// headsKept is how long the heads of ledgers are kept at the other nodes: one for each hour, and the newest.
const headsKept = 400 * 24 * time.Hour

// headPause is the time between two looks at the head of this node's ledger.
const headPause = 5 * time.Second

// NodeLines are lines of one node's ledger, the oldest first.
type NodeLines struct {
	Lines []json.RawMessage `json:"lines"`
	Cut   bool              `json:"cut,omitempty"` // older lines match too, and did not fit into the answer
}

// serveLedger keeps the head of this node's ledger where most nodes have it, and answers what others ask of the ledger.
func (a *App) serveLedger(ctx context.Context) error {
	c := a.nodes
	if c == nil || a.ledger == nil {
		return nil
	}
	heads, err := c.Bucket(ctx, "ledgers", cluster.BucketOptions{TTL: headsKept})
	if err != nil {
		return err
	}
	if _, err := c.Handle(topicLedgerLines, c.ledgerLines); err != nil {
		return err
	}
	if _, err := c.Handle(topicLedgerVerify, func(ctx context.Context, _ string, _ []byte) ([]byte, error) {
		r, err := c.verifyLedger(ctx, heads)
		if err != nil {
			return nil, err
		}
		return json.Marshal(r)
	}); err != nil {
		return err
	}
	a.addPart("head of the ledger", func(ctx context.Context) error {
		k := headKeeper{c: c, heads: heads}
		k.keep(ctx)
		c.every(ctx, headPause, func() { k.keep(ctx) })
		return nil
	})
	return nil
}

func (c *clusterNodes) ledgerLines(ctx context.Context, _ string, raw []byte) ([]byte, error) {
	var f audit.Filter
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil, err
	}
	if err := c.app.ledger.Sync(ctx); err != nil {
		return nil, err
	}
	var answer NodeLines
	size := 0
	for line, err := range c.app.ledger.Query(ctx, f) {
		if err != nil {
			return nil, err
		}
		answer.Lines = append(answer.Lines, bytes.Clone(line.Raw))
		size += len(line.Raw) + 1
		for size > cluster.MaxMessage-64 && len(answer.Lines) > 0 {
			size -= len(answer.Lines[0]) + 1
			answer.Lines, answer.Cut = answer.Lines[1:], true
		}
	}
	return json.Marshal(answer)
}

func (c *clusterNodes) verifyLedger(ctx context.Context, heads *cluster.Bucket) (r audit.Report, err error) {
	known, err := headsOf(ctx, heads, c.ID())
	if err != nil {
		return r, err
	}
	if err := c.app.ledger.Sync(ctx); err != nil {
		return r, err
	}
	return c.app.ledger.Verify(ctx, known...)
}

// headsOf returns the heads of a node's ledger that the cluster has.
func headsOf(ctx context.Context, heads *cluster.Bucket, node string) (known []audit.Head, err error) {
	all, err := heads.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		var h audit.Head
		if of, _, _ := strings.Cut(r.Key, "/"); of != node {
			continue
		}
		if err := json.Unmarshal(r.Value, &h); err != nil {
			return nil, fmt.Errorf("head %s: %w", r.Key, err)
		}
		known = append(known, h)
	}
	return known, nil
}

// headKeeper stores the heads of this node's ledger.
type headKeeper struct {
	c     *clusterNodes
	heads *cluster.Bucket
	last  audit.Head // that the cluster has
	short bool       // whether the ledger ends before it
	hour  string     // of the newest head that stays
}

func (k *headKeeper) keep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	if err := k.store(ctx); err != nil && ctx.Err() == nil {
		k.c.log.Warn("the head of the ledger was not stored at other nodes", "err", err)
	}
}

func (k *headKeeper) store(ctx context.Context) error {
	head, err := k.c.app.ledger.Head()
	if err != nil || head.Seq == 0 || head == k.last {
		return err
	}
	newest := k.c.ID() + "/newest"
	r, err := k.heads.Get(ctx, newest)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
	case err != nil:
		return err
	case json.Unmarshal(r.Value, &k.last) != nil:
		return fmt.Errorf("the head of this node in the cluster cannot be read: %q", r.Value)
	case k.last.Seq > head.Seq: // it stays, so that verify tells it
		if !k.short {
			k.short = true
			k.c.log.Error("lines of this node's ledger are missing: other nodes have the hash of a later one",
				"last", head.Seq, "known", k.last.Seq)
		}
		return nil
	}
	raw, err := json.Marshal(head)
	if err != nil {
		return err
	}
	if hour := time.Now().UTC().Format("2006010215"); hour != k.hour {
		if _, err := k.heads.Create(ctx, k.c.ID()+"/"+hour, raw); err != nil && !errors.Is(err, cluster.ErrConflict) {
			return err
		}
		k.hour = hour
	}
	if r.Revision == 0 {
		_, err = k.heads.Create(ctx, newest, raw)
	} else {
		_, err = k.heads.Update(ctx, newest, raw, r.Revision)
	}
	if err != nil {
		return err
	}
	if r.Revision == 0 {
		k.c.log.Info("the head of the ledger is at other nodes", "line", head.Seq)
	}
	k.last = head
	return nil
}

// NodeAnswer is what one node answered to a command, or why it did not.
type NodeAnswer[T any] struct {
	Node  cluster.Peer
	Value T
	Err   error
}

// LedgersLines asks all nodes for the lines of their ledgers.
func LedgersLines(ctx context.Context, f config.Folders, filter audit.Filter) ([]NodeAnswer[NodeLines], error) {
	return askNodes[NodeLines](ctx, f, topicLedgerLines, filter)
}

// VerifyLedgers lets every node verify its ledger by the heads that most nodes have of it.
func VerifyLedgers(ctx context.Context, f config.Folders) ([]NodeAnswer[audit.Report], error) {
	return askNodes[audit.Report](ctx, f, topicLedgerVerify, nil)
}

// nodeTime is how long a command waits for the answer of one node.
const nodeTime = 5 * time.Minute

// askNodes sends a request to every node, by way of the node of this machine, one after the other.
func askNodes[T any](ctx context.Context, f config.Folders, topic string, question any) ([]NodeAnswer[T], error) {
	n, err := cluster.Visitor(ClusterFolder(f.Data))
	if err != nil {
		return nil, err
	}
	defer n.Close()
	raw, err := n.RequestAny(ctx, StatusTopic, nil)
	if err != nil {
		return nil, err
	}
	var nodes []cluster.Peer
	if err := json.Unmarshal(raw, &nodes); err != nil {
		return nil, err
	}
	if raw, err = json.Marshal(question); err != nil {
		return nil, err
	}
	slices.SortFunc(nodes, func(a, b cluster.Peer) int { return strings.Compare(a.ID, b.ID) })
	var all []NodeAnswer[T]
	for _, node := range nodes {
		a := NodeAnswer[T]{Node: node}
		if a.Err = fmt.Errorf("node %s is not there", node.ID); node.Alive {
			once, cancel := context.WithTimeout(ctx, nodeTime)
			var answer []byte
			if answer, a.Err = n.Request(once, node.ID, topic, raw); a.Err == nil {
				a.Err = json.Unmarshal(answer, &a.Value)
			}
			cancel()
		}
		all = append(all, a)
	}
	return all, nil
}

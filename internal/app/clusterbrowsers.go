package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

// browserNames tells on which node the browser is that a caller has named: unlike handles, such a name does not say it.
type browserNames struct {
	c      *clusterNodes
	bucket *cluster.Bucket

	mu  sync.Mutex
	own map[string]bool // keys of the browsers on this node
}

// browserRecords is how long the record of a browser is kept that no node removed.
const browserRecords = 7 * 24 * time.Hour

// nameTime is how long a call waits for the record of a browser's name: longer than the election of a leader.
const nameTime = 12 * time.Second

// openBrowserNames opens the names of browsers; nil without a cluster.
func (a *App) openBrowserNames(ctx context.Context) (*browserNames, error) {
	if a.nodes == nil {
		return nil, nil
	}
	b, err := a.nodes.Bucket(ctx, "browsers", cluster.BucketOptions{TTL: browserRecords})
	return &browserNames{c: a.nodes, bucket: b, own: map[string]bool{}}, err
}

func browserKey(owner, name string) string {
	sum := sha256.Sum256([]byte(owner + "\x00" + name))
	return hex.EncodeToString(sum[:16])
}

// claim makes a name that of a browser on this node, until release is called.
func (b *browserNames) claim(ctx context.Context, owner, name string) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, nameTime)
	defer cancel()
	key, self := browserKey(owner, name), []byte(b.c.ID())
	for {
		_, err = b.bucket.Create(ctx, key, self)
		if errors.Is(err, cluster.ErrConflict) || errors.Is(err, cluster.ErrMayHaveRun) {
			var r cluster.Record
			if r, err = b.bucket.Get(ctx, key); errors.Is(err, cluster.ErrNotFound) {
				continue
			}
			if err == nil && string(r.Value) != string(self) {
				return nil, &tool.Refusal{
					Code:    tool.CodeBusy,
					Message: fmt.Sprintf("a browser of the name %q is open on node %s", name, r.Value),
					Next:    "Make the call again: it runs there.",
				}
			}
		}
		break
	}
	if err != nil {
		return nil, fmt.Errorf("the name of the browser in the cluster: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.own[key] = true
	return func() { b.release(key) }, nil
}

func (b *browserNames) release(key string) {
	b.mu.Lock()
	delete(b.own, key)
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), nameTime)
	defer cancel()
	r, err := b.bucket.Get(ctx, key)
	if err == nil && string(r.Value) == b.c.ID() {
		err = b.bucket.Purge(ctx, key, r.Revision)
	}
	if err != nil && !errors.Is(err, cluster.ErrNotFound) {
		b.c.log.Debug("the name of a browser was not removed from the cluster", "err", err)
	}
}

// nodeOf returns the node with the browser that a call names; "" means this one, or that none is open. If the node is
// dead the browser is lost, which one call is told.
func (b *browserNames) nodeOf(ctx context.Context, r *bus.Request) (string, error) {
	if r.Module != "webview" || r.Method != "tools/call" || r.Caller == nil {
		return "", nil
	}
	name := "default"
	if raw, ok := rawjson.Get(r.Args, "session"); ok {
		name, _ = rawjson.String(raw)
	}
	key := browserKey(r.Caller.Owner, name)
	b.mu.Lock()
	here := b.own[key]
	b.mu.Unlock()
	if here {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, nameTime)
	defer cancel()
	record, err := b.bucket.Get(ctx, key)
	if errors.Is(err, cluster.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("%w: the node of the browser is not known: %w", bus.ErrAbsent, err)
	}
	node := string(record.Value)
	if node == b.c.ID() || b.c.Alive(node) {
		return node, nil
	}
	if dead, _ := b.c.Dead(ctx, node); dead || b.c.Removed(node) {
		if err := b.bucket.Purge(ctx, key, record.Revision); err != nil {
			b.c.log.Debug("the name of a lost browser was not removed", "err", err)
		}
	}
	return "", &tool.Refusal{
		Code:    tool.CodeGone,
		Message: fmt.Sprintf("the browser %q was on node %s, which is not heard; nothing was run", name, node),
		Next:    "If the node has died its pages are lost: webview_navigate starts another browser.",
	}
}

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"time"

	"github.com/nats-io/nats.go"

	"gatehouse/internal/files/atomicfile"
)

// clusterKeys are what a node that joined with a token gets from another one.
type clusterKeys struct {
	Certificate []byte `json:"certificate"`
	Key         []byte `json:"key"`
}

// withoutRecords runs the engine without records, as long as f runs with a connection to it.
func (e *engine) withoutRecords(ctx context.Context, f func(*nats.Conn) error) error {
	first := &engine{
		program: e.program, dir: e.dir, log: e.log, user: e.user, password: e.password, ended: make(chan struct{}),
		config: maps.Clone(e.config),
	}
	delete(first.config, "jetstream")
	if err := first.start(ctx); err != nil {
		return err
	}
	defer first.close()
	conn, err := nats.Connect(first.client, nats.UserInfo(e.user, e.password))
	if err != nil {
		return err
	}
	defer conn.Close()
	return f(conn)
}

// fetchKeys asks another node for the authority's key, because this one joins with a token, and replaces the token's
// certificate, which expires. The engine holds no records meanwhile.
func (e *engine) fetchKeys(ctx context.Context, o Options, id string) error {
	return e.withoutRecords(ctx, func(conn *nats.Conn) error {
		n := &Node{opts: o, id: id, log: e.log, conn: conn}
		for {
			err := n.fetchKeys(ctx, e.auth)
			if err == nil {
				return nil
			}
			select {
			case <-time.After(200 * time.Millisecond):
			case <-ctx.Done():
				return fmt.Errorf("join cluster %s at %v: %w: %w", o.Name, o.Join, context.Cause(ctx), err)
			}
		}
	})
}

func second(_ bool, err error) error { return err }

// giveKeys gives the authority's key to nodes that join.
func (n *Node) giveKeys() error {
	if n.engine == nil || n.engine.auth == nil {
		return nil
	}
	a := n.engine.auth
	_, err := n.HandleAny("keys", func(context.Context, string, []byte) ([]byte, error) {
		var k clusterKeys
		var err1, err2 error
		k.Certificate, err1 = os.ReadFile(a.path("ca.pem"))
		k.Key, err2 = os.ReadFile(a.path("ca.key"))
		raw, err3 := json.Marshal(k)
		return raw, errors.Join(err1, err2, err3)
	})
	return err
}

func (n *Node) fetchKeys(ctx context.Context, a *Authority) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	raw, err := n.RequestAny(ctx, "keys", nil)
	if err != nil {
		return err
	}
	var k clusterKeys
	if err := json.Unmarshal(raw, &k); err != nil {
		return err
	}
	return errors.Join(
		atomicfile.Write(a.path("ca.pem"), k.Certificate),
		atomicfile.Write(a.path("ca.key"), k.Key),
		second(a.issue(n.opts, time.Now())),
	)
}

// renew replaces this node's certificate before it expires.
func (n *Node) renew(ctx context.Context) {
	if n.engine == nil || n.engine.auth == nil {
		return
	}
	tick := time.NewTicker(12 * time.Hour)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		replaced, err := n.engine.auth.issue(n.opts, time.Now())
		if err != nil {
			n.log.Warn("the certificate of this node was not renewed", "err", err)
		}
		if replaced {
			n.engine.restart()
			if err := n.direct.loadKey(); err != nil {
				n.log.Warn("the new certificate of this node cannot be read", "err", err)
			}
		}
	}
}

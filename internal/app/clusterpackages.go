package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/config"
	"gatehouse/internal/packages"
	"gatehouse/internal/state"
)

// packagesMark is the path of a file that exists while the records of packages in this node's own state are a copy of
// the cluster's.
func packagesMark(f config.Folders) string {
	return filepath.Join(ClusterFolder(f.Data), "packages.shared")
}

// sharesPackages reports whether the packages in a data folder are those of a cluster.
func sharesPackages(f config.Folders) bool {
	if f.Data == "" {
		return false
	}
	_, err := os.Stat(packagesMark(f))
	return err == nil
}

// sharePackages makes the records of packages those of all nodes. The first node that has packages gives them to the
// cluster. own is the log that this node has alone: it gets a copy of the records, so that the node can leave.
func (c *clusterNodes) sharePackages(ctx context.Context, own state.Log) (err error) {
	copies := state.New(state.Options{Logger: c.log, Log: own})
	if c.ownPackages, err = state.Attach[map[string]packages.Record](ctx, copies, packageRecordsAt,
		state.Durable); err != nil {
		return err
	}
	c.app.closing("the copy of the packages", func(context.Context) error { return copies.Close() })
	had, _, err := c.ownPackages.Get()
	if err != nil {
		return err
	}
	mark := packagesMark(c.app.cfg.Folders)
	all := c.app.tree.packageRecords
	if _, revision, err := all.Get(); err == nil && revision == 0 {
		_, err := all.Update(ctx, 0, func(v *map[string]packages.Record) error {
			if *v = had; had == nil {
				*v = map[string]packages.Record{}
			}
			return nil
		})
		if _, late := errors.AsType[*state.Conflict](err); err != nil && !late {
			return fmt.Errorf("packages of the cluster: %w", err)
		}
	}
	have, _, err := all.Get()
	if err != nil {
		return err
	}
	if !sharesPackages(c.app.cfg.Folders) && len(had) > 0 && !reflect.DeepEqual(had, have) {
		var others []string
		for id, r := range had {
			if !reflect.DeepEqual(r, have[id]) {
				others = append(others, id)
			}
		}
		slices.Sort(others)
		return fmt.Errorf("%s has packages that are not those of the cluster (%s): remove them with gatehouse package "+
			"remove before this machine joins, or move the file away", stateFileOf(c.app.cfg.Folders),
			strings.Join(others, ", "))
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return err
	}
	return c.copyPackages(ctx)
}

// copyPackages stores the records on this node alone.
func (c *clusterNodes) copyPackages(ctx context.Context) error {
	have, _, err := c.app.tree.packageRecords.Get()
	if err == nil {
		_, err = c.ownPackages.Set(ctx, have)
	}
	return err
}

// packagesService is the name of the streams over which nodes get what they need of packages.
const packagesService = "packages"

// packageCluster returns what packages need of the cluster.
func (c *clusterNodes) packageCluster() (*packages.Cluster, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	shared, err := c.Bucket(ctx, "packages", cluster.BucketOptions{})
	if err != nil {
		return nil, fmt.Errorf("packages of the cluster: %w", err)
	}
	placed, err := c.Bucket(ctx, "places", cluster.BucketOptions{})
	if err != nil {
		return nil, fmt.Errorf("places of packages in the cluster: %w", err)
	}
	logins, err := c.Bucket(ctx, "logins", cluster.BucketOptions{TTL: packages.LoginLife})
	if err != nil {
		return nil, fmt.Errorf("logins of packages in the cluster: %w", err)
	}
	return &packages.Cluster{
		Node: c.Node, Shared: shared, Places: placed, Logins: logins, Seal: c.app.ring.Seal,
		Open: c.app.ring.Open, Transport: c.clientOf(packagesService),
	}, nil
}

// servePackages tells the packages of this node what other nodes change, and gives other nodes what they need. It does
// nothing without a cluster.
func (c *clusterNodes) servePackages(m *packages.Manager) error {
	if c == nil {
		return nil
	}
	ln, err := c.Listen(packagesService)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: m.NodeHandler(), ReadHeaderTimeout: time.Minute}
	c.app.addPart("packages of other nodes", func(ctx context.Context) error {
		var both sync.WaitGroup
		defer both.Wait()
		both.Go(func() { c.followPackages(ctx, m) })
		stop := context.AfterFunc(ctx, func() { server.Close() })
		defer stop()
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	return nil
}

// followPackages applies what other nodes change until ctx is done.
func (c *clusterNodes) followPackages(ctx context.Context, m *packages.Manager) {
	sub, _, err := c.app.tree.state.Subscribe(state.Pointer{"private", "packages"}, "")
	if err != nil {
		c.log.Error("changes of packages by other nodes are applied late", "err", err)
		return
	}
	defer sub.Close()
	changes := make(chan struct{}, 1)
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() { m.FollowNodes(ctx, changes) })
	for {
		if err := c.copyPackages(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("the copy of the packages on this node is old", "err", err)
		}
		select {
		case changes <- struct{}{}:
		default: // it applies them all
		}
		if _, err := sub.Next(ctx); err != nil {
			return
		}
	}
}

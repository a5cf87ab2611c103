package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/cluster/filelog"
	"gatehouse/internal/cluster/nodebus"
	"gatehouse/internal/cluster/sqllog"
	"gatehouse/internal/config"
	"gatehouse/internal/files/atomicfile"
	"gatehouse/internal/files/sqlfile"
	"gatehouse/internal/mcp/seal"
	"gatehouse/internal/mcp/session"
	"gatehouse/internal/packages"
	"gatehouse/internal/state"
)

// clusterNodes is this host as a node of a cluster, as far as its clients notice.
type clusterNodes struct {
	*cluster.Node
	app      *App
	log      *slog.Logger
	sessions *cluster.Bucket
	shared   *cluster.Bucket // of keys
	files    *filelog.Files  // with secrets
	browsers *browserNames
	jobs     *jobNotes
	lease    time.Duration

	transport *nodebus.Client // of the HTTP servers of other nodes
	calls     *nodebus.Client // of the services of calls of other nodes

	tasks       *clusterTasks
	watches     *nodeWatches
	ownPackages *state.Mount[map[string]packages.Record] // a copy of the records on this node, for leaving

	handover handover
	moved    sync.Map      // sessions that another node has adopted: id to node
	ended    chan string   // ids of sessions whose records are to be removed
	lapses   atomic.Uint64 // of the last time that the sessions here were compared with their records
	compared atomic.Bool   // whether they were
}

// clientOf returns the client of a service of other nodes.
func (c *clusterNodes) clientOf(service string) *nodebus.Client {
	return &nodebus.Client{Service: service, Dial: c.Dial}
}

// ClusterFolder returns the folder of a node's own files.
func ClusterFolder(data string) string { return filepath.Join(data, "cluster") }

// openCluster joins the cluster of the settings. Without one it starts nothing. Other nodes reach a node by its HTTP
// server, so a host without one, such as that of a client that starts it for itself, is none.
func (a *App) openCluster(ctx context.Context) error {
	c := a.cfg.Cluster
	if c.Name == "" || a.opts.Private || a.opts.Alone != nil {
		return nil
	}
	if !a.cfg.Listen.HTTP.Open {
		a.log.Info("this host does not serve HTTP, so it is no node of the cluster of the settings", "cluster", c.Name)
		return nil
	}
	o := cluster.Options{
		Name: c.Name, Listen: c.Listen, Advertise: c.Advertise, Direct: c.Direct, Join: c.Join, TokenFile: c.TokenFile,
		TLS: c.TLS, Lease: c.Lease, Program: c.Program, Dir: ClusterFolder(a.cfg.Folders.Data), Version: Version, Log: a.log,
		Behind: true, // until awaitCluster
	}
	if n := c.NATS; n.Address != "" {
		o.External = &cluster.External{
			Address: n.Address, Credentials: n.Credentials, CA: n.CA, Replicas: n.Replicas,
		}
	}
	node, err := cluster.Start(ctx, o)
	if err != nil {
		return fmt.Errorf("join the cluster: %w", err)
	}
	nodes := &clusterNodes{
		Node: node, app: a, log: a.log, ended: make(chan string, 10_000), lease: max(c.Lease, time.Second),
	}
	nodes.transport, nodes.calls = nodes.clientOf("http"), nodes.clientOf(nodebus.Service)
	a.nodes = nodes
	a.closing("cluster", func(context.Context) error { node.Close(); return nil })
	if nodes.sessions, err = node.Bucket(ctx, "sessions", cluster.BucketOptions{TTL: sessionRecords}); err != nil {
		return err
	}
	if nodes.shared, err = node.Bucket(ctx, "keys", cluster.BucketOptions{}); err != nil {
		return err
	}
	if err := nodes.shareKeys(ctx, filepath.Join(a.cfg.Folders.Data, "keys.json")); err != nil {
		return fmt.Errorf("share the keys of the cluster: %w", err)
	}
	if err := nodes.shareSecrets(ctx); err != nil {
		return err
	}
	if nodes.browsers, err = a.openBrowserNames(ctx); err != nil {
		return err
	}
	if nodes.jobs, err = a.openJobNotes(ctx); err != nil {
		return err
	}
	if err := nodes.answerStatus(); err != nil {
		return err
	}
	if err := nodes.serveDrain(); err != nil {
		return err
	}
	if err := nodes.setLabels(); err != nil {
		return err
	}
	a.addPart("cluster", nodes.runNodes)
	return nil
}

// awaitCluster waits until this node is fresh. It is called once the node has all changes that others have applied,
// because they do not hear a node without them.
func (a *App) awaitCluster(ctx context.Context) error {
	nodes := a.nodes
	if nodes == nil {
		return nil
	}
	nodes.CaughtUp()
	told := time.Now()
	for err := nodes.Fresh(); err != nil; err = nodes.Fresh() { // most nodes are there, and hear this one in a moment
		if time.Since(told) > 5*time.Second {
			a.log.Info("waiting for the cluster", "cluster", nodes.Name(), "for", "most nodes to hear this one", "err", err)
			told = time.Now()
		}
		select {
		case <-time.After(nodes.lease / 20):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	nodes.lapses.Store(nodes.Lapses())
	nodes.compared.Store(true) // there are no sessions yet
	return nil
}

// replicate returns a function that makes a file the same on all nodes; nil without a cluster. The file is that of a
// log of the cluster, whose name it is.
func (a *App) replicate(ctx context.Context, name string) func(*sqlfile.File, func() error) error {
	if a.nodes == nil {
		return nil
	}
	return func(file *sqlfile.File, applied func() error) error {
		l, err := sqllog.Open(ctx, a.nodes.Node, name, file, a.log, applied)
		if err != nil {
			return err
		}
		life, stop := context.WithCancel(context.WithoutCancel(ctx))
		var running sync.WaitGroup
		running.Go(func() { l.Run(life) }) // at once, because the node is not fresh without the newest change
		a.closing("the changes of "+name, func(context.Context) error {
			stop()
			running.Wait()
			return nil
		})
		return nil
	}
}

// commandTime is how long a command waits for the cluster: longer than the election of a leader.
const commandTime = 20 * time.Second

// Replicated makes a command's changes of a file those of the cluster, if the file is that of a node: the file then
// changes on all nodes, and the node of this machine must run. It returns what ends it.
func Replicated(ctx context.Context, f config.Folders, name string, file *sqlfile.File, applied func() error) (
	func(), error,
) {
	if in, err := sqllog.Of(ctx, file); err != nil || !in {
		return func() {}, err
	}
	n, err := cluster.Visitor(ClusterFolder(f.Data))
	if err != nil {
		return nil, fmt.Errorf("%s belongs to all nodes of a cluster: %w", file.Path, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, commandTime, errors.New("most of its nodes do not answer"))
	defer cancel()
	if _, err := sqllog.Open(ctx, n, name, file, slog.New(slog.DiscardHandler), applied); err != nil {
		n.Close()
		return nil, err
	}
	return n.Close, nil
}

// RemoveMember removes a member of the cluster of this machine's node.
func RemoveMember(ctx context.Context, f config.Folders, id string) error {
	n, err := cluster.Visitor(ClusterFolder(f.Data))
	if err != nil {
		return err
	}
	defer n.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, removeTime, errors.New("the nodes do not answer"))
	defer cancel()
	return n.Remove(ctx, id)
}

// removeTime is how long a command waits until a member is removed: longer than two elections of a leader.
const removeTime = time.Minute

// LeaveCluster makes the data of this machine's node that of a host without a cluster, which keeps the users, tokens,
// contexts, approvals and packages that it has. The other nodes remove it; with alone set they are not told. It returns
// the folder in which the rest of the node's data stays.
func LeaveCluster(ctx context.Context, f config.Folders, program string, alone bool) (old string, err error) {
	dir := ClusterFolder(f.Data)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return "", errors.New("there is no node in this data folder: " + f.Data)
	}
	if cluster.Running(ctx, dir) {
		return "", errors.New("the node of this machine runs: stop it first, then leave")
	}
	if !alone {
		if err := tellLeaving(ctx, dir, program); err != nil {
			return "", fmt.Errorf("%w; with --alone this node leaves without telling the others, as the last ones of a cluster "+
				"that ends do; others count it on until gatehouse cluster remove", err)
		}
	}
	for _, path := range []string{filepath.Join(f.Data, "identity.db"), ApprovalsFile(f), ContextsFile(f)} {
		if err := sqllog.Forget(ctx, path); err != nil {
			return "", err
		}
	}
	old = fmt.Sprintf("%s.left-%s", dir, time.Now().UTC().Format("20060102T150405"))
	return old, os.Rename(dir, old)
}

// tellLeaving makes the other nodes remove this one, which does not run.
func tellLeaving(ctx context.Context, dir, program string) error {
	id, err := cluster.IDOf(dir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, removeTime, errors.New("the other nodes do not answer"))
	defer cancel()
	n, err := cluster.Resume(ctx, dir, program)
	if err != nil {
		return err
	}
	defer n.Close()
	for { // its engine reaches the others in a moment
		if err = n.Remove(ctx, id); !errors.Is(err, cluster.ErrNotRun) {
			return err
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// sessionRecords is how long the record of a session is kept that no node ended.
const sessionRecords = 7 * 24 * time.Hour

// shareKeys makes this node seal with the cluster's keys, so that every node opens what another one sealed.
func (c *clusterNodes) shareKeys(ctx context.Context, path string) error {
	for {
		r, err := c.shared.Get(ctx, sealKey)
		if err == nil {
			return writeKeys(path, r.Value)
		}
		if !errors.Is(err, cluster.ErrNotFound) {
			return err
		}
		if _, err := seal.Load(path); err != nil { // makes the file
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		_, err = c.shared.Create(ctx, sealKey, raw)
		if err == nil || ctx.Err() != nil || !errors.Is(err, cluster.ErrConflict) &&
			!errors.Is(err, cluster.ErrNotRun) && !errors.Is(err, cluster.ErrMayHaveRun) {
			return err
		} // otherwise the record, if there is one now, has the keys
	}
}

// writeKeys writes the file that the ring reads when a token names a key that it does not know.
func writeKeys(path string, raw []byte) error {
	if old, err := os.ReadFile(path); err == nil && string(old) == string(raw) {
		return nil
	}
	return atomicfile.Write(path, raw)
}

const (
	// keysLife is how long a key seals before a node makes another one.
	keysLife = 30 * 24 * time.Hour
	// stagedLife is how long all nodes have a key before it seals.
	stagedLife = time.Hour
)

// runNodes follows the cluster until ctx is done, or until this node is removed, which stops the host.
func (c *clusterNodes) runNodes(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-c.Out():
			cancel(c.OutCause())
		case <-ctx.Done():
		}
	}()
	path := filepath.Join(c.app.cfg.Folders.Data, "keys.json")
	var all sync.WaitGroup
	all.Go(func() { c.followKeys(ctx, path, c.app.ring) })
	if c.files != nil {
		all.Go(func() { c.files.Run(ctx, c.log) })
	}
	all.Go(func() {
		for {
			select {
			case id := <-c.ended:
				c.forgetSession(ctx, id)
			case <-ctx.Done():
				return
			}
		}
	})
	all.Go(func() { c.every(ctx, c.lease/2, func() { c.compare(ctx) }) })
	all.Go(func() { c.every(ctx, drainPause, func() { c.moveSessions(ctx) }) })
	all.Go(func() {
		c.every(ctx, time.Hour, func() {
			if err := c.rotateKeys(ctx, keysLife, stagedLife); err != nil && !errors.Is(err, cluster.ErrConflict) {
				c.log.Warn("the keys of the cluster were not rotated", "err", err)
			}
			if err := c.rotateSecrets(ctx, secretsLife); err != nil {
				c.log.Warn("the key of the secrets was not rotated", "err", err)
			}
		})
	})
	all.Wait()
	return c.OutCause()
}

func (c *clusterNodes) every(ctx context.Context, pause time.Duration, f func()) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f()
		case <-ctx.Done():
			return
		}
	}
}

// Records of keys.
const (
	sealKey   = "seal"      // the file of the keys
	stagedKey = "seal-next" // the id of the key that is to seal next, which all nodes have had for stagedLife
)

// rotateKeys makes a new key seal if the one that does is old: first all nodes get the new one, which opens only; once
// they have had it for a while it seals. A node that was away meanwhile gets both when it is back. The revision lets
// one node do it.
func (c *clusterNodes) rotateKeys(ctx context.Context, life, staged time.Duration) error {
	r, err := c.shared.Get(ctx, sealKey)
	if err != nil {
		return err
	}
	next, err := c.shared.Get(ctx, stagedKey)
	if err != nil && !errors.Is(err, cluster.ErrNotFound) {
		return err
	}
	if id, perr := strconv.ParseUint(string(next.Value), 10, 32); perr == nil {
		content, is, err := seal.Promote(r.Value, uint32(id))
		if err != nil {
			return err
		}
		if is {
			if time.Since(r.At) < staged {
				return nil
			}
			_, err = c.shared.Update(ctx, sealKey, content, r.Revision)
			return err
		}
	}
	if time.Since(r.At) < life {
		return nil
	}
	content, id, err := seal.Stage(r.Value)
	if err != nil {
		return err
	}
	// First the name of the key: without it the key would not seal, and a name without a key does nothing.
	name := strconv.AppendUint(nil, uint64(id), 10)
	if next.Revision == 0 {
		_, err = c.shared.Create(ctx, stagedKey, name)
	} else {
		_, err = c.shared.Update(ctx, stagedKey, name, next.Revision)
	}
	if err != nil {
		return err
	}
	_, err = c.shared.Update(ctx, sealKey, content, r.Revision)
	return err
}

// followKeys writes the keys that other nodes make, and makes the ring read them, until ctx is done.
func (c *clusterNodes) followKeys(ctx context.Context, path string, ring *seal.Ring) {
	for r := range c.shared.Watch(ctx) {
		if r.Key == sealKey && !r.Deleted {
			if err := errors.Join(writeKeys(path, r.Value), ring.Reload()); err != nil {
				c.log.Error("the keys of the cluster cannot be written", "err", err)
			}
		}
	}
}

// StatusTopic is the topic of requests for the nodes of the cluster.
const StatusTopic = "status"

// answerStatus answers gatehouse cluster status, which asks the node of its machine, and if that does not answer any.
func (c *clusterNodes) answerStatus() error {
	status := func(ctx context.Context, _ string, _ []byte) ([]byte, error) {
		var all []NodeStatus
		placed := c.app.placed()
		for _, p := range c.Nodes() {
			one := NodeStatus{Peer: p, Packages: placed[p.ID]}
			if p.ID != c.ID() && p.Alive {
				one.Path, one.Why = c.PathTo(ctx, p)
			}
			all = append(all, one)
		}
		return json.Marshal(all)
	}
	_, err1 := c.Handle(StatusTopic, status)
	_, err2 := c.HandleAny(StatusTopic, status)
	return errors.Join(err1, err2)
}

// NodeStatus is a node as gatehouse cluster status shows it.
type NodeStatus struct {
	cluster.Peer
	Packages []string `json:"packages,omitempty"` // that have their places there
	// Path is what calls to the node take from the one that was asked, cluster.Direct or cluster.OverNATS; Why says why
	// it is the latter.
	Path string `json:"path,omitempty"`
	Why  string `json:"why,omitempty"`
}

// serves returns nil while no other node can have adopted sessions of this one.
func (c *clusterNodes) serves() error {
	if err := c.Fresh(); err != nil {
		return err
	}
	if !c.compared.Load() || c.lapses.Load() != c.Lapses() {
		return errors.New("this node was cut off and compares its sessions with those of the other nodes")
	}
	return nil
}

// compare ends the sessions that other nodes have adopted while this one was cut off. A node that adopts has two
// leases for it, so this one waits for so long first.
func (c *clusterNodes) compare(ctx context.Context) {
	now := c.Lapses()
	if c.compared.Load() && c.lapses.Load() == now || c.Fresh() != nil {
		return
	}
	if table := c.app.table; table.Len() > 0 {
		select {
		case <-time.After(2 * c.lease):
		case <-ctx.Done():
			return
		}
		all, err := c.sessions.List(ctx)
		if err != nil {
			return
		}
		moved := map[string]bool{}
		for _, r := range all {
			var record sessionRecord
			if json.Unmarshal(r.Value, &record) == nil && record.Node != c.ID() {
				moved[r.Key] = true
			}
		}
		table.All(func(s *session.Session) {
			if moved[s.ID] {
				table.End(s, session.ErrMoved)
			}
		})
	}
	if c.jobs != nil {
		if err := c.jobs.compareJobs(ctx); err != nil {
			return
		}
	}
	c.lapses.Store(now)
	c.compared.Store(true)
}

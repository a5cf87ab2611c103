package cluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Program is the file name of the engine, which is looked for beside the running program.
const Program = "gatehouse-nats"

// The errors of operations between nodes. All others mean that the operation failed without effect.
var (
	// ErrConflict means that the record has another revision, and that nothing was written.
	ErrConflict = errors.New("it has another revision, not written")
	// ErrNotFound means that there is no record with this key.
	ErrNotFound = errors.New("no such record")
	// ErrNotRun means that no node received the request, so that another one may be asked.
	ErrNotRun = errors.New("no node received it, not run")
	// ErrMayHaveRun means that the request or the change was sent and no answer came.
	ErrMayHaveRun = errors.New("no answer, may have run")
	// ErrLost means that the cluster lacks changes that it has confirmed, and that this node has.
	ErrLost = errors.New("the cluster has lost changes that it had confirmed and this node has, as after the loss of most " +
		"disks: gatehouse cluster leave --alone makes this machine a host with all of them, from which a new cluster can begin")
	// ErrStale means that this node cannot know the newest revocations, because it hears too few nodes.
	ErrStale = errors.New("this node does not hear most nodes of its cluster; try another node, or again later")
)

// MinNodes is how many nodes form a cluster. Two would be worse than one: the loss of either would stop both.
const MinNodes = 3

// Options configures a Node.
type Options struct {
	Name      string // of the cluster
	Listen    string // HOST:PORT at which other nodes reach the embedded engine
	Advertise string // HOST:PORT that other nodes are told; "" means Listen
	// Direct is HOST:PORT at which the hosts of other nodes reach this one without NATS. "" means the host of Listen
	// and any free port, and with an External none; "none" means that streams go over NATS.
	Direct    string
	Join      []string // HOST:PORT of nodes that are in the cluster
	TokenFile string   // of the first start; see Authority.JoinToken
	TLS       bool     // require certificates on loopback too
	Dir       string   // for what must outlive the node; made if missing
	Program   string   // path of the engine; "" means Program beside the running program, or in the PATH
	External  *External

	// Lease is how long a node that is not heard counts as alive; 0 means 1 s. Nodes of one cluster must agree.
	Lease time.Duration
	// Start is how long the node waits for enough others; 0 means 2 minutes.
	Start time.Duration

	// Now is the clock of the host, which may jump; nil means time.Now. It only makes leases end earlier: a machine
	// that was suspended may not have counted that time by its monotonic clock.
	Now func() time.Time

	// Behind means that the host has files of which others count on it, and calls CaughtUp once it has told with
	// SetApplied what it had applied of each.
	Behind bool

	Version string // of the host, which other nodes see
	// Dial connects to the hosts of other nodes; nil means that of net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	Log  *slog.Logger
}

// Node is this host as a member of a cluster. It is safe for concurrent use.
type Node struct {
	opts   Options
	id     string
	boot   string // differs in every run
	log    *slog.Logger
	engine *engine // nil with an external one
	conn   *nats.Conn
	js     jetstream.JetStream
	peers  *peers
	pipes  pipes
	direct direct
	epochs *epochs
	waits  atomic.Pointer[string] // what Start waited for last

	mu       sync.Mutex
	buckets  map[string]*Bucket
	replicas int
	members  *Bucket
	running  sync.WaitGroup
	life     context.Context // a field, because it is that of the node's goroutines, until Close
	stop     context.CancelFunc
}

var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

func (o *Options) checkOptions() error {
	if !nameForm.MatchString(o.Name) {
		return fmt.Errorf("cluster name %q: expected 1 to 40 lowercase letters, digits and hyphens", o.Name)
	}
	if o.External == nil {
		if _, _, err := net.SplitHostPort(o.Listen); err != nil {
			return fmt.Errorf("cluster address %q: expected HOST:PORT at which other nodes reach this one: %w",
				o.Listen, err)
		}
	}
	if _, _, err := net.SplitHostPort(o.Direct); err != nil && o.Direct != "" && o.Direct != noDirect {
		return fmt.Errorf("cluster.direct %q: expected HOST:PORT at which the hosts of other nodes reach this one, or "+
			"none: %w", o.Direct, err)
	}
	for _, j := range o.Join {
		if _, _, err := net.SplitHostPort(j); err != nil {
			return fmt.Errorf("join %q: expected HOST:PORT, the cluster address of another node: %w", j, err)
		}
	}
	return nil
}

// Start starts or joins a cluster, and returns when this node can read and write its records. The first nodes wait
// until there are MinNodes.
func Start(ctx context.Context, o Options) (n *Node, err error) {
	o.Lease, o.Start = cmp.Or(o.Lease, time.Second), cmp.Or(o.Start, startTime)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := o.checkOptions(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	n = &Node{opts: o, boot: rand.Text()[:10], log: o.Log, buckets: map[string]*Bucket{}, replicas: 3}
	if n.id, err = loadID(filepath.Join(o.Dir, nodeFileName), o.Name); err != nil {
		return nil, err
	}
	if n.epochs, err = loadEpochs(o.Dir); err != nil {
		return nil, err
	}
	if err := o.noteExternal(); err != nil {
		return nil, err
	}
	n.life, n.stop = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			n.Close()
			n = nil
		}
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, o.Start, fmt.Errorf("the cluster did not answer within %v", o.Start))
	defer cancel()
	if err := n.connect(ctx); err != nil {
		return n, err
	}
	n.peers = newPeers(n)
	if err := n.direct.listen(n); err != nil {
		return n, err
	}
	if err := n.peers.start(n.life); err != nil {
		return n, err
	}
	if err := n.pipes.start(n); err != nil {
		return n, err
	}
	n.direct.start()
	if err := errors.Join(n.answerPaths(), n.answerWaits()); err != nil {
		return n, err
	}
	if err := n.become(ctx); err != nil {
		if errors.Is(err, ErrRemoved) { // its engine has just become a peer again
			err = errors.Join(err, n.Remove(ctx, n.id))
		}
		return n, err
	}
	if err := n.serveRemovals(); err != nil {
		return n, err
	}
	n.running.Go(func() { n.renew(n.life) })
	n.running.Go(func() { n.keepReplicas(n.life) })
	n.running.Go(func() { n.keepEpochs(n.life) })
	return n, nil
}

// connect starts the engine if it is embedded, and connects to it.
func (n *Node) connect(ctx context.Context) (err error) {
	options := []nats.Option{
		nats.Name("gatehouse " + n.id),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.PingInterval(5 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.ReconnectBufSize(-1), // a request without a connection fails at once: it was not run
		nats.RetryOnFailedConnect(false),
	}
	var url string
	if x := n.opts.External; x != nil {
		url = x.Address
		n.replicas = cmp.Or(x.Replicas, 3)
		options = append(options, x.options()...)
	} else {
		if n.engine, err = startEngine(ctx, n.opts, n.id, n.epochs); err != nil {
			return err
		}
		url = n.engine.client
		options = append(options, nats.UserInfo(n.engine.user, n.engine.password))
	}
	for { // after a loss of power an external one may start later than this host, and a busy machine is slow
		if n.conn, err = nats.Connect(url, options...); err == nil {
			break
		}
		if errors.Is(err, nats.ErrAuthorization) {
			return fmt.Errorf("connect to NATS at %s: %w", url, err)
		}
		n.log.Warn("NATS does not answer and is asked again", "address", url, "err", err)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return fmt.Errorf("connect to NATS at %s: %w: %w", url, context.Cause(ctx), err)
		}
	}
	if err := checkPayload(n.conn); err != nil {
		return err
	}
	n.js, err = jetstream.New(n.conn, jetstream.WithDefaultTimeout(requestTime))
	return err
}

// become waits until the cluster has its records and this node is in them.
func (n *Node) become(ctx context.Context) error {
	if err := n.giveKeys(); err != nil {
		return err
	}
	return n.await(ctx, "enough nodes", n.enter)
}

// tooFew is the error of a cluster that is not yet one.
type tooFew struct{ nodes int }

func (e tooFew) Error() string {
	return fmt.Sprintf("%d of %d nodes are here; a cluster needs at least %d, because with two the loss of either "+
		"stops both: start the others, or serve without --cluster", e.nodes, MinNodes, MinNodes)
}

// enter opens the bucket of members, makes it if there are enough nodes, and records this node there.
func (n *Node) enter(ctx context.Context) error {
	b, err := n.openBucket(ctx, membersBucket)
	if here := len(n.Nodes()); err != nil && here < MinNodes {
		return tooFew{here}
	}
	if errors.Is(err, ErrNotFound) {
		b, err = n.makeBucket(ctx, membersBucket, BucketOptions{})
	}
	if err != nil {
		return err
	}
	if err := n.checkCluster(ctx, b); err != nil {
		return err
	}
	n.mu.Lock()
	n.members = b
	n.mu.Unlock()
	return n.peers.registerNode(ctx, b)
}

func retryable(err error) bool {
	_, few := errors.AsType[tooFew](err)
	return few || !errors.Is(err, errRefused)
}

// errRefused is in errors that waiting does not mend.
var errRefused = errors.New("refused")

// ID returns the name of this node, which it keeps for its life: ten lowercase letters and digits.
func (n *Node) ID() string { return n.id }

// Name returns the name of the cluster.
func (n *Node) Name() string { return n.opts.Name }

// Dir returns the folder in which this node stores what it needs to start again.
func (n *Node) Dir() string { return n.opts.Dir }

// Close leaves the connection and ends the engine. The node stays a member; see Leave.
func (n *Node) Close() {
	if n.stop != nil {
		n.stop()
	}
	n.pipes.close()
	n.direct.close()
	if n.peers != nil {
		n.peers.farewell()
	}
	n.running.Wait()
	if n.conn != nil {
		n.conn.Close()
	}
	if n.engine != nil {
		n.engine.close()
	}
}

// startTime is how long a node that starts waits for the others.
const startTime = 2 * time.Minute

// requestTime is how long a request to the engine may take: longer than the election of a leader.
const requestTime = 12 * time.Second

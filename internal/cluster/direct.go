package cluster

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/cluster/rawconn"
)

// direct connects this host with those of other nodes, without NATS: one link to each, which carries the streams
// between both. Of two nodes the one with the lower id connects. Streams to a node without a link go over NATS.
//
// Each node tells the others its address and the hash of its certificate in its heartbeats, and accepts no other
// certificate of a node than that. So a link is trusted as NATS is, which carries the heartbeats. Where nodes have
// certificates of the cluster's authority those are used, and verified as well.
type direct struct {
	n       *Node
	ln      net.Listener // nil if this node accepts no links
	address string       // that other nodes are told; "" with ln
	own     atomic.Pointer[ownKey]
	ctx     context.Context // a field, because it ends when the node stops, not with a call
	stop    context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	links   map[string]*link // by node
	singles map[string]*singles
	tried   map[string]dialed
}

// ownKey is what this node shows of itself.
type ownKey struct {
	pair  tls.Certificate
	hash  string
	roots *x509.CertPool // that verify the certificates of nodes; nil if they have none of the authority
}

// dialed is the last attempt to connect to a node.
type dialed struct {
	boot  string
	next  time.Time // when it is tried again
	pause time.Duration
	times int
	err   error // why it failed; nil while none has
}

const (
	connectTime  = 5 * time.Second // in which a link is connected
	connectPause = 30 * time.Second
	maxAccepted  = 10_000 // connections of other nodes at once
	noDirect     = "none" // as the address: accept no links
)

func keyHash(der []byte) string {
	sum := sha256.Sum256(der)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// listen begins to accept links. It does nothing if there is no address for them.
func (d *direct) listen(n *Node) error {
	d.n, d.links, d.singles, d.tried = n, map[string]*link{}, map[string]*singles{}, map[string]dialed{}
	o := n.opts
	at := o.Direct
	if at == "" && o.External == nil {
		host, _, _ := net.SplitHostPort(o.Listen)
		at = net.JoinHostPort(host, "0")
	}
	if at == "" || at == noDirect {
		return nil
	}
	if err := d.loadKey(); err != nil {
		return err
	}
	ln, err := net.Listen("tcp", at)
	if err != nil {
		return fmt.Errorf("listen for the hosts of other nodes: %w", err)
	}
	d.ln = ln
	host, port, _ := net.SplitHostPort(ln.Addr().String())
	if named, _, err := net.SplitHostPort(cmp.Or(o.Advertise, at)); err == nil && named != "" {
		host = named
	}
	d.address = net.JoinHostPort(reachable(host), port)
	return nil
}

// reachable returns an address of this machine in place of one that stands for all of them.
func reachable(host string) string {
	if ip, err := netip.ParseAddr(host); err != nil || !ip.IsUnspecified() {
		return host
	}
	addresses, _ := net.InterfaceAddrs()
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
			return ip.IP.String()
		}
	}
	return "localhost"
}

// loadKey reads the certificate of this node, or makes one for this run if the cluster has none.
func (d *direct) loadKey() error {
	k := &ownKey{}
	if e := d.n.engine; e != nil && e.auth != nil {
		pair, err := tls.LoadX509KeyPair(e.auth.path("node.pem"), e.auth.path("node.key"))
		if err != nil {
			return err
		}
		ca, err := readCertificate(e.auth.path("ca.pem"))
		if err != nil {
			return err
		}
		k.pair, k.roots = pair, x509.NewCertPool()
		k.roots.AddCert(ca)
	} else {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		now := time.Now()
		c := &x509.Certificate{
			SerialNumber: serial(), Subject: pkix.Name{CommonName: "node", SerialNumber: d.n.id},
			NotBefore: now.Add(-backdate), NotAfter: now.Add(authorityLife),
		}
		der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
		if err != nil {
			return err
		}
		k.pair = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	}
	k.hash = keyHash(k.pair.Certificate[0])
	d.own.Store(k)
	return nil
}

// config returns the settings of a connection. allowed says which node a certificate belongs to, by its hash.
func (d *direct) config(allowed func(hash string) (node string, err error)) *tls.Config {
	own := d.own.Load()
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own.pair}, ClientAuth: tls.RequireAnyClientCert,
		InsecureSkipVerify:     true, // VerifyConnection verifies: the names of machines say nothing about nodes
		SessionTicketsDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			c := s.PeerCertificates[0]
			node, err := allowed(keyHash(c.Raw))
			if err != nil || own.roots == nil {
				return err
			}
			if c.Subject.CommonName != "node" || c.Subject.SerialNumber != node {
				return fmt.Errorf("the certificate is that of %q, not of node %s", c.Subject.String(), node)
			}
			_, err = c.Verify(x509.VerifyOptions{Roots: own.roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
			return err
		},
	}
}

// start accepts links, and connects those that are missing, until close.
func (d *direct) start() {
	if d.ln == nil {
		return
	}
	d.ctx, d.stop = context.WithCancel(context.Background())
	d.running.Go(func() { d.run(d.ctx) })
}

// close ends the links, once what their streams have sent is written.
func (d *direct) close() {
	if d.ln == nil {
		return
	}
	d.ln.Close()
	d.mu.Lock()
	all := slices.Collect(maps.Values(d.links))
	d.mu.Unlock()
	for _, l := range all {
		l.awaitWritten()
	}
	if d.stop != nil {
		d.stop()
	}
	d.running.Wait()
}

func (d *direct) run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		places := make(chan struct{}, maxAccepted) // for links and single streams, and for what is neither yet
		for {
			conn, err := d.ln.Accept()
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				time.Sleep(100 * time.Millisecond) // too many open files
				continue
			}
			select {
			case places <- struct{}{}:
				all.Go(func() {
					defer func() { <-places }()
					d.accept(ctx, conn)
				})
			default:
				conn.Close()
			}
		}
	})
	for {
		p := d.n.peers
		p.mu.Lock()
		changed := p.changed
		var missing []Peer
		now := time.Now()
		for id, h := range p.heard {
			if h.alive && id > d.n.id && h.beat.Direct != "" && d.missing(h.beat.Peer, now) {
				missing = append(missing, h.beat.Peer)
			}
		}
		p.mu.Unlock()
		for _, peer := range missing {
			all.Go(func() { d.connect(ctx, peer) })
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// missing reports whether a link to a node has to be connected now, and notes that it is being connected.
func (d *direct) missing(peer Peer, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := d.tried[peer.ID]
	if d.links[peer.ID] != nil || last.boot == peer.Boot && now.Before(last.next) {
		return false
	}
	if last.boot != peer.Boot {
		last = dialed{boot: peer.Boot, pause: d.n.opts.Lease / beatsPerLease}
	}
	last.times++
	last.next = now.Add(time.Hour) // while it is being connected
	d.tried[peer.ID] = last
	return true
}

// accept serves a connection of another node until it ends.
func (d *direct) accept(ctx context.Context, conn net.Conn) {
	var node string
	secure := tls.Server(rawconn.Of(conn), d.config(func(hash string) (id string, err error) {
		node, err = d.n.peers.withKey(hash)
		return node, err
	}))
	first, err := d.handshake(ctx, secure, ping)
	if err != nil {
		d.n.log.Debug("a connection was refused that is to be the link of a node", "from", conn.RemoteAddr(), "err", err)
		conn.Close()
		return
	}
	if first.kind == pipeOpen {
		d.acceptSingle(node, secure, first)
		return
	}
	d.serveLink(ctx, node, secure)
}

// connect connects a link to a node and serves it until it ends.
func (d *direct) connect(ctx context.Context, peer Peer) {
	secure, err := d.dial(ctx, peer, ping)
	d.mu.Lock()
	if err == nil {
		delete(d.tried, peer.ID)
	} else if last := d.tried[peer.ID]; last.boot == peer.Boot {
		last.next = time.Now().Add(last.pause)
		last.pause = min(2*last.pause, connectPause)
		last.err = err
		d.tried[peer.ID] = last
		if last.times == 3 { // before, it may not have heard this node yet
			d.n.log.Warn("streams to a node go over NATS, because its host cannot be connected", "node", peer.ID,
				"address", peer.Direct, "err", err)
		}
	}
	d.mu.Unlock()
	if err != nil {
		return
	}
	d.serveLink(ctx, peer.ID, secure)
}

// dial connects the host of a node and sends it the first frame.
func (d *direct) dial(ctx context.Context, peer Peer, first []byte) (*tls.Conn, error) {
	connecting, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	dial := d.n.opts.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	conn, err := dial(connecting, "tcp", peer.Direct)
	if err != nil {
		return nil, err
	}
	secure := tls.Client(rawconn.Of(conn), d.config(func(hash string) (string, error) {
		if hash != peer.Key {
			return "", errors.New("its certificate is not that of its heartbeats")
		}
		return peer.ID, nil
	}))
	got, err := d.handshake(ctx, secure, first)
	if err == nil && got.kind != linkPing {
		err = errors.New("the other end opens a stream to the one that connected")
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return secure, nil
}

// ping is the first frame of both ends of a link.
var ping = appendFrame(nil, noPipe, linkPing, 0, nil)

// handshake sends the first frame of this end and returns that of the other one, which alone tells that it has accepted
// this one's certificate.
func (d *direct) handshake(ctx context.Context, c *tls.Conn, first []byte) (frame, error) {
	c.SetDeadline(time.Now().Add(connectTime))
	if err := c.HandshakeContext(ctx); err != nil {
		return frame{}, err
	}
	if _, err := c.Write(first); err != nil {
		return frame{}, err
	}
	f, err := readFrame(c)
	if err != nil || f.kind != linkPing && f.kind != pipeOpen {
		return f, fmt.Errorf("the other end does not begin a link: %w", cmp.Or(err, errors.ErrUnsupported))
	}
	return f, c.SetDeadline(time.Time{})
}

// serveLink carries streams over a link until it ends.
func (d *direct) serveLink(ctx context.Context, node string, conn *tls.Conn) {
	l := newLink(d, node, conn)
	d.mu.Lock()
	old := d.links[node]
	d.links[node] = l
	d.mu.Unlock()
	if old != nil {
		again := errors.New("the node has connected again")
		old.fail(again)
		d.failSingles(node, again)
	}
	d.n.log.Info("the host of a node is connected", "node", node)
	err := l.run(ctx)
	d.mu.Lock()
	last := d.links[node] == l
	if last {
		delete(d.links, node)
	}
	d.mu.Unlock()
	if last {
		d.failSingles(node, err)
	}
	d.n.log.Info("the host of a node is no longer connected", "node", node, "err", err)
}

// to returns the link to a node; nil if there is none.
func (d *direct) to(node string) *link {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.links[node]
}

// withKey returns the node that has told the hash of its certificate.
func (p *peers) withKey(hash string) (node string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, h := range p.heard {
		if h.alive && h.beat.Key == hash && !p.removed[id] {
			return id, nil
		}
	}
	return "", errors.New("no node that is heard has this certificate")
}

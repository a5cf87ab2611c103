package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
)

// Cluster is the fixture on three nodes behind a proxy that sends each request to the next node, whatever session it
// belongs to. Stop must be called.
type Cluster struct {
	URL   string
	nodes []*Server
	proxy *httptest.Server
}

// clusterNodes is how many nodes a cluster of the fixture has.
const clusterNodes = 3

// StartCluster starts the nodes, with the engine that make setup builds. dir is for their files.
func StartCluster(ctx context.Context, t Tools, bin, dir string) (c *Cluster, err error) {
	c = &Cluster{nodes: make([]*Server, clusterNodes)}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	var addresses []string
	for range clusterNodes {
		port, err := freePort()
		if err != nil {
			return c, err
		}
		addresses = append(addresses, net.JoinHostPort("127.0.0.1", fmt.Sprint(port)))
	}
	errs := make([]error, clusterNodes)
	var starting sync.WaitGroup
	for i := range clusterNodes {
		starting.Go(func() {
			data := filepath.Join(dir, fmt.Sprint("node", i))
			if errs[i] = os.MkdirAll(data, 0o700); errs[i] != nil {
				return
			}
			args := []string{
				"--http", "127.0.0.1:0", "--data", data, "--cluster-listen", addresses[i],
				"--engine", filepath.Join(filepath.Dir(t.Dir), "gatehouse-nats"),
			}
			if i > 0 {
				args = append(args, "--join", addresses[0])
			}
			c.nodes[i], errs[i] = start(ctx, bin, args...)
		})
	}
	starting.Wait()
	if err := errors.Join(errs...); err != nil {
		return c, err
	}
	var targets []*url.URL
	for _, n := range c.nodes {
		target, err := url.Parse(n.URL)
		if err != nil {
			return c, err
		}
		targets = append(targets, target)
	}
	var next atomic.Uint64
	c.proxy = httptest.NewServer(&httputil.ReverseProxy{
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // of clients that end a stream
		Rewrite: func(r *httputil.ProxyRequest) {
			to := targets[next.Add(1)%clusterNodes]
			r.Out.URL.Scheme, r.Out.URL.Host = to.Scheme, to.Host
			r.Out.Host = r.In.Host
		},
	})
	c.URL = c.proxy.URL + targets[0].Path
	return c, nil
}

// Stop ends the nodes and the proxy.
func (c *Cluster) Stop() (err error) {
	errs := make([]error, len(c.nodes))
	var stopping sync.WaitGroup
	for i, n := range c.nodes {
		if n != nil {
			stopping.Go(func() { errs[i] = n.Stop() })
		}
	}
	stopping.Wait()
	err = errors.Join(errs...)
	if c.proxy != nil {
		c.proxy.CloseClientConnections()
		c.proxy.Close()
	}
	return err
}

// Log returns the ends of the logs of the nodes.
func (c *Cluster) Log() string {
	var all strings.Builder
	for i, n := range c.nodes {
		fmt.Fprintf(&all, "node %d:\n%s", i, n.Log())
	}
	return all.String()
}

// Clustered runs the suites against one host and through the proxy of a cluster.
func Clustered(ctx context.Context, t Tools, bin, dir string) (pairs []Pair, err error) {
	one, err := Start(ctx, bin, dir)
	if err != nil {
		return nil, err
	}
	c, err := StartCluster(ctx, t, bin, dir)
	if err != nil {
		return nil, errors.Join(err, one.Stop())
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, c.Log())
		}
		err = errors.Join(err, one.Stop(), c.Stop())
	}()
	for _, s := range Suites() {
		p, err := s.compare(ctx, t, "our fixture", one.URL, c.URL, dir, func(string, string) bool { return false })
		if err != nil {
			return pairs, err
		}
		pairs = append(pairs, p)
	}
	return pairs, nil
}

// CompareCluster prints the table of Clustered, and returns an error if a scenario ended otherwise through the cluster.
func CompareCluster(ctx context.Context, t Tools, w io.Writer) error {
	dir, err := os.MkdirTemp("", "clustered")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	bin, err := Build(ctx, dir)
	if err != nil {
		return err
	}
	pairs, err := Clustered(ctx, t, bin, dir)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "| client | direct: scenarios, checks | through any of %d nodes | verdicts that differ |\n", clusterNodes)
	fmt.Fprintln(w, "|---|---|---|---|")
	for _, p := range pairs {
		differ := p.Differences()
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", p.Era, p.Direct.total(), p.Relayed.total(),
			strings.Join(differ, ", "))
		for _, name := range differ {
			err = errors.Join(err, fmt.Errorf("%s, %s: direct %q, through the cluster %q", p.Era, name,
				p.Direct.verdicts(name), p.Relayed.verdicts(name)))
		}
	}
	return err
}

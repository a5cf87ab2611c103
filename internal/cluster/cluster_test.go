package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// program returns the path of the engine, which make setup builds.
func program(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../.tools/" + Program)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%v; make setup builds it", err)
		}
		t.Skip("without the engine: make setup builds it")
	}
	return path
}

func address(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// testLease is long, because the machine that runs the tests is slow at times.
const testLease = 3 * time.Second

// startNodes starts the nodes of one cluster.
func startNodes(t *testing.T, options ...Options) []*Node {
	t.Helper()
	nodes, errs := make([]*Node, len(options)), make([]error, len(options))
	var all sync.WaitGroup
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	for i, o := range options {
		all.Go(func() {
			if nodes[i], errs[i] = Start(ctx, o); errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	all.Wait()
	for _, n := range nodes {
		if n != nil {
			t.Cleanup(n.Close)
		}
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return nodes
}

// three returns the options of three nodes, the second and third of which join the first.
func three(t *testing.T) []Options {
	t.Helper()
	var all []Options
	for i := range 3 {
		o := Options{
			Name: "test", Listen: address(t), Dir: filepath.Join(t.TempDir(), fmt.Sprint(i)), Program: program(t),
			Lease: testLease, Log: slog.New(slog.NewTextHandler(t.Output(),
				&slog.HandlerOptions{Level: slog.LevelInfo})),
		}
		if i > 0 {
			o.Join = []string{all[0].Listen}
		}
		all = append(all, o)
	}
	return all
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("after three minutes: %s", what)
}

// TestThreeNodes uses everything that nodes offer each other, then ends one of them.
func TestThreeNodes(t *testing.T) {
	options := three(t)
	fourth := options[2]
	fourth.Dir, fourth.Listen = filepath.Join(t.TempDir(), "4"), address(t)
	nodes := startNodes(t, options...)
	a, b, c := nodes[0], nodes[1], nodes[2]
	eventually(t, "all nodes are heard by all", func() bool {
		for _, n := range nodes {
			if len(n.Nodes()) != 3 || n.Fresh() != nil {
				return false
			}
		}
		return true
	})
	t.Run("records", func(t *testing.T) { testRecords(t, a, b) })
	t.Run("contention", func(t *testing.T) { testContention(t, nodes...) })
	t.Run("lists", func(t *testing.T) { testLists(t, nodes...) })
	t.Run("requests", func(t *testing.T) { testRequests(t, a, b) })
	eventually(t, "the hosts are connected", func() bool { return linked(nodes...) })
	t.Run("links", func(t *testing.T) { testLinks(t, a, b) })
	t.Run("unread streams", func(t *testing.T) { testUnreadStream(t, a, b) })
	t.Run("streams with connections", func(t *testing.T) { testOwnConnections(t, a, b) })
	t.Run("streams", func(t *testing.T) { testPipes(t, a, b) })
	t.Run("closed streams", func(t *testing.T) { testClosedPipes(t, a, b) })
	cutLinks(t, nodes...)
	t.Run("streams over NATS", func(t *testing.T) { testPipes(t, a, b) })
	t.Run("closed streams over NATS", func(t *testing.T) { testClosedPipes(t, a, b) })
	t.Run("lease", func(t *testing.T) { testLeases(t, a, b) })
	t.Run("fences", func(t *testing.T) { testFences(t, a, b) })
	t.Run("removals", func(t *testing.T) { testRemovalsAreFenced(t, a, b) })
	t.Run("confirm", func(t *testing.T) { testConfirm(t, nodes) })
	t.Run("format", func(t *testing.T) { testFormat(t, nodes, fourth) })

	b = testImages(t, options[1], b, a, c)

	// A node that ends says so; the others still have most of the nodes.
	c.Close()
	eventually(t, "the end of a node is noticed", func() bool { return !a.Alive(c.ID()) && !b.Alive(c.ID()) })
	if _, err := a.Request(t.Context(), c.ID(), "echo", nil); !errors.Is(err, ErrNotRun) {
		t.Errorf("a request to a node that has ended: %v", err)
	}
	bucket, err := a.Bucket(t.Context(), "things", BucketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "two of three nodes write", func() bool {
		_, err := bucket.Put(t.Context(), "after", []byte("x"))
		return err == nil
	})
	if err := a.Confirm(t.Context(), "tokens", 7); err != nil {
		t.Error("with two of three nodes:", err)
	}
}

// A list has each record that was written before it began, on whatever node, and none that was deleted.
func testLists(t *testing.T, nodes ...*Node) {
	var buckets []*Bucket
	for _, n := range nodes {
		b, err := n.Bucket(t.Context(), "lists", BucketOptions{})
		if err != nil {
			t.Fatal(err)
		}
		buckets = append(buckets, b)
	}
	for i := range 200 {
		writer, reader := buckets[i%len(buckets)], buckets[(i+1)%len(buckets)]
		key := strconv.Itoa(i)
		revision, err := writer.Create(t.Context(), key, nil)
		if err != nil {
			t.Fatal(err)
		}
		if all, err := reader.List(t.Context()); err != nil || len(all) != 1 || all[0].Key != key {
			t.Fatalf("after %d: listed %+v, %v", i, all, err)
		}
		if err := writer.Delete(t.Context(), key, revision); err != nil {
			t.Fatal(err)
		}
	}
}

func testRecords(t *testing.T, a, b *Node) {
	ctx := t.Context()
	one, err := a.Bucket(ctx, "things", BucketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	two, err := b.Bucket(ctx, "things", BucketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const key = "users/Ada Lovelace.=ü"
	first, err := one.Create(ctx, key, []byte("1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := two.Create(ctx, key, []byte("2")); !errors.Is(err, ErrConflict) {
		t.Errorf("made twice: %v", err)
	}
	second, err := two.Update(ctx, key, []byte("2"), first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := one.Update(ctx, key, []byte("3"), first); !errors.Is(err, ErrConflict) {
		t.Errorf("changed an old revision: %v", err)
	}
	if r, err := one.Get(ctx, key); err != nil || string(r.Value) != "2" || r.Revision != second {
		t.Errorf("got %+v, %v", r, err)
	}
	if all, err := one.List(ctx); err != nil || len(all) != 1 || all[0].Key != key {
		t.Errorf("listed %+v, %v", all, err)
	}
	if err := one.Delete(ctx, key, first); !errors.Is(err, ErrConflict) {
		t.Errorf("deleted an old revision: %v", err)
	}
	if err := one.Delete(ctx, key, second); err != nil {
		t.Error(err)
	}
	if _, err := two.Get(ctx, key); !errors.Is(err, ErrNotFound) {
		t.Errorf("read what was deleted: %v", err)
	}
	if _, err := two.Create(ctx, key, []byte("4")); err != nil {
		t.Errorf("made again: %v", err)
	}
}

func testRequests(t *testing.T, a, b *Node) {
	ctx := t.Context()
	stop, err := b.Handle("echo", func(_ context.Context, from string, data []byte) ([]byte, error) {
		if string(data) == "fail" {
			return nil, errors.New("it failed")
		}
		return []byte(from + string(data)), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	eventually(t, "the request arrives", func() bool { // interest reaches the other servers a moment later
		_, err := a.Request(ctx, b.ID(), "echo", nil)
		return err == nil
	})
	if raw, err := a.Request(ctx, b.ID(), "echo", []byte("!")); err != nil || string(raw) != a.ID()+"!" {
		t.Errorf("got %q, %v", raw, err)
	}
	_, err = a.Request(ctx, b.ID(), "echo", []byte("fail"))
	if remote, ok := errors.AsType[*RemoteError](err); !ok || remote.Text != "it failed" {
		t.Errorf("got %v", err)
	}
	if _, err := a.Request(ctx, b.ID(), "nothing", nil); !errors.Is(err, ErrNotRun) {
		t.Errorf("a topic that is not handled: %v", err)
	}
	if _, err := a.Request(ctx, "aaaaaaaaaa", "echo", nil); !errors.Is(err, ErrNotRun) {
		t.Errorf("a node that does not exist: %v", err)
	}
	heard := make(chan string, 10)
	end, _, err := b.Follow("news.>", func(from, topic string, data []byte) { heard <- from + topic + string(data) })
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	eventually(t, "an event arrives", func() bool { // interest reaches the other servers a moment later
		if err := a.Publish("news.today", []byte("x")); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-heard:
			return got == a.ID()+"news.todayx"
		case <-time.After(100 * time.Millisecond):
			return false
		}
	})
}

func testLeases(t *testing.T, a, b *Node) {
	ctx := t.Context()
	first, err := a.Acquire(ctx, "writer", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.TryAcquire(ctx, "writer", time.Second); !errors.Is(err, ErrHeld) {
		t.Errorf("acquired twice: %v", err)
	}
	time.Sleep(1500 * time.Millisecond)
	if !first.Held() {
		t.Skip("the lease was lost, because this machine is too slow at the moment")
	}
	if err := first.Release(ctx); err != nil {
		t.Error(err)
	}
	second, err := b.Acquire(ctx, "writer", 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if second.Token <= first.Token || first.Held() {
		t.Errorf("tokens %d, then %d", first.Token, second.Token)
	}
	// A holder that does not renew loses it.
	second.end(errors.New("as if it was stopped"))
	<-second.done
	third, err := a.Acquire(ctx, "writer", time.Second)
	if err != nil || third.Token <= second.Token {
		t.Fatalf("got %+v, %v", third, err)
	}
	if err := second.Release(ctx); err != nil {
		t.Error("the release of a lost lease:", err)
	}
	if holder, token, err := b.Holder(ctx, "writer"); err != nil || holder != a.ID() || token != third.Token {
		t.Errorf("held by %s, %d, %v", holder, token, err)
	}
}

func testConfirm(t *testing.T, nodes []*Node) {
	a, b, c := nodes[0], nodes[1], nodes[2]
	a.SetApplied("tokens", 7)
	b.SetApplied("tokens", 7)
	begin := time.Now()
	if err := a.Confirm(t.Context(), "tokens", 7); err != nil { // c has not applied it: its lease must end
		t.Fatal(err)
	}
	if took := time.Since(begin); took < testLease/2 {
		t.Errorf("confirmed after %v, while a node may not know it", took)
	}
	if err := c.Fresh(); !errors.Is(err, ErrStale) {
		t.Errorf("the node without it: %v", err)
	}
	c.SetApplied("tokens", 7)
	eventually(t, "the node is fresh again", func() bool { return c.Fresh() == nil })
	if err := b.Confirm(t.Context(), "tokens", 7); err != nil {
		t.Error(err)
	}
}

// TestANodeWaitsForALeader opens what the cluster does not answer for at first.
func TestANodeWaitsForALeader(t *testing.T) {
	n := &Node{opts: Options{Name: "test"}}
	left := 3
	election := func(context.Context) error {
		if left--; left > 0 {
			return fmt.Errorf("open bucket state: %w", context.DeadlineExceeded)
		}
		return nil
	}
	if err := n.await(t.Context(), "bucket state", election); err != nil {
		t.Errorf("after an election: %v", err)
	}
	n.opts.Start = 500 * time.Millisecond
	left = 1 << 30
	err := n.await(t.Context(), "bucket state", election)
	if err == nil || !strings.Contains(err.Error(), "wait for bucket state of cluster test: no answer within 500ms") {
		t.Errorf("without a leader: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("the host stops")
	cancel(stopped)
	if err := n.await(ctx, "bucket state", election); !errors.Is(err, stopped) {
		t.Errorf("while the host stops: %v", err)
	}
}

// TestTwoNodesAreRefused starts two nodes only.
func TestTwoNodesAreRefused(t *testing.T) {
	all := three(t)[:2]
	errs := make(chan error)
	for _, o := range all {
		o.Start = 10 * time.Second
		go func() {
			n, err := Start(t.Context(), o)
			if n != nil {
				n.Close()
			}
			errs <- err
		}()
	}
	for range all {
		if err := <-errs; err == nil || !strings.Contains(err.Error(), "needs at least 3") {
			t.Errorf("got %v", err)
		}
	}
}

// TestJoinTokens joins with certificates, and not without, nor with an expired token.
func TestJoinTokens(t *testing.T) {
	all := three(t)
	for i := range all {
		all[i].TLS = true
	}
	authority, err := OpenAuthority(all[0].Dir)
	if err != nil {
		t.Fatal(err)
	}
	token := func(valid time.Duration) string {
		raw, err := authority.JoinToken(valid)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if _, err := Start(t.Context(), all[1]); err == nil || !strings.Contains(err.Error(), "requires a token") {
		t.Errorf("without a token: %v", err)
	}
	all[1].TokenFile = token(-time.Minute)
	if _, err := Start(t.Context(), all[1]); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("with an expired token: %v", err)
	}
	all[1].TokenFile, all[2].TokenFile = token(time.Hour), token(time.Hour)
	nodes := startNodes(t, all...)
	eventually(t, "the hosts of nodes with certificates are connected", func() bool { return linked(nodes...) })
	for _, n := range nodes {
		c, err := readCertificate(n.engine.auth.path("node.pem"))
		if err != nil || c.Subject.CommonName != "node" {
			t.Errorf("node %s has the certificate %v, %v", n.ID(), c, err)
		}
	}
	bucket, err := nodes[2].Bucket(t.Context(), "things", BucketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bucket.Put(t.Context(), "a", []byte("b")); err != nil {
		t.Error(err)
	}
}

// testPipes sends more than fits into the windows, both ways, and ends a node in between.
func testPipes(t *testing.T, a, b *Node) {
	l, err := b.Listen("mirror")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	c, err := a.Dial(t.Context(), b.ID(), "mirror")
	if err != nil {
		t.Fatal(err)
	}
	sent := make([]byte, 5<<20)
	for i := range sent {
		sent[i] = byte(i * i >> 7)
	}
	go c.Write(sent)
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(sent, got) {
		t.Fatalf("what came back differs, %v", err)
	}
	c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := c.Read(got); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: %v", err)
	}
	c.Close()
	refused := 0
	for range 20 { // b does not hear a, until a's next heartbeat
		b.peers.mu.Lock()
		delete(b.peers.heard, a.ID())
		b.peers.mu.Unlock()
		c, err := a.Dial(t.Context(), b.ID(), "mirror")
		if errors.Is(err, ErrNotRun) {
			refused++
			continue
		}
		if err != nil {
			t.Fatalf("a stream to a node that does not hear this one: %v", err)
		}
		c.Write([]byte("x"))
		if _, err := io.ReadFull(c, got[:1]); err != nil {
			t.Errorf("a stream that was accepted: %v", err)
		}
		c.Close()
	}
	if refused == 0 {
		t.Error("a node accepted all streams of one that it does not hear")
	}
	eventually(t, "b hears a again", func() bool { return b.Alive(a.ID()) })
	if _, err := a.Dial(t.Context(), b.ID(), "nothing"); !errors.Is(err, ErrNotRun) {
		t.Errorf("a service that does not exist: %v", err)
	}
	eventually(t, "both ends forget the stream", func() bool {
		a.pipes.mu.Lock()
		defer a.pipes.mu.Unlock()
		b.pipes.mu.Lock()
		defer b.pipes.mu.Unlock()
		return len(a.pipes.open) == 0 && len(b.pipes.open) == 0
	})
}

// testClosedPipes closes streams with requests in them. The other end learns that one was not run if nothing of it was
// read.
func testClosedPipes(t *testing.T, a, b *Node) {
	l, err := b.Listen("closing")
	if err != nil {
		t.Fatal(err)
	}
	dial := func() net.Conn {
		c, err := a.Dial(t.Context(), b.ID(), "closing")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	request := func(c net.Conn) {
		if _, err := c.Write([]byte("request")); err != nil {
			t.Error(err)
		}
	}
	answer := make([]byte, 3)
	exchange := func() (near, far net.Conn) {
		near = dial()
		if far, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		request(near)
		if _, err := io.ReadFull(far, make([]byte, 7)); err != nil {
			t.Fatal(err)
		}
		far.Write([]byte("yes"))
		if _, err := io.ReadFull(near, answer); err != nil {
			t.Fatal(err)
		}
		return near, far
	}

	c, far := exchange()
	request(c)
	eventually(t, "the second request arrives", func() bool {
		p := far.(*pipe)
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.unread > 0
	})
	far.Close()
	if _, err := c.Read(answer); !errors.Is(err, ErrNotRun) {
		t.Errorf("a request that was not read: %v", err)
	}

	c, far = exchange()
	far.Close()
	_, err = c.Write([]byte("request")) // refused here or there
	if err == nil {
		_, err = c.Read(answer)
	}
	if !errors.Is(err, ErrNotRun) {
		t.Errorf("a request after the end: %v", err)
	}

	c, far = exchange()
	request(c)
	if _, err := far.Read(answer); err != nil {
		t.Fatal(err)
	}
	far.Close()
	if _, err := c.Read(answer); err == nil || errors.Is(err, ErrNotRun) {
		t.Errorf("a request of which a part was read: %v", err)
	}

	c = dial()
	request(c)
	l.Close()
	if _, err := c.Read(answer); !errors.Is(err, ErrNotRun) {
		t.Errorf("a request of a stream that was never accepted: %v", err)
	}
}

package limit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/server/httpserver"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

// BenchmarkFlood measures how long a quiet session waits for its answers over HTTP while another
// session floods the host over 64 connections: alone, with the default limits beyond loopback, and
// without a rate. Run it with -benchtime 5x; each round lasts about ten seconds, and the reported
// values are medians over the rounds. With 1x it only checks that the benchmark runs.
func BenchmarkFlood(b *testing.B) {
	window := 3 * time.Second
	if b.N == 1 {
		window = 200 * time.Millisecond
	}
	var alone, limited, open []float64
	var flood, refused []float64
	for range b.N {
		a := quiet(b, limit.Options{Rate: limit.DefaultRate, Burst: limit.DefaultBurst}, 0, window)
		l := quiet(b, limit.Options{Rate: limit.DefaultRate, Burst: limit.DefaultBurst}, 64, window)
		o := quiet(b, limit.Options{}, 64, window)
		alone, limited, open = append(alone, a.p99), append(limited, l.p99), append(open, o.p99)
		flood, refused = append(flood, l.flood), append(refused, o.flood)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(alone), "µs-p99-alone")
	b.ReportMetric(median(limited), "µs-p99-limited")
	b.ReportMetric(median(open), "µs-p99-unlimited")
	b.ReportMetric(median(limited)/median(alone), "x-limited")
	b.ReportMetric(median(open)/median(alone), "x-unlimited")
	b.ReportMetric(median(flood), "flood/s-limited")
	b.ReportMetric(median(refused), "flood/s-unlimited")
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

type figures struct {
	p99   float64 // of the quiet session, in µs
	flood float64 // answers to the flooding session per second
}

// quiet makes 40 calls a second from one session while conns connections of another session send as
// fast as they are answered.
func quiet(b *testing.B, o limit.Options, conns int, window time.Duration) figures {
	addr := serve(b, limit.New(o))
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	var answers atomic.Int64
	session, err := openSession(addr, "flood")
	if err != nil {
		b.Fatal(err)
	}
	for range conns {
		all.Go(func() {
			c := &nethttp.Client{Transport: &nethttp.Transport{}}
			defer c.CloseIdleConnections()
			for ctx.Err() == nil {
				if status, err := call(ctx, c, addr, "flood", session); err == nil && status != 0 {
					answers.Add(1)
				}
			}
		})
	}
	defer cancel()
	mine, err := openSession(addr, "quiet")
	if err != nil {
		b.Fatal(err)
	}
	time.Sleep(window / 3) // the burst is used up
	c := &nethttp.Client{Transport: &nethttp.Transport{}}
	defer c.CloseIdleConnections()
	var took []float64
	before, began := answers.Load(), time.Now()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for time.Since(began) < window {
		<-tick.C
		start := time.Now()
		status, err := call(ctx, c, addr, "quiet", mine)
		if err != nil || status != 200 {
			b.Fatalf("the quiet session gets %d, %v", status, err)
		}
		took = append(took, float64(time.Since(start).Microseconds()))
	}
	f := figures{flood: float64(answers.Load()-before) / time.Since(began).Seconds()}
	slices.Sort(took)
	f.p99 = took[min(len(took)-1, len(took)*99/100)]
	return f
}

// serve runs a host with an HTTP listener and the limits in their places: the rate at the listener, the
// queue at the calls.
func serve(b *testing.B, l *limit.Limits) (addr string) {
	offer := &module.Offer{
		Tools: []tool.Tool{tool.New(tool.Def{Name: "t_echo", Description: "Echoes.", Effects: tool.Reads},
			func(_ context.Context, _ *tool.Call, in struct {
				Text string `json:"text"`
			}) (tool.Result, error) {
				return tool.Result{Content: []tool.Content{tool.Text(in.Text)}}, nil
			})},
	}
	h := hosttest.New(b, hosttest.Options{Queue: l.Queue, Modules: map[string]module.New{
		"t": func(context.Context, module.Deps) (module.Module, error) { return echoing{offer}, nil },
	}})
	listener, err := httpserver.New(
		h.Engine,
		httpserver.Options{Identify: func(r *nethttp.Request) (protocol.Caller, *httpserver.Denied) {
			who := r.Header.Get("X-Who")
			busy, ok := errors.AsType[*limit.Busy](
				l.Wait(r.Context(), "principal "+who, "session "+r.Header.Get("Mcp-Session-Id")),
			)
			if ok {
				return protocol.Caller{}, &httpserver.Denied{
					Status:  429,
					Message: busy.Why,
					Header:  nethttp.Header{"Retry-After": {strconv.Itoa(busy.Seconds())}},
				}
			}
			return protocol.Caller{Caller: tool.Caller{Principal: who}}, nil
		}},
	)
	if err != nil {
		b.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { listener.Serve(ctx, ln) })
	b.Cleanup(func() { cancel(); all.Wait() })
	return ln.Addr().String()
}

type echoing struct{ offer *module.Offer }

func (e echoing) Offer(context.Context, module.Audience) (*module.Offer, error) { return e.offer, nil }
func (echoing) Close(context.Context) error                                     { return nil }

// openSession initializes a session for a principal.
func openSession(addr, who string) (session string, err error) {
	r := request(
		context.Background(),
		addr,
		who,
		"",
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`,
	)
	res, err := nethttp.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	if session = res.Header.Get("Mcp-Session-Id"); session == "" {
		return "", fmt.Errorf("no session: %s", res.Status)
	}
	return session, nil
}

func call(ctx context.Context, c *nethttp.Client, addr, who, session string) (status int, err error) {
	res, err := c.Do(
		request(
			ctx,
			addr,
			who,
			session,
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t_echo","arguments":{"text":"text"}}}`,
		),
	)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, err
}

func request(ctx context.Context, addr, who, session, body string) *nethttp.Request {
	r, _ := nethttp.NewRequestWithContext(ctx, "POST", "http://"+addr+"/mcp", bytes.NewReader([]byte(body)))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("X-Who", who)
	if session != "" {
		r.Header.Set("Mcp-Session-Id", session)
		r.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	}
	return r
}

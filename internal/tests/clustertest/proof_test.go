package clustertest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// all reports whether tests run in their long form.
func long() bool { return os.Getenv("GATEHOUSE_TEST_ALL") != "" }

// clients use all stores through all members, in keys of their own, until they are stopped.
type clients struct {
	f       *field
	h       *history
	prefix  string // of keys
	stop    chan struct{}
	running sync.WaitGroup
	numbers atomic.Int64

	mu     sync.Mutex
	tokens []credential
	asked  []credential
}

// credential is a token or a request for an approval, with its key in the history.
type credential struct{ key, id, secret string }

const mounts = 2

func (c *clients) number() int64 { return c.numbers.Add(1) }

// each repeats f with each member, until the clients are stopped.
func (c *clients) each(pause time.Duration, f func(client int, m *machine)) {
	for i, m := range c.f.machines {
		c.running.Go(func() {
			for {
				select {
				case <-c.stop:
					return
				case <-time.After(rand.N(pause)):
				}
				f(i, m)
			}
		})
	}
}

func (c *clients) start() {
	c.each(100*time.Millisecond, func(client int, m *machine) {
		key := fmt.Sprint(c.prefix, "k", rand.IntN(mounts))
		c.h.record(c.f, client, m, operation{Kind: "mount add", Key: key, Value: fmt.Sprint(c.number())})
	})
	c.each(100*time.Millisecond, func(client int, m *machine) {
		op := operation{Kind: "record read", Key: c.prefix + "r"}
		if rand.IntN(2) == 0 {
			op.Kind, op.Value = "record write", fmt.Sprint(c.number())
		}
		c.h.record(c.f, client, m, op)
	})
	c.each(100*time.Millisecond, c.useTokens)
	c.each(100*time.Millisecond, c.useApprovals)
	c.each(50*time.Millisecond, c.useLease)
}

// some returns one of the newest.
func (c *clients) some(all *[]credential) (one credential, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(*all) == 0 {
		return one, false
	}
	newest := (*all)[max(0, len(*all)-4):]
	return newest[rand.IntN(len(newest))], true
}

func (c *clients) add(all *[]credential, one credential) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*all = append(*all, one)
}

func (c *clients) useTokens(client int, m *machine) {
	one, ok := c.some(&c.tokens)
	switch n := rand.IntN(12); {
	case n == 0 || !ok:
		key := fmt.Sprint(c.prefix, "t", c.number())
		made := c.h.record(c.f, client, m, operation{Kind: "token create", Key: key})
		if id, secret, ok := strings.Cut(made.Value, " "); ok && made.OK {
			c.add(&c.tokens, credential{key, id, secret})
		}
	case n == 1:
		c.h.record(c.f, client, m, operation{Kind: "token revoke", Key: one.key, Value: one.id})
	default:
		c.h.record(c.f, client, m, operation{Kind: "token use", Key: one.key, Value: one.secret})
	}
}

func (c *clients) useApprovals(client int, m *machine) {
	one, ok := c.some(&c.asked)
	switch n := rand.IntN(8); {
	case n == 0 || !ok:
		key := fmt.Sprint(c.prefix, "a", c.number())
		if made := c.h.record(c.f, client, m, operation{Kind: "approval ask", Key: key}); made.OK {
			c.add(&c.asked, credential{key: key, id: made.Value})
		}
	case n < 3:
		kind := []string{"approval allow", "approval allow", "approval deny"}[rand.IntN(3)]
		c.h.record(c.f, client, m, operation{Kind: kind, Key: one.key, Value: one.id})
	default:
		c.h.record(c.f, client, m, operation{Kind: "approval spend", Key: one.key, Value: one.id})
	}
}

func (c *clients) useLease(client int, m *machine) {
	key := c.prefix + "l"
	got := c.h.record(c.f, client, m, operation{Kind: "lease acquire", Key: key})
	if !got.OK {
		return
	}
	for range 1 + rand.IntN(8) {
		c.h.record(c.f, client, m, operation{Kind: "lease held", Key: key, Token: got.Token})
		c.h.record(c.f, client, m, operation{Kind: "lease write", Key: key, Token: got.Token,
			Value: fmt.Sprint(c.number())})
		time.Sleep(rand.N(200 * time.Millisecond))
	}
	if rand.IntN(4) > 0 { // otherwise it ends by itself, after its holder has forgotten it or held it on
		c.h.record(c.f, client, m, operation{Kind: "lease release", Key: key, Token: got.Token})
	}
}

// finish reads everything through every member, after the cluster has recovered.
func (c *clients) finish(t *testing.T) {
	close(c.stop)
	c.running.Wait()
	begin := time.Now()
	for !c.f.recovered() {
		if time.Since(begin) > 2*time.Minute {
			c.f.dump(t)
			t.Fatal("the cluster has not recovered after two minutes")
		}
		time.Sleep(50 * time.Millisecond)
	}
	recovered := time.Since(begin)
	must := func(m *machine, op operation) outcome {
		op.Until = 15 * time.Second
		var out outcome
		// What was refused because it is not fresh, or has no leader yet, is asked again: connections that were cut may
		// be given up only now, and made anew.
		for end := time.Now().Add(time.Minute); time.Now().Before(end); {
			if out = c.h.record(c.f, 9, m, op); out.Error == "" || out.Error == "none" {
				return out
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Errorf("%s of %s at %s after all is whole: %+v", op.Kind, op.Key, m.name, out)
		return out
	}
	for _, m := range c.f.machines {
		for k := range mounts {
			must(m, operation{Kind: "mount add", Key: fmt.Sprint(c.prefix, "k", k), Value: fmt.Sprint(c.number())})
		}
		must(m, operation{Kind: "record write", Key: c.prefix + "r", Value: fmt.Sprint(c.number())})
		must(m, operation{Kind: "record read", Key: c.prefix + "r"})
		for _, one := range c.tokens {
			must(m, operation{Kind: "token use", Key: one.key, Value: one.secret})
		}
		for _, one := range c.asked[max(0, len(c.asked)-6):] {
			must(m, operation{Kind: "approval spend", Key: one.key, Value: one.id})
		}
	}
	t.Logf("%d operations; recovered after %v", len(c.h.all), recovered.Round(time.Millisecond))
}

// schedule lets clients work while things fail, and checks what they saw.
func (f *field) schedule(t *testing.T, seed uint64, limit time.Duration) {
	h := newHistory()
	c := &clients{f: f, h: h, prefix: fmt.Sprint("s", seed), stop: make(chan struct{})}
	c.start()
	told := f.disturb(seed, limit)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("schedule %d:\n%s", seed, strings.Join(told, "\n"))
		}
	})
	c.finish(t)
	h.check(t, fmt.Sprint("schedule ", seed))
	t.Logf("what came of them: %v", h.counts())
}

func (h *history) counts() string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(h.got)) {
		all = append(all, fmt.Sprintf("%s: %d", strings.TrimSpace(k), h.got[k]))
	}
	return strings.Join(all, ", ")
}

// TestRandomSchedules runs random schedules of the failures that docs/cluster.md names. In the long form these are 200,
// or as many as GATEHOUSE_SCHEDULES says, from the seed GATEHOUSE_SEED.
func TestRandomSchedules(t *testing.T) {
	count, seed := 1, uint64(time.Now().UnixNano()%1e9)
	if long() {
		count = 200
	}
	if n, err := strconv.Atoi(os.Getenv("GATEHOUSE_SCHEDULES")); err == nil {
		count = n
	}
	if n, err := strconv.ParseUint(os.Getenv("GATEHOUSE_SEED"), 10, 64); err == nil {
		seed = n
	}
	f := newField(t, os.Getenv("GATEHOUSE_EXTERNAL") != "")
	f.await("there is a user", func() bool {
		out, err := f.do(f.machines[0], operation{Kind: "token user", Key: "ada"})
		return err == nil && out.OK
	})
	for i := range count {
		t.Run(fmt.Sprint(seed+uint64(i)), func(t *testing.T) { f.schedule(t, seed+uint64(i), 5*time.Second) })
		if t.Failed() {
			return
		}
	}
}

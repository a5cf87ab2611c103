package hosttest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/modules/code"
	"gatehouse/internal/sandbox/interpreter"
	"gatehouse/internal/sandbox/manager"
	"gatehouse/internal/tests/hosttest"
)

// now is a program that prints when it began, in nanoseconds of the clock that the host has too.
const now = "import time; print(time.time_ns())"

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// since returns how long before the time that a program has printed something began.
func since(t *testing.T, began time.Time, printed string) time.Duration {
	t.Helper()
	line, _, _ := strings.Cut(strings.TrimSpace(printed), "\n")
	at, err := strconv.ParseInt(line, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Unix(0, at).Sub(began)
}

// What a program costs: its start beside a sandbox that is claimed from the same pool and runs the same line, and a
// call beside the same bytes over the same channel. make verify-code prints the figures and fails above twice.
func TestWhatProgramsCost(t *testing.T) {
	if os.Getenv("GATEHOUSE_TEST_ALL") == "" {
		t.Skip("make verify-code measures this")
	}
	p := programsWith(t, modernClient(), hosttest.Options{Spec: &views.Spec{}}, code.Settings{}, false)
	p.run("python", "pass", nil) // starts the pool
	time.Sleep(3 * time.Second)
	var bare, ran, started []time.Duration
	for range 21 {
		began := time.Now()
		b, err := p.boxes.Create(t.Context(), "ann/x", manager.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		bare = append(bare, time.Since(began))
		var out bytes.Buffer
		if _, err := b.Code(t.Context(), interpreter.Python, interpreter.Code{Source: now, Stdout: &out}); err != nil {
			t.Fatal(err)
		}
		ran = append(ran, since(t, began, out.String()))
		p.boxes.Destroy("ann/x", b.ID)
		time.Sleep(400 * time.Millisecond) // the pool makes another one
		began = time.Now()
		text, _ := p.run("python", now, nil)
		started = append(started, since(t, began, text))
		time.Sleep(400 * time.Millisecond)
	}
	t.Logf("claim from the pool %v; to the first line: sandbox %v, program %v (%.2f times)", median(bare), median(ran),
		median(started), float64(median(started))/float64(median(ran)))
	calls := p.callCost(t)
	if s, r := median(started), median(ran); s > 2*r {
		t.Errorf("a program starts in %v, a sandbox in %v", s, r)
	}
	if calls.stub > 2*calls.direct {
		t.Errorf("a call takes %v, and directly %v", calls.stub, calls.direct)
	}
}

// callCosts are medians.
type callCosts struct{ echo, direct, stub time.Duration }

// callCost measures calls of a program: through its stubs, the same messages from a program that has them ready, and
// as many bytes that the host sends back at once.
func (p *programHost) callCost(t *testing.T) (c callCosts) {
	t.Helper()
	const timing = `
import time, socket, struct, json
def median(f, n=1000):
    for i in range(50): f()
    all = []
    for i in range(n):
        began = time.perf_counter_ns()
        f()
        all.append(time.perf_counter_ns() - began)
    return sorted(all)[n // 2]
def exchange(s, b):
    s.sendall(b)
    got = s.recv(65536)
    while len(got) < 4 + struct.unpack(">I", got[:4])[0]:
        got += s.recv(65536)
    return got
def raw(port, body):
    s = socket.create_connection(("127.0.0.1", port))
    s.setsockopt(6, 1, 1)
    b = struct.pack(">I", len(body)) + body
    return lambda: exchange(s, b)
body = json.dumps({"id": 1, "tool": "pad_read", "args": {"word": "a"}, "line": 3}).encode()
`
	text, _ := p.run("python", timing+`
direct = median(raw(7711, body))
stub = median(lambda: tools.pad_read(word="a"))
print(json.dumps([direct, stub]))
`, nil)
	var both [2]time.Duration
	if err := json.NewDecoder(strings.NewReader(text)).Decode(&both); err != nil {
		t.Fatal(err, text)
	}
	c.direct, c.stub = both[0], both[1]
	b, err := p.boxes.Create(t.Context(), "ann/x", manager.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.boxes.Destroy("ann/x", b.ID)
	l, err := b.Sandbox.(interface {
		Listen(context.Context, uint16) (net.Listener, error)
	}).Listen(t.Context(), 7000)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if conn, err := l.Accept(); err == nil {
			io.Copy(conn, conn)
		}
	}()
	var out bytes.Buffer
	if _, err := b.Code(t.Context(), interpreter.Python, interpreter.Code{
		Source: timing + "print(median(raw(7000, body)))", Stdout: &out,
	}); err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(out.String()), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	c.echo = time.Duration(n)
	t.Logf("the same bytes sent back %v, a call %v, a call through the stubs %v (%.2f times)", c.echo, c.direct, c.stub,
		float64(c.stub)/float64(c.direct))
	return c
}

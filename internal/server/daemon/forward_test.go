package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// fleet is a sequence of daemons at one socket, each of which serves one connection for a while and is
// then stopped or killed.
type fleet struct {
	path  string
	kills bool // some of them are killed

	mu   sync.Mutex
	rand *rand.Rand
	ran  map[string]int // how often each call has run
	seen map[string]int // how often each method was received
	ends int
}

func (f *fleet) life() (messages int, killed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ends++
	return 1 + f.rand.IntN(40), f.kills && f.rand.IntN(2) == 0
}

func (f *fleet) count(method, id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen[method]++
	if method == "tools/call" {
		f.ran[id]++
	}
}

// serve answers each line until the daemon ends.
func (f *fleet) serve(c net.Conn) {
	left, killed := f.life()
	in := bufio.NewReaderSize(c, 16)
	for range left {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		f.answer(c, line)
	}
	if killed {
		if outer, ok := c.(*conn); ok {
			in.ReadBytes('\n') // received, and never answered
			outer.Conn.Close()
		}
		return
	}
	for c.SetReadDeadline(time.Now()); ; { // lines that were read already are served
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		f.answer(c, line)
	}
}

func (f *fleet) answer(c net.Conn, line []byte) {
	id, method, _ := parts(line)
	f.count(method, string(id))
	switch {
	case id == nil:
	case method == "initialize":
		fmt.Fprintf(c, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18","capabilities":{}}}`+"\n", id)
	default:
		fmt.Fprintf(c, `{"jsonrpc":"2.0","id":%s,"result":{}}`+"\n", id)
	}
}

// newFleet opens the socket of a fleet.
func newFleet(t *testing.T, seed uint64, kills bool) *fleet {
	f := &fleet{kills: kills, rand: rand.New(rand.NewPCG(seed, 7)), ran: map[string]int{}, seen: map[string]int{}}
	f.path, _ = listening(t, About{PID: 1, Build: "b", Ready: true}, f.serve)
	return f
}

// forward runs a forwarder to a socket, and returns the client's ends of it.
func forward(t *testing.T, f *Forwarder, path string) (in io.WriteCloser, out *bufio.Reader, ended <-chan error) {
	t.Helper()
	clientOut, write := io.Pipe()
	read, clientIn := io.Pipe()
	f.In, f.Out = clientOut, clientIn
	f.Dial = func(ctx context.Context) (net.Conn, About, error) { return Dial(ctx, path, "b", Work{}) }
	if f.Start == nil {
		f.Start = func(context.Context, About) error { return nil }
	}
	f.Retire = func(context.Context, About) (bool, error) { return false, nil }
	done := make(chan error, 1)
	go func() {
		err := f.Run(t.Context(), nil)
		clientIn.Close()
		done <- err
	}()
	t.Cleanup(func() { write.Close(); read.Close() })
	return write, bufio.NewReader(read), done
}

// Daemons end and start while a client is at work. Every request is answered once, no call runs twice,
// and no call fails if daemons end in an orderly way.
func TestEveryRequestIsAnsweredOnce(t *testing.T) {
	for seed := range uint64(8) {
		kills := seed%2 == 1
		t.Run(fmt.Sprintf("seed %d, kills %v", seed, kills), func(t *testing.T) {
			t.Parallel()
			const requests = 400
			fleet := newFleet(t, seed, kills)
			in, out, ended := forward(t, &Forwarder{}, fleet.path)
			answers := map[string]string{}
			next := func() bool {
				line, err := out.ReadBytes('\n')
				if err != nil {
					return false
				}
				if id, method, _ := parts(line); method == "" {
					if answers[string(id)] != "" {
						t.Errorf("%s is answered twice: %s and %s", id, answers[string(id)], line)
					}
					answers[string(id)] = string(line)
				}
				return true
			}
			fmt.Fprintln(in, hello1)
			for answers["1"] == "" && next() {
			}
			go func() {
				fmt.Fprintln(in, ready1)
				for i := range requests {
					method := []string{"tools/call", "tools/list"}[i%2]
					fmt.Fprintf(in, `{"jsonrpc":"2.0","id":%d,"method":"%s"}`+"\n", i+2, method)
				}
				in.Close()
			}()
			for next() {
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if len(answers) != requests+1 {
				t.Errorf("%d requests are answered, want %d", len(answers), requests+1)
			}
			fleet.mu.Lock()
			defer fleet.mu.Unlock()
			interrupted := 0
			for id, answer := range answers {
				lost := strings.Contains(answer, "interrupted")
				if lost {
					interrupted++
				}
				if n := fleet.ran[id]; n > 1 || lost && !kills {
					t.Errorf("call %s has run %d times and is answered %s", id, n, answer)
				}
			}
			if fleet.seen["initialize"] < 2 {
				t.Error("only the first daemon received the session")
			}
			t.Logf("%d daemons, %d calls interrupted", fleet.ends, interrupted)
		})
	}
}

// Messages of any size up to the limit pass unchanged; for a longer one the client receives an error,
// and can continue.
func TestLongMessagesPass(t *testing.T) {
	fleet := newFleet(t, 1, false)
	in, out, ended := forward(t, &Forwarder{Limit: 1 << 20}, fleet.path)
	for _, c := range []struct {
		size int
		want string
	}{{100, `"id":5,"result"`}, {1<<20 - 100, `"id":5,"result"`}, {1 << 20, `"code":-32600`}, {3 << 20,
		`"code":-32600`}, {10, `"id":5,"result"`}} {
		go fmt.Fprintf(
			in,
			`{"jsonrpc":"2.0","id":5,"method":"ping","params":{"x":"%s"}}`+"\n",
			strings.Repeat("x", c.size),
		)
		line, err := out.ReadString('\n')
		if err != nil || !strings.Contains(line, c.want) {
			t.Errorf("%d bytes: got %.100s, %v, want %s", c.size, line, err, c.want)
		}
	}
	in.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// If no daemon can be started, the client receives the reason, and the forwarder ends.
func TestClientReceivesThatNoHostRuns(t *testing.T) {
	why := errors.New("the disk is full\nand more")
	f := &Forwarder{}
	started := make(chan struct{})
	f.Start = func(context.Context, About) error { close(started); return why }
	in, out, ended := forward(t, f, filepath.Join(t.TempDir(), "no-daemon"))
	<-started // the client sends its first message after starting has failed
	go fmt.Fprintln(in, hello1)
	line, _ := out.ReadString('\n')
	var r struct {
		ID    int
		Error struct{ Message string }
	}
	if json.Unmarshal([]byte(line), &r) != nil || r.ID != 1 ||
		!strings.Contains(r.Error.Message, "there is no host: the disk is full and more") {
		t.Errorf("the client receives %s", line)
	}
	if err := <-ended; !errors.Is(err, why) {
		t.Errorf("it ends with %v", err)
	}
}

// A daemon with another protocol revision cannot continue a session.
func TestSessionThatCannotGoOnEndsWithAWord(t *testing.T) {
	var served atomic.Int64
	path, _ := listening(t, About{PID: 1, Build: "b", Ready: true}, func(c net.Conn) {
		in := bufio.NewReader(c)
		if _, err := in.ReadBytes('\n'); err != nil {
			return
		}
		fmt.Fprintf(
			c,
			`{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"v%d","capabilities":{}}}`+"\n",
			served.Add(1),
		)
		in.ReadBytes('\n')
	})
	in, out, ended := forward(t, &Forwarder{}, path)
	go fmt.Fprintln(in, hello1)
	if line, err := out.ReadString('\n'); !strings.Contains(line, `"v1"`) {
		t.Fatalf("got %s, %v", line, err)
	}
	go fmt.Fprintln(in, call("2")) // the daemon receives it, and ends
	if line, _ := out.ReadString('\n'); !strings.Contains(line, `"id":2`) || !strings.Contains(line, "interrupted") {
		t.Errorf("the client receives %s", line)
	}
	if err := <-ended; !errors.Is(err, errDiffers) {
		t.Errorf("it ends with %v", err)
	}
}

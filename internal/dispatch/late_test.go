package dispatch_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/dispatch"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/tool"
)

// A call whose handler ignores its deadline is answered once by the dispatcher. The handler's result is then
// discarded, and the call holds its slot until the handler returns.
func TestCallsThatAreLate(t *testing.T) {
	release := make(chan struct{})
	w := workshop{tools: []tool.Tool{
		made("w_deaf", tool.Reads, func(context.Context, *tool.Call) (tool.Result, error) {
			<-release
			return printableText("late")
		}),
	}}
	visit(t, hosttest.Options{Timeout: time.Second}, &w, func(t *testing.T, h *hosttest.Host) {
		release = make(chan struct{})
		told := make(chan string, 10)
		r := request(t, h, "w_deaf", "")
		r.Late = func(res dispatch.Result, err error) { told <- first(t, res, err) }
		done := make(chan error)
		go func() {
			_, err := h.Calls.Do(t.Context(), r)
			done <- err
		}()
		time.Sleep(time.Minute)
		if got := <-told; !strings.HasPrefix(got, "timeout: no result within 1s") || h.Calls.Overdue() != 1 ||
			h.Calls.Running() != 1 {
			t.Errorf("told %q, %d overdue, %d running", got, h.Calls.Overdue(), h.Calls.Running())
		}
		close(release)
		if err := <-done; !dispatch.IsLate(err) {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		if len(told) != 0 || h.Calls.Overdue() != 0 || h.Calls.Running() != 0 {
			t.Errorf("told %d times more, %d overdue, %d running", len(told), h.Calls.Overdue(), h.Calls.Running())
		}
	})
}

// notes collects what a call reports.
type notes struct{ told []string }

func (n *notes) Progress(done, total float64, note string) {
	n.told = append(n.told, fmt.Sprintf("%.6f/%v %d bytes", done, total, len(note)))
}
func (n *notes) Log(_ slog.Level, data json.RawMessage) { n.told = append(n.told, string(data)) }
func (n *notes) Detach()                                { n.told = append(n.told, "detach") }
func (*notes) Keep(map[string]json.RawMessage) bool     { return false }

func TestOutputRidesOnProgress(t *testing.T) {
	w := workshop{tools: []tool.Tool{
		made("w_print", tool.Reads, func(ctx context.Context, c *tool.Call) (tool.Result, error) {
			tool.Detach(ctx, c)
			c.Peer.Progress(3, 9, "")
			for range 3 {
				for range 10 {
					fmt.Fprint(c.Peer.Output(), strings.Repeat("x", 1000))
				}
				time.Sleep(time.Second)
			}
			c.Peer.Progress(4, 9, "")
			c.Peer.Log(slog.LevelInfo, "done")
			return printableText("done")
		}),
	}}
	visit(t, hosttest.Options{}, &w, func(t *testing.T, h *hosttest.Host) {
		for _, n := range []*notes{nil, {}} {
			r := request(t, h, "w_print", "")
			if n != nil {
				r.Notes = n
			}
			res, err := h.Calls.Do(t.Context(), r)
			if err != nil || len(res.Content) != 2 || res.Content[1].Size != 30_000 {
				t.Fatalf("got %+v (%v)", res.Content, err)
			}
			handle := strings.TrimPrefix(res.Content[1].URI, dispatch.SpoolURI)
			if c, err := h.Spool.Read(ann.Owner, handle, 0, 1<<20); err != nil || len(c.Data) != 30_000 {
				t.Errorf("spooled %d bytes (%v)", len(c.Data), err)
			}
			if n == nil {
				continue
			}
			want := []string{
				"detach",
				"3.000000/9 0 bytes",
				"3.000001/9 1000 bytes",
				"3.000002/9 4096 bytes",
				"3.000003/9 4096 bytes",
				"4.000000/9 0 bytes",
				`{"data":"done"}`,
			}
			if fmt.Sprint(n.told) != fmt.Sprint(want) {
				t.Errorf("told %q, want %q", n.told, want)
			}
		}
	})
}

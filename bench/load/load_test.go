package load

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// serve answers every request with what answer writes.
func serve(t *testing.T, answer http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	c, err := Dial(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestAnswersOfEverySizeAreRead(t *testing.T) {
	sizes := []int{0, 1, 500, 4 << 10, 100 << 10, 3, 1 << 20, 70}
	for _, chunked := range []bool{false, true} {
		turn := 0
		c := serve(t, func(w http.ResponseWriter, r *http.Request) {
			body := strings.Repeat("x", sizes[turn])
			if !chunked {
				w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			}
			for len(body) > 0 {
				n := min(len(body), 30_000)
				io.WriteString(w, body[:n])
				body = body[n:]
				if chunked {
					w.(http.Flusher).Flush()
				}
			}
		})
		for turn = range sizes {
			a, err := c.Do(Call(Legacy, "", "echo").Bytes())
			if err != nil {
				t.Fatalf("chunked %t, %d bytes: %v", chunked, sizes[turn], err)
			}
			if a.Status != 200 || len(a.Body) != sizes[turn] || len(bytes.Trim(a.Body, "x")) > 0 {
				t.Errorf(
					"chunked %t: got status %d and %d bytes, want 200 and %d",
					chunked,
					a.Status,
					len(a.Body),
					sizes[turn],
				)
			}
		}
	}
}

func TestEveryRequestHasAnIdOfItsOwn(t *testing.T) {
	seen := map[string]bool{}
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || seen[string(body)] {
			t.Errorf("got %s twice, or %v", body, err)
		}
		seen[string(body)] = true
		if got := r.Header.Get("Mcp-Session-Id"); got != "a-session" && got != "b-session" {
			t.Errorf("got session %q", got)
		}
		_, id, _ := strings.Cut(string(body), `"id":`)
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"text":"hello number %[1]s"}]}}`, id[:9])
	})
	found, err := Run([]*Client{c}, Call(Legacy, "a-session", "echo"), []string{"a-session", "b-session"}, 0, 50)
	if err != nil {
		t.Fatal(err)
	}
	if found.Calls != 50 || len(seen) != 50 {
		t.Errorf("made %d calls, %d of them different; want 50", found.Calls, len(seen))
	}
}

func TestAWrongAnswerIsNoticed(t *testing.T) {
	r := Call(Modern, "", "echo")
	r.Next("")
	right := `{"id":100000001,"result":{"content":[{"text":"hello number 100000001"}]}}`
	if err := r.Check(200, []byte(right)); err != nil {
		t.Fatal(err)
	}
	for name, answer := range map[string]string{
		"another id":   strings.Replace(right, `"id":100000001`, `"id":100000002`, 1),
		"another text": strings.Replace(right, "number 100000001", "number 100000002", 1),
		"a failure":    strings.Replace(right, `{"content"`, `{"isError":true,"content"`, 1),
		"an error":     `{"id":100000001,"error":{"code":-32000,"message":"hello number 100000001"}}`,
	} {
		if r.Check(200, []byte(answer)) == nil {
			t.Errorf("%s was taken for right: %s", name, answer)
		}
	}
	if r.Check(500, []byte(right)) == nil {
		t.Error("status 500 was taken for right")
	}
}

func TestAwaitCountsTheNotifiedStreams(t *testing.T) {
	notified := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, ": open\n\n")
		w.(http.Flusher).Flush()
		<-notified
		if r.Header.Get("Mcp-Session-Id") == "deaf" {
			panic(http.ErrAbortHandler)
		}
		io.WriteString(w, `data: {"method":"notifications/tools/list_changed"}`+"\n\n")
	}))
	defer s.Close()
	open, err := OpenStreams(s.Listener.Addr().String(), []string{"one", "deaf", "two"})
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	took, err := open.Await(10*time.Second, func() error { close(notified); return nil })
	if err != nil || len(took) != 2 {
		t.Errorf("%d of 3 were told, %v; want 2", len(took), err)
	}
}

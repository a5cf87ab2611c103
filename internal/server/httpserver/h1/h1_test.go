package h1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	nethttp "net/http"
	"strings"
	"testing"
	"time"
)

// serve runs a server until the test ends and returns a counter of the requests that net/http served.
func serve(t testing.TB, h nethttp.HandlerFunc) (addr string, s *Server) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	byRest := nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		w.Header().Set("By", "net/http")
		h(w, r)
	})
	s = &Server{Handler: h, Log: slog.New(slog.DiscardHandler), Rest: &nethttp.Server{Handler: byRest,
		ReadHeaderTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ln) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-ended; !errors.Is(err, nethttp.ErrServerClosed) {
			t.Errorf("Serve ended with %v", err)
		}
	})
	return ln.Addr().String(), s
}

func dial(t testing.TB, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(time.Minute))
	return c
}

func post(path, body string) string {
	return fmt.Sprintf(
		"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s",
		path,
		len(body),
		body,
	)
}

// answer reads one answer with its body.
func answer(t testing.TB, r *bufio.Reader) (*nethttp.Response, string) {
	t.Helper()
	resp, err := nethttp.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

func echo(w nethttp.ResponseWriter, r *nethttp.Request) {
	b, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s %s %d", r.Method, r.URL.Path, b, r.ContentLength)
}

func TestManyRequestsOnOneConnection(t *testing.T) {
	addr, _ := serve(t, echo)
	c := dial(t, addr)
	r := bufio.NewReader(c)
	for i := range 100 {
		body := strings.Repeat("x", i*37%2000)
		io.WriteString(c, post("/mcp", body))
		resp, got := answer(t, r)
		if want := fmt.Sprintf("POST /mcp %s %d", body, len(body)); got != want || resp.Header.Get("By") != "" {
			t.Fatalf("request %d: %s %.80q by %q", i, resp.Status, got, resp.Header.Get("By"))
		}
	}
}

func TestRequestsInOnePieceAndInManyAreTheSame(t *testing.T) {
	addr, _ := serve(t, echo)
	all := post("/a", "one") + post("/b", "") + post("/c", "three") + post("/c", strings.Repeat("y", 9000))
	for _, size := range []int{1, 7, 100, 1 << 20} {
		c := dial(t, addr)
		go func() {
			for rest := []byte(all); len(rest) > 0; {
				n := min(size, len(rest))
				c.Write(rest[:n])
				rest = rest[n:]
			}
		}()
		r := bufio.NewReader(c)
		for _, want := range []string{"POST /a one 3", "POST /b  0", "POST /c three 5",
			"POST /c " + strings.Repeat("y", 9000) + " 9000"} {
			if _, got := answer(t, r); got != want {
				t.Errorf("in pieces of %d: got %.60q, want %.60q", size, got, want)
			}
		}
	}
}

// From the first request that is not plain, net/http serves the connection, and no byte is lost.
//
//redteam:attack A request is read in one way: requests of doubtful form, in pipelines and in pieces
func TestWhatIsNotPlainIsLeftToNetHTTP(t *testing.T) {
	addr, _ := serve(t, echo)
	big := strings.Repeat("z", 2*largestBytes)
	for name, c := range map[string]struct{ send, want string }{
		"another method": {"PUT /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi", "PUT /x hi 2"},
		"a query":        {post("/x?a=b", "hi"), "POST /x hi 2"},
		"an escape":      {post("/%78", "hi"), "POST /x hi 2"},
		"a chunked body": {"POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", "POST /x hi -1"},
		"no length":      {"POST /x HTTP/1.1\r\nHost: localhost\r\n\r\n", "POST /x  0"},
		"a large body":   {post("/x", big), "POST /x " + big + " 32768"},
		"HTTP/1.0": {"POST /x HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n" +
			"Content-Length: 2\r\n\r\nhi", "POST /x hi 2"},
		"bare line feeds": {"POST /x HTTP/1.1\nHost: localhost\nContent-Length: 2\n\nhi", "POST /x hi 2"},
		"words in a field": {"POST /x HTTP/1.1\r\nHost: localhost\r\nX: \xc3\xa4\r\nContent-Length: 2\r\n\r\nhi",
			"POST /x hi 2"},
	} {
		conn := dial(t, addr)
		r := bufio.NewReader(conn)
		io.WriteString(conn, post("/first", "1"))
		answer(t, r)
		go io.WriteString(conn, c.send+post("/last", "3"))
		resp, got := answer(t, r)
		if got != c.want || resp.Header.Get("By") != "net/http" {
			t.Errorf(
				"%s: %s %.60q by %q, want %.60q by net/http",
				name,
				resp.Status,
				got,
				resp.Header.Get("By"),
				c.want,
			)
		}
		if _, got := answer(t, r); got != "POST /last 3 1" {
			t.Errorf("%s: the request after it is answered %.60q", name, got)
		}
	}
}

//redteam:attack A request is read in one way: requests with two lengths and malformed heads
func TestNetHTTPRefusesWhatItRefuses(t *testing.T) {
	addr, _ := serve(t, echo)
	for name, head := range map[string]string{
		"two lengths": "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n" +
			"Content-Length: 3\r\n\r\nhi",
		"a length and chunks": "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n" +
			"Transfer-Encoding: gzip\r\n\r\nhi",
		"a length with a sign":   "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: +2\r\n\r\nhi",
		"two hosts":              "POST /x HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 2\r\n\r\nhi",
		"no host":                "POST /x HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi",
		"a blank before a colon": "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length : 2\r\n\r\nhi",
		"a folded line":          "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\tX: y\r\n\r\nhi",
	} {
		c := dial(t, addr)
		io.WriteString(c, head)
		c.(*net.TCPConn).CloseWrite()
		resp, got := answer(t, bufio.NewReader(c))
		if resp.StatusCode != 400 && resp.StatusCode != 501 {
			t.Errorf("%s: %s %q", name, resp.Status, got)
		}
	}
}

// Both servers send the same answer for each handler.
func TestAnswersAreThoseOfNetHTTP(t *testing.T) {
	handlers := map[string]nethttp.HandlerFunc{
		"nothing":      func(nethttp.ResponseWriter, *nethttp.Request) {},
		"a status":     func(w nethttp.ResponseWriter, _ *nethttp.Request) { w.WriteHeader(202) },
		"no content":   func(w nethttp.ResponseWriter, _ *nethttp.Request) { w.WriteHeader(204) },
		"not modified": func(w nethttp.ResponseWriter, _ *nethttp.Request) { w.WriteHeader(304) },
		"text":         func(w nethttp.ResponseWriter, _ *nethttp.Request) { io.WriteString(w, "text") },
		"a page":       func(w nethttp.ResponseWriter, _ *nethttp.Request) { io.WriteString(w, "<html>") },
		"twice": func(w nethttp.ResponseWriter,
			_ *nethttp.Request) {
			io.WriteString(w, "a")
			io.WriteString(w, "b")
		},
		"a late field": func(w nethttp.ResponseWriter, _ *nethttp.Request) {
			io.WriteString(w, "a")
			w.Header().Set("Late", "1")
		},
		"a wicked field": func(w nethttp.ResponseWriter, _ *nethttp.Request) {
			w.Header().Set("X", "a\r\nY: b")
			io.WriteString(w, "a")
		},
		"two fields": func(w nethttp.ResponseWriter, _ *nethttp.Request) { w.Header()["X"] = []string{"a", "b"} },
		"closing":    func(w nethttp.ResponseWriter, _ *nethttp.Request) { w.Header().Set("Connection", "close") },
		"a flush": func(w nethttp.ResponseWriter, _ *nethttp.Request) {
			io.WriteString(w, "a")
			w.(nethttp.Flusher).Flush()
			io.WriteString(w, "b")
		},
		"only a flush": func(w nethttp.ResponseWriter, _ *nethttp.Request) { w.(nethttp.Flusher).Flush() },
		"a length": func(w nethttp.ResponseWriter, _ *nethttp.Request) {
			w.Header().Set("Content-Length", "3")
			io.WriteString(w, "abc")
		},
		"length and flush": func(w nethttp.ResponseWriter, _ *nethttp.Request) {
			w.Header().Set("Content-Length", "3")
			w.(nethttp.Flusher).Flush()
			io.WriteString(w, "abc")
		},
		"a large answer": func(w nethttp.ResponseWriter,
			_ *nethttp.Request) {
			w.Write(bytes.Repeat([]byte("large "), 300_000))
		},
		"many pieces": func(w nethttp.ResponseWriter, _ *nethttp.Request) {
			for i := range 5000 {
				fmt.Fprintln(w, "this is line", i)
			}
		},
	}
	for name, h := range handlers {
		addr, _ := serve(t, h)
		ours := exchange(t, addr, post("/x", "hi"))
		theirs := exchange(t, addr, post("/x?", "hi"))
		theirs = strings.Replace(theirs, "By: net/http\n", "", 1)
		if ours != theirs {
			t.Errorf("%s: here\n%.600s\nby net/http\n%.600s", name, ours, theirs)
		}
	}
}

// exchange returns an answer in a form that can be compared. Each server may decide whether a body has
// chunks.
func exchange(t *testing.T, addr, request string) string {
	c := dial(t, addr)
	io.WriteString(c, request)
	r := bufio.NewReader(c)
	resp, body := answer(t, r)
	resp.Header.Del("Date")
	resp.Header.Del("Content-Length")
	var b strings.Builder
	fmt.Fprintln(&b, resp.Status)
	resp.Header.Write(&b)
	io.WriteString(c, post("/x?", "again"))
	_, err := nethttp.ReadResponse(r, nil)
	fmt.Fprintf(&b, "%d bytes, closes %v\n%s", len(body), err != nil, body)
	return strings.ReplaceAll(b.String(), "\r\n", "\n")
}

func TestAHandlerThatPromisedMoreClosesTheConnection(t *testing.T) {
	addr, _ := serve(t, func(w nethttp.ResponseWriter, _ *nethttp.Request) {
		w.Header().Set("Content-Length", "10")
		if _, err := io.WriteString(w, "123"); err != nil {
			t.Error(err)
		}
		if _, err := io.WriteString(w, "456789012"); !errors.Is(err, nethttp.ErrContentLength) {
			t.Errorf("writing more than was promised: %v", err)
		}
	})
	c := dial(t, addr)
	io.WriteString(c, post("/x", ""))
	resp, err := nethttp.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%q, %v, want a body that ends too soon", b, err)
	}
}

func TestAPanicClosesItsConnectionAlone(t *testing.T) {
	addr, _ := serve(t, func(_ nethttp.ResponseWriter, r *nethttp.Request) {
		if r.URL.Path == "/panic" {
			panic("for a test")
		}
	})
	other := dial(t, addr)
	c := dial(t, addr)
	io.WriteString(c, post("/panic", ""))
	if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
		t.Errorf("%q, %v, want nothing", b, err)
	}
	io.WriteString(other, post("/", ""))
	answer(t, bufio.NewReader(other))
}

func TestAClientThatLeavesIsNoticed(t *testing.T) {
	begun, gone := make(chan struct{}), make(chan struct{})
	addr, _ := serve(t, func(_ nethttp.ResponseWriter, r *nethttp.Request) {
		close(begun)
		<-r.Context().Done()
		close(gone)
	})
	c := dial(t, addr)
	io.WriteString(c, post("/", ""))
	<-begun
	c.Close()
	<-gone
}

func TestARequestThatComesDuringALongOneIsNotLost(t *testing.T) {
	long := make(chan struct{})
	addr, _ := serve(t, func(w nethttp.ResponseWriter, r *nethttp.Request) {
		if r.URL.Path == "/long" {
			select {
			case <-long:
			case <-r.Context().Done():
				t.Error("the client has not left")
			}
		}
		echo(w, r)
	})
	c := dial(t, addr)
	r := bufio.NewReader(c)
	io.WriteString(c, post("/long", "1"))
	time.Sleep(4 * watchAfter) // whether or not the watch has started must make no difference
	for i := range 3 {
		io.WriteString(c, post("/next", strings.Repeat("n", i)))
	}
	close(long)
	for _, want := range []string{"POST /long 1 1", "POST /next  0", "POST /next n 1", "POST /next nn 2"} {
		if _, got := answer(t, r); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestAConnectionCanBeTaken(t *testing.T) {
	addr, s := serve(t, func(w nethttp.ResponseWriter, r *nethttp.Request) {
		ctl := nethttp.NewResponseController(w)
		if r.URL.Path == "/late" {
			w.WriteHeader(200)
			ctl.Flush()
			time.Sleep(4 * watchAfter)
		}
		conn, rw, err := ctl.Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := w.Write([]byte("x")); !errors.Is(err, nethttp.ErrHijacked) {
			t.Errorf("writing to what was taken: %v", err)
		}
		go func() {
			line, err := rw.ReadString('\n')
			fmt.Fprintf(conn, "taken: %s%v", line, err)
			conn.Close()
		}()
	})
	for _, path := range []string{"/", "/late"} {
		c := dial(t, addr)
		io.WriteString(c, post(path, "")+"and ")
		time.Sleep(8 * watchAfter)
		io.WriteString(c, "more\n")
		b, err := io.ReadAll(c)
		if err != nil || !strings.Contains(string(b), "taken: and more\n<nil>") {
			t.Errorf("%s: %q, %v", path, b, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) != 0 {
		t.Errorf("%d connections are still the server's", len(s.conns))
	}
}

func TestShutdownWaitsForAnAnswerAndNotForTheIdle(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	addr, s := serve(t, func(w nethttp.ResponseWriter, r *nethttp.Request) {
		if r.URL.Path == "/busy" {
			close(begun)
			<-end
		}
		echo(w, r)
	})
	lazy, busy, rest := dial(t, addr), dial(t, addr), dial(t, addr)
	for _, c := range []net.Conn{lazy, rest} {
		io.WriteString(c, post(map[net.Conn]string{lazy: "/", rest: "/?"}[c], ""))
		answer(t, bufio.NewReader(c))
	}
	io.WriteString(busy, post("/busy", ""))
	<-begun
	down := make(chan error, 1)
	go func() { down <- s.Shutdown(context.Background()) }()
	for _, c := range []net.Conn{lazy, rest} {
		if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
			t.Errorf("an idle connection: %q, %v", b, err)
		}
	}
	select {
	case err := <-down:
		t.Errorf("Shutdown ended with %v while a request was being answered", err)
	default:
	}
	close(end)
	resp, _ := answer(t, bufio.NewReader(busy))
	if !resp.Close {
		t.Error("the last answer does not say that the connection closes")
	}
	if err := <-down; err != nil {
		t.Error(err)
	}
}

func TestAHeadIsRecognisedAgainOnlyWhenItIsTheSame(t *testing.T) {
	var r reader
	first := []byte(
		"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 12\r\nX: a\r\n\r\n" + strings.Repeat("b", 12),
	)
	h, v := r.readRequestHead(first)
	if v != plain {
		t.Fatal("not plain")
	}
	for _, c := range []struct {
		head string
		same bool
	}{
		{"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nX: a\r\n\r\n", true},
		{"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1234\r\nX: a\r\n\r\n", true},
		{"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nX: b\r\n\r\n", false},
		{"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nX: a\r\nY: a\r\n\r\n", false},
		{"POST /mcq HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nX: a\r\n\r\n", false},
		{"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3 \r\nX: a\r\n\r\n", false},
	} {
		got, ok := r.repeated([]byte(c.head))
		if ok != c.same {
			t.Errorf("%q is taken for the last head: %v", c.head, ok)
		}
		if ok && (got.size != len(c.head) || got.path != h.path || got.header.Get("X") != "a") {
			t.Errorf("%q is read as %+v", c.head, got)
		}
	}
}

func TestTheContextOfARequest(t *testing.T) {
	l := &clientContext{Context: context.WithValue(context.Background(), nethttp.ServerContextKey, "server")}
	child, cancel := context.WithTimeout(l, time.Hour)
	defer cancel()
	called := make(chan bool, 2)
	context.AfterFunc(l, func() { called <- true })
	stop := context.AfterFunc(l, func() { t.Error("what was stopped is called") })
	if !stop() || stop() {
		t.Error("stopping reports that it was done once")
	}
	if l.Err() != nil || child.Err() != nil || l.Value(nethttp.ServerContextKey) != "server" {
		t.Errorf("before its end: %v, %v", l.Err(), child.Err())
	}
	l.cancelContext()
	l.cancelContext()
	<-l.Done()
	<-child.Done()
	<-called
	context.AfterFunc(l, func() { called <- true })
	<-called
	if !errors.Is(child.Err(), context.Canceled) || !errors.Is(l.Err(), context.Canceled) {
		t.Errorf("after its end: %v, %v", l.Err(), child.Err())
	}
}

// Heads that differ from the previous one in some values only are not parsed completely again. The
// values of earlier requests do not change.
func TestHeadsThatAreAlikeAreReadByWhatDiffers(t *testing.T) {
	const text = "POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nMcp-Session-Id: %s\r\nAccept: x\r\n\r\n{}"
	var r reader
	one, _ := r.readRequestHead(fmt.Appendf(nil, text, "one"))
	session := one.header.Get("Mcp-Session-Id")
	if h, ok := r.varied(fmt.Appendf(nil, text, "another")); !ok || h.header.Get("Mcp-Session-Id") != "another" ||
		h.header.Get("Accept") != "x" {
		t.Errorf("%+v, %v", h, ok)
	}
	if session != "one" {
		t.Error("the request before has changed")
	}
	for _, other := range []string{"Host: a\r\n=Host: b\r\n", "Accept: x=Accepts: x", "Accept: x=Accept: \x00",
		"Length: 2=Length: +2", "POST /mcp=POST /mcq"} {
		r.readRequestHead(fmt.Appendf(nil, text, "one"))
		old, new, _ := strings.Cut(other, "=")
		if _, ok := r.varied([]byte(strings.Replace(fmt.Sprintf(text, "two"), old, new, 1))); ok {
			t.Errorf("%q for %q passes", new, old)
		}
	}
}

package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
)

// Tap passes HTTP requests on to a server, unchanged, and shows a Witness every message of the answers.
type Tap struct {
	proxy *httputil.ReverseProxy
	seen  Witness

	mu       sync.Mutex        // guards sessions
	sessions map[string]string // session id -> revision
}

// NewTap returns a Tap for the server at target. It does not change the Host header.
func NewTap(target *url.URL, seen Witness) *Tap {
	t := &Tap{seen: seen, sessions: map[string]string{}}
	t.proxy = &httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = target.Scheme, target.Host, r.In.Host
		},
		ModifyResponse: t.listen,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	}
	return t
}

// exchange contains what a request reveals about the messages that will answer it.
type exchange struct {
	revision string
	methods  map[string]string // id -> method
}

type exchangeKey struct{}

func (t *Tap) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{revision: r.Header.Get("MCP-Protocol-Version"), methods: map[string]string{}}
	if r.Method == http.MethodPost {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		x.note(body)
	}
	t.mu.Lock()
	if known := t.sessions[r.Header.Get("Mcp-Session-Id")]; known != "" {
		x.revision = known
	}
	t.mu.Unlock()
	t.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x)))
}

// note remembers the requests of a body; a body that is not JSON has none.
func (x *exchange) note(body []byte) {
	var batch []envelope
	if json.Unmarshal(body, &batch) != nil {
		var one envelope
		if json.Unmarshal(body, &one) != nil {
			return
		}
		batch = []envelope{one}
	}
	for _, e := range batch {
		if e.isRequest() {
			x.methods[string(e.ID)] = e.Method
		}
		if e.Params.Meta.Version != "" {
			x.revision = e.Params.Meta.Version
		}
	}
}

func (t *Tap) listen(r *http.Response) error {
	x, _ := r.Request.Context().Value(exchangeKey{}).(*exchange)
	if x == nil {
		return nil
	}
	kind := r.Header.Get("Content-Type")
	switch {
	case strings.HasPrefix(kind, "application/json"):
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if len(body) > 0 && strings.HasPrefix(r.Request.URL.Path, "/mcp") {
			t.see(x, r.Header.Get("Mcp-Session-Id"), body)
		}
	case strings.HasPrefix(kind, "text/event-stream"):
		r.Body = t.events(x, r.Header.Get("Mcp-Session-Id"), r.Body)
	}
	return nil
}

func (t *Tap) see(x *exchange, session string, msg []byte) {
	var e envelope
	s := Sighting{Revision: x.revision, Message: msg}
	if json.Unmarshal(msg, &e) == nil && e.isResponse() {
		s.Answers = x.methods[string(e.ID)]
		if s.Answers == "initialize" && e.Result != nil {
			s.Revision = e.Result.ProtocolVersion
			t.mu.Lock()
			t.sessions[session] = s.Revision
			t.mu.Unlock()
		}
	}
	t.seen.See(s)
}

// events shows the data of a stream's events while they are passed on.
func (t *Tap) events(x *exchange, session string, body io.ReadCloser) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		lines := bufio.NewReader(r)
		var data []byte
		for {
			line, err := lines.ReadBytes('\n')
			line = bytes.TrimRight(line, "\r\n")
			switch rest, ok := bytes.CutPrefix(line, []byte("data:")); {
			case ok:
				data = append(data, bytes.TrimPrefix(rest, []byte(" "))...)
			case len(line) == 0 && len(data) > 0:
				t.see(x, session, data)
				data = nil
			}
			if err != nil {
				return
			}
		}
	}()
	return &tee{body, w}
}

// tee copies what is read to its writer, which never fails.
type tee struct {
	io.ReadCloser
	to *io.PipeWriter
}

func (t *tee) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if n > 0 {
		_, _ = t.to.Write(p[:n])
	}
	if err != nil {
		_ = t.to.Close()
	}
	return n, err
}

func (t *tee) Close() error {
	_ = t.to.Close()
	return t.ReadCloser.Close()
}

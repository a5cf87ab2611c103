package conformance

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
)

// Shim connects a suite that only supports HTTP to a newline-framed endpoint. All modern requests share one
// connection; each legacy session has its own, from initialize to DELETE.
//
// What HTTP adds to the protocol is made by the shim and proves nothing about the server: session ids, and status
// codes, which follow from the JSON-RPC error. Headers never reach the server.
type Shim struct {
	Dial func(context.Context) (io.ReadWriteCloser, error)
	Seen Witness // may be nil

	mu       sync.Mutex // guards what follows
	modern   *link
	sessions map[string]*link
}

// Close ends every connection.
func (s *Shim) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.sessions {
		l.close()
	}
	if s.modern != nil {
		s.modern.close()
	}
}

// envelope contains the members of a message that the shim and the witness need.
type envelope struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Meta struct {
			Version       string          `json:"io.modelcontextprotocol/protocolVersion"`
			ProgressToken json.RawMessage `json:"progressToken"`
			Subscription  json.RawMessage `json:"io.modelcontextprotocol/subscriptionId"`
		} `json:"_meta"`
		ProgressToken json.RawMessage `json:"progressToken"`
	} `json:"params"`
	Result *struct {
		ResultType      string          `json:"resultType"`
		ProtocolVersion string          `json:"protocolVersion"`
		Task            json.RawMessage `json:"task"`
	} `json:"result"`
	Error *struct {
		Code int `json:"code"`
	} `json:"error"`
}

func (e envelope) isRequest() bool  { return e.Method != "" && e.ID != nil }
func (e envelope) isResponse() bool { return e.Method == "" && e.ID != nil }

const modernRevision = "2026-07-28"

func (s *Shim) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPost:
		s.post(w, r)
	case http.MethodGet:
		s.get(w, r)
	case http.MethodDelete:
		s.delete(w, r)
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

func (s *Shim) post(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 32<<20))
	var e envelope
	if err == nil {
		err = json.Unmarshal(body, &e)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	l, session, err := s.link(r, e)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	if l == nil {
		http.Error(w, "no such session", http.StatusNotFound)
		return
	}
	if session != "" {
		w.Header().Set("Mcp-Session-Id", session)
	}
	if !e.isRequest() {
		if err := l.write(body); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		return
	}
	s.ask(w, r, l, e, body)
}

// link finds or opens the connection of a message; nil without an error means that its session has ended.
func (s *Shim) link(r *http.Request, e envelope) (l *link, newSession string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id := r.Header.Get("Mcp-Session-Id"); id != "" {
		return s.sessions[id], "", nil
	}
	if r.Header.Get("MCP-Protocol-Version") >= modernRevision || e.Params.Meta.Version != "" {
		if s.modern == nil {
			s.modern, err = s.open(r.Context(), modernRevision)
		}
		return s.modern, "", err
	}
	l, err = s.open(r.Context(), "")
	if err != nil {
		return nil, "", err
	}
	if s.sessions == nil {
		s.sessions = map[string]*link{}
	}
	newSession = rand.Text()
	s.sessions[newSession] = l
	return l, newSession, nil
}

func (s *Shim) open(ctx context.Context, revision string) (*link, error) {
	conn, err := s.Dial(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	l := &link{conn: conn, seen: s.Seen, revision: revision, waiting: map[string]*waiter{}}
	go l.read()
	return l, nil
}

// ask passes on a request and everything that the server sends for it.
func (s *Shim) ask(w http.ResponseWriter, r *http.Request, l *link, e envelope, body []byte) {
	wait := &waiter{
		id:     string(e.ID),
		method: e.Method,
		token:  string(e.Params.Meta.ProgressToken),
		ch:     make(chan []byte, 4096),
	}
	if err := l.awaitReply(wait, body); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	streaming := false
	for {
		select {
		case msg, open := <-wait.ch:
			switch {
			case !open && !streaming:
				http.Error(w, "the connection ended before the answer", http.StatusBadGateway)
				return
			case !open:
				return
			}
			var got envelope
			if err := json.Unmarshal(msg, &got); err != nil {
				http.Error(w, err.Error(), http.StatusBadGateway)
				return
			}
			if got.isResponse() && !streaming {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(status(l, got))
				_, _ = w.Write(msg)
				return
			}
			streaming = true
			event(w, msg)
			if got.isResponse() {
				return
			}
		case <-r.Context().Done():
			l.dropWaiter(wait)
			return
		}
	}
}

// status returns the HTTP status for an answer of the modern revision; older revisions put errors only into the
// body.
func status(l *link, e envelope) int {
	switch {
	case e.Error == nil || l.revision < modernRevision:
		return http.StatusOK
	case e.Error.Code == -32601:
		return http.StatusNotFound
	case e.Error.Code == -32603:
		return http.StatusInternalServerError
	default:
		return http.StatusBadRequest
	}
}

func event(w http.ResponseWriter, msg []byte) {
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "text/event-stream")
	}
	fmt.Fprintf(w, "data: %s\n\n", msg)
	_ = http.NewResponseController(w).Flush()
}

func (s *Shim) session(r *http.Request) *link {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[r.Header.Get("Mcp-Session-Id")]
}

// get serves the stream for messages that belong to no request.
func (s *Shim) get(w http.ResponseWriter, r *http.Request) {
	l := s.session(r)
	if l == nil {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	wait := &waiter{ch: make(chan []byte, 4096)}
	l.listen(wait)
	defer l.dropWaiter(wait)
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	for {
		select {
		case msg, open := <-wait.ch:
			if !open {
				return
			}
			event(w, msg)
		case <-r.Context().Done():
			return
		}
	}
}

func (s *Shim) delete(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get("Mcp-Session-Id")
	s.mu.Lock()
	l := s.sessions[id]
	delete(s.sessions, id)
	s.mu.Unlock()
	if l == nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	l.close()
	w.WriteHeader(http.StatusNoContent)
}

// oneLine removes line breaks, which JSON has only between its tokens.
func oneLine(msg []byte) []byte {
	return []byte(strings.NewReplacer("\n", " ", "\r", " ").Replace(string(msg)))
}

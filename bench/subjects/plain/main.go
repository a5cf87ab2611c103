// Command plain is what the wire costs: net/http and encoding/json doing the
// same work with no protocol at all. On lines it says again what it reads,
// as it is or, with -json, decoded and encoded.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"strconv"
	"sync"

	"gatehouse/bench/subject"
)

func main() {
	decodes := flag.Bool("json", false, "on lines, decode and encode what is said again")
	task := subject.Parse()
	p := &plain{streams: map[chan []byte]bool{}}
	p.addTools(task.Names())
	lines := echoLines
	if *decodes {
		lines = p.serveLines
	}
	task.Run(subject.Server{
		HTTP:  &http.Server{Handler: p},
		Lines: lines,
		Extra: map[string]func(string) error{"change": p.change},
	})
}

// echoLines writes every line back.
func echoLines(c io.ReadWriteCloser) error {
	defer c.Close()
	r := bufio.NewReader(c)
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if _, err := c.Write(line); err != nil {
			return err
		}
	}
}

// serveLines answers every line as if it were a body.
func (p *plain) serveLines(c io.ReadWriteCloser) error {
	defer c.Close()
	r := bufio.NewReader(c)
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		var q request
		if err := json.Unmarshal(line, &q); err != nil {
			return err
		}
		b, err := json.Marshal(response{"2.0", q.ID, said(q)})
		if err != nil {
			return err
		}
		if _, err := c.Write(append(b, '\n')); err != nil {
			return err
		}
	}
}

// said is the result of a call.
func said(q request) any {
	return struct {
		Content []content `json:"content"`
	}{[]content{{"text", q.Params.Arguments.Text}}}
}

type listed struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	InputSchema any    `json:"inputSchema"`
}

type plain struct {
	mu      sync.Mutex
	tools   []listed
	session int
	streams map[chan []byte]bool
}

func (p *plain) addTools(names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range names {
		p.tools = append(p.tools, listed{name, subject.Description, map[string]any{
			"type":       "object",
			"properties": map[string]any{"text": map[string]any{"type": "string", "description": "what to say"}},
			"required":   []string{"text"},
		}})
	}
}

type request struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name      string       `json:"name"`
		Arguments subject.Echo `json:"arguments"`
	} `json:"params"`
}

type response struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  any             `json:"result"`
}

type content struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

func (p *plain) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == "GET" {
		p.stream(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), 400)
		return
	}
	var q request
	if err := json.Unmarshal(body, &q); err != nil {
		http.Error(w, err.Error(), 400)
		return
	}
	if q.ID == nil {
		w.WriteHeader(202)
		return
	}
	var result any
	switch q.Method {
	case "tools/call":
		result = said(q)
	case "tools/list":
		p.mu.Lock()
		result = struct {
			Tools []listed `json:"tools"`
		}{p.tools}
		p.mu.Unlock()
	case "initialize":
		p.mu.Lock()
		p.session++
		w.Header().Set("Mcp-Session-Id", "00000000-0000-4000-8000-"+pad(p.session))
		p.mu.Unlock()
		result = map[string]any{
			"protocolVersion": "2025-11-25",
			"capabilities":    map[string]any{"tools": map[string]any{"listChanged": true}},
			"serverInfo":      map[string]string{"name": "plain", "version": "1"},
		}
	default:
		http.Error(w, "unknown method", 404)
		return
	}
	b, err := json.Marshal(response{"2.0", q.ID, result})
	if err != nil {
		http.Error(w, err.Error(), 500)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(b)
}

func pad(n int) string {
	s := strconv.Itoa(n)
	return "000000000000"[len(s):] + s
}

// stream is the usual way to keep an event stream open.
func (p *plain) stream(w http.ResponseWriter, r *http.Request) {
	c := make(chan []byte, 1)
	p.mu.Lock()
	p.streams[c] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.streams, c)
		p.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	ctl := http.NewResponseController(w)
	io.WriteString(w, ": open\n\n")
	ctl.Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case msg := <-c:
			io.WriteString(w, "data: ")
			w.Write(msg)
			io.WriteString(w, "\n\n")
			ctl.Flush()
		}
	}
}

// change tells every stream that the tools have changed.
func (p *plain) change(string) error {
	msg := []byte(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.streams {
		select {
		case c <- msg:
		default:
		}
	}
	return nil
}

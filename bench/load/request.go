package load

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// Era is which generation of the protocol a client speaks.
type Era string

// The revisions that are spoken.
const (
	Legacy Era = "2025-11-25"
	Modern Era = "2026-07-28"
)

// meta is what a modern request carries in its body.
const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`

// firstID has as many digits as every id after it, so that a request keeps
// its length.
const firstID = 100_000_000

// Request is an encoded request in which the id is changed in place.
type Request struct {
	raw     []byte
	ids     []int    // where the digits stand
	session int      // where the session's id stands; 0 if nowhere
	want    [][]byte // each ends with the id and one byte more
	also    [][]byte
	id      int
}

// Bytes are the request as it is sent.
func (r *Request) Bytes() []byte { return r.raw }

// Clone makes an independent copy whose ids begin elsewhere.
func (r *Request) Clone(begin int) *Request {
	n := *r
	n.raw = bytes.Clone(r.raw)
	n.want = nil
	for _, w := range r.want {
		n.want = append(n.want, bytes.Clone(w))
	}
	n.id = firstID + begin
	return &n
}

// Next gives the request a fresh id and, if session is not empty, another
// session.
func (r *Request) Next(session string) {
	r.id++
	var digits [12]byte
	d := strconv.AppendInt(digits[:0], int64(r.id), 10)
	for _, at := range r.ids {
		copy(r.raw[at:], d)
	}
	for _, w := range r.want {
		copy(w[len(w)-len(d)-1:], d)
	}
	if session != "" && r.session > 0 {
		copy(r.raw[r.session:], session)
	}
}

// Check says what is wrong with the answer to the request.
func (r *Request) Check(status int, body []byte) error {
	if status != 200 {
		return fmt.Errorf("status %d: %s", status, clip(body))
	}
	for _, w := range r.want {
		// The last byte of what is wanted ends the number or the string.
		if !bytes.Contains(body, w[:len(w)-1]) {
			return fmt.Errorf("the answer lacks %s: %s", w[:len(w)-1], clip(body))
		}
	}
	for _, w := range r.also {
		if !bytes.Contains(body, w) {
			return fmt.Errorf("the answer lacks %s: %s", w, clip(body))
		}
	}
	if bytes.Contains(body, []byte(`"isError":true`)) || bytes.Contains(body, []byte(`"error":{`)) {
		return fmt.Errorf("the tool failed: %s", clip(body))
	}
	return nil
}

func clip(b []byte) []byte { return b[:min(len(b), 400)] }

// Call is tools/call of a tool with a text that differs every time.
func Call(era Era, session, tool string) *Request {
	id := strconv.Itoa(firstID)
	body := `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{`
	if era == Modern {
		body += meta + ","
	}
	body += `"name":"` + tool + `","arguments":{"text":"hello number ` + id + `"}}}`
	r := newRequest(post(era, session, "tools/call", tool, body), session)
	r.want = [][]byte{[]byte(`"id":` + id + ","), []byte(`hello number ` + id + `"`)}
	return r
}

// Flood is a call of the tool of that name, with a token for its progress.
func Flood(session string) []byte {
	return []byte(
		post(
			Legacy,
			session,
			"tools/call",
			"flood",
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"flood","arguments":{},"_meta":{"progressToken":"p"}}}`,
		),
	)
}

// List is tools/list.
func List(era Era, session string) *Request {
	id := strconv.Itoa(firstID)
	body := `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/list","params":{`
	if era == Modern {
		body += meta
	}
	r := newRequest(post(era, session, "tools/list", "", body+"}}"), session)
	r.want = [][]byte{[]byte(`"id":` + id + ",")}
	return r
}

// Expect adds something every answer must hold.
func (r *Request) Expect(text string) { r.also = append(r.also, []byte(text)) }

func newRequest(raw, session string) *Request {
	r := &Request{raw: []byte(raw), id: firstID}
	id := []byte(strconv.Itoa(firstID))
	for from := 0; ; {
		i := bytes.Index(r.raw[from:], id)
		if i < 0 {
			break
		}
		r.ids = append(r.ids, from+i)
		from += i + len(id)
	}
	if session != "" {
		r.session = strings.Index(raw, session)
	}
	return r
}

// Line is a tools/call as a line.
func Line(era Era) *Request {
	r := Call(era, "", "echo")
	_, body, _ := strings.Cut(string(r.raw), "\r\n\r\n")
	l := newRequest(body+"\n", "")
	l.want = r.want
	return l
}

// Initialize is the legacy handshake's first message.
func Initialize() []byte {
	return []byte(post(Legacy, "", "initialize", "", initialize))
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`

// Initialized is its last.
func Initialized(session string) []byte {
	return []byte(post(Legacy, session, "notifications/initialized", "", ready))
}

const ready = `{"jsonrpc":"2.0","method":"notifications/initialized"}`

// Token is what every request brings. Gatehouse asks for it, the others read
// past it.
const Token = "bench-0123456789abcdef"

const credentials = "Authorization: Bearer " + Token + "\r\n"

// Stream opens the stream of a session.
func Stream(session string) []byte {
	return []byte(
		"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n" + credentials + "Mcp-Session-Id: " +
			session +
			"\r\nMCP-Protocol-Version: 2025-11-25\r\n\r\n",
	)
}

// CallAs is tools/call of a tool by the bearer of a token, in the legacy era.
func CallAs(token, session string, id int, tool, args string) []byte {
	body := fmt.Sprintf(
		`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s}}`,
		id,
		tool,
		args,
	)
	return as(token, []byte(post(Legacy, session, "tools/call", tool, body)))
}

// as gives a request another token.
func as(token string, request []byte) []byte {
	return bytes.Replace(request, []byte(Token), []byte(token), 1)
}

func post(era Era, session, method, name, body string) string {
	h := "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" +
		"Accept: application/json, text/event-stream\r\n" + credentials
	if method != "initialize" {
		h += "MCP-Protocol-Version: " + string(era) + "\r\n"
	}
	if session != "" {
		h += "Mcp-Session-Id: " + session + "\r\n"
	}
	if era == Modern {
		h += "Mcp-Method: " + method + "\r\n"
		if name != "" {
			h += "Mcp-Name: " + name + "\r\n"
		}
	}
	return h + "Content-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
}

// Open makes a session and returns its id.
func (c *Client) Open() (string, error) { return c.OpenAs(Token) }

// OpenAs is Open by the bearer of another token.
func (c *Client) OpenAs(token string) (string, error) {
	a, err := c.Do(as(token, Initialize()))
	if err != nil {
		return "", err
	}
	session := a.Header("Mcp-Session-Id")
	if a.Status != 200 || session == "" || !bytes.Contains(a.Body, []byte(`"protocolVersion"`)) {
		return "", fmt.Errorf("initialize: status %d: %s", a.Status, clip(a.Body))
	}
	a, err = c.Do(as(token, Initialized(session)))
	if err != nil {
		return "", err
	}
	if a.Status != 202 && a.Status != 200 {
		return "", fmt.Errorf("initialized: status %d: %s", a.Status, clip(a.Body))
	}
	return session, nil
}

// OpenSessions opens n sessions over the connections.
func OpenSessions(conns []*Client, n int) ([]string, error) {
	ids := make([]string, n)
	errs := make([]error, len(conns))
	var workers sync.WaitGroup
	for k, c := range conns {
		workers.Go(func() {
			for i := k; i < n && errs[k] == nil; i += len(conns) {
				ids[i], errs[k] = c.Open()
			}
		})
	}
	workers.Wait()
	return ids, errors.Join(errs...)
}

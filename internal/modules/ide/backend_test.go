package ide_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/modules/ide"
)

// backEnd is a strict fake of the back end of design C, by its published messages: {type, channel, sessionId, data,
// timestamp}. It repeats the id of a request in its answers if echo is set.
type backEnd struct {
	t    *testing.T
	echo bool

	mu    sync.Mutex
	conn  *websocket.Conn
	seen  []string // types of messages
	dials int
}

func (b *backEnd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer sesame" {
		http.Error(w, "who are you", http.StatusUnauthorized)
		return
	}
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		b.t.Error(err)
		return
	}
	defer conn.CloseNow()
	b.mu.Lock()
	b.conn = conn
	b.dials++
	b.mu.Unlock()
	for {
		_, raw, err := conn.Read(r.Context())
		if err != nil {
			return
		}
		var m struct {
			Type, Channel, SessionID, ID string
			Data                         json.RawMessage
			Timestamp                    time.Time
		}
		if err := json.Unmarshal(raw, &m); err != nil || m.Type == "" || m.Timestamp.IsZero() {
			b.t.Errorf("got %s, %v", raw, err)
		}
		b.mu.Lock()
		b.seen = append(b.seen, m.Type)
		b.mu.Unlock()
		id := ""
		if b.echo {
			id = m.ID
		}
		switch m.Type {
		case "session_create":
			b.say(`{"type":"session_create","id":"` + id + `","data":{"session":{"id":"s7","name":"try","status":"creating"}}}`)
		case "chat_send":
			var text string
			if json.Unmarshal(m.Data, &text) != nil || m.SessionID != "s7" || m.Channel != "chat:s7" {
				b.t.Errorf("got %s", raw)
			}
			if text == "vanish" {
				conn.CloseNow()
				return
			}
			if b.echo {
				b.say(`{"type":"chat_message","sessionId":"s7","id":"another","data":"not the answer"}`)
			}
			b.say(`{"type":"chat_message","sessionId":"other","data":"of another session"}`)
			b.say(`{"type":"chat_message","sessionId":"s7","id":"` + id + `","data":{"role":"assistant","content":"heard ` + text + `"}}`)
		case "plan_status":
			b.say(`{"type":"plan_status","sessionId":"s7","data":{"status":"in_progress","steps":[{"name":"dig","status":"completed"},{"name":"plant","status":"pending"}]}}`)
		default:
			b.t.Errorf("got %s", raw)
		}
	}
}

func (b *backEnd) say(message string) {
	b.mu.Lock()
	conn := b.conn
	b.mu.Unlock()
	if err := conn.Write(context.Background(), websocket.MessageText, []byte(message)); err != nil {
		b.t.Error(err)
	}
}

// An agent behind a WebSocket of design C answers, reports its plan, and is connected to again when the connection is
// lost, also if it does not repeat the ids of requests.
func TestABackEndBehindAWebSocket(t *testing.T) {
	for _, echo := range []bool{true, false} {
		end := &backEnd{t: t, echo: echo}
		s := httptest.NewServer(end)
		t.Cleanup(s.Close)
		p := newPerson(t, ide.Config{
			Settings: ide.Settings{
				Agents: []string{"core=ws" + strings.TrimPrefix(s.URL, "http") + "/ws"}, BackendToken: "${secret:CORE}",
			},
			Fill: func(in map[string]string) (map[string]secret.Text, error) {
				if in["token"] != "${secret:CORE}" {
					t.Errorf("got %v", in)
				}
				return map[string]secret.Text{"token": secret.New("sesame")}, nil
			},
		})
		id := p.create()
		if got := p.send(id, "hello"); got.Reply != "heard hello" || got.Status != "done" || got.Source != "live" {
			t.Fatalf("echo %v: got %+v", echo, got)
		}
		var plan struct {
			Status string
			Steps  []struct{ Name, Status string }
		}
		for end := time.Now().Add(time.Minute); len(plan.Steps) == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			p.call("ide_plan_status", map[string]any{"sessionId": id}, &plan)
		}
		if plan.Status != "in_progress" || len(plan.Steps) != 2 || plan.Steps[0].Name != "dig" {
			t.Errorf("echo %v: got %+v", echo, plan)
		}
		if text := p.refused("ide_chat_send", map[string]any{"sessionId": id, "message": "vanish"}); !strings.Contains(text, "was lost") {
			t.Errorf("echo %v: got %s", echo, text)
		}
		bad := "not tried"
		for end := time.Now().Add(time.Minute); bad != "" && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			bad = p.refused("ide_chat_send", map[string]any{"sessionId": id, "message": "back"})
		}
		if got := p.history(id); bad != "" || !strings.Contains(got, "assistant: heard back") {
			t.Errorf("echo %v: after the connection was lost: %s %s", echo, bad, got)
		}
		end.mu.Lock()
		if end.dials != 2 {
			t.Errorf("echo %v: %d connections", echo, end.dials)
		}
		end.mu.Unlock()
	}
}

func TestAddressesOfBackEnds(t *testing.T) {
	for line, ok := range map[string]bool{
		"a=ws://localhost:9876/ws": true, "a=ws://127.0.0.1:9876/ws": true, "a=ws://[::1]:1/": true, "a=wss://core.example/ws": true,
		"a=ws://core.example/ws": false, "a=ws://10.0.0.1/ws": false, "a=ws://": false, "a=wss://me:pw@core.example/": false,
	} {
		if err := ide.ParseAgents([]string{line}); (err == nil) != ok {
			t.Errorf("%s: %v", line, err)
		}
	}
}

package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// The suite has no scenario for notifications/tasks, so this is one: a subscriber of a task is notified of each new
// status, in the form of tasks/get, on the listen stream and tagged with it.
func TestTaskNotifications(t *testing.T) {
	h := needFixture(t)
	for endpoint, dial := range lineEndpoints(h.server.Endpoints, h.bin) {
		t.Run(endpoint, func(t *testing.T) {
			conn, err := dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ended := time.AfterFunc(patience, func() { conn.Close() })
			defer ended.Stop()
			said := make(chan []byte, 64)
			go func() {
				defer close(said)
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					said <- bytes.Clone(lines.Bytes())
				}
			}()
			ask := func(msg string) <-chan []byte {
				if _, err := conn.Write([]byte(msg + "\n")); err != nil {
					t.Error(err)
				}
				return said
			}
			h.followTask(t, ask)
		})
	}
	t.Run("http", func(t *testing.T) {
		h.followTask(t, func(msg string) <-chan []byte { return h.post(t, msg) })
	})
}

// post sends a message over HTTP and returns the messages of the answer as they arrive.
func (h *fixtureHost) post(t *testing.T, msg string) <-chan []byte {
	var e envelope
	var named struct {
		Params struct{ Name, TaskID string }
	}
	if json.Unmarshal([]byte(msg), &e) != nil || json.Unmarshal([]byte(msg), &named) != nil {
		t.Fatalf("no message: %s", msg)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, strings.NewReader(msg))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("MCP-Protocol-Version", modernRevision)
	r.Header.Set("Mcp-Method", e.Method)
	if name := named.Params.Name + named.Params.TaskID; name != "" {
		r.Header.Set("Mcp-Name", name)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan []byte, 64)
	go func() {
		defer close(said)
		defer resp.Body.Close()
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			if line := bytes.TrimPrefix(lines.Bytes(), []byte("data: ")); bytes.HasPrefix(line, []byte("{")) {
				said <- bytes.Clone(line)
			}
		}
	}()
	return said
}

const tasksMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}}`

// followTask starts a task that asks, subscribes to it, answers it, and waits for the notification that it has
// completed.
func (h *fixtureHost) followTask(t *testing.T, ask func(msg string) <-chan []byte) {
	t.Helper()
	before := h.judge.Objections()
	var created struct {
		Result struct{ TaskID, ResultType string }
	}
	h.next(
		t,
		ask(
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"confirm_delete","arguments":{"filename":"a.txt"},`+tasksMeta+`}}`,
		),
		"tools/call",
		&created,
	)
	id := created.Result.TaskID
	if created.Result.ResultType != "task" || id == "" {
		t.Fatalf("no task was made: %+v", created)
	}
	h.untilItAsks(t, ask, id)
	messages := ask(
		fmt.Sprintf(
			`{"jsonrpc":"2.0","id":"news","method":"subscriptions/listen","params":{"notifications":{"taskIds":[%q]},%s}}`,
			id,
			tasksMeta,
		),
	)
	var ack struct {
		Method string
		Params struct{ Notifications struct{ TaskIDs []string } }
	}
	h.next(t, messages, "", &ack)
	if ack.Method != "notifications/subscriptions/acknowledged" || len(ack.Params.Notifications.TaskIDs) != 1 {
		t.Fatalf("the subscription was acknowledged as %+v", ack)
	}
	acks := ask(
		fmt.Sprintf(
			`{"jsonrpc":"2.0","id":2,"method":"tasks/update","params":{"taskId":%q,"inputResponses":{"confirm":{"action":"accept","content":{"confirm":true}}},%s}}`,
			id,
			tasksMeta,
		),
	)
	if acks != messages {
		h.next(t, acks, "tasks/update", nil)
	}
	h.untilDone(t, messages, id)
	h.holdsUp(t, before)
}

// untilItAsks polls the task, as a client without subscriptions does.
func (h *fixtureHost) untilItAsks(t *testing.T, ask func(msg string) <-chan []byte, id string) {
	t.Helper()
	for i := range 300 {
		var got struct{ Result struct{ Status string } }
		h.next(
			t,
			ask(
				fmt.Sprintf(
					`{"jsonrpc":"2.0","id":%d,"method":"tasks/get","params":{"taskId":%q,%s}}`,
					100+i,
					id,
					tasksMeta,
				),
			),
			"tasks/get",
			&got,
		)
		if got.Result.Status == "input_required" {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("the task did not ask within 30 seconds")
}

func (h *fixtureHost) untilDone(t *testing.T, messages <-chan []byte, id string) {
	t.Helper()
	for {
		var status struct {
			Method string
			Params struct {
				TaskID, Status string
				Result         struct{ Content []struct{ Text string } }
				Meta           map[string]any `json:"_meta"`
			}
		}
		h.next(t, messages, "tasks/update", &status)
		if status.Method != "notifications/tasks" {
			continue // the answer to tasks/update, where all share one connection
		}
		if status.Params.TaskID != id || status.Params.Meta["io.modelcontextprotocol/subscriptionId"] != "news" {
			t.Errorf("told of another task, or without the subscription: %+v", status.Params)
		}
		if status.Params.Status == "completed" {
			if c := status.Params.Result.Content; len(c) != 1 || c[0].Text != "Deleted a.txt." {
				t.Errorf("the result told is %+v", c)
			}
			return
		}
	}
}

// next waits for a message, judges and decodes it.
func (h *fixtureHost) next(t *testing.T, said <-chan []byte, answers string, into any) {
	t.Helper()
	select {
	case msg, open := <-said:
		if !open {
			t.Fatal("the conversation ended")
		}
		h.judge.See(Sighting{Revision: modernRevision, Answers: answers, Message: msg})
		if into != nil {
			if err := json.Unmarshal(msg, into); err != nil {
				t.Fatalf("%v: %s", err, msg)
			}
		}
	case <-time.After(30 * time.Second):
		t.Fatal("nothing was said for 30 seconds")
	}
}

package dispatch_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"gatehouse/internal/access/audit"
	"gatehouse/internal/access/guardrail"
	"gatehouse/internal/dispatch"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

// lines is a ledger in memory.
type lines struct {
	mu  sync.Mutex
	all []audit.Entry
}

func (l *lines) Note(e audit.Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, e)
}

func (l *lines) Keep(_ context.Context, e audit.Entry) error { l.Note(e); return nil }
func (l *lines) Ready() error                                { return nil }

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	for _, e := range l.all {
		b.WriteString(e.Kind + " " + e.Outcome + " " + e.Rule + " " + e.Reason + " " + string(e.Args) + "\n")
	}
	return b.String()
}

type sendIn struct {
	Text string `json:"text"`
}

type sendOut struct {
	Sent  string   `json:"sent"`
	Lines []string `json:"lines"`
}

// guarded runs a test on a host with guardrails and three tools: one with structured output, one of texts, a relay.
func guarded(t *testing.T, s guardrail.Settings) (h *hosttest.Host, got *[]string, ledger *lines) {
	t.Helper()
	g, err := guardrail.New(guardrail.Options{Settings: s})
	if err != nil {
		t.Fatal(err)
	}
	got, ledger = new([]string), &lines{}
	w := &workshop{tools: []tool.Tool{
		tool.New(tool.Def{Name: "w_send", Description: "Sends.", Effects: tool.Writes},
			func(_ context.Context, c *tool.Call, in sendIn) (sendOut, error) {
				*got = append(*got, in.Text)
				if in.Text == "fail" {
					return sendOut{}, tool.Refuse(tool.CodeFailed, "no way to %s", secretly)
				}
				return sendOut{in.Text, []string{"to " + secretly}}, nil
			}),
		made("w_print", tool.Reads, func(_ context.Context, c *tool.Call) (tool.Result, error) {
			c.Peer.Progress(1, 2, "working on "+secretly)
			c.Peer.Log(slog.LevelInfo, json.RawMessage(`"`+secretly+`"`))
			c.Peer.Output().Write([]byte("printed " + secretly))
			return tool.Result{Content: []tool.Content{tool.Text("it is " + secretly),
				tool.BlobResource("file:///x", "text/plain", []byte("in a file "+secretly))}}, nil
		}),
		{
			Def: tool.Def{Name: "w_relay", Effects: tool.Reads, Raw: json.RawMessage(`{"name":"relay","inputSchema":{"type":"object"}}`)},
			Run: func(context.Context, *tool.Call) (tool.Result, error) {
				return tool.Result{Raw: json.RawMessage(`{"content":[{"type":"text","text":"x ` + secretly + `"}]}`)}, nil
			},
		},
	}}
	h = hosttest.New(t, hosttest.Options{Guards: g, Ledger: ledger, Modules: map[string]module.New{"w": w.make}})
	return h, got, ledger
}

const secretly = "ann.bird@mail.example.com"

func do(t *testing.T, h *hosttest.Host, name, args string) (dispatch.Result, string) {
	t.Helper()
	r := request(t, h, name, args)
	notes := &progressNotes{}
	r.Notes = notes
	res, err := h.Calls.Do(t.Context(), r)
	text, _ := json.Marshal(res)
	return res, first(t, res, err) + string(text) + string(res.Full) + notes.said
}

func (n *progressNotes) Log(_ slog.Level, data json.RawMessage) { n.said += string(data) }
func (n *progressNotes) Detach()                                {}
func (*progressNotes) Keep(map[string]json.RawMessage) bool     { return false }

// What a rule masks reaches no tool, no client, no progress and no ledger.
//
//redteam:attack Guardrails: what is masked leaves the host beside the result
func TestWhatIsMaskedGoesNowhere(t *testing.T) {
	h, got, ledger := guarded(t, guardrail.Settings{Scan: []guardrail.ScanRule{
		{Name: "mail", Find: []string{"email"}, Then: guardrail.Mask},
	}})
	for _, call := range [][2]string{
		{"w_send", `{"text":"write to ` + secretly + `"}`}, {"w_send", `{"text":"fail"}`}, {"w_print", `{}`}, {"w_relay", `{}`},
	} {
		_, said := do(t, h, call[0], call[1])
		if strings.Contains(said, secretly) || !strings.Contains(said, "[masked: email]") {
			t.Errorf("%v: %s", call, said)
		}
	}
	if (*got)[0] != "write to [masked: email]" {
		t.Errorf("the tool got %q", (*got)[0])
	}
	if text := ledger.text(); strings.Contains(text, secretly) ||
		!strings.Contains(text, "guardrail masked mail arguments contain email") ||
		!strings.Contains(text, "guardrail masked mail results contain email") {
		t.Errorf("the ledger has %s", text)
	}
}

func TestAGuardrailRefuses(t *testing.T) {
	h, got, ledger := guarded(t, guardrail.Settings{Scan: []guardrail.ScanRule{
		{Name: "mail", Contexts: []string{"default"}, Find: []string{"personal"}, Then: guardrail.Refuse},
	}})
	res, said := do(t, h, "w_send", `{"text":"`+secretly+`"}`)
	if !res.IsError || len(*got) != 0 || strings.Contains(said, secretly) || !strings.Contains(said, "nothing was run") {
		t.Errorf("%s, and the tool got %v", said, *got)
	}
	res, said = do(t, h, "w_send", `{"text":"hello"}`)
	if !res.IsError || len(*got) != 1 || strings.Contains(said, secretly) || !strings.Contains(said, "withheld") {
		t.Errorf("%s, and the tool got %v", said, *got)
	}
	if text := ledger.text(); strings.Contains(text, secretly) || strings.Count(text, "guardrail refused mail") != 2 {
		t.Errorf("the ledger has %s", text)
	}
}

// A warning changes nothing and is recorded. Without a rule for the context nothing is judged.
func TestAWarningIsRecorded(t *testing.T) {
	h, got, ledger := guarded(t, guardrail.Settings{Scan: []guardrail.ScanRule{
		{Name: "mail", Find: []string{"email"}, In: []string{guardrail.Arguments}, Then: guardrail.Warn},
		{Contexts: []string{"elsewhere"}, Find: []string{"email"}, Then: guardrail.Refuse},
	}})
	res, said := do(t, h, "w_send", `{"text":"`+secretly+`"}`)
	if res.IsError || (*got)[0] != secretly || !strings.Contains(ledger.text(), "guardrail warned mail arguments contain email") {
		t.Errorf("%s, %v, %s", said, *got, ledger.text())
	}
}

// What a hook rewrites has to be what the tool expects and promises.
func TestAHookRewrites(t *testing.T) {
	answer := ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, answer) }))
	defer s.Close()
	hook := guardrail.Hook{Name: "h", URL: s.URL, When: []string{"before"}}
	h, got, _ := guarded(t, guardrail.Settings{Hooks: []guardrail.Hook{hook}})
	answer = `{"decision":"rewrite","arguments":{"text":"another"}}`
	if res, said := do(t, h, "w_send", `{"text":"one"}`); res.IsError || (*got)[0] != "another" {
		t.Errorf("%s, %v", said, *got)
	}
	answer = `{"decision":"rewrite","arguments":{"text":7}}`
	if res, said := do(t, h, "w_send", `{"text":"one"}`); !res.IsError || len(*got) != 1 || !strings.Contains(said, "expects") {
		t.Errorf("%s, %v", said, *got)
	}
	hook.When = []string{"after"}
	h, _, _ = guarded(t, guardrail.Settings{Hooks: []guardrail.Hook{hook}})
	answer = `{"decision":"rewrite","result":{"structuredContent":{"sent":"x","lines":[]}}}`
	if res, said := do(t, h, "w_send", `{"text":"one"}`); res.IsError || !strings.Contains(string(res.Full), `"sent":"x"`) {
		t.Errorf("%s", said)
	}
	answer = `{"decision":"rewrite","result":{"structuredContent":{"sent":1}}}`
	if res, said := do(t, h, "w_send", `{"text":"one"}`); !res.IsError || !strings.Contains(said, "withheld") {
		t.Errorf("%s", said)
	}
	answer = `{"decision":"rewrite","result":{"content":[{"type":"text","text":"new"}]}}`
	if res, said := do(t, h, "w_relay", `{}`); res.IsError || !strings.Contains(string(res.Raw), "new") {
		t.Errorf("%s", said)
	}
}

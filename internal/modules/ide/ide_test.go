package ide_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/exec/rpc"
	"gatehouse/internal/files/index"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/modules/build"
	"gatehouse/internal/modules/ide"
	"gatehouse/internal/modules/rag"
	"gatehouse/internal/tests/editors"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/module/moduletest"
)

// A fast agent is this test program, started with fakeAgent.
const fakeAgent = "fake-agent"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == fakeAgent {
		serveAgent()
		return
	}
	os.Exit(m.Run())
}

// serveAgent repeats each prompt in three parts.
func serveAgent() {
	var conn *rpc.Conn
	ready := make(chan struct{})
	conn = rpc.New(rpc.Lines(os.Stdin, func(_ context.Context, b []byte) error { _, err := os.Stdout.Write(b); return err },
		1<<20, os.Stdin.Close), rpc.Handler{Request: func(ctx context.Context, method string, params json.RawMessage) (any, error) {
		<-ready
		switch method {
		case "initialize":
			return map[string]int{"protocolVersion": 1}, nil
		case "session/new":
			return map[string]string{"sessionId": "one"}, nil
		case "session/prompt":
			var p struct{ Prompt []struct{ Text string } }
			json.Unmarshal(params, &p)
			for _, part := range []string{"a", p.Prompt[0].Text, "z"} {
				conn.Notify(ctx, "session/update", map[string]any{"sessionId": "one", "update": map[string]any{
					"sessionUpdate": "agent_message_chunk", "content": map[string]string{"type": "text", "text": part},
				}})
			}
			return map[string]string{"stopReason": "end_turn"}, nil
		}
		return nil, rpc.NotFound(method)
	}})
	close(ready)
	<-conn.Done()
}

func TestTheModuleKeepsTheContract(t *testing.T) {
	moduletest.Run(t, ide.New(ide.Config{}), moduletest.Options{})
}

// person is a caller in a host with the modules ide and build.
type person struct {
	t    *testing.T
	dir  string
	host hosttest.Harness
	says hosttest.Answer
}

func newPerson(t *testing.T, cfg ide.Config) *person {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	set, err := roots.Open([]roots.Dir{{Path: dir}}, roots.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	h := hosttest.Harnesses()[1].Make(t, hosttest.Options{Roots: set, Modules: map[string]module.New{
		"ide": ide.New(cfg), "build": build.New(build.Config{}), "rag": rag.New(rag.Config{Store: cfg.Texts}),
	}})
	return &person{t, dir, h, nil}
}

// call calls a tool and decodes its result.
func (p *person) call(name string, args map[string]any, into any) {
	p.t.Helper()
	b, err := json.Marshal(args)
	if err != nil {
		p.t.Fatal(err)
	}
	r := hosttest.Call(p.host, name, string(b), p.says)
	if r.Error != nil || r.IsError() {
		p.t.Fatalf("%s %s: %v %s", name, b, r.Error, r.Text())
	}
	var result struct{ StructuredContent json.RawMessage }
	if err := json.Unmarshal(r.Result, &result); err != nil {
		p.t.Fatal(err)
	}
	if err := json.Unmarshal(result.StructuredContent, into); err != nil {
		p.t.Fatalf("%s: %v in %s", name, err, r.Result)
	}
}

// eventually waits until something holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after a minute: %s", what)
		}
	}
}

// refused calls a tool and returns the text of its refusal, or "".
func (p *person) refused(name string, args map[string]any) string {
	p.t.Helper()
	b, err := json.Marshal(args)
	if err != nil {
		p.t.Fatal(err)
	}
	if r := hosttest.Call(p.host, name, string(b), p.says); r.Error != nil || r.IsError() {
		return r.Text() + " "
	}
	return ""
}

type sent struct{ Status, Reply, StopReason, Source string }

func (p *person) create() string {
	p.t.Helper()
	var made struct{ Session struct{ ID, Status string } }
	p.call("ide_session_create", map[string]any{"name": "try"}, &made)
	if made.Session.ID == "" || made.Session.Status != "active" {
		p.t.Fatalf("got %+v", made)
	}
	return made.Session.ID
}

func (p *person) send(id, words string) (out sent) {
	p.t.Helper()
	p.call("ide_chat_send", map[string]any{"sessionId": id, "message": words}, &out)
	return out
}

func (p *person) history(id string) string {
	p.t.Helper()
	var out struct {
		Messages []struct{ Role, Content string }
	}
	p.call("ide_chat_history", map[string]any{"sessionId": id}, &out)
	var all []string
	for _, m := range out.Messages {
		all = append(all, m.Role+": "+m.Content)
	}
	return strings.Join(all, "\n")
}

// An agent on the protocol's own SDK answers, reports its plan, gets the answer of the person to its question, and this
// program as its MCP server. The chat outlives the host.
func TestARealAgent(t *testing.T) {
	tools := editors.Open(t)
	cfg := ide.Config{
		Settings: ide.Settings{Agents: []string{tools.Agent()}, Server: []string{"/opt/gatehouse", "-d"}},
		Path:     filepath.Join(t.TempDir(), "chats.db"),
	}
	p := newPerson(t, cfg)
	id := p.create()
	if got := p.send(id, "hello"); got.Reply != "you said hello" || got.Status != "done" || got.StopReason != "end_turn" || got.Source != "live" {
		t.Errorf("got %+v", got)
	}
	p.send(id, "plan")
	var plan struct {
		Status, Source string
		Steps          []struct{ Name, Status string }
	}
	p.call("ide_plan_status", map[string]any{"sessionId": id}, &plan)
	if len(plan.Steps) != 2 || plan.Steps[1].Name != "write the test" || plan.Status != "in_progress" || plan.Source != "live" {
		t.Errorf("got %+v", plan)
	}
	if got := p.send(id, "mcp"); !strings.Contains(got.Reply, `"command":"/opt/gatehouse","args":["-d","`+p.dir+`"]`) {
		t.Errorf("got %+v", got)
	}
	for answer, want := range map[string]string{
		`{"action":"accept","content":{"choice":"Allow"}}`: `"optionId":"y"`,
		`{"action":"decline"}`:                             `"optionId":"n"`,
	} {
		asked := ""
		p.says = func(method string, params json.RawMessage) json.RawMessage {
			asked = string(params)
			return json.RawMessage(answer)
		}
		if got := p.send(id, "ask"); !strings.Contains(got.Reply, want) || !strings.Contains(asked, "delete a.txt") {
			t.Errorf("%s: got %+v, asked %s", answer, got, asked)
		}
	}
	want := "user: hello\nassistant: you said hello\nuser: plan\nassistant: planned"
	if got := p.history(id); !strings.HasPrefix(got, want) || !strings.Contains(got, "tool: delete a.txt") {
		t.Errorf("got %s", got)
	}
	var over struct {
		Overview struct {
			ActiveSessions int
			BridgeOnline   bool
		}
	}
	if p.call("ide_dashboard_overview", nil, &over); over.Overview.ActiveSessions != 1 || !over.Overview.BridgeOnline {
		t.Errorf("got %+v", over)
	}
	p.host.Host().Stop()

	again := newPerson(t, cfg)
	if got := again.history(id); !strings.HasPrefix(got, want) {
		t.Errorf("after a restart: %s", got)
	}
	if again.call("ide_plan_status", map[string]any{"sessionId": id}, &plan); len(plan.Steps) != 2 || plan.Source != "cached" {
		t.Errorf("after a restart: %+v", plan)
	}
	if got := again.send(id, "hello"); got.Reply != "you said hello again" {
		t.Errorf("the agent did not load its session: %+v", got)
	}
	if got := again.history(id); strings.Contains(got, "an old answer") {
		t.Errorf("what the agent repeated was stored: %s", got)
	}
}

// A turn that takes longer than a call waits goes on.
func TestASlowTurnIsPending(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for 11 seconds")
	}
	tools := editors.Open(t)
	p := newPerson(t, ide.Config{Settings: ide.Settings{Agents: []string{tools.Agent()}}})
	id := p.create()
	if got := p.send(id, "slow"); got.Status != "pending" {
		t.Fatalf("got %+v", got)
	}
	for end := time.Now().Add(time.Minute); !strings.Contains(p.history(id), "assistant: at last"); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the answer did not come: %s", p.history(id))
		}
	}
}

// What was said in chats is found with rag_query.
func TestChatsAreSearched(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	texts := index.Open(filepath.Join(t.TempDir(), "index.db"), index.Options{})
	t.Cleanup(func() { texts.Close() })
	p := newPerson(t, ide.Config{Settings: ide.Settings{Agents: []string{"fast=" + exe + " " + fakeAgent}}, Texts: texts})
	first, second := p.create(), p.create()
	p.send(first, " The gearbox of the windmill is greased on Mondays. ")
	p.send(second, " Invoices leave the office by pigeon. ")
	p.send(second, " The pigeon is called Ada. ")
	for _, want := range []struct{ question, chat, holds string }{
		{"what is the pigeon called", second, "The pigeon is called Ada"},
		{"when is the gearbox greased", first, "greased on Mondays"},
	} {
		// An error until a chat is there, and the chats are taken up one after the other.
		eventually(t, "an answer to: "+want.question, func() bool {
			r := hosttest.Call(p.host, "rag_query", `{"collection":"chats","question":"`+want.question+`"}`, nil)
			return strings.Contains(r.Text(), index.ChatPrefix+want.chat) && strings.Contains(r.Text(), want.holds)
		})
	}
}

// No update of many turns is lost.
func TestManyTurns(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	turns := 1000
	if testing.Short() {
		turns = 100
	}
	p := newPerson(t, ide.Config{
		Settings: ide.Settings{Agents: []string{"fast=" + exe + " " + fakeAgent}}, Path: filepath.Join(t.TempDir(), "chats.db"),
	})
	id := p.create()
	var took []time.Duration
	for i := range turns {
		began := time.Now()
		if got := p.send(id, fmt.Sprint(i)); got.Reply != fmt.Sprintf("a%dz", i) {
			t.Fatalf("turn %d: %+v", i, got)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("%d turns: p50 %v, p95 %v", turns, took[turns/2], took[turns*95/100])
	if n := strings.Count(p.history(id), "assistant: a"); n != 25 {
		t.Errorf("%d answers among the last 50 messages, want 25", n)
	}
}

// The tools of builds and the dashboard answer from the builds that were run.
func TestBuildsAndDashboard(t *testing.T) {
	p := newPerson(t, ide.Config{})
	if err := os.WriteFile(filepath.Join(p.dir, "Makefile"), []byte("all:\n\t@echo hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var run struct{ ID, Status string }
	p.call("build_run", map[string]any{"wait": 45}, &run)
	var status struct {
		Build struct{ ID, Repo, Status string }
	}
	if p.call("ide_build_status", map[string]any{"buildId": run.ID}, &status); status.Build.Status != "success" {
		t.Errorf("got %+v", status)
	}
	var logs struct{ Lines []string }
	if p.call("ide_build_logs", map[string]any{"buildId": run.ID}, &logs); !slices.Equal(logs.Lines, []string{"hello"}) {
		t.Errorf("got %+v", logs)
	}
	var list struct{ Builds []struct{ ID string } }
	if p.call("ide_build_list", nil, &list); len(list.Builds) != 1 || list.Builds[0].ID != run.ID {
		t.Errorf("got %+v", list)
	}
	var numbers struct {
		Metrics struct {
			BuildsTotal, BuildsSuccess int
			SuccessRate                float64
		}
		Missing []string
	}
	p.call("ide_dashboard_metrics", nil, &numbers)
	if numbers.Metrics.BuildsTotal != 1 || numbers.Metrics.SuccessRate != 1 || !slices.Equal(numbers.Missing, []string{"metrics_query"}) {
		t.Errorf("got %+v", numbers)
	}
	var events struct{ Events []struct{ Type string } }
	if p.call("ide_dashboard_activity", nil, &events); len(events.Events) != 1 || events.Events[0].Type != "build.success" {
		t.Errorf("got %+v", events)
	}
	var state struct{ State map[string]any }
	p.call("ide_dashboard_update", map[string]any{"state": map[string]any{"a": 1, "b": map[string]any{"c": true}}}, &state)
	p.call("ide_dashboard_update", map[string]any{"state": map[string]any{"a": nil}}, &state)
	state.State = nil
	if p.call("ide_dashboard_state", nil, &state); len(state.State) != 1 || state.State["b"] == nil {
		t.Errorf("got %+v", state)
	}
}

package hosttest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/dispatch/toolsearch"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/modules/code"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/manager"
	"gatehouse/internal/sandbox/namespaces"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

// programTools are tools for programs. wrote counts the calls of pen_write that were answered.
type programTools struct {
	padModule
	wrote atomic.Int64
	most  atomic.Int64 // calls of pen_slow at once
	now   atomic.Int64
}

func (m *programTools) Offer(ctx context.Context, to module.Audience) (*module.Offer, error) {
	o, err := m.padModule.Offer(ctx, to)
	if err != nil {
		return nil, err
	}
	add := func(name string, e tool.Effects, f func(context.Context, *tool.Call, padIn) (padOut, error)) {
		o.Tools = append(o.Tools, tool.New(tool.Def{Name: name, Description: "A tool of tests.", Effects: e}, f))
	}
	add("pen_write", tool.Writes, func(_ context.Context, c *tool.Call, in padIn) (padOut, error) {
		a, err := c.Peer.Ask(tool.Elicit("sure", "Write "+in.Word+"?", json.RawMessage(
			`{"type":"object","properties":{"ok":{"type":"boolean"}}}`)))
		if err != nil {
			return padOut{}, err
		}
		if action, _ := tool.Elicited(a["sure"], nil); action != "accept" {
			return padOut{}, tool.Refuse(tool.CodeDeclined, "not written")
		}
		m.wrote.Add(1)
		return padOut{"wrote " + in.Word}, nil
	})
	add("pen_slow", tool.Reads, func(ctx context.Context, _ *tool.Call, in padIn) (padOut, error) {
		n := m.now.Add(1)
		defer m.now.Add(-1)
		for old := m.most.Load(); n > old && !m.most.CompareAndSwap(old, n); old = m.most.Load() {
		}
		wait := 100 * time.Millisecond
		if in.Word == "forever" {
			wait = time.Hour
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		return padOut{in.Word}, ctx.Err()
	})
	o.Tools = append(o.Tools, tool.New(tool.Def{Name: "pen_text", Description: "Returns text.", Effects: tool.Reads},
		func(_ context.Context, _ *tool.Call, in padIn) (tool.Result, error) {
			return tool.Result{Content: []tool.Content{tool.Text(in.Word)}}, nil
		}))
	return o, nil
}

// programHost is a host whose callers can run programs.
type programHost struct {
	hosttest.Harness
	t     *testing.T
	tools *programTools
	boxes *manager.Manager
}

// programs makes a host with the module code, and without a pool of sandboxes.
func programs(t *testing.T, n hosttest.Named, o hosttest.Options, s code.Settings) *programHost {
	t.Helper()
	return programsWith(t, n, o, s, true)
}

func programsWith(t *testing.T, n hosttest.Named, o hosttest.Options, s code.Settings, noPool bool) *programHost {
	t.Helper()
	needSandboxes(t)
	boxes := manager.New(manager.Options{
		Ladder: []manager.LadderEntry{{Name: namespaces.Name, Open: func() (sandbox.Driver, error) {
			return namespaces.New(namespaces.Options{})
		}}},
		NoPool: noPool, NewID: func(kind string) string { return fmt.Sprintf("%s_%d", kind, boxNumber.Add(1)) },
	})
	t.Cleanup(func() {
		if err := boxes.Close(); err != nil {
			t.Error(err)
		}
	})
	return programsIn(t, n, o, s, boxes)
}

// programsIn makes a host whose programs run in these sandboxes.
func programsIn(
	t *testing.T, n hosttest.Named, o hosttest.Options, s code.Settings, boxes *manager.Manager,
) *programHost {
	t.Helper()
	p := &programHost{t: t, tools: &programTools{}, boxes: boxes}
	if o.Modules == nil {
		o.Modules = map[string]module.New{}
	}
	maps.Copy(o.Modules, map[string]module.New{
		"pad": func(context.Context, module.Deps) (module.Module, error) { return p.tools, nil },
		"code": code.New(code.Config{
			Settings: s, Folder: t.TempDir(), Boxes: func() (*manager.Manager, error) { return boxes, nil },
			Tools: func(ctx context.Context, who tool.Caller) (toolsearch.Catalog, error) {
				return p.Host().Views.Catalog(ctx, who)
			},
			Claim: func(tool.Caller) (func(), error) { return func() {}, nil },
		}),
	})
	p.Harness = n.Make(t, o)
	return p
}

var boxNumber atomic.Int64

// run runs a program and returns the text of its result.
func (p *programHost) run(language, source string, answer hosttest.Answer) (string, hosttest.Reply) {
	p.t.Helper()
	args, _ := json.Marshal(map[string]any{"language": language, "code": source})
	r := hosttest.Call(p, "code_run", string(args), answer)
	if r.Error != nil {
		p.t.Fatalf("%v", r.Error)
	}
	var text strings.Builder
	text.WriteString(r.Text())
	for i := 1; r.Get("content", i, "text") != nil; i++ {
		text.WriteString("\n" + string(r.Get("content", i, "text")))
	}
	return text.String(), r
}

// has fails the test for each text that a result does not contain.
func has(t *testing.T, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("got %s\nwant %s in it", text, w)
		}
	}
}

func accept(string, json.RawMessage) json.RawMessage {
	return json.RawMessage(`{"action":"accept","content":{"ok":true,"approve":true}}`)
}

func modernClient() hosttest.Named { return hosttest.Harnesses()[1] }

// A program gets typed results, and text where a tool declares no schema. Errors are exceptions, several calls run at
// once, and only what is printed or returned comes back.
func TestProgramsCallTools(t *testing.T) {
	p := programs(t, modernClient(), hosttest.Options{Spec: &views.Spec{}}, code.Settings{})
	text, r := p.run("python", `
print(tools.pad_read(word="a")["said"])
print(type(tools.pen_text(word='{"a": 1}')).__name__)
try:
    tools.pad_read(word="")
except ToolError as e:
    print("refused:", e)
try:
    tools.pad_raed(word="x")
except ToolError as e:
    print("unknown:", e)
slow = [tools.pen_slow.later(word=str(i)) for i in range(20)]
print(sum(int(x["said"]) for x in tools.gather(*slow)))
import threading
got = []
all = [threading.Thread(target=lambda i=i: got.append(tools.pen_slow(word=str(i))["said"])) for i in range(10)]
[x.start() for x in all]; [x.join() for x in all]
print(sorted(got))
return {"n": len(got)}
`, nil)
	has(t, text, "pad_read a\n", "str\n", "refused: pad_read: invalid_arguments: word: expected a string of at least 1",
		"Did you mean pad_read?", "190\n", `['0', '1', '2'`, `{"n": 10}`, "pad_read (line 2)", "pen_slow x20 (line 12)",
		"pad_raed (line 9) failed")
	if n := p.tools.most.Load(); n < 10 {
		t.Errorf("%d calls ran at once", n)
	}
	if r.Get("structuredContent") != nil {
		t.Errorf("got %s", r.Result)
	}
	text, _ = p.run("javascript", `
console.log((await tools.pad_read({ word: "a" })).said)
console.log(typeof await tools.pen_text({ word: '{"a": 1}' }))
try { await tools.pad_read({ word: "" }) } catch (e) { console.log(e instanceof ToolError, e.message) }
const all = await Promise.all(Array.from({ length: 20 }, (_, i) => tools.pen_slow({ word: String(i) })))
return all.reduce((n, x) => n + Number(x.said), 0)
`, nil)
	has(t, text, "pad_read a\n", "string\n", "true pad_read: invalid_arguments", "190", "pen_slow x20 (line 5)")
	text, _ = p.run("typescript", `interface Page { said: string }
enum Kind { A = "a", B = "b" }
const word: Kind = Kind.B
const page = await tools.pad_read({ word }) as Page
try {
  await tools.pad_read({ word: "" })
} catch (e) { console.log((e as Error).message) }
return await tools.pad_clear({ word: page.said satisfies string })
throw new Error("x")
`, nil)
	has(
		t,
		text,
		"pad_read: invalid_arguments",
		`{"said":"pad_clear pad_read b"}`,
		"pad_read (line 4)",
		"pad_read (line 6) failed",
		"pad_clear (line 8)",
	)
	text, _ = p.run("typescript", "interface A { b: string }\n\nconst a: A = {b: 'x'}\nthrow new Error(a.b)", nil)
	has(t, text, "/tmp/tools/program.ts:4", "[error;")
	text, _ = p.run("typescript", "\nlet x: = 3", nil)
	has(t, text, "nothing was run", "line 2: Unexpected")
	text, _ = p.run("python", "x = 1\ntools.pad_read(word='')", nil)
	has(t, text, `File "/tmp/tools/program.py", line 2`, "ToolError: pad_read: invalid_arguments", "[error;")
	if strings.Contains(text, "tools.py") {
		t.Errorf("the traceback shows the host's own code: %s", text)
	}
}

// A question freezes the program; the answer reaches it, and nothing runs twice. Questions of concurrent calls come
// as one.
func TestProgramsAsk(t *testing.T) {
	for i, n := range hosttest.Harnesses()[:4] {
		if testing.Short() && i > 1 {
			break
		}
		t.Run(n.Name, func(t *testing.T) {
			p := programs(t, n, hosttest.Options{
				Spec: &views.Spec{ProgramsAsk: true}, Promote: 150 * time.Millisecond,
			}, code.Settings{})
			if !p.Traits().CanAsk() {
				text, _ := p.run("python", `
try:
    tools.pen_write(word="a")
except ToolError as e:
    print("no:", e)
`, nil)
				has(t, text, "no: pen_write: this needs a client that can answer")
				return
			}
			source := `
print(tools.pad_read(word="before"))
c = [tools.pen_write.later(word=w) for w in ("one", "two")]
print([x["said"] for x in tools.gather(*c)])
print(tools.pen_write(word="three")["said"])
try:
    tools.pen_write(word="four")
except ToolError as e:
    print("declined:", e)
`
			var asked []string
			answer := func(method string, params json.RawMessage) json.RawMessage {
				asked = append(asked, string(hosttest.Get(params, "message")))
				if strings.Contains(string(params), "four") {
					return json.RawMessage(`{"action":"decline"}`)
				}
				return accept(method, params)
			}
			text, r := p.run("python", source, answer)
			has(t, text, "['wrote one', 'wrote two']", "wrote three", "declined: pen_write: declined: not written",
				"pen_write x2 (line 3)")
			if len(asked) != 4 || p.tools.wrote.Load() != 3 {
				t.Errorf("asked %q, wrote %d", asked, p.tools.wrote.Load())
			}
			if p.Traits().Modern && r.Rounds != 4 {
				t.Errorf("%d rounds; the two questions did not come as one", r.Rounds)
			}
			later := "tools.pen_slow(word='x'); tools.pen_slow(word='y')\n" + source
			if p.Traits().Modern {
				_, r = p.run("python", later, answer)
			} else {
				args, _ := json.Marshal(map[string]any{"language": "python", "code": later})
				id := p.Start("code_run", string(args))
				r = p.Finish(id, answer)
				r.Task = id
			}
			if has(t, r.Text(), "['wrote one', 'wrote two']", "wrote three"); p.tools.wrote.Load() != 6 ||
				r.Task == "" {
				t.Errorf("as the task %q it wrote %d", r.Task, p.tools.wrote.Load()-3)
			}
		})
	}
}

// An approval in the middle shows the program, the line, the tool and its arguments. Without the permission of the
// view, neither tools that ask nor tools that need an approval can be called.
//
//redteam:attack One function says yes: a program calls what its caller cannot
func TestProgramsNeedApprovals(t *testing.T) {
	policy, err := permit.New(permit.Options{
		Default: permit.Allow,
		Rules: []permit.Rule{
			{Names: []string{"pad_clear"}, Then: permit.AskClient},
			{Names: []string{"pad_hidden"}, Then: permit.Refuse, Methods: []string{"*"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	source := `
def attempt(tool, word):
    try:
        return tool(word=word)["said"]
    except ToolError as e:
        return str(e)
print(attempt(tools.pad_clear, "x" * 5000 + "END"))
print(attempt(tools.pad_hidden, "a"))
print(attempt(tools.pen_write, "b"))
`
	p := programs(t, modernClient(), hosttest.Options{Policy: policy, Spec: &views.Spec{ProgramsAsk: true}},
		code.Settings{})
	var asked []string
	text, _ := p.run("python", source, func(method string, params json.RawMessage) json.RawMessage {
		asked = append(asked, string(params))
		return accept(method, params)
	})
	has(t, text, "pad_clear xxx", "unknown tool: pad_hidden", "wrote b")
	if len(asked) != 2 {
		t.Fatalf("asked %q", asked)
	}
	has(t, asked[0], "Allow pad_clear with", "xxxEND", "line 4", "print(attempt(tools.pad_hidden")

	p = programs(t, modernClient(), hosttest.Options{Policy: policy, Spec: &views.Spec{}}, code.Settings{})
	text, _ = p.run("python", source, func(string, json.RawMessage) json.RawMessage {
		t.Error("the user was asked")
		return nil
	})
	has(t, text, "pad_clear: denied: pad_clear: it needs an approval", "unknown tool: pad_hidden",
		"pen_write: this needs a client that can answer")
}

// A program cannot end or confuse the host by what it sends over the channel.
//
//redteam:attack One function says yes: a program sends hostile bytes over the channel of its calls
func TestHostileProgramsReachNothing(t *testing.T) {
	p := programs(t, modernClient(), hosttest.Options{Spec: &views.Spec{}}, code.Settings{Calls: 40})
	text, _ := p.run("python", `
import socket, struct, os, json
def send(*parts):
    s = socket.create_connection(("127.0.0.1", 7711))
    s.settimeout(10)
    for b in parts:
        try:
            s.sendall(b)
        except OSError:
            break
    try:
        s.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    got = b""
    try:
        while more := s.recv(65536):
            got += more
    except OSError:
        pass
    s.close()
    return got
def frame(v):
    b = v if isinstance(v, bytes) else json.dumps(v).encode()
    return struct.pack(">I", len(b)) + b
for bad in (os.urandom(1000), b"\xff" * 100, frame(b"{"), frame(b"[]"), frame({"id": 0, "tool": "x"}), frame({"id": 1}),
        frame({"id": -1, "tool": "pad_read"}), frame({"id": 1, "tool": "pad_read", "args": [1]}),
        frame({"id": 1, "tool": "x" * 1000}), frame({"id": 1, "tool": "pad_read", "owner": "root"}),
        frame({"id": 1, "tool": "pad_read", "args": {}, "result": 1}), struct.pack(">I", 1 << 31) + b"x",
        struct.pack(">I", 1000) + b"short", b"", frame(b"[" * 100000)):
    got = send(bad)
    assert b'"value"' not in got, got
# Answers of one connection never come on another, and a number may be used twice.
s = socket.create_connection(("127.0.0.1", 7711))
s.sendall(frame({"id": 7, "tool": "pad_read", "args": {"word": "a"}, "line": 99}) * 2)
data = b""
while data.count(b"pad_read a") < 2:
    data += s.recv(65536)
print(data.count(b'"id":7'), "answers")
print(tools.pad_read(word="still here")["said"])
n = 0
try:
    while True:
        tools.pad_read(word="more")
        n += 1
except LimitReached as e:
    print(n, e)
`, nil)
	has(t, text, "2 answers", "pad_read still here", "37 pad_read: a program may call tools 40 times")
}

// When the time of a program is up, its calls raise an exception. So does a question that is not answered in time,
// and the program goes on.
func TestProgramsExpire(t *testing.T) {
	p := programs(t, modernClient(), hosttest.Options{Spec: &views.Spec{}},
		code.Settings{Timeout: 700 * time.Millisecond})
	text, _ := p.run("python", `
try:
    tools.pen_slow(word="forever")
except Expired as e:
    print("late:", e)
`, nil)
	has(t, text, "late: pen_slow:", "[timeout;", "pen_slow (line 3) expired")
	text, _ = p.run("python", "while True: pass", nil)
	has(t, text, "[timeout;")
}

// A program that is saved, after the user has seen it, is a tool of its context alone, with arguments that are checked.
// It runs with the rules of its caller, and asks within.
func TestProgramsAreSaved(t *testing.T) {
	p := programs(t, modernClient(), hosttest.Options{Spec: &views.Spec{ProgramsAsk: true}}, code.Settings{})
	args, _ := json.Marshal(map[string]any{
		"name": "greet", "description": "Greets and writes.", "language": "python",
		"code":  "return tools.pen_write(word=args['who'])['said'] + ' ' + tools.pad_read(word=args['who'])['said']",
		"input": json.RawMessage(`{"type":"object","properties":{"who":{"type":"string"}},"required":["who"]}`),
	})
	no := hosttest.Call(p, "code_save", string(args), func(string, json.RawMessage) json.RawMessage {
		return json.RawMessage(`{"action":"decline"}`)
	})
	has(t, no.Text(), "the user did not agree")
	if r := hosttest.Call(p, "code_greet", `{"who":"a"}`, accept); r.Error == nil {
		t.Errorf("without approval there is the tool: %s", r.Result)
	}
	var asked []string
	yes := func(_ string, params json.RawMessage) json.RawMessage {
		asked = append(asked, string(params))
		return json.RawMessage(`{"action":"accept","content":{"ok":true,"confirm":true}}`)
	}
	has(t, string(hosttest.Call(p, "code_save", string(args), yes).Result), "code_greet")
	has(t, asked[0], "pen_write(word=args['who'])", "Greets and writes.", `\"who\"`)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if len(hosttest.Names(hosttest.List(t, p, "tools/list"), "name", "code_greet")) == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the tool is not listed")
		}
	}
	has(t, hosttest.Call(p, "code_greet", `{"who":"ann"}`, yes).Text(), "wrote ann pad_read ann")
	has(t, hosttest.Call(p, "code_greet", `{"who":1}`, yes).Text(), "invalid_arguments: who")
	if len(asked) != 2 {
		t.Errorf("asked %q", asked)
	}
	for _, bad := range []string{`{"name":"run","description":"x","language":"python","code":"x"}`,
		`{"name":"a","description":"x","language":"python","code":"x","input":{"type":"array"}}`,
		`{"name":"a","description":"x","language":"python","code":"x","input":{"type":"object","properties":3}}`} {
		has(t, hosttest.Call(p, "code_save", bad, yes).Text(), "invalid_arguments")
	}
	has(t, string(hosttest.Call(p, "code_remove", `{"name":"greet"}`, yes).Result), "code_greet")
}

// A call that waits for an operator freezes the program; the operator sees where it comes from. A question that nobody
// answers expires, and the program goes on.
func TestProgramsWaitForOperators(t *testing.T) {
	policy, err := permit.New(permit.Options{
		Default: permit.Allow, Rules: []permit.Rule{{Names: []string{"pad_clear"}, Then: permit.AskOperator}},
	})
	if err != nil {
		t.Fatal(err)
	}
	p := programs(t, modernClient(), hosttest.Options{Policy: policy, Spec: &views.Spec{ProgramsAsk: true}},
		code.Settings{Question: 5 * time.Second})
	store := p.Host().Approvals
	decided := make(chan string, 1)
	go func() {
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			waiting, err := store.Pending(false)
			if err != nil || len(waiting) == 0 {
				continue
			}
			store.Decide(waiting[0].ID, true, "root")
			decided <- waiting[0].Rule
			return
		}
		decided <- "nothing waits"
	}()
	text, _ := p.run("python", "print(len(tools.pad_clear(word='all' * 2000 + 'END')['said']))", nil)
	has(t, text, "6013\n", "pad_clear (line 1)")
	has(t, <-decided, "line 1, as the program states", "print(len(tools.pad_clear(word='all'", "allallEND")

	p = programs(t, modernClient(), hosttest.Options{Policy: policy, Spec: &views.Spec{ProgramsAsk: true}},
		code.Settings{Question: 300 * time.Millisecond})
	text, _ = p.run("python", `
try:
    tools.pad_clear(word="all")
except Expired as e:
    print("late:", e)
print(tools.pad_read(word="on")["said"])
`, nil)
	has(t, text, "late: pad_clear: its question was not answered within 300ms", "pad_read on\n",
		"pad_clear (line 3) expired")
}

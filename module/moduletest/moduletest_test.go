package moduletest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"gatehouse/internal/mcp/schema"
	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

func TestExample(t *testing.T) {
	t.Run("contract", testContract)
	t.Run("greet", testGreet)
}

// compiles holds a tool's schemas to the host's own compiler.
func compiles(t tool.Tool) error {
	for _, raw := range []json.RawMessage{t.Input, t.Output} {
		if _, err := schema.Compile(raw); err != nil {
			return err
		}
	}
	if t.In != nil {
		if _, err := schema.For(t.In); err != nil {
			return err
		}
	}
	if t.Out != nil {
		if _, err := schema.ForOutput(t.Out); err != nil {
			return err
		}
	}
	return nil
}

func TestProbesKeepTheContract(t *testing.T) {
	for name, make := range map[string]module.New{
		"typed":      moduletest.Typed,
		"relay":      moduletest.Relay,
		"changing":   moduletest.Changing(&moduletest.Board{}),
		"two rounds": moduletest.TwoRounds(func() (int, error) { return 1, nil }),
		"slow job":   moduletest.SlowJob,
	} {
		t.Run(name, func(t *testing.T) {
			o := moduletest.Options{Check: compiles}
			if name == "slow job" {
				o.Busy = map[string]json.RawMessage{"slow_wait": json.RawMessage(`{"forever":true}`)}
			}
			moduletest.Run(t, make, o)
		})
	}
}

// A call goes through its rounds as in a host: the effect once, each note
// once, answers through JSON.
func TestCallGoesThroughItsRounds(t *testing.T) {
	times := 0
	h := moduletest.NewHost(t)
	m, err := moduletest.TwoRounds(func() (int, error) { times++; return times, nil })(t.Context(), h.Deps())
	if err != nil {
		t.Fatal(err)
	}
	c := moduletest.NewCall(t)
	c.Peer.Answers["name"] = moduletest.Accept(map[string]any{"name": "Ada"})
	c.Peer.Answers["colour"] = moduletest.Accept(map[string]any{"colour": "red"})
	c.Peer.Answers["roots"] = json.RawMessage(`{"roots":[{"uri":"file:///a"},{"uri":"file:///b"}]}`)
	res, err := c.Tool(t.Context(), moduletest.Tool(t, m, "two_rounds"))
	if err != nil {
		t.Fatal(err)
	}
	out, _ := json.Marshal(res.Structured)
	if want := `{"name":"Ada","colour":"red","roots":2,"times":1}`; string(out) != want {
		t.Errorf("got %s, want %s", out, want)
	}
	if times != 1 || len(c.Peer.Asked) != 2 || len(c.Peer.Asked[1]) != 2 {
		t.Errorf("the effect ran %d times; asked %v", times, c.Peer.Asked)
	}
	if got := fmt.Sprint(c.Peer.Logged); got != `[{INFO "asking"} {INFO "working"} {INFO "done"}]` {
		t.Errorf("logged %s", got)
	}
	if got := fmt.Sprint(c.Peer.Progressed); got != "[{1 3 asking} {2 3 working} {3 3 done}]" {
		t.Errorf("progressed %s", got)
	}
}

func TestCallTellsWhatHasNoAnswer(t *testing.T) {
	ask := func(_ context.Context, c *tool.Call) (tool.Result, error) {
		_, err := c.Peer.Ask(tool.ListRoots("where"))
		return tool.Result{}, err
	}
	_, err := moduletest.NewCall(t).Run(t.Context(), ask)
	if err == nil || !strings.Contains(err.Error(), `"where" (roots/list)`) {
		t.Errorf("got %v, want an error that names the question", err)
	}
	c := moduletest.NewCall(t)
	c.Caller.Can = 0
	if _, err := c.Run(t.Context(), ask); err == nil || !strings.Contains(err.Error(), "can answer roots/list") {
		t.Errorf("got %v, want an error that names the ability", err)
	}
}

func TestDefaultsAreFilledIn(t *testing.T) {
	m, err := moduletest.Typed(t.Context(), moduletest.NewHost(t).Deps())
	if err != nil {
		t.Fatal(err)
	}
	res, err := moduletest.NewCall(t, "text", "ho").Tool(t.Context(), moduletest.Tool(t, m, "typed_repeat"))
	out, _ := json.Marshal(res.Structured)
	if want := `{"text":"ho\nho\n","times":2,"style":"plain"}`; err != nil || string(out) != want {
		t.Errorf("got %s, %v, want %s", out, err, want)
	}
}

func TestHostRemembers(t *testing.T) {
	h := moduletest.NewHost(t)
	h.Config = json.RawMessage(`{"depht":1}`)
	h.Tools = []tool.Tool{
		{Def: tool.Def{Name: "other"}, Run: func(_ context.Context, c *tool.Call) (tool.Result, error) {
			return tool.Result{Structured: string(c.Args)}, nil
		}},
	}
	d := h.Deps()
	var conf struct{ Depth int }
	if err := d.Config(&conf); err == nil || !strings.Contains(err.Error(), "depht") {
		t.Errorf("a misspelt setting gives %v", err)
	}
	c := moduletest.NewCall(t, "n", 1)
	res, err := d.Call(t.Context(), &c.Call, "other", json.RawMessage(`{"x":2}`))
	if err != nil || res.Structured != `{"x":2}` {
		t.Errorf("inner call: %v, %v", res.Structured, err)
	}
	if _, err := d.Call(t.Context(), &c.Call, "none", nil); err == nil {
		t.Error("a tool that is not there was called")
	}
	id, err := d.Job(&c.Call, "work", func(_ context.Context, c *tool.Call) (tool.Result, error) {
		return tool.Result{Structured: string(c.Args)}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := h.Wait(id); err != nil || res.Structured != `{"n":1}` {
		t.Errorf("job: %v, %v", res.Structured, err)
	}
	d.Publish("thing.done", map[string]int{"n": 1})
	d.Changed(module.Audience{Principal: "ada"})
	if got := fmt.Sprint(h.Facts(), h.Changed()); got != `[{thing.done {"n":1}}] [{ada }]` {
		t.Errorf("remembered %s", got)
	}
	if a, b := d.NewID("box"), d.NewID("box"); a == b || !strings.HasPrefix(a, "box_") {
		t.Errorf("ids %s and %s", a, b)
	}
}

func TestFolderKeepsCallsInside(t *testing.T) {
	r := moduletest.Folder(t)
	inside := r.List()[0].Path + "/a/b.txt"
	for path, want := range map[string]string{"a/../c": "c", inside: "a/b.txt", "../x": "", "/etc/passwd": ""} {
		_, name, err := r.Resolve(path)
		_, refused := errors.AsType[*tool.Refusal](err)
		if name != want || refused != (want == "") {
			t.Errorf("%s is resolved to %q, %v, want %q", path, name, err, want)
		}
	}
}

func TestSlowLinesAreWhatIsPrinted(t *testing.T) {
	m, err := moduletest.SlowJob(t.Context(), moduletest.NewHost(t).Deps())
	if err != nil {
		t.Fatal(err)
	}
	c := moduletest.NewCall(t, "bytes", 10_000, "piece", 700)
	if _, err := c.Tool(t.Context(), moduletest.Tool(t, m, "slow_print")); err != nil {
		t.Fatal(err)
	}
	if c.Peer.PrintedAll != 10_000 || !bytes.Equal(c.Peer.Printed[500:600], moduletest.SlowLine(500)) {
		t.Errorf("%d bytes printed, at 500 %q", c.Peer.PrintedAll, c.Peer.Printed[500:600])
	}
}

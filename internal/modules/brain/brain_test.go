package brain

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/files/index"
	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

func TestTheModuleKeepsTheContract(t *testing.T) {
	moduletest.Run(t, New(Config{}), moduletest.Options{})
}

// agent calls the tools of one module.
type agent struct {
	t      *testing.T
	module module.Module
	owner  string
}

func start(t *testing.T, path string) agent {
	store := index.Open(path, index.Options{})
	t.Cleanup(func() { store.Close() })
	m, err := New(Config{Store: store})(t.Context(), module.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	return agent{t, m, "ann/lab"}
}

func (a agent) call(name, args string, out any) string {
	a.t.Helper()
	c := moduletest.NewCall(a.t, args)
	c.Caller.Owner = a.owner
	_, c.Caller.Context = tool.SplitOwner(a.owner)
	return c.Ask(a.t, a.module, name, out)
}

func (a agent) remember(args string) (out rememberOut) {
	a.t.Helper()
	if bad := a.call("brain_remember", args, &out); bad != "" {
		a.t.Fatal(bad)
	}
	return out
}

func (a agent) recall(args string) []factOut {
	a.t.Helper()
	var out factsOut
	if bad := a.call("brain_recall", args, &out); bad != "" {
		a.t.Fatal(bad)
	}
	return out.Facts
}

func TestFactsAreRecalled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "i.db")
	a := start(t, path)
	a.remember(`{"text":"The staging server listens on port 8443.","source":"ops.md","subject":"staging.port"}`)
	a.remember(`{"text":"Ann prefers tabs over spaces.","kind":"preference"}`)
	again := start(t, path) // another host with the same file
	got := again.recall(`{"question":"Which port does staging use?"}`)
	if len(got) == 0 || !strings.Contains(got[0].Text, "8443") || got[0].Source != "ops.md" || got[0].Score <= 0 {
		t.Errorf("got %+v", got)
	}
	if got := a.recall(`{"question":"tabs","kind":"fact"}`); len(got) != 0 {
		t.Errorf("another kind is recalled: %+v", got)
	}
	if got := a.recall(`{"question":"zebra"}`); len(got) != 0 {
		t.Errorf("got %+v", got)
	}
	one, two := a.remember(`{"text":"same"}`), a.remember(`{"text":"same"}`)
	if one.ID != two.ID {
		t.Errorf("one fact was stored twice: %v %v", one, two)
	}
}

func TestContradictionsAreShown(t *testing.T) {
	a := start(t, "")
	first := a.remember(`{"text":"It is built with make.","subject":"build"}`)
	second := a.remember(`{"text":"It is built with bazel.","subject":"build"}`)
	if len(second.Contradicts) != 1 || second.Contradicts[0].ID != first.ID || second.Warning == "" {
		t.Errorf("got %+v", second)
	}
	for _, f := range a.recall(`{"question":"how is it built"}`) {
		if len(f.Contradicts) != 1 {
			t.Errorf("got %+v", f)
		}
	}
	if out := a.remember(`{"text":"It is built with go.","subject":"build","replace":true}`); out.Replaced != 2 {
		t.Errorf("got %+v", out)
	}
	if got := a.recall(`{"question":"how is it built"}`); len(got) != 1 || len(got[0].Contradicts) != 0 {
		t.Errorf("got %+v", got)
	}
}

func TestOldFactsCountLess(t *testing.T) {
	a := start(t, "")
	a.remember(`{"text":"The deploy failed.","half_life_days":0.0000001}`) // 9 ms
	a.remember(`{"text":"The deploy succeeded.","kind":"decision"}`)
	gone := a.remember(`{"text":"The deploy is paused.","expires_days":0.0000001}`)
	time.Sleep(200 * time.Millisecond)
	got := a.recall(`{"question":"deploy"}`)
	if len(got) == 0 || !strings.Contains(got[0].Text, "succeeded") {
		t.Errorf("got %+v", got)
	}
	for _, f := range got {
		if f.ID == gone.ID {
			t.Errorf("an expired fact is recalled: %+v", f)
		}
	}
}

func TestFactsBelongToTheirOwner(t *testing.T) {
	a := start(t, "")
	secret := a.remember(`{"text":"The launch is in May.","subject":"launch"}`)
	b, c := a, a
	b.owner, c.owner = "bob/lab", "ann/den"
	for _, other := range []agent{b, c} {
		if got := other.recall(`{"question":"launch May"}`); len(got) != 0 {
			t.Errorf("%s recalls %+v", other.owner, got)
		}
	}
	a.remember(`{"text":"The launch is in June.","shared":true}`)
	got := b.recall(`{"question":"launch"}`)
	if len(got) != 1 || !got[0].Foreign || !strings.Contains(got[0].Text, "June") {
		t.Errorf("got %+v", got)
	}
	var out forgetOut
	for _, args := range []string{`{"id":` + jsonOf(got[0].ID) + `}`, `{"id":` + jsonOf(secret.ID) + `}`,
		`{"subject":"launch"}`} {
		if bad := b.call("brain_forget", args, &out); !strings.HasPrefix(bad, "not_found") {
			t.Errorf("%s: another caller's fact was removed: %q", args, bad)
		}
	}
	if bad := a.call("brain_forget", `{"subject":"launch"}`, &out); bad != "" || out.Removed != 1 {
		t.Errorf("got %q %+v", bad, out)
	}
	if bad := a.call("brain_forget", `{}`, &out); !strings.HasPrefix(bad, "invalid_arguments") {
		t.Errorf("got %q", bad)
	}
	m := a.module.(module.Transferable)
	m.HandOver(t.Context(), func(string, time.Time) string { return "eve/lab" })
	eve := a
	eve.owner = "eve/lab"
	if got := eve.recall(`{"question":"launch"}`); len(got) != 1 || got[0].Foreign {
		t.Errorf("got %+v", got)
	}
	m.EndOwned(t.Context(), func(string, time.Time) bool { return true })
	if got := eve.recall(`{"question":"launch"}`); len(got) != 0 {
		t.Errorf("got %+v", got)
	}
}

func jsonOf(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func TestFactsAreAResource(t *testing.T) {
	a := start(t, "")
	offer, err := a.module.Offer(t.Context(), module.Audience{})
	if err != nil {
		t.Fatal(err)
	}
	r := offer.Resources[0]
	n := 0
	stop, err := r.Watch(tool.Caller{Owner: "ann/lab", Context: "lab"}, r.URI, func(json.RawMessage) { n++ })
	if err != nil {
		t.Fatal(err)
	}
	a.remember(`{"text":"The key is under the mat."}`)
	b := a
	b.owner = "bob/lab"
	b.remember(`{"text":"Bob's own."}`)
	if n != 1 {
		t.Errorf("%d changes were reported, want the one of its owner", n)
	}
	stop()
	a.remember(`{"text":"The key is gone."}`)
	if n != 1 {
		t.Error("a change was reported after the end")
	}
	c := moduletest.NewCall(t, `{}`)
	c.Caller.Owner, c.Caller.Context = "ann/lab", "lab"
	res, err := r.Read(t.Context(), &c.Call)
	if err != nil || len(res.Content) != 1 || !strings.Contains(res.Content[0].Text, "mat") ||
		strings.Contains(res.Content[0].Text, "Bob") {
		t.Errorf("got %+v, %v", res, err)
	}
}

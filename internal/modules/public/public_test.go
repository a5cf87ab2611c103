package public

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/state"
	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

// room is the module over a tree with a mount for everybody and one of which
// each sees what is theirs.
type room struct {
	t       testing.TB
	tree    *state.Tree
	offer   *module.Offer
	watches *Watches
	info    *state.Mount[map[string]any]
	things  *state.Mount[map[string]thing]
}

type thing struct {
	Owner string `json:"owner"`
	N     int    `json:"n"`
}

func options(t testing.TB) (Options, *room) {
	t.Helper()
	r := &room{t: t, tree: state.New(state.Options{}), watches: new(Watches)}
	var err error
	if r.info, err = state.Attach[map[string]any](t.Context(), r.tree, "/public/info", state.Live); err != nil {
		t.Fatal(err)
	}
	if r.things, err = state.Attach[map[string]thing](t.Context(), r.tree, "/public/things", state.Live); err != nil {
		t.Fatal(err)
	}
	private, err := state.Attach[string](t.Context(), r.tree, "/private/p", state.Live)
	if err != nil {
		t.Fatal(err)
	}
	private.Set(t.Context(), "hidden")
	r.info.Set(t.Context(), map[string]any{"name": "gate", "a/b": map[string]any{"~": 1, "é ?": []int{7, 8}}, "list": []string{"x"}})
	r.things.Set(t.Context(), map[string]thing{"1": {"ann", 1}, "2": {"bob", 2}})
	return Options{
		Tree: r.tree, Watches: r.watches,
		Everything: func(who tool.Caller) bool { return who.Principal == "root" },
		Own: []Own{{state.Pointer{"public", "things"}, func(who tool.Caller) func(string, any) bool {
			return func(_ string, m any) bool {
				c, _ := m.(map[string]any)
				return c["owner"] == who.Principal
			}
		}}},
		Prompt:   func(_ context.Context, who tool.Caller) string { return "for " + who.Principal },
		PromptOf: []state.Pointer{{"public", "info", "name"}, {"private", "p"}},
	}, r
}

func newRoom(t testing.TB) *room {
	t.Helper()
	o, r := options(t)
	m, err := New(o)(t.Context(), module.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if r.offer, err = m.Offer(t.Context(), module.Audience{}); err != nil {
		t.Fatal(err)
	}
	return r
}

func as(name string) tool.Caller {
	return tool.Caller{Principal: name, Context: "default", Owner: name + "/default"}
}

func (r *room) read(who, uri string) (string, error) {
	c := moduletest.NewCall(r.t)
	c.Name, c.Caller = uri, as(who)
	res, err := r.offer.Templates[0].Read(r.t.Context(), &c.Call)
	if err != nil {
		return "", err
	}
	if res.Meta[MetaRevision] == nil || res.Content[0].MIME != "application/json" || res.Content[0].URI != uri {
		r.t.Errorf("%s: %+v", uri, res)
	}
	var compact strings.Builder
	for line := range strings.Lines(res.Content[0].Text) {
		compact.WriteString(strings.TrimSpace(line))
	}
	return compact.String(), nil
}

func TestContract(t *testing.T) {
	o, _ := options(t)
	moduletest.Run(t, New(o), moduletest.Options{})
}

func TestEveryoneReadsTheirOwn(t *testing.T) {
	r := newRoom(t)
	const info = `"info": {"a/b": {"~": 1,"é ?": [7,8]},"list": ["x"],"name": "gate"}`
	for _, c := range []struct{ who, uri, want string }{
		{"ann", "", `{` + info + `,"things": {"1": {"n": 1,"owner": "ann"}}}`},
		{"root", "", `{` + info + `,"things": {"1": {"n": 1,"owner": "ann"},"2": {"n": 2,"owner": "bob"}}}`},
		{"eve", "/things", `{}`},
		{"ann", "/things/1", `{"n": 1,"owner": "ann"}`},
		{"ann", "/things/1/n", `1`},
		{"root", "/things/2/owner", `"bob"`},
		{"ann", "/info/name", `"gate"`},
		{"ann", "/info/a~1b/~0", `1`},
		{"ann", "/info/a~1b/%C3%A9%20%3F/1", `8`},
	} {
		if got, err := r.read(c.who, PublicURI+c.uri); err != nil || got != c.want {
			t.Errorf("%s reads %s: %s, %v; want %s", c.who, c.uri, got, err, c.want)
		}
	}
}

func TestWhatIsNotThereAndWhatIsNoAddress(t *testing.T) {
	r := newRoom(t)
	for uri, code := range map[string]string{
		PublicURI + "X":                       "not_found",
		"gatehouse:///private":                "not_found",
		"gatehouse:///private/p":              "not_found",
		"gatehouse://public":                  "not_found",
		"GATEHOUSE:///public":                 "not_found",
		"gatehouse:///%70ublic":               "not_found",
		"gatehouse:///../private":             "not_found",
		PublicURI + "/":                       "not_found",
		PublicURI + "/../private/p":           "not_found",
		PublicURI + "/nothing":                "not_found",
		PublicURI + "/info/list/1":            "not_found",
		PublicURI + "/info/list/00":           "not_found",
		PublicURI + "/info/":                  "not_found",
		PublicURI + "/things/2":               "not_found", // somebody else's
		PublicURI + "/things/2/n":             "not_found",
		PublicURI + "/info/%6Eame":            "invalid_arguments", // another way to write name
		PublicURI + "/info%2Fname":            "invalid_arguments",
		PublicURI + "/info/a%7E1b":            "invalid_arguments",
		PublicURI + "/info/a~1b/%c3%a9%20%3F": "invalid_arguments",
		PublicURI + "/info/a~1b/é":            "invalid_arguments",
		PublicURI + "/info/~2":                "invalid_arguments",
		PublicURI + "/info/%":                 "invalid_arguments",
		PublicURI + "/info/%FF":               "invalid_arguments",
		PublicURI + "/info?x":                 "invalid_arguments",
		PublicURI + "?x":                      "not_found",
		PublicURI + "/info#x":                 "invalid_arguments",
		PublicURI + "/info\x00":               "invalid_arguments",
	} {
		got, err := r.read("ann", uri)
		if ref, ok := errors.AsType[*tool.Refusal](err); !ok || ref.Code != code {
			t.Errorf("%q: %s, %v; want %s", uri, got, err, code)
		}
	}
}

// Each part of the tree has one address, and it is found by it.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{"", "/", "/a/b", "/%20", "/%2F", "/~0", "/é", "/a?b", "/%6e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := pointerOf(PublicURI + s)
		if err == nil && PublicURI+encoded(p[1:].String()) != PublicURI+s {
			t.Fatalf("%q is %q, whose address is %q", s, p, encoded(p[1:].String()))
		}
		if p, err := state.ParsePointer(s); err == nil && len(p) < state.MaxDepth {
			if q, err := pointerOf(PublicURI + encoded(s)); err != nil || q[1:].String() != s {
				t.Fatalf("%q: %q, %v", s, q, err)
			}
		}
	})
}

func TestCompletionProposesWhatTheCallerSees(t *testing.T) {
	r := newRoom(t)
	for _, c := range []struct{ who, typed, want string }{
		{"ann", "", "info things"},
		{"ann", "in", "info"},
		{"ann", "info/", "info/a~1b info/list info/name"},
		{"ann", "info/a~1b/", "info/a~1b/~0 info/a~1b/%C3%A9%20%3F"},
		{"ann", "info/list/", "info/list/0"},
		{"ann", "info/name/", ""},
		{"ann", "things/", "things/1"},
		{"root", "things/", "things/1 things/2"},
		{"ann", "things/2/", ""},
		{"ann", "../", ""},
		{"ann", "/", ""},
	} {
		call := moduletest.NewCall(t, map[string]any{"argument": "pointer", "value": c.typed})
		call.Caller = as(c.who)
		res, err := r.offer.Templates[0].Complete(t.Context(), &call.Call)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(res.Completion.Values, " "); got != c.want {
			t.Errorf("%s types %q: %s; want %s", c.who, c.typed, got, c.want)
		}
	}
}

// ear is a subscriber.
type ear struct {
	t    testing.TB
	told chan json.RawMessage
	stop func()
}

func (r *room) watch(who, uri string) *ear {
	r.t.Helper()
	e := &ear{t: r.t, told: make(chan json.RawMessage, 100)}
	stop, err := r.offer.Templates[0].Watch(as(who), uri, func(meta json.RawMessage) { e.told <- meta })
	if err != nil {
		r.t.Fatal(err)
	}
	e.stop = stop
	r.t.Cleanup(stop)
	return e
}

type told struct {
	Revision string          `json:"gatehouse/revision"`
	From     string          `json:"gatehouse/from"`
	Patch    json.RawMessage `json:"gatehouse/patch"`
	Again    bool            `json:"gatehouse/again"`
}

func (e *ear) next() (u told) {
	e.t.Helper()
	select {
	case m := <-e.told:
		if err := json.Unmarshal(m, &u); err != nil || u.Revision == "" {
			e.t.Fatalf("%s: %v", m, err)
		}
	case <-time.After(time.Minute):
		e.t.Fatal("nothing is told")
	}
	return u
}

func (e *ear) quiet() {
	e.t.Helper()
	time.Sleep(time.Minute)
	select {
	case m := <-e.told:
		e.t.Fatalf("told %s", m)
	default:
	}
}

// Who sees everything is told everything. The others share their watches, so
// they are told that there is something to read again, and what it is only
// where all of them see it.
func TestWatchesTellNobodyWhatIsNotTheirs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t)
		root, ann, part, own := r.watch("root", PublicURI), r.watch("ann", PublicURI), r.watch("ann", PublicURI+"/info"), r.watch("ann", PublicURI+"/things/1")
		state.Put(t.Context(), r.things, "2", thing{"bob", 9})
		state.Put(t.Context(), r.info, "name", any("new"))
		if u := root.next(); string(u.Patch) != `[{"op":"replace","path":"/info/name","value":"new"},{"op":"replace","path":"/things/2/n","value":9}]` || u.Again || u.From == "" {
			t.Errorf("root is told %+v", u)
		}
		if u := ann.next(); !u.Again || u.Patch != nil || u.From != "" {
			t.Errorf("ann is told %+v", u)
		}
		if u := part.next(); string(u.Patch) != `[{"op":"replace","path":"/name","value":"new"}]` || u.Again {
			t.Errorf("ann is told of a part %+v", u)
		}
		own.quiet()
		state.Put(t.Context(), r.things, "1", thing{"ann", 5})
		if u := own.next(); !u.Again || u.Patch != nil {
			t.Errorf("ann is told of her own %+v", u)
		}
		for _, e := range []*ear{root, ann, part, own} {
			e.stop()
			e.stop()
		}
	})
}

func TestWhatCannotBeWatched(t *testing.T) {
	r := newRoom(t)
	for _, uri := range []string{PublicURI + "X", PublicURI + "/~2", PublicURI + "/things/2", "gatehouse:///private/p"} {
		if _, err := r.offer.Templates[0].Watch(as("ann"), uri, func(json.RawMessage) {}); err == nil {
			t.Errorf("%s can be watched", uri)
		}
	}
}

func TestSyncTellsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t)
		ann, bob := r.watch("ann", PublicURI+"/info/name"), r.watch("bob", PublicURI+"/info")
		began := time.Now()
		r.watches.Sync("ann/default")
		if u := ann.next(); string(u.Patch) != `[]` || u.Again {
			t.Fatalf("told %+v", u)
		}
		synctest.Wait()
		if len(bob.told) != 0 {
			t.Fatal("bob is told although nothing has changed")
		}
		state.Put(t.Context(), r.info, "name", any("new"))
		r.watches.Sync("ann/default")
		if u := ann.next(); string(u.Patch) != `[{"op":"replace","path":"","value":"new"}]` {
			t.Fatalf("told %+v", u)
		}
		bob.next()
		if took := time.Since(began); took != 0 {
			t.Fatalf("told after %v", took)
		}
	})
}

func TestPrompt(t *testing.T) {
	r := newRoom(t)
	c := moduletest.NewCall(t)
	c.Name, c.Caller = PromptURI, as("ann")
	res, err := r.offer.Resources[1].Read(t.Context(), &c.Call)
	if err != nil || res.Content[0].Text != "for ann" || res.Content[0].MIME != "text/plain" {
		t.Fatalf("%+v, %v", res, err)
	}
}

// Whoever follows the text is told to read it again when what it is made of
// has changed, and at no other time; what is private in it is not told.
func TestThePromptIsToldToBeReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t)
		said := make(chan string, 10)
		stop, err := r.offer.Resources[1].Watch(as("ann"), PromptURI, func(meta json.RawMessage) { said <- string(meta) })
		if err != nil {
			t.Fatal(err)
		}
		state.Put(t.Context(), r.info, "other", any("new"))
		r.watches.Sync("ann/default")
		time.Sleep(time.Minute)
		if len(said) != 0 {
			t.Fatalf("told %s although the text is as it was", <-said)
		}
		state.Put(t.Context(), r.info, "name", any("new"))
		r.watches.Sync("ann/default")
		synctest.Wait()
		if len(said) != 1 {
			t.Fatalf("told %d times, want once", len(said))
		}
		if got := <-said; got != `{"gatehouse/again":true}` {
			t.Fatalf("told %s", got)
		}
		stop()
		state.Put(t.Context(), r.info, "name", any("newer"))
		time.Sleep(time.Minute)
		if len(said) != 0 || r.watches.Len() != 0 {
			t.Fatalf("after the end: %d told, %d watches open", len(said), r.watches.Len())
		}
	})
}

// What happens between reading and subscribing is told, in a patch for what
// was read, to the first who watches and to those who join.
func TestNothingIsLostBetweenReadingAndSubscribing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t)
		revisionOf := func(who string) string {
			t.Helper()
			c := moduletest.NewCall(t)
			c.Name, c.Caller = PublicURI+"/info", as(who)
			res, err := r.offer.Templates[0].Read(t.Context(), &c.Call)
			if err != nil {
				t.Fatal(err)
			}
			return strings.Trim(string(res.Meta[MetaRevision]), `"`)
		}
		read := revisionOf("ann")
		state.Put(t.Context(), r.info, "name", any("between"))
		first := r.watch("ann", PublicURI+"/info")
		if u := first.next(); u.From != read || string(u.Patch) != `[{"op":"replace","path":"/name","value":"between"}]` {
			t.Fatalf("ann, who read %s, is told %+v", read, u)
		}
		state.Put(t.Context(), r.info, "name", any("within a window"))
		read = revisionOf("bob") // he will share ann's watch
		if u := first.next(); u.Revision != read {
			t.Fatalf("told %+v, bob read %s", u, read)
		}
		state.Put(t.Context(), r.info, "name", any("after"))
		if u := first.next(); u.From != read {
			t.Fatalf("told %+v, bob read %s", u, read)
		}
		revisionOf("ann")
		first.stop()
		again := r.watch("ann", PublicURI+"/info") // nothing has happened
		again.quiet()
		for i := range 400 { // more than is remembered
			state.Put(t.Context(), r.info, "name", any(strings.Repeat("x", 5000+i)))
		}
		again.stop()
		if u := r.watch("ann", PublicURI+"/info").next(); !u.Again {
			t.Fatalf("told %+v", u)
		}
	})
}

func TestReadingsAreForgotten(t *testing.T) {
	r := newRoom(t)
	for i := range 2 * mostSeen {
		r.watches.read(as("ann"), PublicURI+strings.Repeat("x", i), func() state.Revision { return "r" })
	}
	if n := len(r.watches.seen); n != mostSeen {
		t.Fatalf("%d readings are remembered", n)
	}
}

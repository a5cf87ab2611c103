package publicstate

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/state"
	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

// fixture is the module on a tree with a mount for every caller and one of which
// each sees what is theirs.
type fixture struct {
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

func options(t testing.TB) (Options, *fixture) {
	t.Helper()
	r := &fixture{t: t, tree: state.New(state.Options{}), watches: new(Watches)}
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
	r.info.Set(
		t.Context(),
		map[string]any{"name": "gate", "a/b": map[string]any{"~": 1, "é ?": []int{7, 8}}, "list": []string{"x"}},
	)
	r.things.Set(t.Context(), map[string]thing{"1": {"ann", 1}, "2": {"bob", 2}})
	return Options{
		Tree: r.tree, Watches: r.watches,
		SeesAll: func(who tool.Caller) bool { return who.Principal == "root" },
		Restricted: []RestrictedMount{
			{At: state.Pointer{"public", "things"}, Sees: func(who tool.Caller) func(string, any) bool {
				return func(_ string, m any) bool {
					c, _ := m.(map[string]any)
					return c["owner"] == who.Principal
				}
			}},
		},
		Prompt:   func(_ context.Context, who tool.Caller) string { return "for " + who.Principal },
		PromptOf: []state.Pointer{{"public", "info", "name"}, {"private", "p"}},
	}, r
}

func newFixture(t testing.TB) *fixture {
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

func (r *fixture) read(who, uri string) (string, error) {
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
	r := newFixture(t)
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
	r := newFixture(t)
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
		PublicURI + "/things/2":               "not_found", // another caller's
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
		if ref, ok := errors.AsType[*tool.Refusal](err); !ok || string(ref.Code) != code {
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
		if err == nil && PublicURI+encodeURI(p[1:].String()) != PublicURI+s {
			t.Fatalf("%q is %q, whose address is %q", s, p, encodeURI(p[1:].String()))
		}
		if p, err := state.ParsePointer(s); err == nil && len(p) < state.MaxDepth {
			if q, err := pointerOf(PublicURI + encodeURI(s)); err != nil || q[1:].String() != s {
				t.Fatalf("%q: %q, %v", s, q, err)
			}
		}
	})
}

func TestCompletionProposesWhatTheCallerSees(t *testing.T) {
	r := newFixture(t)
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

func (r *fixture) watch(who, uri string) *ear {
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

// Everyone is told in patches what has changed of what they see, and nothing
// of the rest.
func TestWatchesTellNobodyWhatIsNotTheirs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t)
		root, ann, part, own := r.watch(
			"root", PublicURI,
		), r.watch("ann", PublicURI), r.watch("ann", PublicURI+"/info"), r.watch("ann", PublicURI+"/things/1")
		eve := r.watch("eve", PublicURI+"/things")
		state.Put(t.Context(), r.things, "2", thing{"bob", 9})
		state.Put(t.Context(), r.info, "name", any("new"))
		if u := root.next(); string(
			u.Patch,
		) != `[{"op":"replace","path":"/info/name","value":"new"},{"op":"replace","path":"/things/2/n","value":9}]` ||
			u.Again ||
			u.From == "" {
			t.Errorf("root is told %+v", u)
		}
		if u := ann.next(); string(u.Patch) != `[{"op":"replace","path":"/info/name","value":"new"}]` || u.Again ||
			u.From == "" {
			t.Errorf("ann is told %+v", u)
		}
		if u := part.next(); string(u.Patch) != `[{"op":"replace","path":"/name","value":"new"}]` || u.Again {
			t.Errorf("ann is told of a part %+v", u)
		}
		own.quiet()
		state.Put(t.Context(), r.things, "1", thing{"ann", 5})
		if u := own.next(); string(u.Patch) != `[{"op":"replace","path":"/n","value":5}]` || u.Again {
			t.Errorf("ann is told of her own %+v", u)
		}
		// What is given away is taken away from one and shown to the other.
		state.Put(t.Context(), r.things, "1", thing{"eve", 5})
		if u := own.next(); string(u.Patch) != `[{"op":"replace","path":"","value":null}]` {
			t.Errorf("ann, whose thing it was, is told %+v", u)
		}
		if u := eve.next(); string(u.Patch) != `[{"op":"add","path":"/1","value":{"n":5,"owner":"eve"}}]` {
			t.Errorf("eve, whose thing it is, is told %+v", u)
		}
		for _, e := range []*ear{root, ann, part, own, eve} {
			e.stop()
			e.stop()
		}
		if n := r.watches.Len(); n != 0 {
			t.Errorf("%d watches are open", n)
		}
	})
}

// A patch fits what the caller has read, and equal revisions mean equal states,
// also for callers who see a part.
func TestPatchesFitWhatEachHasRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t)
		revision := func(who tool.Caller) string {
			t.Helper()
			c := moduletest.NewCall(t)
			c.Name, c.Caller = PublicURI+"/things", who
			res, err := r.offer.Templates[0].Read(t.Context(), &c.Call)
			if err != nil {
				t.Fatal(err)
			}
			return strings.Trim(string(res.Meta[MetaRevision]), `"`)
		}
		ann := as("ann")
		ann.Session = "s1"
		before := revision(ann)
		state.Put(t.Context(), r.things, "2", thing{"bob", 77})
		if now := revision(ann); now != before {
			t.Errorf("what is bob's alone has changed ann's revision: %s, %s", before, now)
		}
		state.Put(t.Context(), r.things, "1", thing{"ann", 78})
		state.Put(t.Context(), r.things, "2", thing{"bob", 78})
		e := &ear{t: t, told: make(chan json.RawMessage, 100)}
		stop, err := r.offer.Templates[0].Watch(ann, PublicURI+"/things", func(m json.RawMessage) { e.told <- m })
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		if u := e.next(); u.From != before || string(u.Patch) != `[{"op":"replace","path":"/1/n","value":78}]` ||
			u.Revision != revision(ann) {
			t.Errorf("ann, who read %s, is told %+v and now reads %s", before, u, revision(ann))
		}
		e.quiet()
	})
}

// When a caller may see more or less than before, they are told as of any
// change.
func TestSightThatChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, r := options(t)
		var also atomic.Value
		also.Store("")
		own := o.Restricted[0].Sees
		o.Restricted[0].Sees = func(who tool.Caller) func(string, any) bool {
			mine := own(who)
			return func(key string, m any) bool { return mine(key, m) || key == also.Load() }
		}
		m, err := New(o)(t.Context(), module.Deps{})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close(context.Background())
		if r.offer, err = m.Offer(t.Context(), module.Audience{}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.read("ann", PublicURI+"/things"); err != nil {
			t.Fatal(err)
		}
		ann := r.watch("ann", PublicURI+"/things")
		also.Store("2")
		r.watches.Recheck()
		if u := ann.next(); string(u.Patch) != `[{"op":"add","path":"/2","value":{"n":2,"owner":"bob"}}]` {
			t.Errorf("told %+v", u)
		}
		also.Store("")
		r.watches.Recheck()
		if u := ann.next(); string(u.Patch) != `[{"op":"remove","path":"/2"}]` {
			t.Errorf("told %+v", u)
		}
		ann.stop()
		also.Store("2") // after reading, before subscribing
		if u := r.watch("ann", PublicURI+"/things").next(); !u.Again {
			t.Errorf("told %+v", u)
		}
	})
}

func TestWhatCannotBeWatched(t *testing.T) {
	r := newFixture(t)
	for _, uri := range []string{PublicURI + "X", PublicURI + "/~2", PublicURI + "/things/2",
		"gatehouse:///private/p"} {
		if _, err := r.offer.Templates[0].Watch(as("ann"), uri, func(json.RawMessage) {}); err == nil {
			t.Errorf("%s can be watched", uri)
		}
	}
}

func TestSyncTellsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t)
		ann, bob := r.watch("ann", PublicURI+"/info/name"), r.watch("bob", PublicURI+"/info")
		other := as("ann")
		other.Session = "elsewhere"
		e := &ear{t: t, told: make(chan json.RawMessage, 100)}
		stop, err := r.offer.Templates[0].Watch(other, PublicURI+"/info", func(m json.RawMessage) { e.told <- m })
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		began := time.Now()
		r.watches.Sync("ann/default", "")
		if u := ann.next(); string(u.Patch) != `[]` || u.Again {
			t.Fatalf("told %+v", u)
		}
		state.Put(t.Context(), r.info, "name", any("new"))
		r.watches.Sync("ann/default", "")
		if u := ann.next(); string(u.Patch) != `[{"op":"replace","path":"","value":"new"}]` {
			t.Fatalf("told %+v", u)
		}
		synctest.Wait()
		if took := time.Since(began); took != 0 {
			t.Fatalf("told after %v", took)
		}
		if len(bob.told) != 0 || len(e.told) != 0 {
			t.Fatal("others are told before their window is over")
		}
		bob.next()
		e.next()
		if took := time.Since(began); took != 500*time.Millisecond {
			t.Fatalf("others are told after %v", took)
		}
	})
}

func TestPrompt(t *testing.T) {
	r := newFixture(t)
	c := moduletest.NewCall(t)
	c.Name, c.Caller = PromptURI, as("ann")
	res, err := r.offer.Resources[1].Read(t.Context(), &c.Call)
	if err != nil || res.Content[0].Text != "for ann" || res.Content[0].MIME != "text/plain" {
		t.Fatalf("%+v, %v", res, err)
	}
}

// A subscriber of the text is told to read it again when what it is made of
// has changed, and at no other time; what is private in it is not told.
func TestThePromptIsToldToBeReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t)
		said := make(chan string, 10)
		stop, err := r.offer.Resources[1].Watch(
			as("ann"), PromptURI, func(meta json.RawMessage) { said <- string(meta) },
		)
		if err != nil {
			t.Fatal(err)
		}
		state.Put(t.Context(), r.info, "other", any("new"))
		r.watches.Sync("ann/default", "")
		time.Sleep(time.Minute)
		if len(said) != 0 {
			t.Fatalf("told %s although the text is as it was", <-said)
		}
		state.Put(t.Context(), r.info, "name", any("new"))
		r.watches.Sync("ann/default", "")
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
// was read, to the first subscriber and to later ones.
func TestNothingIsLostBetweenReadingAndSubscribing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t)
		in := func(session string) tool.Caller {
			who := as("ann")
			who.Session = session
			return who
		}
		revisionOf := func(who tool.Caller) string {
			t.Helper()
			c := moduletest.NewCall(t)
			c.Name, c.Caller = PublicURI+"/info", who
			res, err := r.offer.Templates[0].Read(t.Context(), &c.Call)
			if err != nil {
				t.Fatal(err)
			}
			return strings.Trim(string(res.Meta[MetaRevision]), `"`)
		}
		follow := func(who tool.Caller) *ear {
			t.Helper()
			e := &ear{t: t, told: make(chan json.RawMessage, 1000)}
			stop, err := r.offer.Templates[0].Watch(who, PublicURI+"/info", func(m json.RawMessage) { e.told <- m })
			if err != nil {
				t.Fatal(err)
			}
			e.stop = stop
			return e
		}
		one, two := in("one"), in("two")
		read := revisionOf(one)
		state.Put(t.Context(), r.info, "name", any("between"))
		first := follow(one)
		if u := first.next(); u.From != read ||
			string(u.Patch) != `[{"op":"replace","path":"/name","value":"between"}]` {
			t.Fatalf("the first, who read %s, is told %+v", read, u)
		}
		read = revisionOf(two)
		state.Put(t.Context(), r.info, "name", any("while the first follows"))
		first.next()
		second := follow(two)
		if u := second.next(); u.From != read ||
			string(u.Patch) != `[{"op":"replace","path":"/name","value":"while the first follows"}]` {
			t.Fatalf("the second, who read %s, is told %+v", read, u)
		}
		state.Put(t.Context(), r.info, "name", any("within a window"))
		read = revisionOf(one)
		if u := first.next(); u.Revision != read {
			t.Fatalf("told %+v, read was %s", u, read)
		}
		state.Put(t.Context(), r.info, "name", any("after"))
		if u := first.next(); u.From != read {
			t.Fatalf("told %+v, read was %s", u, read)
		}
		revisionOf(one)
		first.stop()
		again := follow(one) // nothing has happened
		again.quiet()
		for i := range 400 { // more than is remembered
			state.Put(t.Context(), r.info, "name", any(strings.Repeat("x", 5000+i)))
		}
		again.stop()
		second.stop()
		last := follow(one)
		if u := last.next(); !u.Again {
			t.Fatalf("told %+v", u)
		}
		last.stop()

		// Of two that cannot be told apart each may have read the older state.
		r.watch("ann", PublicURI+"/info").quiet()
		revisionOf(as("ann"))
		r.watch("ann", PublicURI+"/info").quiet()
		state.Put(t.Context(), r.info, "name", any("for the one"))
		revisionOf(as("ann"))
		if u := r.watch("ann", PublicURI+"/info").next(); !u.Again {
			t.Fatalf("told %+v", u)
		}
	})
}

func TestReadingsAreForgotten(t *testing.T) {
	r := newFixture(t)
	for i := range 2 * maxReads {
		r.watches.readState(as("ann"), PublicURI+strings.Repeat("x", i), func() state.Mark { return state.Mark{} })
	}
	if r.watches.lastRead(as("ann"), PublicURI+"/never") != state.Unknown {
		t.Error("who may have read something is taken for one that has not")
	}
	if n := len(r.watches.lastReads); n != maxReads {
		t.Fatalf("%d readings are remembered", n)
	}
}

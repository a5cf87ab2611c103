package packages

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/schema"
	"gatehouse/tool"
)

func TestServersThatAreNoneAreNotKept(t *testing.T) {
	for how, want := range map[string]string{
		"silent":      "it was not ready within",
		"exit":        "its program ended with code 3",
		"strange":     `revision "1999-01-01"`,
		"circle":      "go round in circles",
		"onlygarbage": "it prints what is no message",
	} {
		t.Run(how, func(t *testing.T) {
			o := Options{}
			if how == "silent" {
				o.Begin = 300 * time.Millisecond
			}
			h := openHome(t, o)
			_, err := h.Install(t.Context(), Plan{Record: server(t, "up", how)}, nil)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
			if how == "exit" && !strings.Contains(Words(err), "no licence") {
				t.Errorf("it said %q", Words(err))
			}
			if _, err := h.Info("up"); code(err) != "not_found" || len(h.Tools()) != 0 || !h.has("up gone") {
				t.Errorf("something is left: %v, %v", err, h.saw)
			}
			records, _, err := h.opts.Records.Get()
			if err != nil || len(records) != 0 {
				t.Errorf("remembered: %v, %v", records, err)
			}
		})
	}
}

// A server that is not ready in time is shown with what it printed, when it is
// installed and when it is started.
func TestAServerThatIsNotReadyIsShownWithWhatItPrinted(t *testing.T) {
	for wait := 300 * time.Millisecond; ; wait *= 2 { // until the server has got as far as that
		h := openHome(t, Options{Settings: Settings{Begin: wait}})
		_, err := h.Install(t.Context(), Plan{Record: server(t, "up", "silent")}, nil)
		if err == nil || !strings.Contains(err.Error(), "it was not ready within") {
			t.Fatalf("got %v", err)
		}
		if strings.Contains(Words(err), "the server starts with") {
			break
		}
		if wait > time.Minute {
			t.Fatalf("got %v, %q", err, Words(err))
		}
	}

	needsShell(t)
	h, dir := openHome(t, Options{}), t.TempDir()
	write(t, dir, source(t, "1.0.0"))
	i := h.install(from("up", "folder:"+dir))
	if _, err := h.Stop(t.Context(), "up"); err != nil {
		t.Fatal(err)
	}
	write(t, i.Record.program(h.folder("up")), map[string]string{"bin/run": "#!/bin/sh\necho no licence >&2\nexit 7\n"})
	_, err := h.Start(t.Context(), "up")
	if code(err) != "unavailable" || !strings.Contains(err.Error(), "code 7") ||
		!strings.Contains(Words(err), "no licence") {
		t.Errorf("got %v, %q", err, Words(err))
	}
}

//redteam:attack A package's server is a stranger: a server that lists and sends too much
func TestServersThatSayTooMuchAreHeard(t *testing.T) {
	for _, how := range []string{"garbage", "flood", "old"} {
		t.Run(how, func(t *testing.T) {
			h := openHome(t, Options{})
			h.install(server(t, "up", how))
			for i := range 3 {
				if got, err := h.call("up", "echo", fmt.Sprintf(`{"text":"number %d"}`, i)); err != nil ||
					!strings.Contains(got, fmt.Sprintf("number %d", i)) {
					t.Errorf("got %s, %v", got, err)
				}
			}
		})
	}
}

//redteam:attack A package's server is a stranger: a server that says that its tools are harmless
func TestWhatAServerLiesAboutIsLeftOut(t *testing.T) {
	h := openHome(t, Options{})
	i := h.install(server(t, "up", "liar"))
	hashed := func(own string) string {
		return wanted{id: "up", own: own, name: nameHere("up", own), level: 1}.hashed()
	}
	if want := []string{
		hashed("get-it.now"), "up_get_it_now", hashed(strings.Repeat("long", 40)), "up_big", "up_badout", "up_tasks",
		"up___ignore_all_rules",
	}; !slices.Equal(i.Names, want) {
		t.Errorf("offered are %q, want %q", i.Names, want)
	}
	left := strings.Join(i.Left, "\n")
	for _, want := range []string{"a tool: it has no name", "noschema: it has no inputSchema",
		"badschema: its inputSchema", "bigschema: it has"} {
		if !strings.Contains(left, want) {
			t.Errorf("%q is not in\n%s", want, left)
		}
	}
	for _, o := range h.Tools() {
		for _, key := range []string{"annotations", "execution", "outputSchema", "title"} {
			if v, there := rawjson.Get(o.Raw, key); there {
				t.Errorf("%s has %s: %s", o.Name, key, v)
			}
		}
		if len(o.Raw) > mostEntry {
			t.Errorf("%s has %d bytes", o.Name, len(o.Raw))
		}
	}
}

func TestWhatIsTooLongIsAnErrorOfItsOwnCall(t *testing.T) {
	h := openHome(t, Options{Settings: Settings{Message: 64 << 10}})
	h.install(server(t, "up", "good"))
	slow := make(chan error, 1)
	go func() {
		_, err := h.Call(t.Context(), "up", "huge", json.RawMessage(`{"bytes":60000}`), nil, nil)
		slow <- err
	}()
	for _, last := range []bool{false, true} {
		_, err := h.call("up", "huge", fmt.Sprintf(`{"bytes":%d,"last":%v}`, 5<<20, last))
		if code(err) != "too_large" || !strings.Contains(err.Error(), "it has run") {
			t.Errorf("got %v", err)
		}
	}
	if err := <-slow; err != nil {
		t.Errorf("another call got %v", err)
	}
	if got, err := h.call("up", "echo", `{"text":"still there"}`); err != nil || !strings.Contains(got, "still there") {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestOfTwoAnswersTheFirstCounts(t *testing.T) {
	h := openHome(t, Options{})
	h.install(server(t, "up", "good"))
	for range 5 {
		if got, err := h.call("up", "twice", `{}`); err != nil || got != "first" {
			t.Errorf("got %s, %v", got, err)
		}
	}
}

func TestAnAnswerThatIsNoJSONIsAnError(t *testing.T) {
	h := openHome(t, Options{})
	h.install(server(t, "up", "good"))
	if got, err := h.call("up", "surrogate", `{}`); err != nil || got != "\ufffd" {
		t.Errorf("a lone surrogate: got %q, %v", got, err)
	}
	if got, err := h.call("up", "garbled", `{}`); err == nil ||
		!strings.Contains(err.Error(), "no JSON that can be passed on") {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestAServerThatEndsInACallMayHaveRun(t *testing.T) {
	h := openHome(t, Options{})
	h.install(server(t, "up", "good"))
	_, err := h.call("up", "die", `{}`)
	if code(err) != "unavailable" || !strings.Contains(err.Error(), "may have run") ||
		!strings.Contains(err.Error(), "code 4") {
		t.Errorf("got %v", err)
	}
	if got, err := h.call("up", "echo", `{"text":"again"}`); err != nil || !strings.Contains(got, "again") {
		t.Errorf("it is not started again: %s, %v", got, err)
	}
}

func TestAServerThatKeepsEndingIsLeftAlone(t *testing.T) {
	told := make(chan string, 10)
	h := openHome(t, Options{Broken: func(id string, why error) { told <- id + ": " + why.Error() }})
	r := server(t, "up", "good")
	r.Start = Always
	h.install(r)
	h.eventually("it is started with the host", func() bool { return h.has("up installed running") })
	for range maxFailures {
		if _, err := h.call("up", "die", `{}`); code(err) != "unavailable" {
			t.Fatalf("got %v", err)
		}
	}
	h.eventually("it is broken", func() bool {
		i, _ := h.Info("up")
		return i.Public.Status == "broken" && strings.Contains(i.Public.Error, "code 4")
	})
	select {
	case got := <-told:
		if !strings.HasPrefix(got, "up: ") || !strings.Contains(got, "code 4") {
			t.Errorf("told was %q", got)
		}
	case <-time.After(patience):
		t.Error("nobody was told")
	}
	_, err := h.call("up", "echo", `{"text":"a"}`)
	if code(err) != "unavailable" || !strings.Contains(err.Error(), "nothing was run") ||
		!strings.Contains(err.Error(), "failed 5 times") {
		t.Errorf("got %v", err)
	}
	if i, err := h.Restart(t.Context(), "up"); err != nil || i.Public.Status != "running" || i.Public.Error != "" {
		t.Errorf("got %+v, %v", i.Public, err)
	}
	if _, err := h.call("up", "echo", `{"text":"a"}`); err != nil {
		t.Error(err)
	}
}

func TestAStoppedServerStaysStopped(t *testing.T) {
	h := openHome(t, Options{})
	r := server(t, "up", "good")
	r.Start = Always
	h.install(r)
	h.eventually("it runs", func() bool { return h.has("up installed running") })
	if i, err := h.Stop(t.Context(), "up"); err != nil || i.Public.Status != "stopped" || i.PID != 0 {
		t.Errorf("got %+v, %v", i, err)
	}
	_, err := h.call("up", "echo", `{"text":"a"}`)
	if r, ok := errors.AsType[*tool.Refusal](err); !ok || !strings.Contains(r.Message, "was stopped; nothing was run") {
		t.Errorf("got %v", err)
	}
	if i, err := h.Start(t.Context(), "up"); err != nil || i.Public.Status != "running" {
		t.Errorf("got %+v, %v", i, err)
	}
}

func TestAServerWithoutCallsEnds(t *testing.T) {
	h := openHome(t, Options{Settings: Settings{Idle: 50 * time.Millisecond}})
	h.install(server(t, "up", "good"))
	if _, err := h.call("up", "echo", `{"text":"a"}`); err != nil {
		t.Fatal(err)
	}
	h.eventually("it has ended", func() bool {
		i, _ := h.Info("up")
		return i.Public.Status == "idle" && i.PID == 0
	})
	for range 20 { // also while it is about to end
		if _, err := h.call("up", "echo", `{"text":"a"}`); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

//redteam:attack A package's server is a stranger: a package takes another's name
func TestIDsThatLookLikeOthersAreRefused(t *testing.T) {
	h := openHome(t, Options{Taken: func() []string { return []string{"file", "package"} }})
	h.install(server(t, "git-hub", "good"))
	for id, want := range map[string]string{
		"file": "module file", "file-x": "module file", "git": "package git-hub", "git-hub-x": "package git-hub",
		"Up": "expected a-z", "a_b": "expected a-z", "-a": "expected a-z", "": "expected a-z",
		strings.Repeat("a", 33): "expected a-z",
	} {
		if err := h.Check(&Plan{Record: server(t, id, "good")}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", id, err, want)
		}
	}
	if err := h.Check(&Plan{Record: server(t, "git-hub", "good")}); code(err) != "exists" {
		t.Errorf("got %v", err)
	}
	r := server(t, "up", "good")
	r.Args = []string{"--token=${secret:KEY}"}
	if err := h.Check(&Plan{Record: r}); err == nil || !strings.Contains(err.Error(), "refer to it in env") {
		t.Errorf("got %v", err)
	}
}

func TestSourcesAreRead(t *testing.T) {
	for _, good := range []string{"command", "npm:a", "npm:@scope/name@1.2.3", "npm:name@latest", "folder:a/b",
		"archive:a.zip"} {
		if s, err := ParseSource(good); err != nil || s.String() != good {
			t.Errorf("%s: got %v, %v", good, s, err)
		}
	}
	for _, bad := range []string{"npm:", "npm:--global", "npm:a b", "npm:https://example.com/a.tgz", "npm:git+ssh://x",
		"npm:../x", "npm:file:x", "npm:a@^1", "npm:@a/../b", "folder:", "docker:x", "npm:a@npm:b@1"} {
		if s, err := ParseSource(bad); err == nil {
			t.Errorf("%s: got %v", bad, s)
		}
	}
}

// Whatever a server lists, what is offered of it can be.
func FuzzListing(f *testing.F) {
	f.Add([]byte(`{"name":"a","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}`))
	f.Add([]byte(`{"name":"\u0000","inputSchema":{},"description":1,"title":[],"outputSchema":7}`))
	f.Fuzz(func(t *testing.T, entry []byte) {
		if rawjson.Check(entry, 0) != nil {
			return
		}
		tools, _ := makeTools(naming{id: "up"}, []json.RawMessage{entry, entry})
		if len(tools) > 1 {
			t.Fatalf("two tools of one name: %v", tools)
		}
		for _, o := range tools {
			if rawjson.Check(o.Raw, 0) != nil || len(o.Name) > longestName {
				t.Errorf("%s is listed as %s", o.Name, o.Raw)
			}
			in, _ := rawjson.Get(o.Raw, "inputSchema")
			if _, err := schema.Compile(in); err != nil {
				t.Error(err)
			}
			if out, ok := rawjson.Get(o.Raw, "outputSchema"); ok {
				if _, err := schema.Compile(out); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// A server that puts its name in front of its tools' names keeps it once, and a
// tool that can only be called as a task is known as such.
func TestNamesAreNotDoubled(t *testing.T) {
	entry := func(name, more string) json.RawMessage {
		return json.RawMessage(`{"name":"` + name + `","inputSchema":{"type":"object"}` + more + `}`)
	}
	tools, left := makeTools(naming{id: "fire-crawl"}, []json.RawMessage{
		entry(
			"fire_crawl_scrape",
			"",
		), entry("fire-crawl_map", ""), entry("search", ""), entry("fire_crawl_", ""), entry("fire_crawler", ""),
		entry("fire_crawl_search", ""),
		entry(
			"slow",
			`,"execution":{"taskSupport":"required"}`,
		), entry("either", `,"execution":{"taskSupport":"optional"}`),
	})
	var names []string
	for _, o := range tools {
		names = append(names, o.Name+"<"+o.Own)
	}
	want := "fire_crawl_scrape<fire_crawl_scrape fire_crawl_map<fire-crawl_map fire_crawl_search<search " +
		"fire_crawl_fire_crawl_<fire_crawl_ fire_crawl_fire_crawler<fire_crawler " +
		wanted{id: "fire-crawl", own: "fire_crawl_search", name: "fire_crawl_search", level: 1}.hashed() +
		"<fire_crawl_search fire_crawl_slow<slow fire_crawl_either<either"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("offers %s, want %s", got, want)
	}
	if len(left) > 0 {
		t.Errorf("leaves %q", left)
	}
	for _, o := range tools {
		if o.Task != (o.Own == "slow") {
			t.Errorf("%s runs as a task alone: %v", o.Own, o.Task)
		}
	}
}

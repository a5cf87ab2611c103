package pins

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/access/displaytext"
)

func TestHashCoversEveryMemberAndNoOrder(t *testing.T) {
	base := `{"name":"a","description":"d","inputSchema":{"type":"object","x":1.0},"annotations":{"readOnlyHint":true}}`
	for same, other := range map[string]string{
		"order and space": `{ "annotations":{"readOnlyHint":true},"inputSchema":{"x":1.0,"type":"object"} ,"description":"\u0064","name":"a"}`,
	} {
		if Hash(json.RawMessage(base)) != Hash(json.RawMessage(other)) {
			t.Errorf("%s: another hash", same)
		}
	}
	seen := map[string]string{Hash(json.RawMessage(base)): base}
	for _, other := range []string{
		strings.Replace(base, `"a"`, `"b"`, 1),
		strings.Replace(base, `"d"`, `"e"`, 1),
		strings.Replace(base, `"d"`, `"d "`, 1),
		strings.Replace(base, `1.0`, `1.00`, 1),
		strings.Replace(base, `true`, `false`, 1),
		strings.Replace(base, `{"name"`, `{"title":"t","name"`, 1),
		strings.Replace(base, `{"name"`, `{"_meta":{"ui":"x"},"name"`, 1),
		strings.Replace(base, `"description":"d"`, `"description":"d","description":"evil"`, 1),
		strings.Replace(base, `"description":"d"`, `"description":"evil","description":"d"`, 1),
		strings.Replace(base, `"object"`, `["object"]`, 1),
	} {
		h := Hash(json.RawMessage(other))
		if was, there := seen[h]; there {
			t.Errorf("%s has the hash of %s", other, was)
		}
		seen[h] = other
	}
}

func TestStates(t *testing.T) {
	p := &Pins{}
	p.Approve(Tool, "a", Pin{Hash: "1", By: "me"})
	for _, c := range []struct{ kind, name, hash, want string }{
		{Tool, "a", "1", Approved}, {Tool, "a", "2", Changed}, {Tool, "b", "1", New}, {Prompt, "a", "1", New},
	} {
		if got := p.State(c.kind, c.name, c.hash); got != c.want {
			t.Errorf("%v: got %s", c, got)
		}
	}
	p.Refuse(Tool, "a", Pin{Hash: "2"})
	if got := p.State(Tool, "a", "2"); got != Refused {
		t.Errorf("a refused definition is %s", got)
	}
	if got := p.State(Tool, "a", "3"); got != Changed {
		t.Errorf("another definition than the refused one is %s", got)
	}
	if got := p.State(Tool, "a", "1"); got != Approved {
		t.Errorf("the approved definition is %s after a refusal of another", got)
	}
	c := p.Clone()
	c.Approve(Tool, "a", Pin{Hash: "2"})
	if p.State(Tool, "a", "2") != Refused || c.State(Tool, "a", "2") != Approved {
		t.Error("a clone shares its maps, or an approval does not end a refusal")
	}
	p.Prune([]Entry{{Tool, "a", "2"}})
	if p.State(Tool, "a", "2") != Refused {
		t.Error("the refusal of what is listed was removed")
	}
	p.Prune(nil)
	if len(p.Refused) != 0 {
		t.Error("refusals of what is not listed stay")
	}
	var none *Pins
	if got := none.State(Tool, "a", "1"); got != New {
		t.Errorf("without pins: %s", got)
	}
}

func TestDiff(t *testing.T) {
	was := json.RawMessage(`{"name":"a","description":"one\ntwo\nthree","inputSchema":{"type":"object"}}`)
	now := json.RawMessage(
		`{"name":"a","description":"one\n2\nthree","inputSchema":{"type":"object","required":["x"]}}`,
	)
	got := strings.Join(Diff(was, now), "\n")
	for _, want := range []string{"  description: one\n-     two\n+     2\n      three", `+     "required": [`,
		`+       "x"`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if d := Diff(was, was); len(d) > 0 {
		t.Errorf("equal definitions differ: %q", d)
	}
	for _, line := range Diff(nil, now) {
		if !strings.HasPrefix(line, "+ ") {
			t.Errorf("a line of a new definition: %q", line)
		}
	}
}

// A description cannot control the terminal that shows a difference, pass as another line of it, or hide
// what it says behind a long line.
func TestDiffsOfHostileDescriptions(t *testing.T) {
	text := "ok\x1b[2J\x1b[1;31m\r+ nothing changed\u202egnp.exe\u200b" + strings.Repeat("x", 3*mostLine) + "the end"
	quoted, _ := json.Marshal(text)
	now := json.RawMessage(`{"name":"a","description":` + string(quoted) + `,"inputSchema":{"\u001b[0m":1}}`)
	lines := Diff(nil, now)
	for _, line := range lines {
		if strings.ContainsFunc(line, displaytext.Deceives) || len(line) > mostLine+2 {
			t.Errorf("a line of %d bytes: %q", len(line), line)
		}
	}
	if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasSuffix(l, "the end") }) {
		t.Error("the end of a long line is not shown")
	}
	long := json.RawMessage(`{"description":"` + strings.Repeat(`line\n`, 5000) + `"}`)
	if n := len(Diff(nil, long)); n > mostDiffLines+1 {
		t.Errorf("%d lines", n)
	}
}

func FuzzDiff(f *testing.F) {
	f.Add(`{"description":"a\nb"}`, `{"description":"a\nc","x":[1,{}]}`)
	f.Fuzz(func(t *testing.T, was, now string) {
		if !json.Valid([]byte(was)) || !json.Valid([]byte(now)) {
			t.Skip()
		}
		Hash(json.RawMessage(now))
		for _, line := range Diff(json.RawMessage(was), json.RawMessage(now)) {
			if strings.ContainsFunc(line, displaytext.Deceives) {
				t.Errorf("%q", line)
			}
		}
	})
}

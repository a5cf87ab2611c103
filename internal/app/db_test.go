package app

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"gatehouse/internal/dispatch"
	"gatehouse/internal/modules/publicstate"
)

func TestADumpShowsWhatItsCallerMaySee(t *testing.T) {
	_, client := liveOn(t, ruled(t, "db"), Options{})
	admin, ann, bob := client("root", "admin"), client("ann"), client("bob")
	ann.handshake()
	bob.handshake()
	sessions := func(c *tenant) []string {
		v, _ := c.result("db_dump", `{"pointer":"/public"}`)["value"].(map[string]any)
		return members(v["sessions"])
	}
	eventually(t, "everybody's sessions", func() bool { return len(sessions(admin)) == 2 })
	if hers := sessions(ann); len(hers) != 1 || len(sessions(bob)) != 1 {
		t.Fatalf("ann sees %v, bob %v", hers, sessions(bob))
	}
	if got := fmt.Sprint(bob.result("db_dump",
		`{"pointer":"/public/sessions/`+sessions(ann)[0]+`"}`)); !strings.Contains(
		got,
		"not_found",
	) {
		t.Errorf("bob reads ann's session: %s", got)
	}
	for _, pointer := range []string{"", "/private", "/private/host"} {
		args := fmt.Sprintf(`{"pointer":%q}`, pointer)
		if got := fmt.Sprint(ann.result("db_dump", args)); !strings.Contains(got, "denied") {
			t.Errorf("ann reads %q: %s", pointer, got)
		}
		if got := fmt.Sprint(admin.result("db_dump", args)); !strings.Contains(got, "host_") {
			t.Errorf("the administrator reads %s at %q", got, pointer)
		}
	}
}

func TestWhatAUserInterfaceKeepsIsPublicAndLasts(t *testing.T) {
	cfg := ruled(t, "db")
	a, client := liveOn(t, cfg, Options{})
	admin, ann := client("root", "admin"), client("ann")
	if v, _ := ann.readPublic("default", publicstate.PublicURI+"/ui"); fmt.Sprint(v) != "map[]" {
		t.Errorf("at first it is %v", v)
	}
	put := admin.result("db_put_ui", `{"pointer":"/theme/colour","value":"blue"}`)
	v, revision := ann.readPublic("default", publicstate.PublicURI+"/ui/theme/colour")
	if v != "blue" || put["id"] != revision || put["pointer"] != "/public/ui/theme/colour" {
		t.Errorf("ann reads %v at %s after %v", v, revision, put)
	}
	if got := fmt.Sprint(ann.result("db_put_ui", `{"pointer":"/theme","remove":true}`)); !strings.Contains(
		got,
		"denied",
	) {
		t.Errorf("ann writes: %s", got)
	}
	got := ann.say(
		"default",
		"completion/complete",
		fmt.Sprintf(
			`"ref":{"type":"ref/resource","uri":%q},"argument":{"name":"pointer","value":"ui/th"}`,
			publicstate.PublicTemplate,
		),
	)
	expect(t, got, `"values":["ui/theme"]`)
	b, err := New(t.Context(), a.cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.abandon()
	if text, err := b.tree.state.Read([]string{"public", "ui"}).JSON(); err != nil ||
		string(text) != `{"theme":{"colour":"blue"}}` {
		t.Errorf("another start has %s, %v", text, err)
	}
}

// A dump that is too large for an answer is not an error: the answer has the revision and a link to the whole
// dump, in which no value is cut. A caller that asks for the whole result, as the command line does, gets it.
func TestALargeDumpIsALink(t *testing.T) {
	cfg := ruled(t, "db")
	a, client := liveOn(t, cfg, Options{})
	admin := client("root", "admin")
	long := strings.Repeat("a long value ", 4000)
	admin.result("db_put_ui", fmt.Sprintf(`{"pointer":"/long","value":%q}`, long))
	answer := admin.toolResult("default", "db_dump", `{"pointer":"/public/ui"}`)
	var out struct {
		ID, URI string
		Bytes   int64
		Value   map[string]string
	}
	if err := json.Unmarshal(answer.StructuredContent, &out); err != nil || answer.IsError {
		t.Fatalf("got %+v, %v", answer, err)
	}
	if out.ID == "" || out.Value != nil || !strings.HasPrefix(out.URI, "gatehouse:///spool/") || out.Bytes < 52_000 {
		t.Errorf("got %.300s", answer.StructuredContent)
	}
	var whole struct {
		Result struct {
			Content           []struct{ Type, URI string }
			StructuredContent struct{ Value map[string]string }
		}
	}
	text := admin.call("default", "db_dump", `{"pointer":"/public/ui"}`)
	if err := json.Unmarshal([]byte(text), &whole); err != nil {
		t.Fatal(err)
	}
	content := whole.Result.Content
	if len(content) != 2 || content[0].Type != "text" || content[1].Type != "resource_link" {
		t.Fatalf("got %.500s", text)
	}
	expect(t, admin.say("default", "resources/read", fmt.Sprintf(`"uri":%q`, content[1].URI)), `"text":"{\"id\":\"`)
	all, err := a.spool.Read("root/default", strings.TrimPrefix(content[1].URI, dispatch.SpoolURI), 0, 1<<20)
	var kept struct{ Value map[string]string }
	if err != nil || json.Unmarshal(all.Data, &kept) != nil || kept.Value["long"] != long {
		t.Errorf("the dump that is kept: %.200s, %v", all.Data, err)
	}
	admin.meta = `"gatehouse/results":"structured",`
	if err := json.Unmarshal([]byte(admin.call("default", "db_dump",
		`{"pointer":"/public/ui"}`)), &whole); err != nil ||
		whole.Result.StructuredContent.Value["long"] != long {
		t.Error("a caller that asks for all does not get it")
	}
}

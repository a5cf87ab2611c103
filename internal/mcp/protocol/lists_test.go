package protocol_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/tests/hosttest"
	"gatehouse/tool"
)

// entry returns the raw entry of a list with this name; "" if there is none.
func (a answer) entry(list, name string) string {
	var r map[string]json.RawMessage
	var all []json.RawMessage
	if json.Unmarshal(a.Result, &r) != nil || json.Unmarshal(r[list], &all) != nil {
		return ""
	}
	for _, raw := range all {
		var e struct{ Name string }
		if json.Unmarshal(raw, &e) == nil && e.Name == name {
			return string(raw)
		}
	}
	return ""
}

func (a answer) names(list string) (names []string) {
	var r map[string]json.RawMessage
	var all []struct{ Name string }
	if json.Unmarshal(a.Result, &r) != nil || json.Unmarshal(r[list], &all) != nil {
		return nil
	}
	for _, e := range all {
		names = append(names, e.Name)
	}
	return names
}

// The members of list entries, by the first revision that has them.
func TestMembersOfListings(t *testing.T) {
	lists := map[string]answer{}
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		for _, method := range []string{"tools/list", "prompts/list", "resources/list", "resources/templates/list"} {
			for _, rev := range legacyRevisions {
				lists[method+rev] = h.legacy(t, rev, "").ask(method, "")
			}
			lists[method+modernRev] = h.dial(t).modern("", method, "")
		}
	})
	for _, c := range []struct{ method, list, name, member, since string }{
		{"tools/list", "tools", "t_count", `"description":"Counts to three."`, "2024-11-05"},
		{"tools/list", "tools", "t_count", `"inputSchema":`, "2024-11-05"},
		{"tools/list", "tools", "t_count", `"annotations":{"readOnlyHint":true,"openWorldHint":false}`, "2025-03-26"},
		{"tools/list", "tools", "t_write", `"annotations":{"destructiveHint":true}`, "2025-03-26"},
		{"tools/list", "tools", "t_count", `"title":"Count"`, "2025-06-18"},
		{"tools/list", "tools", "t_count", `"_meta":{"k":1}`, "2025-06-18"},
		{"tools/list", "tools", "t_echo", `"outputSchema":`, "2025-06-18"},
		{"tools/list", "tools", "t_count", `"icons":[{"src":"https://example.com/i.png"}]`, "2025-11-25"},
		{"tools/list", "tools", "t_list", `"outputSchema":{"type":"array"`, "2026-07-28"},
		{"tools/list", "tools", "t_head", `"x-mcp-header":"Word"`, "2024-11-05"},
		{"prompts/list", "prompts", "t_greet", `"arguments":[{"name":"name",`, "2024-11-05"},
		{"prompts/list", "prompts", "t_greet", `"required":true`, "2024-11-05"},
		{"prompts/list", "prompts", "t_greet", `"title":"Greet"`, "2025-06-18"},
		{"prompts/list", "prompts", "t_greet", `"title":"Name"`, "2025-06-18"},
		{"resources/list", "resources", "plain", `"size":5`, "2024-11-05"},
		{"resources/list", "resources", "plain", `"title":"Plain"`, "2025-06-18"},
		{"resources/templates/list", "resourceTemplates", "item", `"uriTemplate":"test://item/{id}"`, "2024-11-05"},
		{"resources/templates/list", "resourceTemplates", "item", `"title":"An item"`, "2025-06-18"},
	} {
		for _, rev := range append(legacyRevisions, modernRev) {
			got := lists[c.method+rev].entry(c.list, c.name)
			equal(t, rev+" "+c.name+" has "+c.member, strings.Contains(got, c.member), rev >= c.since)
		}
	}
}

// Task support is listed in the one revision that defines it.
func TestTaskSupportIsListed(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		for _, rev := range legacyRevisions {
			list := h.legacy(t, rev, "").ask("tools/list", "")
			for name, want := range map[string]string{"t_wait": "", "t_slow": "optional", "t_work": "optional",
				"t_must": "required"} {
				if rev != "2025-11-25" {
					want = ""
				}
				got := list.entry("tools", name)
				equal(t, rev+" "+name, strings.Contains(got, `"execution":{"taskSupport":"`+want+`"}`), want != "")
			}
		}
		lacks(t, h.dial(t).modern("", "tools/list", "").raw, `"execution"`)
	})
}

func TestListsAreInOrderAndTheSameEveryTime(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		for _, l := range []struct{ method, list string }{
			{"tools/list", "tools"}, {"prompts/list", "prompts"}, {"resources/list", "resources"},
		} {
			first := p.modern("", l.method, "")
			names := first.names(l.list)
			if len(names) == 0 || l.list != "resources" && !slices.IsSorted(names) {
				t.Errorf("%s: got %v", l.method, names)
			}
			for range 3 {
				equal(t, l.method, string(p.modern("", l.method, "").Result), string(first.Result))
			}
		}
	})
}

// pages reads a whole list page by page.
func pages(p *peer, method, list string) (names []string, n int) {
	cursor := ""
	for {
		got := p.ask(method, cursor)
		n++
		names = append(names, got.names(list)...)
		next := got.get("nextCursor")
		if next == "" || n > 1000 {
			return names, n
		}
		cursor = `"cursor":"` + next + `"`
	}
}

func TestPages(t *testing.T) {
	var whole []string
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		whole = h.legacy(t, "2025-06-18", "").ask("tools/list", "").names("tools")
	})
	for _, size := range []int{1, 2, 7, len(whole) - 1, len(whole), len(whole) + 1} {
		visit(t, hosttest.Options{Page: size}, func(t *testing.T, h *testHost) {
			names, n := pages(h.legacy(t, "2025-06-18", ""), "tools/list", "tools")
			equal(t, "names", fmt.Sprint(names), fmt.Sprint(whole))
			equal(t, "pages", n, (len(whole)+size-1)/size)
		})
	}
}

func TestCursors(t *testing.T) {
	visit(t, hosttest.Options{Page: 2}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", "")
		cursor := p.ask("tools/list", "").get("nextCursor")
		for _, bad := range []string{
			`"x"`, `"` + cursor + `="`, `"` + cursor + ` "`, `5`, `null`, `{}`,
			`"` + base64.RawURLEncoding.EncodeToString([]byte("tools")) + `"`,
			`"` + base64.RawURLEncoding.EncodeToString([]byte("nothing t_ask")) + `"`,
		} {
			got := p.ask("tools/list", `"cursor":`+bad)
			equal(t, "cursor "+bad, got.code(), -32602)
		}
		for _, other := range []string{"prompts/list", "resources/list", "resources/templates/list"} {
			got := p.ask(other, `"cursor":"`+cursor+`"`)
			equal(t, "a cursor of tools/list for "+other, got.code(), -32602)
			has(t, got.raw, "malformed cursor: use a nextCursor exactly as it was given")
		}
		// An empty cursor counts as none: the list starts at the beginning.
		equal(t, "empty", p.ask("tools/list", `"cursor":""`).get("nextCursor"), cursor)
		// The cursor is valid in another revision, and in a session of another caller.
		equal(t, "elsewhere", fmt.Sprint(h.dial(t).modern("", "tools/list", `"cursor":"`+cursor+`"`).names("tools")),
			fmt.Sprint(p.ask("tools/list", `"cursor":"`+cursor+`"`).names("tools")))
	})
}

// If a list changes between two pages, entries that stay are neither repeated nor skipped.
func TestCursorOfAnEntryThatHasGone(t *testing.T) {
	tools := func(names ...string) (ts []tool.Tool) {
		for _, n := range names {
			e := echo
			e.Name = n
			ts = append(ts, e)
		}
		return ts
	}
	visit(t, hosttest.Options{Page: 2}, func(t *testing.T, h *testHost) {
		h.offer(tools("a_1", "a_2", "a_3", "a_4")...)
		p := h.legacy(t, "2025-11-25", "")
		first := p.ask("tools/list", "")
		equal(t, "first page", fmt.Sprint(first.names("tools")), "[a_1 a_2]")
		h.offer(tools("a_0", "a_1", "a_3", "a_4")...)
		second := p.ask("tools/list", `"cursor":"`+first.get("nextCursor")+`"`)
		equal(t, "second page", fmt.Sprint(second.names("tools")), "[a_3 a_4]")
	})
}

func TestListsSayHowLongTheyHold(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		for _, m := range []string{"server/discover", "tools/list", "prompts/list", "resources/list",
			"resources/templates/list"} {
			got := p.modern("", m, "")
			equal(t, m+" ttl", got.get("ttlMs"), "60000")
			equal(t, m+" scope", got.get("cacheScope"), "public")
			equal(t, m+" kind", got.get("resultType"), "complete")
			has(t, got.raw, `"io.modelcontextprotocol/serverInfo"`)
		}
		got := p.modern("", "resources/read", `"uri":"test://plain"`)
		equal(t, "a read", got.get("ttlMs")+got.get("cacheScope"), "0private")
		lacks(t, p.modern("", "tools/call", `"name":"t_echo","arguments":{"text":"x"}`).raw, "ttlMs", "cacheScope")
		q := h.legacy(t, "2025-11-25", "")
		lacks(t, q.ask("tools/list", "").raw, "ttlMs", "cacheScope", "resultType")
	})
}

// A view is encoded once: the same bytes are sent again until the offer changes.
func TestPagesAreMadeOnce(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		before := p.modern("", "tools/list", "")
		h.offer(newcomer)
		time.Sleep(time.Second)
		after := p.modern("", "tools/list", "")
		equal(t, "one more", len(after.names("tools")), len(before.names("tools"))+1)
		h.offer()
		equal(t, "as before", string(p.modern("", "tools/list", "").Result), string(before.Result))
	})
}

package views

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/module"
	"gatehouse/tool"
)

// readAll reads a list page by page.
func readAll(t testing.TB, v *View, k Kind) (names []string, pages int) {
	t.Helper()
	cursor := ""
	for {
		p, err := v.Page(k, mcpversion.Latest, "", cursor)
		if err != nil {
			t.Fatal(err)
		}
		pages++
		var r struct {
			Tools      []struct{ Name string }
			NextCursor string
		}
		if err := json.Unmarshal(p, &r); err != nil {
			t.Fatalf("%s: %v", p, err)
		}
		for _, e := range r.Tools {
			names = append(names, e.Name)
		}
		if cursor = r.NextCursor; cursor == "" {
			return names, pages
		}
	}
}

func TestPagesHoldTheWholeList(t *testing.T) {
	for n := range 8 {
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf("t_%d", i))
		}
		for _, size := range []int{1, 2, 3, 7, 100} {
			h := &offerSource{offers: map[string]*module.Offer{"m": named(names...)}}
			v := view(t, h.contexts(Rules{}, func(o *Options) { o.Page = size }), tool.Caller{})
			got, pages := readAll(t, v, Tools)
			expect(t, "names", fmt.Sprint(got), fmt.Sprint(names))
			expect(t, "pages", pages, max(1, (n+size-1)/size))
		}
	}
}

func TestAPageIsMadeOnce(t *testing.T) {
	tails := 0
	h := &offerSource{offers: map[string]*module.Offer{"m": named("t_a", "t_b")}}
	c := h.contexts(Rules{}, func(o *Options) {
		o.Page = 1
		o.Tail = func(_ mcpversion.Revision, shared bool) string {
			tails++
			return fmt.Sprintf(`,"shared":%t`, shared)
		}
	})
	v := view(t, c, tool.Caller{})
	first, err := v.Page(Tools, mcpversion.Latest, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(string(first), `,"shared":true}`) {
		t.Errorf("got %s", first)
	}
	for range 100 {
		again, err := v.Page(Tools, mcpversion.Latest, "", "")
		if err != nil || &again[0] != &first[0] {
			t.Fatal("the same page is other bytes")
		}
	}
	expect(t, "made", tails, 1)
	v.Page(Tools, mcpversion.V20241105, "", "")
	expect(t, "made for another revision", tails, 2)
}

// The cache of pages is bounded by the list, whatever cursors a client invents.
func TestInventedCursorsAreNotKept(t *testing.T) {
	h := &offerSource{offers: map[string]*module.Offer{"m": named("t_a", "t_b")}}
	v := view(t, h.contexts(Rules{}), tool.Caller{})
	for i := range 1000 {
		cursor := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "tools t_a%d%s", i, strings.Repeat("x", i)))
		if _, err := v.Page(Tools, mcpversion.Latest, "", cursor); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, "pages kept", len(v.pages), 1)
}

func TestCursorsThatAreNone(t *testing.T) {
	h := &offerSource{offers: map[string]*module.Offer{"m": named("t_a", "t_b")}}
	v := view(t, h.contexts(Rules{}), tool.Caller{})
	enc := base64.RawURLEncoding.EncodeToString
	for _, bad := range []string{"!", "tools", enc([]byte("tools")), enc([]byte("prompts t_a")),
		enc([]byte(" tools t_a")), base64.StdEncoding.EncodeToString([]byte("tools t_a!"))} {
		if _, err := v.Page(Tools, mcpversion.Latest, "", bad); err != ErrCursor {
			t.Errorf("%q: got %v", bad, err)
		}
	}
	if _, err := v.Page(Prompts, mcpversion.Latest, "", enc([]byte("tools t_a"))); err != ErrCursor {
		t.Errorf("a cursor of another list: got %v", err)
	}
}

func FuzzCursor(f *testing.F) {
	h := &offerSource{offers: map[string]*module.Offer{"m": named("t_a", "t_b", "t_c")}}
	v := view(f, h.contexts(Rules{}, func(o *Options) { o.Page = 1 }), tool.Caller{})
	f.Add(base64.RawURLEncoding.EncodeToString([]byte("tools t_a")))
	f.Add("")
	f.Fuzz(func(t *testing.T, cursor string) {
		for k := range kinds {
			p, err := v.Page(k, mcpversion.Latest, "", cursor)
			if err == nil && !json.Valid(p) {
				t.Errorf("got %s", p)
			}
			if err != nil && err != ErrCursor {
				t.Errorf("got %v", err)
			}
		}
	})
}

// A digest distinguishes definitions, and nothing else.
func TestDigests(t *testing.T) {
	digest := func(d tool.Def, rename map[string]string) string {
		h := &offerSource{offers: map[string]*module.Offer{"m": {Tools: []tool.Tool{{Def: d}}}}}
		v := view(t, h.contexts(Rules{Specs: []Spec{{Name: "x", Rename: rename}}}), tool.Caller{})
		return fmt.Sprintf("%x", v.Entries(Tools)[0].Digest())
	}
	base := tool.Def{Name: "t", Description: "A."}
	same := digest(base, nil)
	expect(t, "again", digest(base, nil), same)
	var all []string
	for _, d := range []tool.Def{
		{Name: "u", Description: "A."}, {Name: "t", Description: "B."}, {Name: "t", Description: "A.", Title: "T"},
		{Name: "t", Description: "A.", Effects: tool.Reads},
		{Name: "t", Description: "A.", Input: json.RawMessage(`{"type":"object","properties":{"a":{}}}`)},
	} {
		all = append(all, digest(d, nil))
	}
	all = append(all, digest(base, map[string]string{"t": "renamed"}), same)
	slices.Sort(all)
	expect(t, "different ones", len(slices.Compact(all)), 7)
}

package standard

import (
	"encoding/json"
	"slices"
	"testing"

	"gatehouse/internal/mcp/schema"
	"gatehouse/module"
)

// Every client pays for the listing on every turn. The file, directory and
// language tools have a bar of 12,000 bytes, output schemas included.
func TestListingStaysSmall(t *testing.T) {
	type listed struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Input       json.RawMessage `json:"inputSchema"`
		Output      json.RawMessage `json:"outputSchema"`
		Annotations map[string]bool `json:"annotations"`
	}
	var names []string
	var all []listed
	for _, g := range Modules(Deps{}) {
		if !g.Default {
			continue // in a listing only if it was named
		}
		m, err := g.New(t.Context(), module.Deps{})
		if err != nil {
			t.Fatal(err)
		}
		offer, err := m.Offer(t.Context(), module.Audience{})
		if err != nil {
			t.Fatal(err)
		}
		for _, tl := range offer.Tools {
			in, err := schema.For(tl.In)
			if err != nil {
				t.Fatal(err)
			}
			var out json.RawMessage
			if _, text := schema.Product(tl.Out); !text { // a view of texts lists no schema of those
				if out, err = schema.ForOutput(tl.Out); err != nil {
					t.Fatal(err)
				}
			}
			names = append(names, tl.Name)
			all = append(
				all,
				listed{
					tl.Name, tl.Description, in, out,
					map[string]bool{"readOnlyHint": true, "destructiveHint": false, "openWorldHint": false},
				},
			)
		}
	}
	for _, want := range []string{"file_read", "file_write", "file_edit", "file_delete", "file_rename", "file_exists",
		"file_search", "dir_list", "dir_create", "lang_detect", "lang_list"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is missing in %v", want, names)
		}
	}
	b, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes", len(b))
	if len(b) > 12000 {
		t.Errorf("the listing has %d bytes, want at most 12000", len(b))
	}
}

// After these the caller's subscriptions are brought up to date at once, as in
// the original: each changes what subscribers see before its result is back.
func TestToolsThatSync(t *testing.T) {
	want := []string{
		"server_update", "server_update_rollback", "server_set_name", "server_language", "package_install",
		"package_remove",
		"package_start", "package_stop", "package_restart", "package_rebuild",
	}
	for _, g := range Modules(Deps{}) {
		m, err := g.New(t.Context(), module.Deps{})
		if err != nil {
			continue // it needs a host
		}
		offer, err := m.Offer(t.Context(), module.Audience{})
		if err != nil {
			t.Fatal(err)
		}
		for _, tl := range offer.Tools {
			if i := slices.Index(want, tl.Name); i >= 0 {
				want = slices.Delete(want, i, i+1)
				if !tl.Sync {
					t.Errorf("%s does not sync", tl.Name)
				}
			}
		}
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if len(want) > 0 {
		t.Errorf("there are no tools %v", want)
	}
}

//go:build !race

package openapi

import (
	"encoding/json"
	"maps"
	"testing"
)

// Each operation of each document can be called and reaches that operation of a server generated from the document; and
// wrong arguments reach no server.
func TestEveryOperationCanBeCalled(t *testing.T) {
	for name, text := range documents(t) {
		t.Run(name, func(t *testing.T) {
			s := serve(t, text)
			api := parse(t, text,
				Options{Server: s.URL + "/base", Credentials: everyCredential(t, text), Client: s.Client()})
			if len(api.Left) > 0 || len(api.Tools) != len(s.routes) {
				t.Errorf("%d tools of %d operations; left out: %q", len(api.Tools), len(s.routes), api.Left)
			}
			seen := map[string]bool{}
			for i, one := range api.Tools {
				if testing.Short() && i%10 > 0 && len(api.Tools) > 100 {
					continue // the rest is called in the long form
				}
				if len(one.Name) > longestName || plain(one.Name) != one.Name || seen[one.Name] {
					t.Errorf("the name %q", one.Name)
				}
				seen[one.Name] = true
				args := sampleArguments(t, one)
				raw, _ := json.Marshal(args)
				r, err := api.Call(t.Context(), one.Name, raw)
				var got struct{ Operation string }
				if err != nil || r.Status != 200 || json.Unmarshal(r.Body, &got) != nil ||
					got.Operation != one.method+" "+one.path {
					t.Errorf("%s %s with %.300s: %d %s %v", one.method, one.path, raw, r.Status, r.Body, err)
				}
				checkWrong(t, s, api, one, args)
			}
			t.Logf("%d operations", len(api.Tools))
		})
	}
}

// checkWrong calls a tool with wrong arguments.
func checkWrong(t *testing.T, s *served, api *API, one *Tool, args map[string]any) {
	t.Helper()
	before := s.requests()
	wrong := maps.Clone(args)
	wrong["no_such_argument"] = 1
	for _, bad := range []any{wrong, []any{}, "text"} {
		raw, _ := json.Marshal(bad)
		if _, err := api.Call(t.Context(), one.Name, raw); err == nil {
			t.Errorf("%s: %.200s is accepted", one.Name, raw)
		}
	}
	for name := range args {
		less := maps.Clone(args)
		delete(less, name)
		raw, _ := json.Marshal(less)
		if _, err := api.Call(t.Context(), one.Name, raw); err == nil {
			t.Errorf("%s: it is called without %s", one.Name, name)
		}
	}
	if s.requests() != before {
		t.Errorf("%s: wrong arguments reached the server", one.Name)
	}
}

package packages

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/access/secret"
	"gatehouse/tool"
)

const petDocument = `openapi: 3.1.0
info: {title: Pets, version: "7"}
servers: [{url: "SERVER/{v}", variables: {v: {default: v1}}}]
security: [{token: []}]
components: {securitySchemes: {token: {type: http, scheme: bearer}}}
paths:
  /pets/{id}:
    get:
      operationId: getPet
      tags: [read]
      parameters: [{name: id, in: path, required: true, schema: {type: integer}}]
      responses: {"200": {description: a pet}}
    delete:
      operationId: deletePet
      parameters: [{name: id, in: path, required: true, schema: {type: integer}}]
      responses: {"204": {description: gone}}
`

// The operations of a document are tools of a package: with credentials of the secret store, which
// are in no record, and only those that were chosen.
func TestADocumentIsAPackage(t *testing.T) {
	requests := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(
			w,
			`{"path":%q,"authorized":%t}`,
			r.URL.Path,
			r.Header.Get("Authorization") == "Bearer the-hidden-value",
		)
	}))
	defer srv.Close()
	h := openHome(t, Options{Secrets: func(all map[string]string) (map[string]secret.Text, error) {
		out := map[string]secret.Text{}
		for name, value := range all {
			out[name] = secret.New(strings.ReplaceAll(value, "${secret:PETS}", "the-hidden-value"))
		}
		return out, nil
	}})
	dir := t.TempDir()
	write(t, dir, map[string]string{"pets.yaml": strings.Replace(petDocument, "SERVER", srv.URL, 1)})
	i := h.install(Record{
		ID: "pets", Source: Source{Kind: OpenAPI, From: filepath.Join(dir, "pets.yaml")}, Start: OnDemand,
		Args: []string{"only=tag:read"}, Env: map[string]string{"TOKEN": "${secret:PETS}"},
	})
	if i.Public.Title != "Pets" || i.Public.Version != "7" || len(i.Names) != 1 || i.Names[0] != "pets_getPet" {
		t.Errorf("installed %+v with %v", i.Public, i.Names)
	}
	if all := h.Tools(); len(all) != 1 || !all[0].Effects.ReadOnly() {
		t.Errorf("a GET is not known as one that reads: %+v", all)
	}
	got, err := h.call("pets", "getPet", `{"id":3}`)
	if err != nil || !strings.Contains(got, `"path":"/v1/pets/3"`) || !strings.Contains(got, `"authorized":true`) {
		t.Errorf("got %s, %v", got, err)
	}
	before := requests
	if got, err := h.call("pets", "getPet", `{"id":"three"}`); err != nil ||
		!strings.Contains(got, string(tool.CodeInvalidArguments)) ||
		requests != before {
		t.Errorf("wrong arguments: %s, %v, %d requests", got, err, requests-before)
	}
	if err := h.Remove("pets", false); err != nil {
		t.Error(err)
	}
	for name, args := range map[string][]string{
		"a word": {"tag:read"}, "a choice of nothing": {"only=tag:none"}, "a server": {"server=file:///etc"},
		"a variable": {"variable.none=1"},
	} {
		_, err := h.Install(t.Context(), Plan{Record: Record{
			ID: "bad", Source: Source{Kind: OpenAPI, From: filepath.Join(dir, "pets.yaml")}, Start: OnDemand,
			Args: args,
			Env:  map[string]string{"TOKEN": "${secret:PETS}"},
		}}, nil)
		if err == nil {
			t.Errorf("%s: it is installed", name)
		}
	}
}

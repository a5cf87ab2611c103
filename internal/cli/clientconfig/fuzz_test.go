package clientconfig

import (
	"bytes"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// Of any text, a change adds the server, the same change again does nothing, and
// its removal leaves what the text meant. What is not understood is refused.
func FuzzPut(f *testing.F) {
	var kinds []*Client
	for _, id := range []string{"cursor", "claude-code", "codex", "goose", "continue"} {
		kinds = append(kinds, FindClient(id))
	}
	for _, c := range Clients {
		a, err := txtar.ParseFile(filepath.Join("testdata", c.ID+".txtar"))
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range a.Files {
			for i, k := range kinds {
				if reflect.TypeOf(k.format) == reflect.TypeOf(c.format) {
					f.Add(uint8(i), file.Data)
				}
			}
		}
	}
	f.Add(uint8(0), []byte("{/*a*/\"x\":1/*b*/,//c\n}//d"))
	f.Add(uint8(0), []byte("{\"x\":1\n,\"y\":2}"))
	f.Add(uint8(2), []byte("a = '''x\n[b]'''\n[[c]]\nd = [[1],\n[2]] # e\n"))
	f.Add(uint8(3), []byte("extensions:\n  # none\nb: |\n  x\n"))
	f.Add(uint8(4), []byte("mcpServers: [] # none\n"))
	f.Add(uint8(2), []byte("mcp_servers = { a = { command = 'x' }, b.c = [1, 2] } # d\n"))
	f.Add(uint8(3), []byte("extensions: {a: {cmd: it's, 'b''s': \"c\"}, # d\n  }\n"))
	f.Add(uint8(3), []byte("{\"extensions\":{}}"))
	f.Add(uint8(4), []byte("? \ro"))
	f.Add(uint8(4), []byte("mcpServers: [{name: a}, # b\n {name: c},\n ]\n"))
	f.Fuzz(func(t *testing.T, kind uint8, text []byte) {
		c := kinds[int(kind)%len(kinds)]
		if len(text) > 4096 {
			return
		}
		had, _ := c.Has(text, byStdio.Name)
		out, err := c.Put(text, byStdio)
		if err != nil {
			return
		}
		if again, err := c.Put(out, byStdio); err != nil || !bytes.Equal(again, out) {
			t.Errorf("of %q comes %q, and then %q, %v", text, out, again, err)
		}
		back, err := c.Remove(out, byStdio.Name, false)
		if err != nil {
			t.Errorf("of %q comes %q, which cannot be removed: %v", text, out, err)
		}
		if there, err := c.Has(back, byStdio.Name); there || err != nil {
			t.Errorf("of %q comes %q: the server is there, %v", out, back, err)
		}
		if had || len(bytes.TrimSpace(withoutBOM(text))) == 0 {
			return
		}
		before, err := c.format.parse(withoutBOM(text))
		if err != nil {
			t.Fatal(err)
		}
		after, err := c.format.parse(withoutBOM(back))
		if err != nil {
			t.Fatalf("%q: %v", back, err)
		}
		path := steps(c.path...)
		if v, there := lookup(before, path); there && isEmpty(v) {
			before = without(before, path)
		}
		if v, there := lookup(after, path); there && isEmpty(v) {
			after = without(after, path)
		}
		if !reflect.DeepEqual(before, after) {
			t.Errorf("%q became %q", text, back)
		}
	})
}

package clientconfig

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// A file that lies anywhere is read in the form of the client that wrote it.
func TestSourceOf(t *testing.T) {
	m, _ := machine(t)
	for _, c := range Clients {
		a, err := txtar.ParseFile(filepath.Join("testdata", c.ID+".txtar"))
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Files) == 0 {
			continue // its servers are in its own settings
		}
		text := a.Files[1].Data // with a server
		path := filepath.Join(m.Home, c.ID, filepath.Base(m.expand(c.Files[0].template("windows"))))
		writeFile(t, path, string(text))
		from, err := m.SourceOf(path)
		if err != nil {
			t.Fatal(err)
		}
		want, err := c.Servers(text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.ReadServers(from)
		if err != nil || len(got) != len(want) {
			t.Errorf("%s is read as %s: %d servers, %v, want %d", c.ID, from.Client.ID, len(got), err, len(want))
			continue
		}
		for i := range got {
			if got[i].Name != want[i].Name || got[i].Command != want[i].Command || got[i].URL != want[i].URL ||
				strings.Join(got[i].Args, " ") != strings.Join(want[i].Args, " ") ||
				len(got[i].Env) != len(want[i].Env) {
				t.Errorf("%s is read as %s: got %+v, want %+v", c.ID, from.Client.ID, got[i], want[i])
			}
		}
	}
	c := FindClient("gemini")
	path := m.Path(c, User)
	writeFile(t, path, "{}")
	if from, err := m.SourceOf(path); err != nil || from.Client != c || from.Scope != User {
		t.Errorf("the file of Gemini CLI is %+v, %v", from, err)
	}
}

// A server takes the place of others, what is not named stays, and the file is
// restored with them.
func TestPlanTake(t *testing.T) {
	for _, id := range []string{"cursor", "codex", "goose", "continue"} {
		m, b := machine(t)
		c := FindClient(id)
		a, err := txtar.ParseFile(filepath.Join("testdata", id+".txtar"))
		if err != nil {
			t.Fatal(err)
		}
		before := a.Files[0].Data
		path := m.Path(c, User)
		writeFile(t, path, string(before))
		all, err := c.Servers(before)
		if err != nil || len(all) == 0 {
			t.Fatal(all, err)
		}
		ch, err := m.PlanTake(Source{c, User, path}, []string{all[0].Name}, byStdio)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Apply(ch); err != nil {
			t.Fatal(err)
		}
		now, err := c.Servers([]byte(readFile(t, path)))
		if err != nil || len(now) != len(all) {
			t.Errorf("%s: now there are %d servers, %v, want %d", id, len(now), err, len(all))
		}
		for _, s := range now {
			if s.Name == all[0].Name {
				t.Errorf("%s: %s is still there", id, s.Name)
			}
		}
		disconnect(t, m, b, id)
		if got := readFile(t, path); !bytes.Equal([]byte(got), before) {
			t.Errorf("%s: restored it is\n%s\nwant\n%s", id, got, before)
		}
	}
}

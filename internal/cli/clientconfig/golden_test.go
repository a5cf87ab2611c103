package clientconfig

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "write the golden files")

// byStdio and byURL are what the golden files add.
var (
	byStdio = Server{
		Name: "gatehouse", Command: "/opt/gate house/gatehouse",
		Args: []string{"stdio", "--context=review", "-d", `/home/ann/"shop" \ ü`},
	}
	byURL = Server{Name: "gatehouse", URL: "http://127.0.0.1:3000/mcp", TokenEnv: "GATEHOUSE_TOKEN"}
)

// urlFor is byURL without what a client documents nothing for.
func urlFor(c *Client) Server {
	s := byURL
	if c.EnvRef == "" && c.http.bearer == "" {
		s.TokenEnv = ""
	}
	return s
}

// Of each client a file in the form of its documentation gets a server over
// standard input and output, then one by address in its place, and is byte for byte
// what it was when that is removed. A second time changes nothing.
func TestGoldenFiles(t *testing.T) {
	for _, c := range Clients {
		t.Run(c.ID, func(t *testing.T) {
			path := filepath.Join("testdata", c.ID+".txtar")
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			in := a.Files[0].Data
			stdio := put(t, c, in, byStdio)
			got := []txtar.File{{Name: "in", Data: in}, {Name: "stdio", Data: stdio}}
			if c.http.url != "" {
				got = append(got, txtar.File{Name: "http", Data: put(t, c, stdio, urlFor(c))})
			}
			for _, f := range got[1:] {
				if back := removed(t, c, in, f.Data); !bytes.Equal(back, in) {
					t.Errorf("after %s the file without the server is\n%s\nwant\n%s", f.Name, back, in)
				}
			}
			if *update {
				for i := range got {
					got[i].Data = closed(got[i].Data)
				}
				if err := os.WriteFile(path, txtar.Format(&txtar.Archive{Files: got}), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if len(a.Files) != len(got) {
				t.Fatalf("%s has %d files, want %d; run the test with -update", path, len(a.Files), len(got))
			}
			for i, f := range got {
				if want := a.Files[i]; want.Name != f.Name || !bytes.Equal(closed(f.Data), want.Data) {
					t.Errorf("%s: got\n%s\nwant\n%s", f.Name, f.Data, want.Data)
				}
			}
		})
	}
}

// closed is a text with a line break at its end, as txtar has them.
func closed(text []byte) []byte {
	if bytes.HasSuffix(text, []byte("\n")) {
		return text
	}
	return append(bytes.Clone(text), '\n')
}

// put adds a server twice; the second time changes nothing.
func put(t *testing.T, c *Client, text []byte, s Server) []byte {
	t.Helper()
	out, err := c.Put(text, s)
	if err != nil {
		t.Fatalf("put: %v", err)
	}
	again, err := c.Put(out, s)
	if err != nil || !bytes.Equal(again, out) {
		t.Errorf("the second time it becomes\n%s\n%v, want\n%s", again, err, out)
	}
	all, err := c.Servers(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		if one.Name == s.Name {
			if one.Command != s.Command || one.URL != s.URL ||
				strings.Join(one.Args, " ") != strings.Join(s.Args, " ") {
				t.Errorf("it is read back as %+v, want %+v", one, s)
			}
			return out
		}
	}
	t.Errorf("the server is not there:\n%s", out)
	return out
}

// removed is a text without the server that was added to in.
func removed(t *testing.T, c *Client, in, text []byte) []byte {
	t.Helper()
	tree, _ := c.format.parse(withoutBOM(in)) // put has read it
	held, _ := lookup(tree, steps(c.path...))
	back, err := c.Remove(text, "gatehouse", held == nil)
	if err != nil {
		t.Fatalf("remove: %v", err)
	}
	return back
}

// Line ends, a byte order mark, tabs and a missing line end stay.
func TestLayoutStays(t *testing.T) {
	for _, c := range Clients {
		a, err := txtar.ParseFile(filepath.Join("testdata", c.ID+".txtar"))
		if err != nil {
			t.Fatal(err)
		}
		in := string(a.Files[0].Data)
		for name, text := range map[string]string{
			"CRLF":        strings.ReplaceAll(in, "\n", "\r\n"),
			"BOM":         "\ufeff" + in,
			"no line end": strings.TrimRight(in, "\n"),
		} {
			t.Run(c.ID+" "+name, func(t *testing.T) {
				out := put(t, c, []byte(text), byStdio)
				if name == "CRLF" && strings.Contains(strings.ReplaceAll(string(out), "\r\n", ""), "\n") {
					t.Errorf("a line ends otherwise in %q", out)
				}
				if name == "BOM" && strings.Count(string(out), "\ufeff") != 1 {
					t.Errorf("the mark is gone or double in %q", out)
				}
				back := string(removed(t, c, []byte(text), out))
				if strings.TrimRight(back, "\r\n") != strings.TrimRight(text, "\r\n") {
					t.Errorf("without the server it is\n%q\nwant\n%q", back, text)
				}
			})
		}
	}
}

package clientroots

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

func TestClientFolders(t *testing.T) {
	base := t.TempDir()
	for _, name := range []string{"mine/a", "mine/b", "other"} {
		dir := filepath.Join(base, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	at := func(names ...string) (all []string) {
		for _, name := range names {
			all = append(all, filepath.Join(base, name))
		}
		return all
	}
	open := func(dir string) *roots.Set {
		s, err := roots.Open([]roots.Dir{{Path: dir}}, roots.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	host, context := open(filepath.Join(base, "mine")), open(filepath.Join(base, "mine", "b"))
	everything, err := roots.Unrestricted(roots.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { everything.Close() })

	for _, c := range []struct {
		name    string
		any     bool
		set     *roots.Set
		folders []string
		named   bool
		want    []string // nil means the call is refused
	}{
		{"a client that names none has all", false, host, nil, false, at("mine")},
		{"a part of the host's", false, host, at("mine/a"), false, at("mine/a")},
		{"a folder above the host's", false, host, []string{base}, false, at("mine")},
		{"outside the host's", false, host, at("other"), false, nil},
		{"outside the host's, named", false, host, at("other"), true, nil},
		{"any folder", true, host, at("other", "mine/a"), true, at("other", "mine/a")},
		{"a folder that is gone", true, host, at("gone"), false, nil},
		{"a context limits also where the host does not", true, context, at("mine/b", "other"), true, at("mine/b")},
		{"a context elsewhere", true, context, at("other"), false, at("mine/b")},
		{"a context elsewhere, with folders named", true, context, at("other"), true, nil},
		{"an unrestricted host", false, everything, at("other"), true, at("other")},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := New(Options{Roots: host, AnyFolder: c.any}, Settings{})
			call := &tool.Call{Caller: tool.Caller{Folders: c.folders, Named: c.named}, Roots: c.set}
			done, err := n.Working(call)
			if err != nil {
				if r, ok := errors.AsType[*tool.Refusal](err); !ok || c.want != nil {
					t.Fatalf("%v, %v", r, err)
				}
				return
			}
			defer done()
			var got []string
			for _, r := range call.Roots.List() {
				got = append(got, r.Path)
			}
			if len(got) != len(c.want) {
				t.Fatalf("%v, want %v", got, c.want)
			}
			for i := range got {
				if got[i] != c.want[i] {
					t.Errorf("%v, want %v", got, c.want)
				}
			}
		})
	}

	// On an unrestricted host relative paths start where the client works.
	n := New(Options{Roots: everything}, Settings{})
	call := &tool.Call{Caller: tool.Caller{Folders: at("mine/a")}, Roots: everything}
	done, err := n.Working(call)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	root, name, err := call.Roots.Resolve("b.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got := filepath.Join(root.Name(), name); got != filepath.Join(base, "mine", "a", "b.txt") {
		t.Errorf("b.txt is %s", got)
	}
}

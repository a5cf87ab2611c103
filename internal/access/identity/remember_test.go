package identity

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file of users that is lost, emptied or not mounted does not open the host.
//
//redteam:attack One principal, however it comes: the file of users is removed, emptied or not mounted
func TestALostFileOfUsersOpensNothing(t *testing.T) {
	for name, lose := range map[string]func(path string) error{
		"removed":     os.Remove,
		"emptied":     func(path string) error { return os.Truncate(path, 0) },
		"not mounted": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
		"not mounted, with an empty folder in its place": func(path string) error {
			if err := os.RemoveAll(filepath.Dir(path)); err != nil {
				return err
			}
			return os.Mkdir(filepath.Dir(path), 0o700)
		},
		"made anew": func(path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			s := newStore(path)
			_, err := s.writer()
			s.closeFile()
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			path := filepath.Join(top, "data", "identity.db")
			o := Options{
				Known: []string{filepath.Join(top, "state", "has-users"), filepath.Join(top, "config", "has-users")},
			}
			// Users created by a version that wrote no markers are marked when the file is opened.
			before, err := Open(path, Options{})
			if err != nil {
				t.Fatal(err)
			}
			add(t, before, "ann", "correct horse")
			before.Close()
			s := empty(t, path, o)
			if s.Lost() {
				t.Fatal("a file that is there counts as lost")
			}
			s.Close()
			if err := lose(path); err != nil {
				t.Fatal(err)
			}
			os.Remove(o.Known[1]) // one of the two markers is enough
			for _, suffix := range []string{"-wal", "-shm"} {
				os.Remove(path + suffix)
			}
			s = empty(t, path, o)
			if got := outcome(s, request("GET", "/mcp", here)); !strings.HasPrefix(got, "Unauthorized") {
				t.Errorf("a caller on this machine without credentials is %s", got)
			}
			if code, err := s.Pairing(t.Context()); code != "" || err != nil {
				t.Errorf("there is a code to be the first user, %q, %v", code, err)
			}
			if !s.Lost() || !s.Authenticates() {
				t.Error("it is not noticed")
			}
			if p := s.Owner(); p.Name == "" {
				t.Error("nor is its owner let in")
			}
			// The administrator adds the users again.
			add(t, s, "ann", "correct horse")
			if s.Lost() {
				t.Error("it counts as lost with a user in it")
			}
			s.Close()
			if again := empty(t, path, o); again.Lost() {
				t.Error("the next start finds it lost")
			}
		})
	}
}

// A host that never had a user is as open as before, and creates no marker.
func TestAHostWithoutUsersIsNotTakenForOneThatLostThem(t *testing.T) {
	top := t.TempDir()
	o := Options{
		Known: []string{filepath.Join(top, "state", "has-users"), filepath.Join(top, "nofolder", "x", "has-users")},
	}
	if err := os.WriteFile(filepath.Join(top, "nofolder"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := empty(t, filepath.Join(top, "identity.db"), o)
	if got := outcome(s, request("GET", "/mcp", here)); strings.HasPrefix(got, "Unauthorized") {
		t.Errorf("a caller on this machine is %s", got)
	}
	if _, err := os.Stat(o.Known[0]); err == nil {
		t.Error("it says that there were users")
	}
}

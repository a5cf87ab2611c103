package file

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/files/roots"
)

// canary stands in a file outside and must never be seen inside.
const canary = "a secret from outside"

// traps are links inside, by name, that lead out or round about.
func traps(h *fixture) map[string]string {
	return map[string]string{
		"abs": h.out + "/secret", "rel": "../out/secret", "dir": h.out, "reldir": "../out", "sub/up": "../..",
		"up": "..", "slash": "/", "here": ".",
		"chain1": "rel", "chain2": "chain1", "chain3": "dir/../out/secret", "dangling": h.out + "/new",
		"reldangling": "../out/new", "dirnew": h.out + "/new/deep",
		"magic": "/proc/self/root" + h.out + "/secret", "cwd": "/proc/self/cwd", "fds": "/proc/self/fd",
		"far":  strings.Repeat("../", 60) + strings.TrimPrefix(h.out, "/") + "/secret",
		"loop": "loop", "sub/back": "../dir", "odd": "sub/../../out/./secret", "passwd": "/etc/passwd",
	}
}

// lay puts the traps where they belong, and a file sub/f.
func (h *fixture) lay(traps map[string]string) {
	h.t.Helper()
	if b, err := os.ReadFile(h.at("sub/f")); err != nil || string(b) != "inside\n" {
		h.put("sub/f", "inside\n")
	}
	for name, target := range traps {
		if is, err := os.Readlink(h.at(name)); err == nil && is == target {
			continue
		}
		os.RemoveAll(h.at(name))
		if err := os.Symlink(target, h.at(name)); err != nil {
			h.t.Fatal(err)
		}
	}
}

// tricks are ways to write a path that leads from inside to out, where there
// are a file secret, nothing called new, and a folder full.
func tricks(h *fixture) (all []string) {
	all = slices.Sorted(maps.Keys(traps(h)))
	base := filepath.Base(h.dir)
	for _, to := range []string{"secret", "new"} {
		all = append(
			all,
			// up and out
			"../out/"+to,
			"./../out/"+to,
			"sub/../../out/"+to,
			"sub/./.././../out/"+to,
			"..//out//"+to,
			"../out/./"+to,
			"../out/../out/"+to,
			"../"+base+"/../out/"+to,
			strings.Repeat("../", 50)+strings.TrimPrefix(h.out, "/")+"/"+to,
			"none/../../out/"+to,
			"sub/f/../../../out/"+to,
			// from the top
			h.out+"/"+to,
			"/"+h.out+"/"+to,
			h.out+"/./"+to,
			h.dir+"/../out/"+to,
			h.dir+"/sub/../../out/"+to,
			h.dir+"/dir/"+to,
			h.dir+"//dir//"+to,
			"/proc/self/root"+h.out+"/"+to,
			"/proc/thread-self/root"+h.out+"/"+to,
			"/proc/self/cwd/"+strings.Repeat("../", 50)+strings.TrimPrefix(h.out, "/")+"/"+to,
			// through links
			"dir/"+to,
			"dir/./"+to,
			"dir/../out/"+to,
			"dir//"+to,
			"reldir/"+to,
			"up/out/"+to,
			"sub/up/out/"+to,
			"slash"+h.out+"/"+to,
			"here/../out/"+to,
			"here/here/dir/"+to,
			"sub/back/"+to,
			"up/"+base+"/dir/"+to,
			"dir/full/../"+to,
			"cwd/"+to,
			"fds/0/"+to,
			// written otherwise
			"~/../out/"+to,
			"~root/"+to,
			"file://"+h.out+"/"+to,
			`..\out\`+to,
			`sub\..\..\out\`+to,
			"..%2fout%2f"+to,
			"%2e%2e/out/"+to,
			"..%c0%afout/"+to,
			"．．/out/"+to,
			"..∕out∕"+to,
			"../out/"+to+"\x00",
			"../out/"+to+"\x00.txt",
			"sub/f\x00/../../../out/"+to,
			".. /out/"+to,
			"..\t/out/"+to,
			"....//out/"+to,
			`\\?\`+h.out+`\`+to,
			`C:\..\out\`+to,
			"DIR/"+to,
			"dir/"+to+"/",
			"dir/"+to+"/.",
			"\ndir/"+to,
			"dir\u200b/"+to,
		)
	}
	return all
}

// outside is all there is outside, by name.
func (h *fixture) outside() map[string]string {
	h.t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(h.out, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			all[path] = "dir"
			return err
		}
		b, err := os.ReadFile(path)
		all[path] = string(b)
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return all
}

// Whatever tool is given whatever path, nothing outside is read, changed, made
// or removed.
//
//redteam:attack Files stay inside the roots: paths and links that lead out, by every file tool
func TestNothingLeadsOut(t *testing.T) {
	h := newFixture(t)
	for _, name := range []string{"/secret", "/full/f"} {
		h.put(h.out+name, canary+"\n")
	}
	before := fmt.Sprint(h.outside())
	links, paths := traps(h), tricks(h)
	if len(paths) < 60 {
		t.Fatalf("%d tricks are tried, want 60", len(paths))
	}
	tried := 0
	for i, path := range paths {
		inside := fmt.Sprint("made/", i)
		for _, args := range [][]any{
			{"file_read", "path", path}, {"file_read", "paths", []any{path}}, {"file_read", "path", path, "tail", 1},
			{"file_stat", "path", path}, {"file_exists", "path", path},
			{"file_search", "path", path, "pattern", "secret from", "literal", true},
			{"file_copy", "oldPath", path, "newPath", inside},
			{"file_rename", "oldPath", path, "newPath", inside + "r", "overwrite", true},
			{"file_edit", "path", path, "old_string", "secret", "new_string", "changed"},
			{"file_write", "path", path, "content", "changed"},
			{"file_write", "path", path, "content", "changed", "mode", "append"},
			{"file_copy", "oldPath", "sub/f", "newPath", path, "overwrite", true},
			{"file_rename", "oldPath", "sub/f", "newPath", path, "overwrite", true},
			{"file_delete", "path", path}, {"file_delete", "path", path, "recursive", true},
		} {
			if _, known := h.tools[args[0].(string)]; !known {
				t.Fatalf("there is no tool %s", args[0])
			}
			tried++
			h.lay(links) // a tool may have moved or removed them, which is no harm
			res, err := h.result(args[0].(string), args[1:]...)
			said, _ := json.Marshal(res)
			if strings.Contains(string(said)+fmt.Sprint(err), canary) {
				t.Errorf("%v tells what is outside: %.300s", args, said)
			}
		}
		if after := fmt.Sprint(h.outside()); after != before {
			t.Fatalf("%q has changed what is outside: %s, it was %s", path, after, before)
		}
	}
	filepath.WalkDir(h.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if b, _ := os.ReadFile(path); strings.Contains(string(b), canary) {
				t.Errorf("what is outside is now in %s", path)
			}
		}
		return nil
	})
	t.Logf("%d paths, %d calls", len(paths), tried)

	// Where the walls are wider the same paths lead there: they are real.
	set, err := roots.Open([]roots.Dir{{Path: h.dir}, {Path: h.out}}, roots.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	h.use(set)
	h.lay(links)
	seen := 0
	for _, path := range paths {
		res, _ := h.result("file_read", "path", path)
		if said, _ := json.Marshal(res); strings.Contains(string(said), canary) {
			seen++
		}
	}
	if seen < 20 {
		t.Errorf("%d of the paths lead to a folder beside when it may be seen, want 20", seen)
	}
}

// What is protected by the name of the directory above it stays protected when
// that is renamed, by a move or by taking one back.
//
//redteam:attack Files stay inside the roots: a folder is renamed away from its protected name, by file_rename and by undoing it
func TestProtectionIsNotRenamedAway(t *testing.T) {
	h := newFixture(t)
	h.put(".aws/credentials", "secret")
	h.want(h.call("file_rename", "oldPath", ".aws", "newPath", "aws2"), map[string]any{"error": "!denied"})
	h.put("aws3/notes", "x")
	h.want(h.call("file_rename", "oldPath", "aws3", "newPath", "a/.kube"), map[string]any{"error": "!not_found"})
	h.want(h.call("file_rename", "oldPath", "aws3", "newPath", ".kube"), map[string]any{"success": true})
	h.put(".kube/config", "secret")
	h.want(h.call("file_undo"), map[string]any{"error": "!denied"})
	h.want(h.call("file_read", "path", ".kube/config"), map[string]any{"error": "!denied"})
	h.put("app/.env", "secret")
	h.want(h.call("file_rename", "oldPath", "app", "newPath", "app2"), map[string]any{"success": true})
	h.want(h.call("file_read", "path", "app2/.env"), map[string]any{"error": "!denied"})
}

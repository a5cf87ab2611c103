package file

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gatehouse/internal/files/roots"
)

func TestWrite(t *testing.T) {
	h := newFixture(t)
	h.put("f", "old")
	h.put("d/keep", "x")
	os.Symlink("f", h.at("link"))
	os.Symlink(h.at("d"), h.at("absdir"))
	os.Symlink("new/deep/file", h.at("dangling"))
	os.Symlink(h.out+"/f", h.at("out"))
	os.Symlink(h.out, h.at("outdir"))
	os.Symlink("loop", h.at("loop"))
	for _, c := range []struct{ path, want, lands string }{
		{"f", "", "f"}, {"a/b/c", "", "a/b/c"}, {"link", "", "f"}, {"absdir/n", "", "d/n"},
		{"dangling", "", "new/deep/file"},
		{h.other + "/x", "", h.other + "/x"}, {"~/y", "", h.other + "/y"},
		{"d", "!is_a_directory", ""}, {"d/", "!is_a_directory", ""}, {"new/", "!is_a_directory", ""},
		{".", "!is_a_directory", ""},
		{"f/x", "!not_a_directory", ""}, {"../out/f", "!outside_root", ""}, {h.out + "/f", "!outside_root", ""},
		{"out", "!outside_root", ""}, {"outdir/f", "!outside_root", ""}, {"outdir/sub/f", "!outside_root", ""},
		{"loop", "!unsupported", ""},
		{"n\x00l", "!invalid_arguments", ""}, {strings.Repeat("n", 300), "!invalid_arguments", ""},
		{"", "!invalid_arguments", ""},
	} {
		out := h.call("file_write", "path", c.path, "content", "to "+c.path)
		if e, _ := out["error"].(string); e != c.want {
			t.Errorf("%.50q: got %v, want %q", c.path, out, c.want)
		}
		if c.lands != "" && h.get(c.lands) != "to "+c.path {
			t.Errorf("%s: %s holds %q", c.path, c.lands, h.get(c.lands))
		}
	}
	if entries, _ := os.ReadDir(h.out); len(entries) > 0 {
		t.Errorf("written outside: %v", entries)
	}
	if info, _ := os.Lstat(h.at("link")); info.Mode()&fs.ModeSymlink == 0 {
		t.Error("the link was replaced")
	}
	h.noTemps()
}

func TestWriteKeepsModeAndMakesPlainOnes(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o022))
	h := newFixture(t)
	h.put("script", "old")
	os.Chmod(h.at("script"), 0o751)
	h.want(
		h.call("file_write", "path", "script", "content", "new"),
		map[string]any{"success": true, "created": nil, "size": 3},
	)
	h.want(
		h.call("file_edit", "path", "script", "old_string", "new", "new_string", "newer"),
		map[string]any{"replacements": 1},
	)
	h.want(h.call("file_write", "path", "sub/new", "content", ""), map[string]any{"created": true, "size": 0})
	for path, want := range map[string]fs.FileMode{"script": 0o751, "sub/new": 0o644, "sub": 0o755} {
		if info, err := os.Stat(h.at(path)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: got %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
}

func TestReadOnlyFileStays(t *testing.T) {
	h := newFixture(t)
	os.Chmod(h.put("f", "old"), 0o444)
	if f, err := os.OpenFile(h.at("f"), os.O_WRONLY, 0); err == nil {
		f.Close()
		t.Skip("this user may write read-only files")
	}
	h.want(h.call("file_write", "path", "f", "content", "new"), map[string]any{"error": "!denied"})
	h.want(
		h.call("file_edit", "path", "f", "old_string", "old", "new_string", "new"), map[string]any{"error": "!denied"},
	)
}

// Pipes, sockets and devices are refused, and no call waits for them.
func TestSpecialFiles(t *testing.T) {
	h := newFixture(t)
	if err := syscall.Mkfifo(h.at("pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	os.Symlink("pipe", h.at("topipe"))
	set, err := roots.Unrestricted(roots.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	inside := h.roots
	for _, c := range []struct {
		path string
		open bool
	}{{"pipe", false}, {"topipe", false}, {"/dev/zero", true}, {"/dev/null", true}, {"/dev/tty", true},
		{"/proc/self/environ", true}, {"/proc/kmsg", true}, {"/proc/self/fd/0", true}} {
		h.use(inside)
		if c.open {
			h.use(set)
		}
		for _, args := range [][]any{
			{"file_read"}, {"file_write", "content", "x"}, {"file_edit", "old_string", "a", "new_string", "b"},
		} {
			if strings.HasPrefix(c.path, "/proc") && args[0] != "file_read" {
				continue
			}
			out := h.call(args[0].(string), append([]any{"path", c.path}, args[1:]...)...)
			switch out["error"] {
			case "!not_a_file", "!denied", "!not_found", "!failed":
			default:
				t.Errorf("%v %s: %.200v", args[0], c.path, out)
			}
		}
	}
}

// While another process keeps swapping a directory for a link that leads out, what is
// written lands inside or nowhere.
//
//redteam:attack Files stay inside the roots: folders are swapped while files are written
func TestWriteRacer(t *testing.T) {
	h := newFixture(t)
	os.Mkdir(h.at("d"), 0o755)
	h.put(h.out+"/f", "outside")
	os.Symlink(h.out, h.at("evil"))
	done := make(chan struct{})
	var swapper sync.WaitGroup
	swapper.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			os.Rename(h.at("d"), h.at("t"))
			os.Rename(h.at("evil"), h.at("d"))
			os.Rename(h.at("d"), h.at("evil"))
			os.Rename(h.at("t"), h.at("d"))
		}
	})
	for begin, i := time.Now(), 0; i < 150 || time.Since(begin) < lasting(t); i++ {
		h.call("file_write", "path", "d/f", "content", fmt.Sprint("inside ", i))
		h.call("file_edit", "path", "d/f", "old_string", "inside", "new_string", "INSIDE")
		h.call("file_delete", "path", "d/f")
		h.call("file_rename", "oldPath", "d/f", "newPath", "d/g")
	}
	close(done)
	swapper.Wait()
	if h.get(h.out+"/f") != "outside" {
		t.Errorf("outside now holds %q", h.get(h.out+"/f"))
	}
	if entries, _ := os.ReadDir(h.out); len(entries) != 1 {
		t.Errorf("outside now holds %v", entries)
	}
}

// A process killed in the middle of a thousand writes and edits leaves each
// file as it was or as it was to be.
//
//redteam:attack A kill leaves whole files: a writer of files is killed
func TestKilledWriter(t *testing.T) {
	if dir := os.Getenv("GATEHOUSE_TEST_WRITE"); dir != "" {
		writeForever(t, dir)
		return
	}
	base := t.TempDir()
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		if dir, err := os.MkdirTemp("/dev/shm", "gatehouse"); err == nil { // where waiting for a disk is short
			base = dir
			defer os.RemoveAll(dir)
		}
	}
	dir := filepath.Join(base, "w")
	os.MkdirAll(dir, 0o755)
	for name := range killedFiles {
		os.WriteFile(filepath.Join(dir, name), []byte(versionOf(0)), 0o644)
	}
	done := 0
	for kill := 20; done < 1000; kill += 37 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledWriter$")
		cmd.Env = append(os.Environ(), "GATEHOUSE_TEST_WRITE="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines, n := bufio.NewScanner(out), 0
		for ; n < kill && lines.Scan(); n++ {
		}
		cmd.Process.Kill()
		cmd.Wait()
		if n < kill {
			t.Fatalf("it ended after %d changes: %s", n, lines.Text())
		}
		done += n
		for name := range killedFiles {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if c := string(b); len(c) < 2 || !whole(c) {
				t.Fatalf("killed after %d changes: %s has %d bytes and is not one of the versions", n, name, len(b))
			}
		}
	}
}

// killedFiles are changed in turn, each in its way.
var killedFiles = map[string]string{"written": "", "edited": "", "copied": ""}

// versionOf is a content that shows when a part of it is missing.
func versionOf(n int) string {
	return strings.Repeat(string(rune('a'+n%26)), 20_000+1000*(n%26)) + "\n"
}

func whole(c string) bool { return c == versionOf(int(c[0]-'a')) }

func writeForever(t *testing.T, dir string) {
	h := &fixture{t: t, dir: dir}
	set, err := roots.Open([]roots.Dir{{Path: h.dir}}, roots.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h.use(set)
	for i := 1; ; i++ {
		for _, args := range [][]any{
			{"file_write", "path", "written", "content", versionOf(i)},
			{
				"file_edit", "path", "edited", "old_string", h.get("edited"), "new_string",
				versionOf(int(h.get("edited")[0]-'a') + 1),
			},
			{"file_copy", "oldPath", "written", "newPath", "copied", "overwrite", true},
		} {
			if out := h.call(args[0].(string), args[1:]...); out["error"] != nil {
				t.Fatal(out["message"])
			}
			fmt.Println(i)
		}
	}
}

// lasting is for how long a racer runs at least; GATEHOUSE_RACER=30s says so.
func lasting(t *testing.T) time.Duration {
	text := os.Getenv("GATEHOUSE_RACER")
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

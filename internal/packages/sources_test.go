package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Sources are written as ParseSource says, and nothing else is one.
func TestSources(t *testing.T) {
	for _, text := range []string{
		"command", "npm:@a/b@1.2.3", "pypi:mcp-server-time", "pypi:mcp[cli]==1.2.3", "pypi:a[b,c]==1,d==2,e",
		"crate:a-b_c@1.2.3", "go:example.com/a/b@v1.2.3",
		"mcpb:/a.mcpb",
		"mcpb:https://example.com/a.mcpb#sha256=" + strings.Repeat("a", 64), "archive:https://example.com/a.tgz",
		"binary:./a", "binary:https://example.com/a#sha256=" + strings.Repeat("0", 64), "archive:http://127.0.0.1:1/a",
		"folder:/a", "url:https://a", "unix:/a", "tcp:a:1",
	} {
		if s, err := ParseSource(text); err != nil || s.String() != text {
			t.Errorf("%s: got %v, %v", text, s, err)
		}
	}
	for _, text := range []string{
		"npm:", "npm:-g", "npm:https://example.com/a", "pypi:--index-url=x", "pypi:a>=1", "pypi:a @ https://x",
		"pypi:../a",
		"pypi:a==1;b", "crate:--git", "crate:a@^1", "go:./a", "go:a", "go:example.com/../a", "go:-x.com/a",
		"oci:alpine",
		"oci:example.com/a", "oci:a/b:1", "binary:https://example.com/a", "archive:http://example.com/a",
		"mcpb:https://user:pass@example.com/a", "mcpb:https://example.com/a#sha256=1", "nuget:a", "other",
	} {
		if s, err := ParseSource(text); err == nil || !strings.Contains(err.Error(), "expected") {
			t.Errorf("%s: got %v, %v", text, s, err)
		}
	}
}

// A host without packages leaves its folder to others, and accepts the first package all the same.
func TestTheFirstPackageOfALazyHost(t *testing.T) {
	h := openHome(t, Options{Lazy: true})
	if err := h.Check(&Plan{Record: server(t, "up", "good")}); err != nil {
		t.Error(err)
	}
}

// A source with a version becomes one with another version, or with none.
func TestVersionsOfSources(t *testing.T) {
	for _, c := range []struct{ from, version, want string }{
		{"npm:@a/b@1", "", "npm:@a/b@latest"},
		{"npm:@a/b", "2", "npm:@a/b@2"},
		{"pypi:a[b,c]==1,d==2", "", "pypi:a[b,c],d==2"},
		{"pypi:a", "3.0", "pypi:a==3.0"},
		{"crate:a@1", "", "crate:a"},
		{"go:example.com/a", "", "go:example.com/a@latest"},
		{"go:example.com/a@v1", "v2", "go:example.com/a@v2"},
		{"folder:/a", "", "folder:/a"},
	} {
		s, err := ParseSource(c.from)
		if got := s.WithVersion(c.version); err != nil || got.String() != c.want {
			t.Errorf("%s with %q: got %s, %v; want %s", c.from, c.version, got, err, c.want)
		}
	}
}

// programs puts programs of PyPI in front of PATH.
func programs(t *testing.T, names ...string) {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("python3", "-m", "venv", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pip := exec.Command(
		filepath.Join(dir, "bin", "python"),
		append([]string{"-m", "pip", "install", "-q"}, names...)...)
	if out, err := pip.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	only := t.TempDir()
	for _, name := range names {
		if err := os.Symlink(filepath.Join(dir, "bin", name), filepath.Join(only, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", only+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// withoutProgram leaves the folders with a program out of PATH.
func withoutProgram(t *testing.T, name string) {
	t.Helper()
	var kept []string
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			kept = append(kept, dir)
		}
	}
	t.Setenv("PATH", strings.Join(kept, string(os.PathListSeparator)))
}

// A server of PyPI is installed once, by uv or by pip, and started without them and without a network.
func TestAServerOfPyPI(t *testing.T) {
	for _, installer := range []string{"uv", "pip"} {
		t.Run(installer, func(t *testing.T) {
			if withoutProgram(t, "uv"); installer == "uv" {
				programs(t, "uv")
			}
			t.Setenv("A_SECRET_OF_THE_HOST", "not for build steps")
			open := openHome
			if installer == "uv" {
				open = confined // also with a Python outside of the system's folders, such as pyenv's
			}
			h := open(t, Options{Settings: Settings{Begin: 2 * time.Minute}})
			w, err := ParseTarget("time", []string{"uvx", "mcp-server-time@latest", "--local-timezone=Etc/UTC"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			i := h.install(w.Record)
			if i.Public.Version == "" || i.Public.Source != "pypi:mcp-server-time" {
				t.Errorf("got %+v", i.Public)
			}
			program := i.Record.program(h.folder("time"))
			lock, err := os.ReadFile(filepath.Join(program, pypiLock))
			if err != nil ||
				!regexp.MustCompile(`mcp-server-time==`+regexp.QuoteMeta(i.Public.Version)+`[ \\\n]+--hash=sha256:`).
					Match(lock) {
				t.Errorf("lock: %.300s, %v", lock, err)
			}

			// No index answers from here on.
			t.Setenv("UV_OFFLINE", "1")
			t.Setenv("PIP_NO_INDEX", "1")
			got, err := h.call("time", "convert_time",
				`{"source_timezone":"Etc/UTC","time":"12:00","target_timezone":"Asia/Tokyo"}`)
			if err != nil || !strings.Contains(got, "21:00") {
				t.Errorf("got %s, %v", got, err)
			}
			if err := h.Remove("time", false); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(h.folder("time")); !os.IsNotExist(err) {
				t.Errorf("something is left: %v", err)
			}
		})
	}
}

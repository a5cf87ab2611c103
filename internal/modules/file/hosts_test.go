package file_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/files/roots"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/modules/file"
	"gatehouse/internal/modules/filesystem"
	"gatehouse/module"
	"gatehouse/tool"
)

// editing is one of several processes that change the same files.
type editing struct {
	t     *testing.T
	roots tool.Roots
	tools map[string]tool.Tool
}

// call returns the code of a refusal.
func (e *editing) call(name string, args map[string]any) (res tool.Result, code string) {
	e.t.Helper()
	raw, err := json.Marshal(args)
	if err != nil {
		e.t.Fatal(err)
	}
	res, err = e.tools[name].Run(
		e.t.Context(), &tool.Call{Name: name, Args: raw, Roots: e.roots, Peer: struct{ tool.Peer }{}},
	)
	if r, ok := errors.AsType[*tool.Refusal](err); ok {
		if r.Code == "" {
			e.t.Fatalf("%s %s: %v", name, raw, err)
		}
		return res, string(r.Code)
	}
	if err != nil {
		e.t.Fatalf("%s %s: %v", name, raw, err)
	}
	return res, ""
}

const (
	hostsOfAFolder = 4
	linesOfAHost   = 5
)

// TestAnEditingHost is what each process does. Alone it is nothing.
func TestAnEditingHost(t *testing.T) {
	job := os.Getenv("GATEHOUSE_TEST_EDITING")
	if job == "" {
		t.Skip("it is run by another test")
	}
	var me, edits int
	var dir string
	if _, err := fmt.Sscan(job, &me, &edits, &dir); err != nil {
		t.Fatal(err)
	}
	set, err := roots.Open([]roots.Dir{{Path: dir}}, roots.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	e := &editing{t, set, map[string]tool.Tool{}}
	for _, make := range []module.New{file.New(file.Config{}), filesystem.New} {
		m, err := make(t.Context(), module.Deps{})
		if err != nil {
			t.Fatal(err)
		}
		offer, err := m.Offer(t.Context(), module.Audience{})
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range offer.Tools {
			e.tools[one.Name] = one
		}
	}
	os.WriteFile(filepath.Join(dir, "ready"+strconv.Itoa(me)), nil, 0o644)
	for !exists(filepath.Join(dir, "begin")) {
		time.Sleep(time.Millisecond)
	}
	e.edit(me, edits)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// edit changes lines of its own, adds lines, and counts in a file by if_match.
// The last thing it says is how often it was told that a count was written.
func (e *editing) edit(me, edits int) {
	var values [linesOfAHost]int
	counted := 0
	for n := range edits {
		switch n % 5 {
		case 4:
			if _, code := e.call("file_write",
				map[string]any{"path": "log", "mode": "append",
					"content": fmt.Sprintf("host %d adds %d\n", me, n)}); code != "" {
				e.t.Fatalf("append: %s", code)
			}
			counted += e.count()
		default:
			i := n % linesOfAHost
			old := fmt.Sprintf("host %d line %d: %d\n", me, i, values[i])
			values[i]++
			now := fmt.Sprintf("host %d line %d: %d\n", me, i, values[i])
			var code string
			if me%2 == 0 {
				_, code = e.call("file_edit", map[string]any{"path": "lines", "old_string": old, "new_string": now})
			} else {
				_, code = e.call(
					"filesystem_edit_file",
					map[string]any{"path": "lines", "edits": []any{map[string]any{"oldText": old, "newText": now}}},
				)
			}
			if code != "" {
				e.t.Fatalf("edit: %s", code)
			}
		}
	}
	fmt.Printf("counted %d\n", counted)
}

// count adds one to a number if no other process did meanwhile.
func (e *editing) count() int {
	res, code := e.call("file_stat", map[string]any{"path": "count"})
	if code != "" {
		e.t.Fatal(code)
	}
	raw, err := json.Marshal(res.Structured)
	if err != nil {
		e.t.Fatal(err)
	}
	tag, _ := rawjson.Get(raw, "etag")
	etag, _ := rawjson.String(tag)
	set := e.roots.(*roots.Set)
	root, name, err := set.Resolve("count")
	if err != nil {
		e.t.Fatal(err)
	}
	b, err := root.ReadFile(name)
	if err != nil {
		e.t.Fatal(err)
	}
	n, err := strconv.Atoi(string(b))
	if err != nil {
		e.t.Fatal(err)
	}
	if _, code = e.call("file_write",
		map[string]any{"path": "count", "content": strconv.Itoa(n + 1), "if_match": etag}); code == "stale" {
		return 0
	}
	if code != "" {
		e.t.Fatalf("count: %s", code)
	}
	return 1
}

// Four processes change one folder. What each was told was done is there at the
// end: nothing is lost. GATEHOUSE_EDITS says how many changes they make in all.
func TestHostsOfOneFolderLoseNothing(t *testing.T) {
	edits := 200
	if s := os.Getenv("GATEHOUSE_EDITS"); s != "" {
		var err error
		if edits, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	edits /= hostsOfAFolder
	dir := t.TempDir()
	var lines strings.Builder
	for host := range hostsOfAFolder {
		for i := range linesOfAHost {
			fmt.Fprintf(&lines, "host %d line %d: 0\n", host, i)
		}
	}
	for name, content := range map[string]string{"lines": lines.String(), "log": "", "count": "0"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	outs := make([]bytes.Buffer, hostsOfAFolder)
	var hosts []*exec.Cmd
	for i := range hostsOfAFolder {
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestAnEditingHost$", "-test.count=1")
		cmd.Env = append(os.Environ(), fmt.Sprintf("GATEHOUSE_TEST_EDITING=%d %d %s", i, edits, dir))
		cmd.Stdout, cmd.Stderr = &outs[i], &outs[i]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, cmd)
	}
	for i := range hosts {
		for !exists(filepath.Join(dir, "ready"+strconv.Itoa(i))) {
			time.Sleep(time.Millisecond)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "begin"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	counted := 0
	for i, cmd := range hosts {
		if err := cmd.Wait(); err != nil {
			t.Fatalf("host %d: %v\n%s", i, err, outs[i].String())
		}
		var n int
		if _, err := fmt.Sscanf(outs[i].String(), "counted %d", &n); err != nil {
			t.Fatalf("host %d said %q: %v", i, outs[i].String(), err)
		}
		counted += n
	}
	var want strings.Builder
	for host := range hostsOfAFolder {
		var values [linesOfAHost]int
		for n := range edits {
			if n%5 != 4 {
				values[n%linesOfAHost]++
			}
		}
		for i, v := range values {
			fmt.Fprintf(&want, "host %d line %d: %d\n", host, i, v)
		}
	}
	if got := read(t, dir, "lines"); got != want.String() {
		t.Errorf("lines: got\n%swant\n%s", got, want.String())
	}
	if got, want := strings.Count(read(t, dir, "log"), "\n"), hostsOfAFolder*(edits/5); got != want {
		t.Errorf("%d of %d lines were added", got, want)
	}
	if got := read(t, dir, "count"); got != strconv.Itoa(counted) {
		t.Errorf("counted to %s, and %d times a host was told so", got, counted)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".gatehouse*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

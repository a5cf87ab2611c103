package packages

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/packages/packagestest"
	"gatehouse/internal/state"
)

// source is a folder with a program that becomes the test's server.
func source(t *testing.T, version string) map[string]string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{
		"package.json": `{"name":"@scope/served","version":"` + version + `","bin":{"served":"./bin/run","other":"x"}}`,
		"bin/run":      "#!/bin/sh\nexec '" + program + "'\n",
		"lib/deep/a":   "text",
	}
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
}

func from(id, source string) Record {
	s, err := ParseSource(source)
	if err != nil {
		panic(err)
	}
	return Record{ID: id, Source: s, Env: packagestest.Environment("good")}
}

func needsShell(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/bin/sh"); err != nil {
		t.Skip("needs /bin/sh")
	}
}

func TestAFolderIsCopied(t *testing.T) {
	needsShell(t)
	h, dir := openHome(t, Options{}), t.TempDir()
	write(t, dir, source(t, "1.0.0"))
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	i := h.install(from("up", "folder:"+dir))
	if i.Public.Version != "1.0.0" || i.Public.Source != "folder" || i.Public.Tools != 15 {
		t.Errorf("got %+v", i.Public)
	}
	program := i.Record.program(h.folder("up"))
	if b, err := os.ReadFile(filepath.Join(program, "lib/deep/a")); err != nil || string(b) != "text" {
		t.Errorf("got %q, %v", b, err)
	}
	if _, err := os.Lstat(filepath.Join(program, "link")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a link was copied: %v", err)
	}
	if _, err := h.call("up", "keep", `{}`); err != nil {
		t.Fatal(err)
	}

	write(t, dir, source(t, "2.0.0"))
	now, err := h.Rebuild(t.Context(), "up", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if now.Program == i.Program {
		t.Error("it is the same program")
	}
	if _, err := os.Stat(program); err != nil {
		t.Errorf("the previous program is gone: %v", err)
	}
	if _, err := os.Stat(filepath.Join(now.Data, "kept")); err != nil {
		t.Errorf("the data are gone: %v", err)
	}

	write(t, dir, map[string]string{"bin/run": "#!/bin/sh\nexit 7\n"})
	if _, err := h.Rebuild(t.Context(), "up", "", nil); err == nil || !strings.Contains(err.Error(), "code 7") {
		t.Errorf("got %v", err)
	}
	if got, err := h.call("up", "echo", `{"text":"as it was"}`); err != nil || !strings.Contains(got, "as it was") {
		t.Errorf("got %s, %v", got, err)
	}
	if i, _ := h.Info("up"); i.Program != now.Program || i.State != Installed || i.Public.Progress != nil {
		t.Errorf("got %+v", i)
	}
	if programs, _ := filepath.Glob(filepath.Join(h.folder("up"), programPrefix+"*")); len(programs) != 2 {
		t.Errorf("programs: %v", programs)
	}
}

func tarred(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text)),
			Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		w.Write([]byte(text))
	}
	w.WriteHeader(&tar.Header{Name: "package/evil", Linkname: "/etc/passwd", Typeflag: tar.TypeSymlink})
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zipped(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, text := range files {
		head := &zip.FileHeader{Name: name}
		head.SetMode(0o755)
		w, err := z.CreateHeader(head)
		if err != nil {
			t.Fatal(err)
		}
		w.Write([]byte(text))
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestArchivesAreUnpacked(t *testing.T) {
	needsShell(t)
	inFolder := map[string]string{}
	for name, text := range source(t, "3.0.0") {
		inFolder["package/"+name] = text
	}
	for name, packed := range map[string][]byte{"a.tgz": tarred(t, inFolder), "a.zip": zipped(t, source(t, "3.0.0"))} {
		t.Run(name, func(t *testing.T) {
			h, dir := openHome(t, Options{}), t.TempDir()
			write(t, dir, map[string]string{name: string(packed)})
			i := h.install(from("up", "archive:"+filepath.Join(dir, name)))
			if i.Public.Version != "3.0.0" {
				t.Errorf("got %+v", i.Public)
			}
			if got, err := h.call("up", "echo", `{"text":"a"}`); err != nil {
				t.Errorf("got %s, %v", got, err)
			}
			if _, err := os.Lstat(filepath.Join(i.Record.program(h.folder("up")), "evil")); !errors.Is(
				err,
				fs.ErrNotExist,
			) {
				t.Errorf("a link was unpacked: %v", err)
			}
		})
	}
}

//redteam:attack A package's server is a stranger: an archive with names that lead out
func TestArchivesThatLeadElsewhereAreRefused(t *testing.T) {
	h, dir := openHome(t, Options{}), t.TempDir()
	for name, inside := range map[string]string{"up.tgz": "../../escaped", "top.tgz": "/tmp/escaped"} {
		write(t, dir, map[string]string{name: string(tarred(t, map[string]string{inside: "x"}))})
		_, err := h.Install(t.Context(), Plan{Record: from("up", "archive:"+filepath.Join(dir, name))}, nil)
		if err == nil || !strings.Contains(err.Error(), "leads out of it") {
			t.Errorf("%s: got %v", inside, err)
		}
	}
	if left, _ := os.ReadDir(h.dir); len(left) > 2 { // the locks
		t.Errorf("left: %v", left)
	}
}

// fakeNPM is an npm that installs the test's own program, in one version or
// the other, and notes how it was called.
func fakeNPM(t *testing.T) (said string) {
	t.Helper()
	needsShell(t)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	said = filepath.Join(dir, "said")
	write(t, dir, map[string]string{"npm": `#!/bin/sh
echo "$@" >> '` + said + `'
case "$*" in *broken*) echo "npm error 404" >&2; exit 1;; *stuck*) echo "npm is fetching" >&2; exec sleep 600;; esac
[ "$1" = ci ] && [ ! -f package-lock.json ] && exit 3
mkdir -p node_modules/@scope/served/bin
echo '{}' > package-lock.json
echo '{"name":"@scope/served","version":"4.5.6","bin":"bin/run"}' > node_modules/@scope/served/package.json
printf '#!/bin/sh\nexec %s\n' '` + program + `' > node_modules/@scope/served/bin/run
chmod +x node_modules/@scope/served/bin/run
`})
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return said
}

func TestNPMInstallsWithoutScriptsAndAgainByTheLockFile(t *testing.T) {
	said := fakeNPM(t)
	h := openHome(t, Options{})
	i := h.install(from("up", "npm:@scope/served@4.5.6"))
	if i.Public.Version != "4.5.6" || i.Public.Source != "npm:@scope/served@4.5.6" {
		t.Errorf("got %+v", i.Public)
	}
	if _, err := h.Rebuild(t.Context(), "up", "", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Rebuild(t.Context(), "up", "npm:@scope/served@5.0.0", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Rebuild(t.Context(), "up", "npm:other", nil); err == nil ||
		!strings.Contains(err.Error(), "only its version can be another") {
		t.Errorf("got %v", err)
	}
	b, err := os.ReadFile(said)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "install --save-exact @scope/served@4.5.6 ") ||
		!strings.HasPrefix(lines[1], "ci ") ||
		!strings.HasPrefix(lines[2], "install --save-exact @scope/served@5.0.0 ") {
		t.Errorf("npm was called %q", lines)
	}
	for _, l := range lines {
		if !strings.Contains(l, "--ignore-scripts") {
			t.Errorf("npm may run scripts: %s", l)
		}
	}
	_, err = h.Install(t.Context(), Plan{Record: from("bad", "npm:broken")}, nil)
	if err == nil ||
		!strings.Contains(err.Error(), "npm cannot install broken: the registry has no package of this name") {
		t.Errorf("got %v, %q", err, Words(err))
	}
}

// An install that takes too long says what npm printed until then.
func TestAnInstallThatTakesTooLongSaysWhatWasPrinted(t *testing.T) {
	fakeNPM(t)
	for wait := 300 * time.Millisecond; ; wait *= 2 { // until npm has got as far as that
		h := openHome(t, Options{Settings: Settings{Install: wait}})
		_, err := h.Install(t.Context(), Plan{Record: from("up", "npm:stuck")}, nil)
		if err == nil || !strings.Contains(err.Error(), "it was not installed within") {
			t.Fatalf("got %v", err)
		}
		if strings.Contains(Words(err), "npm is fetching") {
			return
		}
		if wait > time.Minute {
			t.Fatalf("got %v, %q", err, Words(err))
		}
	}
}

func TestFailuresOfNPMAreTold(t *testing.T) {
	stack := strings.Repeat("npm error     at Socket.emit (node:events:524:28)\n", 30)
	for _, c := range []struct{ printed, want, words string }{
		{"npm error code E404\nnpm error 404 Not Found - GET https://example.com/x\nnpm error 404\n" +
			"npm error A complete log of this run can be found in: /x",
			"npm cannot install x@1: the registry has no package",
			"npm error code E404\nnpm error 404 Not Found - GET https://example.com/x"},
		{"npm error code ETARGET\nnpm error notarget No matching version found for x@1.", "not in this version",
			"npm error code ETARGET"},
		{"npm error code ECONNREFUSED\nnpm error FetchError: request failed\n" + stack +
			"npm error   code: 'ECONNREFUSED',\nnpm error }\n",
			"the registry cannot be reached", "npm error code ECONNREFUSED\nnpm error FetchError: request failed"},
		{"npm ERR! code ENOSPC", "the disk is full", "npm ERR! code ENOSPC"},
		{"npm error code EWHATEVER", "it ended with code 7", "npm error code EWHATEVER"},
		{"", "it ended with code 7", ""},
	} {
		err := npmFailure("x@1", 7, c.printed)
		if !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(Words(err), c.words) ||
			strings.Contains(Words(err), "at Socket") ||
			strings.Contains(Words(err), "complete log") {
			t.Errorf("%.60q: got %v, %q", c.printed, err, Words(err))
		}
	}
}

func TestAllPackagesAreInstalledAgain(t *testing.T) {
	fakeNPM(t)
	h := openHome(t, Options{})
	h.install(from("one", "npm:@scope/served"))
	r := server(t, "two", "good")
	r.Start = Always
	h.install(r)
	bad := t.TempDir()
	write(t, bad, source(t, "1.0.0"))
	h.install(from("three", "folder:"+bad))
	if err := os.RemoveAll(bad); err != nil {
		t.Fatal(err)
	}
	out, err := h.RebuildAll(t.Context(), nil)
	if err != nil || len(out) != 3 || out[0].Error != "" || out[2].Error != "" {
		t.Fatalf("got %+v, %v", out, err)
	}
	if out[1].ID != "three" || !strings.Contains(out[1].Error, "source") {
		t.Errorf("got %+v", out[1])
	}
	for _, id := range []string{"one", "two", "three"} {
		if _, err := h.call(id, "echo", `{"text":"a"}`); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}

func TestAnInstallationCanBeCancelled(t *testing.T) {
	h := openHome(t, Options{})
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("nobody wants it")
	ended := make(chan error, 1)
	go func() {
		_, err := h.Install(ctx, Plan{Record: server(t, "up", "silent")}, nil)
		ended <- err
	}()
	h.eventually("it is tried", func() bool { return h.has("up " + PhaseTry) })
	cancel(gone)
	if err := <-ended; !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
	if left, _ := os.ReadDir(h.dir); len(left) > 2 { // the locks
		t.Errorf("left: %v", left)
	}
}

func TestDataCanBeKeptForTheNext(t *testing.T) {
	h := openHome(t, Options{})
	h.install(server(t, "up", "good"))
	if _, err := h.call("up", "keep", `{}`); err != nil {
		t.Fatal(err)
	}
	if err := h.Remove("up", true); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Install(t.Context(), Plan{Record: server(t, "up", "exit")}, nil); err == nil {
		t.Error("it was installed")
	}
	i := h.install(server(t, "up", "good"))
	if _, err := os.Stat(filepath.Join(i.Data, "kept")); err != nil {
		t.Error(err)
	}
	if err := h.Remove("up", false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(h.folder("up")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is left: %v", err)
	}
}

// What a host left half done when it was killed is finished or undone by the
// next one.
func TestWhatWasLeftHalfDone(t *testing.T) {
	log, dir := new(state.MemoryLog), t.TempDir()
	h := reopen(t, Options{}, dir, log)
	for _, id := range []string{"whole", "fresh", "updated", "removed", "emptied"} {
		h.install(server(t, id, "good"))
		if _, err := h.call(id, "keep", `{}`); err != nil {
			t.Fatal(err)
		}
	}
	for id, to := range map[string]Record{
		"fresh": {State: Installing}, "updated": {State: Updating}, "removed": {State: Removing},
		"emptied": {State: Removing, Keep: true},
	} {
		r := server(t, id, "good")
		r.State, r.Keep, r.Start = to.State, to.Keep, OnDemand
		if err := h.putRecord(r, nil); err != nil {
			t.Fatal(err)
		}
		write(t, h.folder(id), map[string]string{programPrefix + "abandoned/x": "half"})
	}
	h.end()

	h = reopen(t, Options{}, dir, log)
	list, err := h.List()
	if err != nil || len(list) != 2 || list[0].ID != "updated" || list[0].State != Installed || list[1].ID != "whole" {
		t.Fatalf("got %+v, %v", list, err)
	}
	if n := len(h.Tools()); n != 30 {
		t.Errorf("%d tools are offered before anything runs", n)
	}
	if _, err := h.call("updated", "echo", `{"text":"a"}`); err != nil {
		t.Error(err)
	}
	found, _ := filepath.Glob(filepath.Join(dir, "*", "*"))
	for _, path := range found {
		if strings.Contains(path, programPrefix) {
			t.Errorf("left: %s", path)
		}
	}
	for id, want := range map[string]bool{"fresh": false, "removed": false, "emptied": true, "updated": true} {
		if _, err := os.Stat(filepath.Join(dir, id, "data", "kept")); (err == nil) != want {
			t.Errorf("data of %s: %v, want them there: %v", id, err, want)
		}
	}
}

func TestOneHostAtATimeHasThePackages(t *testing.T) {
	log, dir := new(state.MemoryLog), t.TempDir()
	first := reopen(t, Options{}, dir, log)
	first.install(server(t, "up", "good"))
	second := reopen(t, Options{Settings: Settings{Idle: 40 * 1e6}}, dir, log)
	if _, err := second.List(); code(err) != "busy" {
		t.Errorf("got %v", err)
	}
	if _, err := second.call("up", "echo", `{"text":"a"}`); code(err) != "busy" {
		t.Errorf("got %v", err)
	}
	if _, err := second.Install(t.Context(), Plan{Record: server(t, "more", "good")}, nil); code(err) != "busy" {
		t.Errorf("got %v", err)
	}
	first.end()
	second.eventually("the second takes over", func() bool {
		_, err := second.call("up", "echo", `{"text":"a"}`)
		return err == nil
	})
}

func TestLogsAreReadByPages(t *testing.T) {
	j := journal{dir: filepath.Join(t.TempDir(), "log")}
	defer j.closeFiles()
	const all = 40_000
	for i := range all {
		j.writeLine(fmt.Sprintf("line %d %s", i, strings.Repeat("x", 40)))
	}
	if n := len(j.offsets()); n != segments {
		t.Errorf("%d files are kept, want %d", n, segments)
	}
	last, err := j.readLines(-1, true, 3)
	if err != nil || len(last) != 3 || !strings.HasPrefix(last[2].Message, fmt.Sprintf("line %d ", all-1)) {
		t.Fatalf("got %v, %v", last, err)
	}
	before, err := j.readLines(last[0].At, true, 2)
	if err != nil || len(before) != 2 || before[1].End != last[0].At {
		t.Errorf("got %v, %v", before, err)
	}
	after, err := j.readLines(before[1].End, false, 2)
	if err != nil || len(after) != 2 || after[0] != last[0] {
		t.Errorf("got %v, %v", after, err)
	}
	if oldest, err := j.readLines(0, false, 1); err != nil || len(oldest) != 1 || oldest[0].At == 0 {
		t.Errorf("got %v, %v", oldest, err)
	}
	end := last[2].End
	j.closeFiles()
	next := journal{dir: j.dir}
	defer next.closeFiles()
	next.writeLine("goes on")
	if more, err := next.readLines(end, false, 10); err != nil || len(more) != 1 || more[0].Message != "goes on" {
		t.Errorf("got %v, %v", more, err)
	}
}

// The official file server, where it is installed for the conformance suites.
func TestAForeignServerRuns(t *testing.T) {
	entry, err := filepath.Abs("../../.tools/npm/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(entry); err != nil {
		t.Skip("the pinned npm packages are not installed")
	}
	h := openHome(t, Options{})
	r := Record{ID: "fs", Source: Source{Kind: Command}, Command: "node", Args: []string{entry, "${data}"}}
	i, err := h.Install(t.Context(), Plan{Record: r}, nil)
	if err != nil && strings.Contains(err.Error(), "start node") {
		t.Skip("there is no node")
	}
	if err != nil {
		t.Fatal(err, Words(err))
	}
	if len(i.Names) < 5 || len(i.Left) > 0 {
		t.Errorf("got %v, left out %v", i.Names, i.Left)
	}
	if _, err := h.call("fs", "write_file",
		fmt.Sprintf(`{"path":%q,"content":"text"}`, filepath.Join(i.Data, "a.txt"))); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(i.Data, "a.txt")); err != nil || string(b) != "text" {
		t.Errorf("got %q, %v", b, err)
	}
}

// The records of packages that a restore has brought back are kept before
// anything else is done with the packages; one that was not whole is left out.
func TestRestoredPackagesAreThereAgain(t *testing.T) {
	good := Record{ID: "back", Source: Source{Kind: Command}, Command: "/bin/true", Start: OnDemand, State: Installed}
	half := good
	half.ID, half.State = "half", Installing
	kept := 0
	h := openHome(t, Options{Restored: func() (map[string]Record, func() error, error) {
		return map[string]Record{"back": good, "half": half, "other": good}, func() error { kept++; return nil }, nil
	}})
	var ids []string
	all, err := h.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		ids = append(ids, i.ID)
	}
	if !slices.Equal(ids, []string{"back"}) || kept != 1 {
		t.Errorf("there are %v, kept %d times", ids, kept)
	}
}

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"aead.dev/minisign"

	"gatehouse/release/product"
	"gatehouse/release/sign"
)

// here is the platform of this machine, the only one that these tests build for.
var here = product.Platform{OS: runtime.GOOS, Arch: runtime.GOARCH}

const (
	oldVersion = "0.0.9"
	newVersion = "1.2.3"
	address    = "example.org/team/gatehouse"
)

var scratch string // removed at the end

func TestMain(m *testing.M) {
	code := func() int {
		var err error
		if scratch, err = os.MkdirTemp("", "gatehouse-release-test-*"); err != nil {
			panic(err)
		}
		defer os.RemoveAll(scratch)
		return m.Run()
	}()
	os.Exit(code)
}

// secretKey is the key that the tests sign with, as minisign writes it to a file.
var secretKey = sync.OnceValue(func() string {
	_, private, err := minisign.GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	text, err := minisign.EncryptKey("a password", private)
	if err != nil {
		panic(err)
	}
	return string(text)
})

func environment(name string) string {
	return map[string]string{sign.KeyVariable: secretKey(), sign.PasswordVariable: "a password"}[name]
}

// makeRelease makes a release of this machine's platform without helpers and, unless a flag says so,
// without the full image.
func makeRelease(dist, version, source string, flags ...string) error {
	var log bytes.Buffer
	args := []string{"-o", dist, "-source", source, "-address", address, "-version", version, "-platforms",
		here.OS + "/" + here.Arch, "-helpers=false", "-full=false", "-fast", "-dirty"}
	if err := release(append(args, flags...), environment, &log); err != nil {
		return fmt.Errorf("%w: %s", err, log.Bytes())
	}
	return nil
}

var (
	oldRelease = sync.OnceValues(func() (string, error) {
		dist := filepath.Join(scratch, "old")
		return dist, makeRelease(dist, oldVersion, "..")
	})
	newRelease = sync.OnceValues(func() (string, error) {
		dist := filepath.Join(scratch, "new")
		return dist, makeRelease(dist, newVersion, "..")
	})
)

// released returns the folder of a release, which tests share and must not change.
func released(t *testing.T, which func() (string, error)) string {
	t.Helper()
	if testing.Short() {
		t.Skip("it builds programs")
	}
	dist, err := which()
	if err != nil {
		t.Fatal(err)
	}
	return dist
}

// mostBytes is how large the program for Linux may be. What is larger belongs into a helper.
const mostBytes = 60_000_000

func TestTheProgramIsSmallEnough(t *testing.T) {
	file := filepath.Join(released(t, newRelease), "gatehouse-"+newVersion+"-"+here.String())
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if t.Logf("%d bytes", info.Size()); info.Size() > mostBytes {
		t.Errorf("%s has %d bytes, at most %d", file, info.Size(), mostBytes)
	}
}

// program returns the path of a program that a test needs, and skips the test without it. With CI
// set it fails instead, because make setup installs what can be had.
func program(t *testing.T, name string) string {
	t.Helper()
	at, err := exec.LookPath(name)
	if err != nil && os.Getenv("CI") != "" {
		t.Fatalf("%s is not installed; make setup installs it", name)
	}
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	return at
}

// runs runs a command and returns what it prints; it must succeed.
func runs(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", cmd, err, out.Bytes(), problems.Bytes())
	}
	return out.String()
}

// digests returns the digest of each file below a folder.
func digests(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		_, sum, err := sign.Digest(at)
		all[strings.TrimPrefix(at, dir)] = sum
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// The source in another folder gives the same bytes, signatures included.
func TestTheSameBytesTwice(t *testing.T) {
	first := released(t, newRelease)
	elsewhere, dist := filepath.Join(t.TempDir(), "a", "copy"), filepath.Join(t.TempDir(), "dist")
	copySource(t, "..", elsewhere)
	if err := makeRelease(dist, newVersion, elsewhere); err != nil {
		t.Fatal(err)
	}
	a, b := digests(t, first), digests(t, dist)
	for name, sum := range a {
		if b[name] != sum {
			t.Errorf("%s differs between two releases of one source", name)
		}
	}
	if len(a) != len(b) {
		t.Errorf("%d files, then %d", len(a), len(b))
	}
}

// The whole release, for all platforms, is the same from another folder and without a cache of
// what was compiled.
func TestTheWholeReleaseTwice(t *testing.T) {
	if os.Getenv("GATEHOUSE_TEST_ALL") == "" {
		t.Skip("make verify-release runs it")
	}
	top := t.TempDir()
	elsewhere := filepath.Join(top, "copy")
	copySource(t, "..", elsewhere)
	for dist, source := range map[string]string{"first": "..", "second": elsewhere} {
		t.Setenv("GOCACHE", filepath.Join(top, "cache of "+dist))
		var log bytes.Buffer
		if err := release([]string{"-o", filepath.Join(top, dist), "-source", source, "-dirty"},
			environment, &log); err != nil {
			t.Fatalf("%v: %s", err, log.Bytes())
		}
	}
	a, b := digests(t, filepath.Join(top, "first")), digests(t, filepath.Join(top, "second"))
	if !maps.Equal(a, b) {
		t.Errorf("the first release is %v, the second %v", a, b)
	}
}

// copySource copies the files that git knows or would take in, and refers to their history.
func copySource(t *testing.T, from, to string) {
	t.Helper()
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = from
	for name := range strings.SplitSeq(strings.TrimRight(runs(t, list), "\x00"), "\x00") {
		info, err := os.Stat(filepath.Join(from, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since the commit
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(to, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755),
			os.WriteFile(at, body, info.Mode().Perm())); err != nil {
			t.Fatal(err)
		}
	}
	folder := exec.Command("git", "rev-parse", "--absolute-git-dir")
	folder.Dir = from
	if err := os.WriteFile(filepath.Join(to, ".git"), []byte("gitdir: "+runs(t, folder)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// The archive holds the program with its version and commit, completions, pages and licences.
func TestArchive(t *testing.T) {
	dist := released(t, newRelease)
	dir := t.TempDir()
	files := unpack(t, filepath.Join(dist, "gatehouse-"+newVersion+"-"+here.String()+".tar.gz"), dir)
	for _, want := range []string{
		"LICENSE", "README.md", "THIRD-PARTY-LICENCES.txt", "gatehouse", "completions/_gatehouse",
		"completions/gatehouse.bash", "completions/gatehouse.fish", "completions/gatehouse.ps1", "man1/gatehouse.1",
		"man1/gatehouse-serve.1",
	} {
		if !slices.Contains(files, want) {
			t.Errorf("the archive has no %s, only %q", want, files)
		}
	}
	var v struct {
		Version string
		Built   []string
	}
	out := runs(t, exec.Command(filepath.Join(dir, "gatehouse"), "version", "--json"))
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatal(err)
	}
	head := runs(t, exec.Command("git", "rev-parse", "--short=12", "HEAD"))
	if v.Version != newVersion || v.Built[0] != "commit "+strings.TrimSpace(head) {
		t.Errorf("the program says %+v, want version %s and commit %s", v, newVersion, head)
	}
	licences, err := os.ReadFile(filepath.Join(dir, "THIRD-PARTY-LICENCES.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"the Go library", "modernc.org/sqlite", "(BSD-3-Clause)",
		"Redistributions in binary form must reproduce", "GNU GENERAL PUBLIC LICENSE",
	} {
		if !bytes.Contains(licences, []byte(want)) {
			t.Errorf("the licences do not hold %q", want)
		}
	}
}

// unpack unpacks a compressed archive into a folder, and returns the names of its files.
func unpack(t *testing.T, name, dir string) (files []string) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		body, err := io.ReadAll(r)
		at := filepath.Join(dir, filepath.FromSlash(h.Name))
		err = errors.Join(err, os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, body, fs.FileMode(h.Mode).Perm()))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, h.Name)
	}
}

// Each completion is a script that its shell can read.
func TestCompletionsAreRead(t *testing.T) {
	dist := released(t, newRelease)
	dir := t.TempDir()
	unpack(t, filepath.Join(dist, "gatehouse-"+newVersion+"-"+here.String()+".tar.gz"), dir)
	for shell, file := range map[string]string{"bash": "gatehouse.bash", "zsh": "_gatehouse",
		"fish": "gatehouse.fish"} {
		t.Run(shell, func(t *testing.T) {
			runs(t, exec.Command(program(t, shell), "-n", filepath.Join(dir, "completions", file)))
		})
	}
	// The archive's program completes modules, tools, contexts and packages in each shell.
	env := append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir, "TMPDIR="+dir, "XDG_CONFIG_HOME=",
		"XDG_DATA_HOME=", "XDG_STATE_HOME=", "XDG_CACHE_HOME=", "XDG_RUNTIME_DIR=")
	for _, line := range []string{
		"context create notes --module file",
		"package add notepad --yes --trust -- " + filepath.Join(dir, "gatehouse") + " serve file -d " + dir,
	} {
		cmd := exec.Command(filepath.Join(dir, "gatehouse"), strings.Fields(line)...)
		cmd.Dir, cmd.Env = dir, env
		runs(t, cmd)
	}
	for _, c := range []struct{ line, want string }{
		{"serve fil", "filesystem"},
		{"call file_rea", "file_read"},
		{"call --context no", "notes"},
		{"package info note", "notepad"},
	} {
		for shell, script := range completing {
			t.Run(shell+" "+c.line, func(t *testing.T) {
				cmd := exec.Command(program(t, shell), "-c", script, shell, "gatehouse "+c.line)
				cmd.Dir, cmd.Env = dir, env
				if out := runs(t, cmd); !strings.Contains(out, c.want) {
					t.Errorf("it is completed to %q, want %s", out, c.want)
				}
			})
		}
	}
	t.Run("manual pages", func(t *testing.T) {
		out := runs(t, exec.Command(program(t, "mandoc"), "-T", "lint", "-W", "error",
			filepath.Join(dir, "man1/gatehouse-serve.1")))
		if out != "" {
			t.Error(out)
		}
	})
}

// completing prints what a shell makes of the line that is its argument. In zsh, whose completion needs a terminal,
// what the script asks its widgets to add is printed.
var completing = map[string]string{
	"bash": `. completions/gatehouse.bash
		_init_completion() { cur=${COMP_WORDS[COMP_CWORD]} words=("${COMP_WORDS[@]}") cword=$COMP_CWORD; }
		COMP_WORDS=($1) COMP_CWORD=$((${#COMP_WORDS[@]}-1)) COMP_LINE=$1 COMP_POINT=${#1}
		__start_gatehouse; echo "${COMPREPLY[@]}"`,
	"zsh": `compdef() { }; _describe() { print -l -- "${completions[@]}"; }
		words=(${=1}) CURRENT=${#words}; . completions/_gatehouse; _gatehouse`,
	"fish": `source completions/gatehouse.fish; complete -C "$argv[-1]"`,
}

// gatehouse update replaces an older release by a newer one, and refuses one of
// which a byte was changed.
func TestUpdateReadsTheManifest(t *testing.T) {
	older, newer := released(t, oldRelease), released(t, newRelease)
	key, err := os.ReadFile(filepath.Join(newer, "gatehouse.pub"))
	if err != nil {
		t.Fatal(err)
	}
	update := func(t *testing.T, source string) (string, error) {
		dir := t.TempDir()
		at := filepath.Join(dir, here.Exe("gatehouse"))
		body, err := os.ReadFile(filepath.Join(older, here.Exe("gatehouse-"+oldVersion+"-"+here.String())))
		if err != nil {
			t.Fatal(err)
		}
		words := strings.Fields(string(key))
		settings := fmt.Sprintf("update:\n  source: %s\n  key: %s\n", source, words[len(words)-1])
		err = errors.Join(os.WriteFile(at, body, 0o755),
			os.WriteFile(filepath.Join(dir, "gatehouse.yaml"), []byte(settings), 0o600))
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(at, "update", "apply")
		for _, part := range []string{"CONFIG", "DATA", "CACHE", "STATE", "RUNTIME"} {
			cmd.Env = append(cmd.Env, "GATEHOUSE_"+part+"_DIR="+dir)
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			return string(out), err
		}
		return runs(t, exec.Command(at, "version")), nil
	}
	t.Run("signed", func(t *testing.T) {
		out, err := update(t, newer)
		if err != nil || !strings.HasPrefix(out, "gatehouse "+newVersion+" ") {
			t.Errorf("after the update: %v, %s", err, out)
		}
	})
	for _, name := range []string{sign.Manifest, here.Exe("gatehouse-" + newVersion + "-" + here.String())} {
		t.Run("changed "+name, func(t *testing.T) {
			if out, err := update(t, changedCopy(t, newer, name)); err == nil {
				t.Errorf("a release with a changed byte was installed: %s", out)
			}
		})
	}
}

// changedCopy returns a copy of a release in which one byte of a file differs.
func changedCopy(t *testing.T, dist, name string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(dist)); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(dir, name)
	body, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	body[len(body)/2] ^= 1
	if err := os.WriteFile(at, body, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The checksums are those of the files, and minisign itself accepts the signature.
func TestChecksums(t *testing.T) {
	dist := released(t, newRelease)
	text, err := os.ReadFile(filepath.Join(dist, sign.Sums))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]string{}
	for line := range strings.Lines(string(text)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		listed["/"+name] = sum
	}
	for name, sum := range digests(t, dist) {
		if listed[name] != sum && !strings.HasPrefix(name, "/"+sign.Sums) {
			t.Errorf("%s has the digest %s, listed is %q", name, sum, listed[name])
		}
	}
	verify := func(dir string) error {
		return exec.Command(program(t, "minisign"), "-V", "-q", "-p", filepath.Join(dist, "gatehouse.pub"),
			"-m", filepath.Join(dir, sign.Sums)).Run()
	}
	if err := verify(dist); err != nil {
		t.Errorf("minisign refuses the signature: %v", err)
	}
	if verify(changedCopy(t, dist, sign.Sums)) == nil {
		t.Error("minisign accepts the signature of changed checksums")
	}
}

// A folder with files that are no release is not emptied.
func TestOtherFilesAreKept(t *testing.T) {
	dir := t.TempDir()
	precious := filepath.Join(dir, "thesis.txt")
	if err := os.WriteFile(precious, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := emptyFolder(dir); err == nil {
		t.Error("a folder with other files was emptied")
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}

// shells are the shells that the install script is tried with.
var shells = map[string][]string{"dash": {"dash"}, "bash": {"bash", "--posix"}, "busybox": {"busybox", "sh"}}

// verifiers are programs that can verify the signature; "none" is a machine without one.
var verifiers = []string{"minisign", "openssl", "none"}

// The script installs what is signed, under each shell and with each program that can
// verify a signature, and without one it says so.
func TestInstallScript(t *testing.T) {
	dist := released(t, newRelease)
	for shell, words := range shells {
		for _, verifier := range verifiers {
			t.Run(shell+" "+verifier, func(t *testing.T) {
				prefix := filepath.Join(t.TempDir(), "prefix with a space")
				out, err := install(t, words, verifier, dist, "--prefix", prefix)
				if err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				if want := (verifier != "none"); want != strings.Contains(out, "is right") ||
					want == strings.Contains(out, "NOT verified") {
					t.Errorf("it says %q", out)
				}
				version := runs(t, exec.Command(filepath.Join(prefix, "bin/gatehouse"), "version"))
				if !strings.HasPrefix(version, "gatehouse "+newVersion+" ") {
					t.Errorf("installed is %s", version)
				}
				if _, err := os.Stat(filepath.Join(prefix, "share/man/man1/gatehouse-serve.1")); err != nil {
					t.Error(err)
				}
				if out, err := install(t, words, verifier, dist, "--prefix", prefix, "--remove"); err != nil {
					t.Errorf("%v: %s", err, out)
				}
				if left := digests(t, prefix); len(left) > 0 {
					t.Errorf("after its removal there are %v", left)
				}
			})
		}
	}
}

// The script installs nothing if a byte was changed of anything that it downloads.
func TestInstallScriptRefusesChanges(t *testing.T) {
	dist := released(t, newRelease)
	tarball := "gatehouse-" + newVersion + "-" + here.String() + ".tar.gz"
	for _, c := range []struct{ verifier, changed, says string }{
		{"minisign", sign.Sums, "signature of SHA256SUMS is wrong"},
		{"openssl", sign.Sums, "signature of SHA256SUMS is wrong"},
		{"openssl", sign.Sums + ".minisig", "signature of SHA256SUMS is wrong"},
		{"minisign", tarball, "has the digest"},
		{"none", tarball, "has the digest"},
	} {
		t.Run(c.verifier+" "+c.changed, func(t *testing.T) {
			prefix := filepath.Join(t.TempDir(), "prefix")
			out, err := install(t, shells["dash"], c.verifier, changedCopy(t, dist, c.changed), "--prefix", prefix)
			if err == nil || !strings.Contains(out, c.says) {
				t.Errorf("%v: %s; want %q", err, out, c.says)
			}
			if _, err := os.Stat(prefix); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("it changed files: %v", err)
			}
		})
	}
	for what, args := range map[string][]string{
		"no verifier but a signature is required": {"--require-signature"},
		"an address that is not encrypted":        {"--base", "http://example.org/x"},
		"a version that is not there":             {"--version", "9.9.9"},
	} {
		t.Run(what, func(t *testing.T) {
			prefix := filepath.Join(t.TempDir(), "prefix")
			out, err := install(t, shells["dash"], "none", dist, append(args, "--prefix", prefix)...)
			if _, e := os.Stat(prefix); err == nil || e == nil {
				t.Errorf("it installed: %s", out)
			}
		})
	}
}

// install runs the script of a release against a server of its files. Its PATH has what it needs
// and one program for signatures.
func install(t *testing.T, shell []string, verifier, dist string, args ...string) (string, error) {
	t.Helper()
	server := httptest.NewServer(http.FileServer(http.Dir(dist)))
	defer server.Close()
	bin := t.TempDir()
	needed := []string{"cat", "chmod", "cp", "curl", "cut", "dirname", "grep", "head", "id", "mkdir", "mktemp", "mv",
		"rm", "sed",
		"sha256sum", "tail", "tar", "gzip", "uname"}
	if verifier != "none" {
		needed = append(needed, verifier)
	}
	for _, name := range needed {
		if err := os.Symlink(program(t, name), filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	words := slices.Concat([]string{program(t, shell[0])}, shell[1:],
		[]string{filepath.Join(dist, "install.sh"), "--base", server.URL}, args)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = []string{"PATH=" + bin, "HOME=" + t.TempDir(), "TMPDIR=" + t.TempDir()}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

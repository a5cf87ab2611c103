package packages

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/state"
)

const busyVariable = "GATEHOUSE_TEST_BUSY_HOST"

// busyHost makes the test's own program a host that installs, rebuilds and
// removes a package until it is killed.
func busyHost() {
	dir := os.Getenv(busyVariable)
	if dir == "" {
		return
	}
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	log, err := state.OpenFile(filepath.Join(dir, "state.db"), state.FileOptions{})
	if err != nil {
		fail(err)
	}
	ctx := context.Background()
	records, err := state.Attach[map[string]Record](
		ctx,
		state.New(state.Options{Log: log}),
		"/private/packages",
		state.Durable,
	)
	if err != nil {
		fail(err)
	}
	h, err := Open(Options{Folder: filepath.Join(dir, "packages"), Records: records, Share: true})
	if err != nil {
		fail(err)
	}
	for {
		if _, err := h.Install(ctx,
			Plan{Record: from("up", "folder:"+filepath.Join(dir, "source"))}, nil); err != nil &&
			code(err) != "exists" {
			fail(err)
		}
		fmt.Println("installed")
		for range 2 {
			if _, err := h.Rebuild(ctx, "up", "", nil); err != nil {
				fail(err)
			}
		}
		if err := h.Remove("up", false); err != nil {
			fail(err)
		}
	}
}

// However a host is killed, what the next one finds is a package that works or
// none, and no more than belongs to it.
//
//redteam:attack A kill leaves whole files: a host is killed while it installs
func TestAHostThatIsKilledLeavesWholePackages(t *testing.T) {
	needsShell(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "source"), source(t, "1.0.0"))
	many := map[string]string{}
	for i := range 200 {
		many[fmt.Sprintf("lib/%d/file", i)] = strings.Repeat("x", 1000+i/2)
	}
	write(t, filepath.Join(dir, "source"), many)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		host := exec.Command(program)
		host.Env = append(os.Environ(), busyVariable+"="+dir)
		var said strings.Builder
		host.Stderr = &said
		out, err := host.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := host.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil { // once it is at work
			t.Fatal(err, said.String())
		}
		time.Sleep(rand.N(300 * time.Millisecond))
		host.Process.Kill()
		var end *exec.ExitError
		if err := host.Wait(); !errors.As(err, &end) || end.Exited() {
			t.Fatalf("it ended by itself: %v, %s", err, said.String())
		}
		afterTheKill(t, dir)
	}
}

// checkObjects checks that each shared file is what its name says.
func checkObjects(t *testing.T, dir string) {
	t.Helper()
	objects, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		sum, err := hashFile(t.Context(), o)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the manager removes those that no package has
		}
		if err != nil || sum != strings.TrimSuffix(filepath.Base(o), "x") {
			t.Errorf("%s has the hash %s, %v", o, sum, err)
		}
	}
}

// acquireAfterKill waits until the manager has the lock of the killed host. A child of the killed host
// that had not yet reached its exec still holds it.
func acquireAfterKill(t *testing.T, m *Manager) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		got, err := m.acquire()
		if err != nil {
			t.Fatal(err)
		}
		if got {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the lock of the killed host is still held")
		}
	}
}

func afterTheKill(t *testing.T, dir string) {
	t.Helper()
	log, err := state.OpenFile(filepath.Join(dir, "state.db"), state.FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	h := reopen(t, Options{}, filepath.Join(dir, "packages"), log)
	defer h.end()
	acquireAfterKill(t, h.Manager)
	list, err := h.List()
	if err != nil || len(list) > 1 {
		t.Fatalf("got %+v, %v", list, err)
	}
	programs, _ := filepath.Glob(filepath.Join(dir, "packages", "*", programPrefix+"*"))
	if len(programs) != len(list) {
		t.Errorf("%d packages and the programs %v", len(list), programs)
	}
	checkObjects(t, filepath.Join(dir, "packages", storeFolder))
	for _, i := range list {
		for n := range 200 {
			file := filepath.Join(dir, "packages", "up", i.Program, fmt.Sprintf("lib/%d/file", n))
			if info, err := os.Stat(file); err != nil || info.Size() != int64(1000+n/2) {
				t.Errorf("%s: %v, %v", file, info, err)
			}
		}
		if i.State != Installed {
			t.Errorf("got %+v", i)
		}
		if got, err := h.call("up", "echo", `{"text":"whole"}`); err != nil || !strings.Contains(got, "whole") {
			t.Errorf("got %s, %v %s", got, err, Words(err))
		}
	}
}

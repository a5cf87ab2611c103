package state_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"gatehouse/internal/state"
	"gatehouse/internal/state/statelogtest"
)

func TestMemoryLog(t *testing.T) {
	statelogtest.Run(t, statelogtest.Options{
		Make:    func(*testing.T) state.Log { return new(state.MemoryLog) },
		Changes: 3000,
	})
}

func openFile(t testing.TB, path string, o state.FileOptions) *state.FileLog {
	t.Helper()
	l, err := state.OpenFile(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestFileLog(t *testing.T) {
	few := state.FileOptions{Compact: 7, CompactBytes: 4000}
	paths := map[state.Log]string{}
	open := func(t *testing.T, path string) state.Log {
		l := openFile(t, path, few)
		paths[l] = path
		return l
	}
	statelogtest.Run(t, statelogtest.Options{
		Make: func(t *testing.T) state.Log { return open(t, filepath.Join(t.TempDir(), "state.db")) },
		Again: func(t *testing.T, l state.Log) state.Log {
			if err := l.(*state.FileLog).Close(); err != nil {
				t.Fatal(err)
			}
			return open(t, paths[l])
		},
		Changes: 300,
	})
}

func TestFileLogInMemory(t *testing.T) {
	statelogtest.Run(t, statelogtest.Options{
		Make:    func(t *testing.T) state.Log { return openFile(t, "", state.FileOptions{Compact: 50}) },
		Changes: 300,
	})
}

// Two processes that share a file see what the other does.
func TestFileIsShared(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	a, b := openFile(t, path, state.FileOptions{}), openFile(t, path, state.FileOptions{Look: 1})
	trees := []*state.Tree{state.New(state.Options{Log: a}), state.New(state.Options{Log: b})}
	var mounts []*state.Mount[map[string]int]
	for _, tr := range trees {
		m, err := state.Attach[map[string]int](t.Context(), tr, "/private/m", state.Durable)
		if err != nil {
			t.Fatal(err)
		}
		mounts = append(mounts, m)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- trees[1].Run(ctx) }()
	for i := range 10 { // by turns, each from what the other has left
		m := mounts[i%2]
		if _, err := m.Update(t.Context(), state.Any, func(v *map[string]int) error {
			if *v == nil {
				*v = map[string]int{}
			}
			(*v)["n"]++
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	s, now, err := trees[1].Subscribe(state.Pointer{"private", "m"}, "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := state.Put(t.Context(), mounts[0], "last", 1); err != nil {
		t.Fatal(err)
	}
	u, err := s.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	v, err := state.Apply(now.Value, u.Patch)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := state.View{Value: v}.JSON()
	if string(got) != `{"last":1,"n":10}` {
		t.Fatalf("got %s", got)
	}
	cancel()
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
}

func TestBackupAndRestore(t *testing.T) {
	dir := t.TempDir()
	l := openFile(t, filepath.Join(dir, "state.db"), state.FileOptions{Compact: 3})
	tree := state.New(state.Options{Log: l})
	a := attach[map[string]int](t, tree, "/private/a", state.Durable)
	b := attach[[]string](t, tree, "/private/b", state.Durable)
	c := attach[string](t, tree, "/private/later", state.Durable)
	for i, k := range []string{"x", "y", "z", "w"} {
		if err := state.Put(t.Context(), a, k, i); err != nil {
			t.Fatal(err)
		}
	}
	setTo(t, b, []string{"kept"})
	backup := filepath.Join(dir, "backup.db")
	if err := l.Backup(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(backup); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the backup: %v, %v", info.Mode(), err)
	}
	if err := l.Backup(t.Context(), backup); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("over another file: %v", err)
	}
	setTo(t, a, map[string]int{"lost": 1})
	setTo(t, c, "made after the backup")
	_, before, _ := a.Get()
	sub, _, err := tree.Subscribe(state.Pointer{"private"}, "")
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	if err := l.Restore(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	if err := tree.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	v, after, _ := a.Get()
	if want := map[string]int{"x": 0, "y": 1, "z": 2, "w": 3}; !reflect.DeepEqual(v, want) || after != before+1 {
		t.Fatalf("%v at %d, want %v at %d", v, after, want, before+1)
	}
	if u, err := sub.Next(t.Context()); err != nil || len(u.Patch) == 0 {
		t.Fatalf("who follows is told %v, %v", u, err)
	}
	// On a fresh host there are no mounts yet, and then they are as they were.
	fresh := openFile(t, filepath.Join(dir, "fresh.db"), state.FileOptions{})
	if err := fresh.Restore(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	tree = state.New(state.Options{Log: fresh})
	if v, _, _ := attach[[]string](t, tree, "/private/b", state.Durable).Get(); !reflect.DeepEqual(
		v,
		[]string{"kept"},
	) {
		t.Fatalf("got %v", v)
	}
	if v, r, _ := attach[string](t, tree, "/private/later", state.Durable).Get(); v != "" {
		t.Fatalf("got %q at %d", v, r)
	}
}

func TestDamagedBackupChangesNothing(t *testing.T) {
	dir := t.TempDir()
	l := openFile(t, filepath.Join(dir, "state.db"), state.FileOptions{})
	m := attach[[]string](t, state.New(state.Options{Log: l}), "/private/m", state.Durable)
	setTo(t, m, []string{strings.Repeat("text ", 10_000)})
	good := filepath.Join(dir, "good.db")
	if err := l.Backup(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]byte{"cut": b[:len(b)/2], "text": []byte(strings.Repeat("no database", 100)),
		"nothing": nil} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := l.Restore(t.Context(), path); err == nil {
			t.Errorf("%s was restored", name)
		}
	}
	if err := l.Restore(t.Context(), filepath.Join(dir, "absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an absent file: %v", err)
	}
	for c, err := range l.Follow(t.Context(), "/private/m", 1) {
		if err != nil || c.Revision != 1 {
			t.Fatalf("revision %d, %v", c.Revision, err)
		}
		break
	}
}

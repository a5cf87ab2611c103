package manager

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/sandbox"
)

// small are limits by which 6 MiB of files are kept at most, and 20 MiB with
// memory.
var small = Spec{Limits: sandbox.Limits{MemoryMiB: 16, DiskMiB: 4}}

func TestNothingIsWrittenForAForkThatHasNoPlace(t *testing.T) {
	for _, memory := range []bool{true, false} {
		a := &able{memory: memory}
		m := openAble(t, a, Options{Sandboxes: 1, NoPool: true})
		b := create(t, m, "ann", small)
		if _, _, err := m.Fork(t.Context(), b, Spec{}); !errors.Is(err, ErrFull) || a.kept.Load() != 0 {
			t.Errorf("memory %v: %v, and %d were written", memory, err, a.kept.Load())
		}
	}
}

func TestWhatIsBeingKeptSharesTheRoom(t *testing.T) {
	begun, goOn := make(chan struct{}), make(chan struct{})
	a := &able{}
	m := openAble(t, a, Options{SnapshotBytes: 8 << 20, NoPool: true})
	b, c := create(t, m, "ann", small), create(t, m, "bob", small)
	b.Sandbox.(*filesBox).packs = func() {
		select {
		case begun <- struct{}{}:
			<-goOn
		case <-goOn:
		}
	}
	c.Sandbox.(*filesBox).files["/tmp"] = strings.Repeat("x", 3<<20)
	done := make(chan error)
	go func() {
		_, _, err := m.Fork(context.WithoutCancel(t.Context()), b, Spec{})
		done <- err
	}()
	<-begun
	if _, err := m.Snapshot(t.Context(), c, ""); !errors.Is(err, ErrSnapshotsFull) {
		t.Errorf("beside a fork that may take 6 of 8 MiB, one of 3: %v", err)
	}
	if _, _, err := m.Fork(t.Context(), c, Spec{}); !errors.Is(err, ErrSnapshotsFull) {
		t.Errorf("the same for a fork: %v", err)
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := m.Snapshot(t.Context(), c, ""); err != nil {
		t.Errorf("with nothing beside it: %v", err)
	}
	if m.reserved != 0 || m.keeping != 0 || m.snapshotBytes() < 3<<20 {
		t.Errorf("%d bytes are reserved, %d are being kept, %d bytes are", m.reserved, m.keeping, m.snapshotBytes())
	}
}

func TestMemoryIsNotWrittenWithoutRoomForAllOfIt(t *testing.T) {
	a := &able{memory: true}
	m := openAble(t, a, Options{SnapshotBytes: 20<<20 - 1, NoPool: true})
	b := create(t, m, "ann", small)
	_, err := m.Snapshot(t.Context(), b, "")
	_, _, forked := m.Fork(t.Context(), b, Spec{})
	if !errors.Is(err, ErrSnapshotsFull) || !strings.Contains(err.Error(), "20 MiB") ||
		!errors.Is(forked, ErrSnapshotsFull) || a.kept.Load() != 0 {
		t.Errorf("%v, %v, and %d were written", err, forked, a.kept.Load())
	}
}

func TestFilesBeyondTheLimitForThemAreNotKept(t *testing.T) {
	m := openAble(t, &able{}, Options{NoPool: true})
	b := create(t, m, "ann", small)
	b.Sandbox.(*filesBox).files["/tmp"] = strings.Repeat("x", 7<<20)
	if _, err := m.Snapshot(t.Context(), b, ""); err == nil || errors.Is(err, ErrSnapshotsFull) ||
		!strings.Contains(err.Error(), "limit") {
		t.Errorf("%v", err)
	}
}

func TestNothingIsKeptAtTheEnd(t *testing.T) {
	a := &able{memory: true}
	m := openAble(t, a, Options{NoPool: true})
	b := create(t, m, "ann", Spec{})
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := m.Snapshot(t.Context(), b, "")
	if _, _, forked := m.Fork(t.Context(), b, Spec{}); err != errEnded || forked != errEnded || a.kept.Load() != 0 {
		t.Errorf("%v, %v, and %d were written", err, forked, a.kept.Load())
	}
}

func TestSnapshotsAreWrittenWhereTheHostSays(t *testing.T) {
	at := filepath.Join(t.TempDir(), "made", "when needed")
	m := openAble(t, &able{}, Options{Folder: at, NoPool: true})
	s, err := m.Snapshot(t.Context(), create(t, m, "ann", Spec{}), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range s.files {
		if filepath.Dir(f.Name()) != at {
			t.Errorf("%s", f.Name())
		}
	}
	if left, err := os.ReadDir(at); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
	if got, err := io.ReadAll(s.files[0]); err != nil || len(got) != 0 {
		t.Errorf("%q, %v", got, err)
	}
}

package manager

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/sandbox"
)

// able makes sandboxes that can be paused, kept and reached, and run nothing.
type able struct {
	fake
	memory  bool // snapshots are of memory
	moments atomic.Int32
	kept    atomic.Int32 // snapshots that were begun, of files by folder
	fails   error
}

func (a *able) Create(ctx context.Context, s sandbox.Spec) (sandbox.Sandbox, error) {
	b, err := a.fake.Create(ctx, s)
	if err != nil {
		return nil, err
	}
	one := &ableBox{fakeBox: b.(*fakeBox), a: a, files: map[string]string{}}
	if a.memory {
		return &memoryBox{one}, nil
	}
	return &filesBox{ableBox: one}, nil
}

type ableBox struct {
	*fakeBox
	a     *able
	files map[string]string // by folder
	held  bool
}

func (b *ableBox) Pause(context.Context) error  { b.held = true; return b.a.fails }
func (b *ableBox) Resume(context.Context) error { b.held = false; return b.a.fails }
func (b *ableBox) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	if port != 80 {
		return nil, errors.New("nobody listens there")
	}
	in, out := net.Pipe()
	go func() {
		defer in.Close()
		io.Copy(in, io.LimitReader(in, 4)) // an echo of four bytes
	}()
	return out, nil
}

type filesBox struct {
	*ableBox
	packs func() // called at the beginning of Pack, unless it is nil
}

func (b *filesBox) Pack(_ context.Context, folder string, w io.Writer) error {
	b.a.kept.Add(1)
	if b.packs != nil {
		b.packs()
	}
	_, err := io.WriteString(w, b.files[folder])
	return errors.Join(err, b.a.fails)
}

func (b *filesBox) Unpack(_ context.Context, folder string, r io.Reader) error {
	all, err := io.ReadAll(r)
	b.files[folder] = string(all)
	return errors.Join(err, b.a.fails)
}

type memoryBox struct{ *ableBox }

func (b *memoryBox) Snapshot(context.Context) (sandbox.Snapshot, error) {
	b.a.kept.Add(1)
	b.a.moments.Add(1)
	return &moment{b}, b.a.fails
}

type moment struct{ of *memoryBox }

func (m *moment) Size() int64 { return 1 << 20 }
func (m *moment) Close() error {
	m.of.a.moments.Add(-1)
	return nil
}
func (m *moment) Create(ctx context.Context) (sandbox.Sandbox, error) {
	return m.of.a.Create(ctx, sandbox.Spec{Limits: m.of.limits})
}

func openAble(t *testing.T, a *able, o Options) *Manager {
	a.tier = sandbox.Namespaces
	o.Ladder = []LadderEntry{of("able", a)}
	return open(t, &a.fake, o)
}

func TestAPausedSandboxDoesNotEndForWantOfUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &able{}
		m := openAble(t, a, Options{Idle: time.Minute, Lifetime: time.Hour})
		b := create(t, m, "ann", Spec{})
		for range 2 { // twice is once
			if err := b.Pause(t.Context()); err != nil || !b.Paused() || !b.Status().Paused {
				t.Errorf("%v, %+v", err, b.Status())
			}
		}
		time.Sleep(30 * time.Minute)
		if _, err := m.FindBox("ann", b.ID); err != nil {
			t.Fatal("it ended while it was paused")
		}
		for range 2 {
			if err := b.Resume(t.Context()); err != nil || b.Paused() {
				t.Error(err)
			}
		}
		time.Sleep(50 * time.Second)
		if _, err := m.FindBox("ann", b.ID); err != nil {
			t.Error("resuming was no use of it")
		}
		time.Sleep(20 * time.Second)
		if _, err := m.FindBox("ann", b.ID); err == nil {
			t.Error("nobody used it for a minute, and it is there")
		}
		old := create(t, m, "ann", Spec{})
		if err := old.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if _, err := m.FindBox("ann", old.ID); err == nil {
			t.Error("a paused one outlived its lifetime")
		}
		a.fails = errors.New("the freezer is broken")
		last := create(t, m, "ann", Spec{})
		if err := last.Pause(t.Context()); !errors.Is(err, a.fails) || last.Paused() {
			t.Errorf("%v, paused %v", err, last.Paused())
		}
	})
}

func TestASnapshotIsItsOwnersAndEnds(t *testing.T) {
	for _, memory := range []bool{true, false} {
		t.Run(fmt.Sprint("memory ", memory), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &able{memory: memory}
				m := openAble(t, a, Options{Snapshots: 2, SnapshotLife: time.Hour, NoPool: true})
				b := create(t, m, "ann", Spec{Limits: sandbox.Limits{MemoryMiB: 99}})
				want := KeptMemory
				if f, ok := b.Sandbox.(*filesBox); ok {
					want, f.files["/home/user"] = KeptFiles, "work"
				}
				s, err := m.Snapshot(t.Context(), b, "one")
				if err != nil || s.Kept != want || s.Size == 0 || s.Name != "one" || s.Sandbox != b.ID {
					t.Fatalf("%+v, %v", s, err)
				}
				if err := m.Destroy("ann", b.ID); err != nil {
					t.Fatal(err)
				}
				for _, who := range []string{"bob", ""} {
					if _, err := m.Restore(t.Context(), who, s.ID, Spec{}); err != ErrNoSnapshot {
						t.Errorf("%q: %v", who, err)
					}
					if err := m.RemoveSnapshot(who, s.ID); err != ErrNoSnapshot || len(m.Snapshots(who)) != 0 {
						t.Errorf("%q: %v", who, err)
					}
				}
				for range 2 {
					c, err := m.Restore(t.Context(), "ann", s.ID, Spec{Name: "again"})
					if err != nil || !c.Snapshot || c.Name != "again" || c.Limits().MemoryMiB != 99 {
						t.Fatalf("%+v, %v", c, err)
					}
					if f, ok := c.Sandbox.(*filesBox); ok && f.files["/home/user"] != "work" {
						t.Errorf("its files: %q", f.files)
					}
				}
				c := m.List("ann")[0]
				if _, err := m.Snapshot(t.Context(), c, ""); err != nil {
					t.Fatal(err)
				}
				if _, err := m.Snapshot(t.Context(), c, ""); !errors.Is(err, ErrSnapshotsFull) {
					t.Errorf("a third: %v", err)
				}
				fork, kept, err := m.Fork(t.Context(), c, Spec{Name: "fork"})
				if err != nil || kept != want || fork.ID == c.ID || fork.Name != "fork" ||
					len(m.Snapshots("ann")) != 2 {
					t.Errorf("%+v, %s, %v", fork, kept, err)
				}
				if err := m.RemoveSnapshot("ann", s.ID); err != nil {
					t.Error(err)
				}
				if _, err := m.Restore(t.Context(), "ann", s.ID, Spec{}); err != ErrNoSnapshot {
					t.Errorf("of one that is removed: %v", err)
				}
				time.Sleep(2 * time.Hour)
				synctest.Wait()
				if left := m.Snapshots("ann"); len(left) != 0 {
					t.Errorf("after their time there are %d", len(left))
				}
				if n := a.moments.Load(); n != 0 {
					t.Errorf("%d are left of the driver's", n)
				}
			})
		})
	}
}

func TestSnapshotsThatTakeTooMuchAreRefused(t *testing.T) {
	for _, memory := range []bool{true, false} {
		a := &able{memory: memory}
		o := Options{SnapshotBytes: 1<<20 + 10}
		if memory { // of which all there may be has to have room
			o.SnapshotBytes = 20<<20 + 10
		}
		m := openAble(t, a, o)
		b := create(t, m, "ann", small)
		if f, ok := b.Sandbox.(*filesBox); ok {
			f.files["/tmp"] = strings.Repeat("x", 1<<20)
		}
		if _, err := m.Snapshot(t.Context(), b, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Snapshot(t.Context(), b, ""); !errors.Is(err, ErrSnapshotsFull) || len(m.Snapshots("ann")) != 1 {
			t.Errorf("memory %v: a second: %v", memory, err)
		}
		if f, ok := b.Sandbox.(*filesBox); ok {
			f.files["/tmp"] = strings.Repeat("x", 1<<21)
			if _, err := m.Snapshot(t.Context(), b, ""); !errors.Is(err, ErrSnapshotsFull) {
				t.Errorf("one that never ends: %v", err)
			}
		}
		for _, s := range m.Snapshots("ann") {
			if err := m.RemoveSnapshot("ann", s.ID); err != nil {
				t.Error(err)
			}
		}
		a.fails = errors.New("the disk is gone")
		if _, err := m.Snapshot(t.Context(), b, ""); !errors.Is(err, a.fails) {
			t.Errorf("%v", err)
		}
		a.fails = nil
		if err := m.Close(); err != nil || a.moments.Load() > 1 { // the failed one was never made
			t.Errorf("%v, %d are left", err, a.moments.Load())
		}
	}
}

// What was written of a snapshot has no name on the disk, so that nothing of
// it outlives the process.
func TestFilesOfSnapshotsHaveNoNames(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	m := openAble(t, &able{}, Options{})
	if _, err := m.Snapshot(t.Context(), create(t, m, "ann", Spec{}), ""); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
}

func TestWhatADriverCannotDoIsSaid(t *testing.T) {
	m := open(t, &fake{}, Options{})
	b := create(t, m, "ann", Spec{})
	_, snap := m.Snapshot(t.Context(), b, "")
	_, port := b.Expose(80)
	for what, err := range map[string]error{
		"pause": b.Pause(t.Context()), "resume": b.Resume(t.Context()), "snapshot": snap, "port": port,
		"network": b.SetNetwork(t.Context(), sandbox.Network{}, nil),
	} {
		if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "fake") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestPortsLeadIntoTheSandboxAndCloseWithIt(t *testing.T) {
	m := openAble(t, &able{}, Options{})
	b := create(t, m, "ann", Spec{})
	p, err := b.Expose(80)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := b.Expose(80); err != nil || again != p {
		t.Errorf("a second time: %+v, %v", again, err)
	}
	talk := func(say string) (string, error) {
		c, err := net.DialTimeout("tcp", p.Address, 30*time.Second)
		if err != nil {
			return "", err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.WriteString(c, say); err != nil {
			return "", err
		}
		var got bytes.Buffer
		_, err = io.CopyN(&got, c, int64(len(say)))
		return got.String(), err
	}
	if got, err := talk("ping"); got != "ping" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	closed, err := b.Expose(81) // no process listens there
	if err != nil {
		t.Fatal(err)
	}
	if c, err := net.DialTimeout("tcp", closed.Address, 30*time.Second); err == nil {
		c.SetDeadline(time.Now().Add(30 * time.Second))
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("somebody answers at a port where nobody listens")
		}
		c.Close()
	}
	for i := range uint16(mostPorts - 2) {
		if _, err := b.Expose(1000 + i); err != nil {
			t.Error(err)
		}
	}
	if _, err := b.Expose(2000); err != ErrTooManyPorts {
		t.Errorf("%v", err)
	}
	if got := b.Ports(); len(got) != mostPorts || got[0] != p {
		t.Errorf("%+v", got)
	}
	if err := b.Unexpose(1000); err != nil {
		t.Error(err)
	}
	if err := b.Unexpose(1000); err != ErrNoPort {
		t.Errorf("%v", err)
	}
	if err := m.Destroy("ann", b.ID); err != nil {
		t.Fatal(err)
	}
	if got, err := talk("ping"); err == nil {
		t.Errorf("after the end of the sandbox: %q", got)
	}
	if _, err := b.Expose(80); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("after its end: %v", err)
	}
}

// An image is kept as long as something of it is there: a sandbox, a snapshot,
// a pool.
func TestImagesAreKeptWhileTheyAreUsed(t *testing.T) {
	var held, asked atomic.Int32
	o := Options{
		NoPool: true, Templates: map[string]Template{"t": {Image: "named"}},
		Image: func(_ context.Context, ref string, _ func(int64, int64)) (*sandbox.Image, func(), error) {
			if ref == "missing" {
				return nil, nil, errors.New("there is none")
			}
			held.Add(1)
			asked.Add(1)
			return &sandbox.Image{ID: ref}, func() { held.Add(-1) }, nil
		},
		MayImage: func(ref string) error {
			if ref == "forbidden" {
				return errors.New("it is the host's")
			}
			return nil
		},
	}
	a := &able{memory: true}
	m := openAble(t, a, o)
	for _, image := range []string{"missing", "forbidden"} {
		if _, err := m.Create(t.Context(), "ann", Spec{Image: image}); err == nil ||
			errors.Is(err, ErrNotOffered) != (image == "forbidden") {
			t.Errorf("%s: %v", image, err)
		}
	}
	a.err = errors.New("no room")
	if _, err := m.Create(t.Context(), "ann", Spec{Image: "own"}); !errors.Is(err, a.err) || held.Load() != 0 {
		t.Errorf("%v, and %d are held", err, held.Load())
	}
	a.err = nil
	b := create(t, m, "ann", Spec{Image: "own"})
	s, err := m.Snapshot(t.Context(), b, "")
	if err != nil {
		t.Fatal(err)
	}
	settles := func(when string, want int32) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); held.Load() != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s %d are held, want %d", when, held.Load(), want)
			}
		}
	}
	settles("with a sandbox", 1)
	if err := m.Destroy("ann", b.ID); err != nil {
		t.Fatal(err)
	}
	settles("with a snapshot", 1)
	c, err := m.Restore(t.Context(), "ann", s.ID, Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.RemoveSnapshot("ann", s.ID); err != nil {
		t.Fatal(err)
	}
	settles("with what was made of the snapshot", 1)
	if err := m.Destroy("ann", c.ID); err != nil {
		t.Fatal(err)
	}
	settles("with nothing", 0)
	for range 3 {
		create(t, m, "ann", Spec{Template: "t"})
	}
	if n := asked.Load(); n != 3 { // two of its own, one of the template
		t.Errorf("it was asked for %d images", n)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	settles("after the end", 0)
}

// A caller that asks for an image of a template while the host closes may find that
// another caller has just pulled it.
func TestAnImageOfTwoIsKeptWhileTheHostCloses(t *testing.T) {
	var m *Manager
	var asked, held atomic.Int32
	var first *imageRef
	m = openAble(t, &able{},
		Options{NoPool: true,
			Image: func(ctx context.Context, ref string, _ func(int64, int64)) (_ *sandbox.Image, _ func(), err error) {
				held.Add(1)
				if asked.Add(1) == 1 {
					first, err = m.imageOf(ctx, ref, Spec{})
					m.mu.Lock()
					m.closed = true
					m.mu.Unlock()
				}
				return &sandbox.Image{ID: ref}, func() { held.Add(-1) }, err
			}})
	second, err := m.imageOf(t.Context(), "t", Spec{})
	if err != nil || first != second || held.Load() != 1 {
		t.Fatalf("%v, %d are held", err, held.Load())
	}
	for _, l := range []*imageRef{first, second} {
		l.drop()
		if n := held.Load(); n != 1 {
			t.Fatalf("the manager has it, and %d are held", n)
		}
	}
	if err := m.Close(); err != nil || held.Load() != 0 {
		t.Errorf("%v, %d are held after the end", err, held.Load())
	}
	late, err := m.imageOf(t.Context(), "t", Spec{})
	if err != nil || held.Load() != 1 {
		t.Fatalf("%v, %d are held", err, held.Load())
	}
	if late.drop(); held.Load() != 0 {
		t.Errorf("%d are held", held.Load())
	}
}

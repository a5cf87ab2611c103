package spool

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

func open(t *testing.T, dir string, o Options) *Spool {
	t.Helper()
	s, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func create(t *testing.T, s *Spool, owner, mime string) *Writer {
	t.Helper()
	w, err := s.Create(owner, mime)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func read(t *testing.T, s *Spool, handle string, offset int64, limit int) Chunk {
	t.Helper()
	c, err := s.Read("alice", handle, offset, limit)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestReadsOnFromNextUntilDone(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	want := strings.Repeat("a line of text\n", 1000)
	h, err := s.Put("alice", "text/plain", []byte(want))
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for at := int64(0); ; {
		c := read(t, s, h, at, 100)
		if c.Size != int64(len(want)) || c.Offset != at || c.MIME != "text/plain" || len(c.Data) > 100 {
			t.Fatalf("got %+v", c)
		}
		if !bytes.HasSuffix(c.Data, []byte("\n")) {
			t.Fatalf("ends inside a line: %q", c.Data)
		}
		got.Write(c.Data)
		if at = c.Next; c.Done {
			break
		}
	}
	if got.String() != want {
		t.Errorf("got %d bytes, want %d", got.Len(), len(want))
	}
}

func TestReadsWhatIsStillWritten(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	w := create(t, s, "alice", "")
	if c := read(t, s, w.Handle(), 0, 0); len(c.Data) != 0 || c.Done {
		t.Errorf("before the first byte: %+v", c)
	}
	fmt.Fprint(w, "Password: \xc3")
	c := read(t, s, w.Handle(), 0, 0)
	if string(c.Data) != "Password: " || c.Done {
		t.Errorf("half a rune: %q %+v", c.Data, c)
	}
	fmt.Fprint(w, "\xa4")
	if c = read(t, s, w.Handle(), c.Next, 0); string(c.Data) != "ä" || c.Done {
		t.Errorf("the rest: %q %+v", c.Data, c)
	}
	w.Close()
	if c = read(t, s, w.Handle(), c.Next, 0); len(c.Data) != 0 || !c.Done {
		t.Errorf("after close: %+v", c)
	}
}

func TestWhereAChunkBeginsAndEnds(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	for _, c := range []struct {
		name, mime, content string
		offset              int64
		limit               int
		want                string
		at                  int64
		done                bool
	}{
		{"whole lines", "text/plain", "one\ntwo\nthree", 0, 9, "one\ntwo\n", 0, false},
		{"the end needs no line end", "text/plain", "one\ntwo", 0, 7, "one\ntwo", 0, true},
		{"a long line ends between runes", "text/plain", "äöü", 0, 3, "ä", 0, false},
		{"no room for a rune", "text/plain", "äöü", 0, 1, "\xc3", 0, false},
		{"JSON is text", "application/json; charset=utf-8", `"äö"`, 0, 2, `"`, 0, false},
		{"bytes are not text", "image/png", "one\ntwo\n", 0, 5, "one\nt", 0, false},
		{"not UTF-8 at all", "text/plain", "\xff\xfe\xfd\xfc\xfb", 0, 4, "\xff\xfe\xfd\xfc", 0, false},
		{"the last bytes", "text/plain", "one\ntwo", -3, 10, "two", 4, true},
		{"the last bytes begin with a rune", "text/plain", "äöü", -3, 10, "ü", 4, true},
		{"more from the end than there is", "text/plain", "one", -99, 10, "one", 0, true},
		{"past the end", "text/plain", "one", 99, 10, "", 3, true},
		{"nothing at all", "text/plain", "", 0, 10, "", 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, _ := s.Put("alice", c.mime, []byte(c.content))
			got := read(t, s, h, c.offset, c.limit)
			if string(got.Data) != c.want || got.Offset != c.at || got.Done != c.done ||
				got.Next != c.at+int64(len(c.want)) {
				t.Errorf("got %q %+v, want %q at %d, done %v", got.Data, got, c.want, c.at, c.done)
			}
		})
	}
}

func TestForeignAndUnknownLookTheSame(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	h, _ := s.Put("alice", "", []byte("secret"))
	for _, c := range []struct{ owner, handle string }{{"bob", h}, {"", h}, {"alice", "nothing"}, {"alice", ""},
		{"alice", "../" + h}} {
		if _, err := s.Read(c.owner, c.handle, 0, 0); err != ErrNotFound {
			t.Errorf("read %v: %v", c, err)
		}
		if err := s.Remove(c.owner, c.handle); err != ErrNotFound {
			t.Errorf("remove %v: %v", c, err)
		}
	}
	if c := read(t, s, h, 0, 0); string(c.Data) != "secret" {
		t.Errorf("got %q", c.Data)
	}
}

func TestCapsDropAndCountButNeverFail(t *testing.T) {
	for _, c := range []struct {
		name string
		o    Options
		kept int64
	}{
		{"item", Options{MaxItem: 1000}, 1000},
		{"owner", Options{MaxOwner: itemCost + 1001}, 1001},
		{"total", Options{MaxTotal: itemCost + 1002}, 1002},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t, t.TempDir(), c.o)
			w := create(t, s, "alice", "application/octet-stream")
			for range 30 {
				if n, err := w.Write(make([]byte, 100)); n != 100 || err != nil {
					t.Fatalf("got %d, %v", n, err)
				}
			}
			w.Close()
			if w.Size() != c.kept || w.Dropped() != 3000-c.kept {
				t.Errorf("kept %d, dropped %d", w.Size(), w.Dropped())
			}
			if got := read(t, s, w.Handle(), 0, 0); !got.Done || got.Size != c.kept || got.Dropped != 3000-c.kept {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestRemovingMakesRoomAgain(t *testing.T) {
	s := open(t, t.TempDir(), Options{MaxOwner: 2 * itemCost})
	a, b := create(t, s, "alice", ""), create(t, s, "alice", "")
	if _, err := s.Create("alice", ""); err != ErrFull {
		t.Fatalf("a third: %v", err)
	}
	create(t, s, "bob", "")
	if err := s.Remove("alice", a.Handle()); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(a, "too late")
	if a.Dropped() != 8 || a.Close() != nil {
		t.Errorf("writing to a removed item: dropped %d", a.Dropped())
	}
	create(t, s, "alice", "")
	s.Remove("alice", b.Handle())
	if s.used["alice"] != itemCost || s.total != 2*itemCost {
		t.Errorf("used %v, total %d", s.used, s.total)
	}
}

func TestExpiresAfterItWasClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s := open(t, dir, Options{Keep: 10 * time.Minute})
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { s.Run(ctx) })

		w := create(t, s, "alice", "")
		time.Sleep(time.Hour)
		fmt.Fprint(w, "slow")
		w.Close()
		time.Sleep(10*time.Minute - time.Second)
		if c := read(t, s, w.Handle(), 0, 0); string(c.Data) != "slow" {
			t.Errorf("got %q", c.Data)
		}
		time.Sleep(time.Second)
		if _, err := s.Read("alice", w.Handle(), 0, 0); err != ErrNotFound {
			t.Errorf("after its time: %v", err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if names := files(t, dir); len(names) > 0 || s.total != 0 || len(s.used) != 0 {
			t.Errorf("left: %v, %d, %v", names, s.total, s.used)
		}
		stop()
		wg.Wait()
	})
}

func TestARestartedHostFindsItsItems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s := open(t, dir, Options{MaxItem: 5})
		done, _ := s.Put("alice", "text/csv", []byte("a,b\n1,2"))
		old, _ := s.Put("alice", "", []byte("x"))
		w := create(t, s, "alice", "")
		fmt.Fprint(w, "cut")
		s.Close()
		setExpiry(t, filepath.Join(dir, old+suffix), time.Now().Add(-time.Hour))

		s = open(t, dir, Options{})
		if c := read(t, s, done, 0, 0); string(c.Data) != "a,b\n1" || c.MIME != "text/csv" || c.Dropped != 2 ||
			!c.Done {
			t.Errorf("got %q %+v", c.Data, c)
		}
		if c := read(t, s, w.Handle(), 0, 0); string(c.Data) != "cut" || !c.Done {
			t.Errorf("got %q %+v", c.Data, c)
		}
		if _, err := s.Read("alice", old, 0, 0); err != ErrNotFound {
			t.Errorf("expired while the host was away: %v", err)
		}
		if s.used["alice"] != 3*itemCost+5+3+1 {
			t.Errorf("used %v", s.used)
		}
	})
}

// setExpiry changes the time in an item's header.
func setExpiry(t *testing.T, path string, at time.Time) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h, n, err := parseHeader(f)
	if err != nil {
		t.Fatal(err)
	}
	h.Expires = at.UnixMilli()
	if _, err := f.WriteAt(h.again(n), 0); err != nil {
		t.Fatal(err)
	}
}

func TestAHostThatWasKilledLeavesReadableItems(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, Options{})
	w := create(t, s, "alice", "")
	fmt.Fprint(w, "half ")
	read(t, s, w.Handle(), 0, 0) // flushes; nothing is closed

	again := open(t, dir, Options{})
	if c := read(t, again, w.Handle(), 0, 0); string(c.Data) != "half " || !c.Done {
		t.Errorf("got %q %+v", c.Data, c)
	}
}

func TestLeavesOtherFilesAlone(t *testing.T) {
	dir := t.TempDir()
	os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("mine"), 0o600)
	os.WriteFile(filepath.Join(dir, "bad"+suffix), []byte("no header"), 0o600)
	os.WriteFile(filepath.Join(dir, "open"+suffix), header{Owner: "alice"}.encodeFirst(), 0o644)
	os.Mkdir(filepath.Join(dir, "dir"+suffix), 0o700)
	os.Symlink("/etc/passwd", filepath.Join(dir, "link"+suffix))
	s := open(t, dir, Options{})
	if n := len(s.all()); n != 0 && runtime.GOOS != "windows" {
		t.Errorf("took in %d", n)
	}
	s.removeExpired(time.Now().AddDate(1, 0, 0))
	if n := len(files(t, dir)); n != 5 && runtime.GOOS != "windows" {
		t.Errorf("%d files left, want 5", n)
	}
}

func TestFilesAreForTheirUserOnly(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes mean nothing here")
	}
	dir := filepath.Join(t.TempDir(), "spool")
	s := open(t, dir, Options{})
	h, _ := s.Put("alice", "", nil)
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, h+suffix): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%v, %v, want %o", info.Mode(), err, want)
		}
	}
}

func TestRefusesHandlesThatAreNoFileNames(t *testing.T) {
	for _, id := range []string{"", "..", "a/b", ".hidden", `a\b`, "a b", strings.Repeat("x", 129)} {
		s := open(t, t.TempDir(), Options{NewID: func() string { return id }})
		if _, err := s.Create("alice", ""); err == nil {
			t.Errorf("%q was taken", id)
		}
	}
	s := open(t, t.TempDir(), Options{NewID: func() string { return "same" }})
	create(t, s, "alice", "")
	if _, err := s.Create("alice", ""); err == nil || errors.Is(err, ErrFull) {
		t.Errorf("a handle twice: %v", err)
	}
}

func TestManyWriteWhileManyRead(t *testing.T) {
	s := open(t, t.TempDir(), Options{MaxItem: 64 << 10})
	w := create(t, s, "alice", "application/octet-stream")
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 500 {
				w.Write(bytes.Repeat([]byte{byte(i)}, 100))
			}
		})
		wg.Go(func() {
			for at := int64(0); ; {
				c, err := s.Read("alice", w.Handle(), at, 777)
				if errors.Is(err, ErrNotFound) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				if at = c.Next; c.Done {
					return
				}
			}
		})
	}
	wg.Go(func() {
		for w.Dropped() == 0 {
			runtime.Gosched()
		}
		w.Close()
		s.Remove("alice", w.Handle())
	})
	wg.Wait()
	if w.Size()+w.Dropped() != 4*500*100 {
		t.Errorf("kept %d, dropped %d", w.Size(), w.Dropped())
	}
}

func TestALargeItemStaysOutOfMemory(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	w := create(t, s, "alice", "application/octet-stream")
	chunk := bytes.Repeat([]byte("0123456789"), 1000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	sum := sha256.New()
	for range 10_000 { // 100 MB
		w.Write(chunk)
		sum.Write(chunk)
	}
	w.Close()
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 4<<20 {
		t.Errorf("writing 100 MB allocated %d bytes", grown)
	}
	got := sha256.New()
	for at := int64(0); ; {
		c := read(t, s, w.Handle(), at, 1<<20)
		got.Write(c.Data)
		if at = c.Next; c.Done {
			break
		}
	}
	if !bytes.Equal(got.Sum(nil), sum.Sum(nil)) {
		t.Error("what is read is not what was written")
	}
}

func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

func FuzzHeader(f *testing.F) {
	f.Add(header{Owner: "alice", MIME: "text/plain", Closed: true}.encodeFirst())
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n, err := parseHeader(bytes.NewReader(b))
		if err != nil {
			return
		}
		if n > int64(len(b)) || b[n-1] != '\n' {
			t.Fatalf("header of %d bytes in %d", n, len(b))
		}
		if again, _, err := parseHeader(bytes.NewReader(h.encodeFirst())); err != nil || again != h {
			t.Errorf("%+v became %+v, %v", h, again, err)
		}
	})
}

// For all texts and sizes, the chunks make up the whole, and valid text is cut between runes if the limit allows.
func FuzzRead(f *testing.F) {
	s, err := Open(f.TempDir(), Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Close() })
	f.Add("äöü\nline\n", 4)
	f.Add("\xf0\x9f\x92\xa9\xff", 2)
	f.Fuzz(func(t *testing.T, content string, limit int) {
		limit = 1 + limit&15
		h, err := s.Put("alice", "text/plain", []byte(content))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Remove("alice", h)
		var all []byte
		for c := (Chunk{}); !c.Done; all = append(all, c.Data...) {
			if c, err = s.Read("alice", h, c.Next, limit); err != nil {
				t.Fatal(err)
			}
			if !c.Done && len(c.Data) == 0 {
				t.Fatal("no progress")
			}
			if limit >= utf8.UTFMax && utf8.ValidString(content) && !utf8.Valid(c.Data) {
				t.Fatalf("cut inside a rune: %q", c.Data)
			}
		}
		if string(all) != content {
			t.Errorf("got %q, want %q", all, content)
		}
	})
}

func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{80, 4096, 65536} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s, err := Open(b.TempDir(), Options{MaxItem: 1 << 40, MaxOwner: 1 << 40, MaxTotal: 1 << 40})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			var w *Writer
			p := make([]byte, size)
			b.SetBytes(int64(size))
			for b.Loop() {
				if w == nil || w.Size() > 100<<20 {
					if w != nil {
						w.Close()
						s.Remove("alice", w.Handle())
					}
					w, _ = s.Create("alice", "")
				}
				io.Writer(w).Write(p)
			}
		})
	}
}

// Items go to another owner with their handles, and stay there after a restart. Items that are being written stay,
// and so do those that do not fit into the new owner's limit.
func TestItemsAreHandedOver(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, Options{MaxOwner: 3*itemCost + 200})
	if err != nil {
		t.Fatal(err)
	}
	small, err := s.Put("ann/a", "text/plain", []byte("small"))
	if err != nil {
		t.Fatal(err)
	}
	large, err := s.Put("ann/a", "text/plain", bytes.Repeat([]byte("x"), 150))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put("a much longer name of an owner/a", "text/plain", bytes.Repeat([]byte("y"), 100)); err != nil {
		t.Fatal(err)
	}
	open, err := s.Create("ann/a", "")
	if err != nil {
		t.Fatal(err)
	}
	heir := func(owner string, _ time.Time) string {
		if owner != "ann/a" {
			return ""
		}
		return "a much longer name of an owner/a"
	}
	s.HandOver(heir)
	owns := func(owner string, handles ...string) {
		t.Helper()
		for _, h := range handles {
			if c, err := s.Read(owner, h, 0, 1000); err != nil || len(c.Data) == 0 && h != open.Handle() {
				t.Errorf("%s reads %q, %v", owner, c.Data, err)
			}
		}
	}
	owns("ann/a", open.Handle())
	_, first := s.Read("ann/a", small, 0, 0)
	_, second := s.Read("ann/a", large, 0, 0)
	if (first == nil) && (second == nil) {
		t.Error("nothing was handed over")
	}
	if first != nil && second != nil {
		t.Error("more was handed over than there is space for")
	}
	if err := open.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(dir, Options{}); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	handed := small
	if first == nil {
		handed = large
	}
	owns("a much longer name of an owner/a", handed)
	if names, _ := filepath.Glob(filepath.Join(dir, "*.handed")); len(names) > 0 {
		t.Errorf("left %v", names)
	}
}

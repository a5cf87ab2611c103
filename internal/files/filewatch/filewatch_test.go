package filewatch

import (
	"os"
	"testing"
	"time"
)

// watched is a Watcher, and a directory whose paths it watches.
type watched struct {
	*Watcher
	t   *testing.T
	dir string
}

func newWatched(t *testing.T) *watched {
	w := &watched{Watcher: New(nil), t: t, dir: t.TempDir()}
	t.Cleanup(func() { w.Close() })
	return w
}

func (w *watched) write(name, text string) {
	w.t.Helper()
	if err := os.WriteFile(w.dir+"/"+name, []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// follow watches a path; the channel gets a value for each change that is told.
func (w *watched) follow(name string) (told chan struct{}, stop func()) {
	w.t.Helper()
	told = make(chan struct{}, 1000)
	stop, err := w.Watch(w.dir+"/"+name, func() { told <- struct{}{} })
	if err != nil {
		w.t.Fatal(err)
	}
	return told, stop
}

func await(t *testing.T, told chan struct{}, what string) {
	t.Helper()
	select {
	case <-told:
	case <-time.After(time.Minute):
		t.Fatalf("%s was not told", what)
	}
}

func TestWatchTellsOfAFile(t *testing.T) {
	w := newWatched(t)
	w.write("a", "1")
	told, stop := w.follow("a")
	w.write("a", "2")
	await(t, told, "a write")
	w.write("new", "3")
	if err := os.Rename(w.dir+"/new", w.dir+"/a"); err != nil {
		t.Fatal(err)
	}
	await(t, told, "a replacement")
	os.Remove(w.dir + "/a")
	await(t, told, "a removal")
	stop()
	stop()
	if n := len(w.dirs); n != 0 {
		t.Errorf("%d directories are still watched", n)
	}
}

func TestWatchTellsOfADirectory(t *testing.T) {
	w := newWatched(t)
	os.MkdirAll(w.dir+"/d/e", 0o755)
	told, _ := w.follow("d")
	w.write("d/e/deep", "1")
	await(t, told, "a new file")
	os.Mkdir(w.dir+"/d/later", 0o755)
	await(t, told, "a new directory")
	w.write("d/later/file", "1")
	await(t, told, "a file in a new directory")
}

// A burst is told as few changes, and two watches hear of it independently.
// A file and a directory are still watched when what they lie in was taken
// away and made anew, also by those who come later.
func TestWatchOutlivesItsDirectory(t *testing.T) {
	w := newWatched(t)
	w.pause = time.Millisecond
	for range 2 {
		os.Mkdir(w.dir+"/d", 0o755)
		w.write("d/f", "one")
		file, endFile := w.follow("d/f")
		dir, endDir := w.follow("d")
		os.RemoveAll(w.dir + "/d")
		await(t, file, "the end of the file")
		await(t, dir, "the end of the directory")
		drain(file)
		drain(dir)
		os.Mkdir(w.dir+"/d", 0o755)
		w.write("d/f", "anew")
		await(t, file, "the file's return")
		await(t, dir, "the directory's return")
		again, endAgain := w.follow("d/f")
		w.write("d/f", "more")
		await(t, again, "a change to the file that is back")
		endAgain()
		endFile()
		endDir()
	}
	if n := len(w.dirs); n != 0 {
		t.Errorf("%d directories are still watched", n)
	}
}

// drain waits until nothing more is told of what has happened.
func drain(told chan struct{}) {
	for {
		select {
		case <-told:
		case <-time.After(10 * quiet):
			return
		}
	}
}

func TestWatchCoalesces(t *testing.T) {
	w := newWatched(t)
	w.write("a", "")
	one, _ := w.follow("a")
	two, _ := w.follow("a")
	const writes = 500
	for range writes {
		w.write("a", "x")
	}
	await(t, one, "a burst")
	await(t, two, "a burst")
	if n := len(one); n > writes/2 {
		t.Errorf("%d writes were told as %d changes", writes, n+1)
	}
}

// What the system cannot tell of is looked at again and again.
func TestWatchPolls(t *testing.T) {
	w := newWatched(t)
	w.write("a", "1")
	w.pause, w.most = time.Millisecond, 0
	told, _ := w.follow("a")
	for text := "12"; len(told) == 0 && len(text) < 10_000; text += "3" { // the first may come before the first look
		w.write("a", text)
		time.Sleep(w.pause)
	}
	await(t, told, "a change")
	if len(w.dirs) != 0 {
		t.Error("the system is asked as well")
	}
	if err := w.Close(); err != nil { // returns only when the polling has ended
		t.Error(err)
	}
}

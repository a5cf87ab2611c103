package daemon

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func readFrom(t *testing.T, r *LogReader, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := r.Copy(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A position in the log stays valid across new files and new daemons; removed text is skipped.
func TestLogIsOneTextWithoutEnd(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	var all strings.Builder
	for round := range 4 { // four daemons, one after the other
		l, err := openLog(dir, 100)
		if err != nil {
			t.Fatal(err)
		}
		if l.Position() != int64(all.Len()) {
			t.Fatalf("daemon %d goes on at %d, want %d", round, l.Position(), all.Len())
		}
		for i := range 7 {
			line := fmt.Sprintf("daemon %d says %d\n", round, i)
			all.WriteString(line)
			if _, err := l.Write([]byte(line)); err != nil {
				t.Fatal(err)
			}
		}
		l.Close()
	}
	files, err := logFiles(dir)
	if err != nil || len(files) != LogFiles {
		t.Fatalf("%d files are kept, want %d: %v", len(files), LogFiles, err)
	}
	text := all.String()
	for _, from := range []int64{0, files[0], files[0] + 5, files[1] - 1, files[1], files[1] + 3, int64(len(text)),
		int64(len(text)) + 100} {
		r, err := ReadLog(dir, from)
		got := readFrom(t, r, err)
		if want := text[min(max(from, files[0]), int64(len(text))):]; got != want {
			t.Errorf("from %d: got %q, want %q", from, got, want)
		}
		if r.Position() != int64(len(text)) {
			t.Errorf("from %d: reading goes on at %d, want %d", from, r.Position(), len(text))
		}
	}
}

func TestLastLines(t *testing.T) {
	dir := t.TempDir()
	r, err := Tail(dir, 5)
	if got := readFrom(t, r, err); got != "" {
		t.Errorf("without a log: %q", got)
	}
	if err := os.WriteFile(logPath(dir, 0), []byte("a\nb\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(logPath(dir, 4), []byte("c\nd"), 0o600); err != nil {
		t.Fatal(err)
	}
	for n, want := range []string{"", "d", "c\nd", "b\nc\nd", "a\nb\nc\nd", "a\nb\nc\nd"} {
		r, err := Tail(dir, n)
		if got := readFrom(t, r, err); got != want {
			t.Errorf("the last %d: got %q, want %q", n, got, want)
		}
	}
}

type text struct {
	mu sync.Mutex
	b  strings.Builder
	on chan struct{}
}

func (x *text) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	select {
	case x.on <- struct{}{}:
	default:
	}
	return x.b.Write(p)
}

func (x *text) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.b.String()
}

func TestLogIsFollowedIntoItsNextFile(t *testing.T) {
	dir := t.TempDir()
	l, err := openLog(dir, 50)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r, err := ReadLog(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	out, ended := &text{on: make(chan struct{}, 1)}, make(chan error, 1)
	go func() { ended <- r.Follow(ctx, out, time.Millisecond) }()
	var want strings.Builder
	for i := range 20 {
		line := fmt.Sprintf("line %d\n", i)
		want.WriteString(line)
		fmt.Fprint(l, line)
		for end := time.Now().Add(testPatience); out.String() != want.String() && time.Now().Before(end); {
			select {
			case <-out.on:
			case <-time.After(time.Millisecond):
			}
		}
	}
	cancel()
	if err := <-ended; err != nil || out.String() != want.String() {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

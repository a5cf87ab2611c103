package roots

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func tag(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	etag, err := ETagOf(f, info)
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^[0-9a-z]{12}$`).MatchString(etag) {
		t.Errorf("tag %q", etag)
	}
	return etag
}

// A small file is what it holds.
func TestETagOfSmallFile(t *testing.T) {
	dir := t.TempDir()
	path := write(t, "one", dir, "f")
	one := tag(t, path)
	os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0))
	if got := tag(t, path); got != one {
		t.Error("touching it changed the tag")
	}
	if got := tag(t, write(t, "one", dir, "g")); got != one {
		t.Error("equal contents have different tags")
	}
	write(t, "two", dir, "f")
	if got := tag(t, path); got == one {
		t.Error("different contents have one tag")
	}
	for _, size := range []int{0, ETagWhole - 1, ETagWhole} {
		content := strings.Repeat("x", size)
		info, _ := os.Stat(write(t, content, dir, "sized"))
		if ETag(info, []byte(content)) != tag(t, filepath.Join(dir, "sized")) {
			t.Errorf("%d bytes: ETag and ETagOf differ", size)
		}
	}
}

// A large file is known by what the system says of it.
func TestETagOfLargeFile(t *testing.T) {
	dir := t.TempDir()
	content := strings.Repeat("x", ETagWhole+1)
	path := write(t, content, dir, "f")
	os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0))
	was := tag(t, path)
	if info, _ := os.Stat(path); ETag(info, nil) != was {
		t.Error("ETag and ETagOf differ")
	}
	os.Chtimes(path, time.Unix(2, 0), time.Unix(2, 0))
	if tag(t, path) == was {
		t.Error("the time of the last change counts for nothing")
	}
	os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0))
	other := write(t, content, dir, "g")
	os.Chtimes(other, time.Unix(1, 0), time.Unix(1, 0))
	if tag(t, other) == was {
		t.Error("another file has the same tag")
	}
}

func TestLinkCount(t *testing.T) {
	dir := t.TempDir()
	path := write(t, "x", dir, "f")
	for want := 1; want <= 2; want++ {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := Links(info); got != want {
			t.Errorf("got %d, want %d", got, want)
		}
		os.Link(path, filepath.Join(dir, "g"))
	}
}

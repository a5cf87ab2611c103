//go:build !race

package extract

import (
	"archive/zip"
	"bytes"
	"io"
	"runtime"
	"strings"
	"testing"
)

// A few kilobytes that stand for a gigabyte end at the limit of the text.
func TestWordBomb(t *testing.T) {
	doc := wordOf("<w:p><w:r><w:t>" + strings.Repeat("x", 40<<20) + "</w:t></w:r></w:p>")
	got, cut, err := convert(t, Word, doc)
	if len(got) > MostOut+1 || !cut || err != nil {
		t.Errorf("%d bytes of %d, cut %v, %v", len(got), len(doc), cut, err)
	}
}

// bomb is a document of a few kilobytes that stands for much more.
func bomb(t *testing.T, size int, part func(n int) string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.Create("word/document.xml")
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(w, "<d>")
	for n := 0; n < size; {
		s := part(n)
		io.WriteString(w, s)
		n += len(s)
	}
	io.WriteString(w, "</d>")
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A document that stands for gigabytes is not decoded whole, nor held.
func TestABombIsNotHeld(t *testing.T) {
	chunk := strings.Repeat("x", 1<<20)
	tag := strings.Repeat("<p><t></t></p>", 1<<16)
	for name, c := range map[string]struct {
		part func(int) string
		cut  bool
	}{
		"one run of text": {func(int) string { return chunk }, false},
		"one tag":         {func(n int) string { return map[bool]string{true: "<p a='", false: chunk}[n == 0] }, false},
		"empty tags":      {func(int) string { return tag }, true},
	} {
		b := bomb(t, 3*mostXML, c.part)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, cut, err := Text(t.Context(), Word, bytes.NewReader(b), int64(len(b)))
		runtime.ReadMemStats(&after)
		if cut != c.cut || (err == nil) != c.cut {
			t.Errorf("%s: cut %t, %v", name, cut, err)
		}
		if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 64<<20 {
			t.Errorf("%s: the heap grew by %d MiB", name, grown>>20)
		}
	}
}

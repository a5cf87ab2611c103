//go:build !race

package extract

import (
	"archive/zip"
	"bytes"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

// A few kilobytes that stand for a gigabyte end at the limit of the text.
func TestWordBomb(t *testing.T) {
	doc := wordOf("<w:p><w:r><w:t>" + strings.Repeat("x", 40<<20) + "</w:t></w:r></w:p>")
	got, cut, err := convert(t, Word, doc)
	if len(got) > MostOut+1 || !cut || err != nil {
		t.Errorf("%d bytes of %d, cut %v, %v", len(got), len(doc), cut, err)
	}
}

// bombs are documents of less than a few megabytes that stand for much more, by what is in them. cut are those whose
// text is cut off; the others are refused.
func bombs(t *testing.T) map[string]bombed {
	t.Helper()
	chunk := strings.Repeat("x", 1<<20)
	rels := strings.NewReplacer("%1", "worksheets/sheet1.xml", "%2", "other.xml").Replace(relations)
	book := map[string]string{
		"xl/workbook.xml":            `<w ` + office + `><sheets><sheet name="a" r:id="rId1"/></sheets></w>`,
		"xl/_rels/workbook.xml.rels": rels,
		"xl/worksheets/sheet1.xml":   `<s><row><c t="s"><v>0</v></c></row></s>`,
	}
	slides := map[string]string{
		"ppt/presentation.xml": `<p ` + office + `><sldId r:id="rId1"/></p>`,
		"ppt/_rels/presentation.xml.rels": strings.NewReplacer("%1", "slides/slide1.xml", "%2", "other.xml").Replace(
			relations),
	}
	const word, shared, slide = "word/document.xml", "xl/sharedStrings.xml", "ppt/slides/slide1.xml"
	return map[string]bombed{
		"one run of text": {Word, bomb(t, nil, word, "", chunk), false},
		"one tag":         {Word, bomb(t, nil, word, "<p a='", chunk), false},
		"empty tags":      {Word, bomb(t, nil, word, "", strings.Repeat("<p><t></t></p>", 1<<16)), true},
		"shared strings":  {Sheets, bomb(t, book, shared, "", strings.Repeat("<si/>", 1<<17)), false},
		"one string":      {Sheets, bomb(t, book, shared, "<si><t>", chunk), false},
		"texts":           {Slides, bomb(t, slides, slide, "", "<t>"+strings.Repeat("x", 1<<10)+"</t>"), true},
	}
}

type bombed struct {
	kind Kind
	doc  []byte
	cut  bool
}

// bomb is an archive of some parts and of one that begins with head and repeats a text for more than what is decoded.
func bomb(t *testing.T, parts map[string]string, name, head, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for part, is := range parts {
		w, err := z.Create(part)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, is)
	}
	w, err := z.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(w, "<d>"+head)
	for n := 0; n < mostXML+mostXML/4; n += len(text) {
		io.WriteString(w, text)
	}
	io.WriteString(w, "</d>")
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A document that stands for gigabytes is not decoded whole, nor held.
//
//redteam:attack No principal takes the host from the others: a document of kilobytes that decodes to gigabytes, as one text, tag, string or many
func TestABombIsNotHeld(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(25)) // so that the heap is hardly larger than what is held
	for name, c := range bombs(t) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, cut, err := Text(t.Context(), time.Hour, c.kind, bytes.NewReader(c.doc), int64(len(c.doc)))
		runtime.ReadMemStats(&after)
		if cut != c.cut || (err == nil) != c.cut {
			t.Errorf("%s: cut %t, %v", name, cut, err)
		}
		grown := int64(after.HeapSys) - int64(before.HeapSys)
		t.Logf("%s: %d KiB, the heap grew by %d MiB, %v", name, len(c.doc)>>10, grown>>20, err)
		if grown > 64<<20 {
			t.Errorf("%s: the heap grew by %d MiB", name, grown>>20)
		}
	}
}

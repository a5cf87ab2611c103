package extract

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

func convert(t testing.TB, k Kind, b []byte) (string, bool, error) {
	t.Helper()
	return Text(t.Context(), time.Minute, k, bytes.NewReader(b), int64(len(b)))
}

// pdfOf makes a document of pages of content operators.
func pdfOf(pages ...string) []byte {
	var b bytes.Buffer
	var offsets []int
	object := func(format string, args ...any) {
		offsets = append(offsets, b.Len())
		fmt.Fprintf(&b, "%d 0 obj\n"+format+"\nendobj\n", append([]any{len(offsets)}, args...)...)
	}
	b.WriteString("%PDF-1.4\n")
	object("<</Type/Catalog/Pages 2 0 R>>")
	var kids strings.Builder
	for i := range pages {
		fmt.Fprintf(&kids, "%d 0 R ", 4+2*i)
	}
	object("<</Type/Pages/Count %d/Kids[%s]>>", len(pages), kids.String())
	object(
		"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding/FirstChar 32/LastChar 126/Widths[%s]>>",
		strings.Repeat("500 ", 95),
	)
	for i, p := range pages {
		object("<</Type/Page/Parent 2 0 R/Resources<</Font<</F1 3 0 R>>>>/Contents %d 0 R>>", 5+2*i)
		object("<</Length %d>>stream\n%s\nendstream", len(p), p)
	}
	start := b.Len()
	fmt.Fprintf(&b, "xref\n0 %d\n0000000000 65535 f \n", len(offsets)+1)
	for _, o := range offsets {
		fmt.Fprintf(&b, "%010d 00000 n \n", o)
	}
	fmt.Fprintf(&b, "trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n", len(offsets)+1, start)
	return b.Bytes()
}

func TestPDF(t *testing.T) {
	doc := pdfOf(
		"BT /F1 12 Tf 72 700 Td (Hello) Tj ( world) Tj 0 -14 Td (second line) Tj 0 -60 Td [(sp) -20 "+
			"(lit)-900(apart)] TJ ET",
		"",
		"q 1 0 0 1 10 10 cm BT /F1 10 Tf 12 TL 1 0 0 1 50 500 Tm (one) ' (two) ' 1 2 (three) \" ET Q",
	)
	got, cut, err := convert(t, PDF, doc)
	if want := "[page 1]\nHello world\nsecond line\n\nsplit apart\n\n[page 3]\none\ntwo\nthree\n"; got != want || cut ||
		err != nil {
		t.Errorf("got %q, %v, %v, want %q", got, cut, err, want)
	}
	if got, _, err := convert(t, PDF, pdfOf("")); !strings.Contains(got, "no text") || err != nil {
		t.Errorf("a picture: %q, %v", got, err)
	}
	for _, bad := range []string{"%PDF-1.4\n", string(doc[:len(doc)/2]),
		"%PDF-1.4\nxref\n0 1\ntrailer<</Root 1 0 R>>\nstartxref\n9\n%%EOF"} {
		if got, _, err := convert(t, PDF, []byte(bad)); err == nil && !strings.Contains(got, "no text") {
			t.Errorf("%.30q: %q", bad, got)
		}
	}
}

// A list of pages that leads back to itself is given up when time is up.
func TestPDFLoop(t *testing.T) {
	doc := bytes.Replace(pdfOf("BT ET"), []byte("/Count 1/Kids[4 0 R ]"), []byte("/Count 9/Kids[2 0 R ]"), 1)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, _, err := Text(ctx, time.Minute, PDF, bytes.NewReader(doc), int64(len(doc)))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func wordOf(xml string) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, _ := z.Create("word/document.xml")
	fmt.Fprintf(w, `<?xml version="1.0"?><w:document xmlns:w="x"><w:body>%s</w:body></w:document>`, xml)
	z.Close()
	return b.Bytes()
}

func TestWord(t *testing.T) {
	doc := wordOf(`<w:p><w:pPr><w:pStyle w:val="Heading2"/></w:pPr><w:r><w:t>Title</w:t></w:r></w:p>
		<w:p><w:r><w:t xml:space="preserve">Some </w:t></w:r><w:r><w:t>text &amp; more</w:t><w:tab/><w:t>end</w:t></w:r></w:p>
		<w:p><w:pPr><w:numPr><w:ilvl w:val="0"/><w:numId w:val="1"/></w:numPr></w:pPr><w:r><w:t>item</w:t></w:r></w:p>
		<w:tbl><w:tr><w:tc><w:p><w:r><w:t>a</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>b</w:t></w:r></w:p></w:tc></w:tr><w:tr><w:tc><w:p><w:r><w:t>c</w:t></w:r></w:p></w:tc></w:tr></w:tbl>
		<w:p><w:r><w:t>after</w:t></w:r></w:p>`)
	got, _, err := convert(t, Word, doc)
	if want := "## Title\n\nSome text & more\tend\n\n- item\n\na | b\nc\n\nafter\n"; got != want || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	for _, bad := range [][]byte{[]byte("PK\x03\x04"), doc[:len(doc)/2], wordOf(strings.Repeat("<w:p>", 2000))} {
		if _, _, err := convert(t, Word, bad); err == nil {
			t.Errorf("%.20q is taken", bad)
		}
	}
}

func TestHTML(t *testing.T) {
	for page, want := range map[string]string{
		`<html><head><title>T</title><style>x{}</style></head><body><h1>A  heading</h1><p>One <b>two</b>
			three.<script>alert(1)</script></p></body></html>`: "T\n\n# A heading\n\nOne two three.\n",
		`<ul><li>a<li>b<ul><li>c</ul></ul><ol><li>x</li><li>y</li></ol>`:                        "- a\n- b\n\n  - c\n\n1. x\n2. y\n",
		`<table><tr><th>a</th><th>b</th></tr><tr><td>1<td>2</tr></table>after`:                  "a | b\n1 | 2\n\nafter\n",
		`x<pre>a  b` + "\n" + ` c</pre>y`:                                                       "x\n\n\na  b\n c\n\ny\n",
		`<a href="https://example.org/">there</a>, <a href="#x">here</a> <img alt="a picture">`: "there (https://example.org/), here [a picture]\n",
		`a<br>b<hr>c &lt; &auml;`:                                                               "a\nb\n\n---\n\nc < ä\n",
		`<script>`:                                                                              "",
		`<p>unclosed <b>x`:                                                                      "unclosed x\n",
		`<head><title>t</title>text`:                                                            "t\n",
		`</li></ul></a><li>odd`:                                                                 "- odd\n",
		`<svg><svg></svg>in</svg>out`:                                                           "out\n",
	} {
		if got, _, err := convert(t, Page, []byte(page)); got != want || err != nil {
			t.Errorf("%s:\ngot  %q, %v\nwant %q", page, got, err, want)
		}
	}
}

func TestNotebook(t *testing.T) {
	got, _, err := convert(t, Notebook, []byte(`{"cells":[{"cell_type":"markdown","source":["# T\n","text"]},
		{"cell_type":"code","source":"print(1)\n","outputs":[{"text":["1\n"]},{"data":{"image/png":"aaaa"}},{"ename":"E","evalue":"bad"}]}],
		"metadata":{"language_info":{"name":"python"}}}`))
	want := "[cell 1, markdown]\n# T\ntext\n\n[cell 2, code]\n```python\nprint(1)\n```\nOutput: 1\n" +
		"Output:  [image/png, 6 bytes]\nOutput: E: bad\n"
	if got != want || err != nil {
		t.Errorf("got %q, %v\nwant %q", got, err, want)
	}
	for _, bad := range []string{"{", "[]", `{"cells":[{"source":7}]}`} {
		if _, _, err := convert(t, Notebook, []byte(bad)); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

func TestKinds(t *testing.T) {
	for _, c := range []struct {
		name, head string
		want       Kind
	}{
		{"x", "%PDF-1.7", PDF}, {"a.DOCX", "PK\x03\x04", Word}, {"a.zip", "PK\x03\x04", ""}, {"a.docx", "text", ""},
		{"a.htm", "", Page}, {"a.ipynb", "\n {", Notebook}, {"a.ipynb", "x", ""}, {"a.go", "package a", ""},
	} {
		if got := KindOf(c.name, []byte(c.head)); got != c.want {
			t.Errorf("%s %q: %q", c.name, c.head, got)
		}
	}
}

func TestUTF16(t *testing.T) {
	for in, want := range map[string]string{
		"\xFF\xFEa\x00\xe4\x00": "aä", "\xFE\xFF\x00a\x20\xac": "a€", "\xFF\xFE\x3d\xd8\x00\xde": "😀",
		"\xFF\xFE\x3d\xd8a\x00": "\uFFFDa", "\xFF\xFEa\x00b": "a\uFFFD", "plain": "plain",
		"\xFF\xFE": "", "\xFF\xFE\x00\xde": "\uFFFD",
		"\xFF\xFE\x00\x00a\x00\x00\x00\x00\xf6\x01\x00": "a😀", "\x00\x00\xFE\xFF\x00\x00\x00\xe4": "ä",
		"\xFF\xFE\x00\x00\xff\xff\xff\xffa": "\uFFFD\uFFFD",
	} {
		if got := string(Narrow([]byte(in))); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
		if w, ok := WideOf([]byte(in)); ok && !strings.Contains(want, "\uFFFD") {
			if again := w.Mark + string(w.Encode([]byte(want))); again != in {
				t.Errorf("%q: encoded again it is %q", in, again)
			}
		}
	}
}

func TestLimits(t *testing.T) {
	if _, _, err := Text(t.Context(), time.Minute, PDF, bytes.NewReader(nil), MostIn+1); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	stop := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if _, _, err := Text(ctx, time.Minute, Page, strings.NewReader("<p>x"), 4); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
}

// reading is a document whose first read waits, until it is released.
type reading struct {
	begun, release chan struct{}
	once           sync.Once
}

func (r *reading) ReadAt([]byte, int64) (int, error) {
	r.once.Do(func() { close(r.begun) })
	<-r.release
	return 0, io.ErrUnexpectedEOF
}

// While a document is decoded no other one is, whoever asks and of whatever kind; one that waits has read nothing, and
// gives up when its caller does.
//
//redteam:attack No principal takes the host from the others: several documents that decode to gigabytes at once
func TestDocumentsAreDecodedOneAtATime(t *testing.T) {
	kinds := []Kind{PDF, Word, Page, Notebook, Slides, Sheets, Book, Mail}
	first := &reading{begun: make(chan struct{}), release: make(chan struct{})}
	ended := make(chan error, 1)
	go func() {
		_, _, err := Text(t.Context(), time.Hour, Word, first, MostIn)
		ended <- err
	}()
	<-first.begun
	for _, k := range kinds {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		second := &reading{begun: make(chan struct{}), release: make(chan struct{})}
		close(second.release)
		_, _, err := Text(ctx, time.Hour, k, second, MostIn)
		cancel()
		if !errors.Is(err, ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: got %v beside another document", k, err)
		}
		select {
		case <-second.begun:
			t.Errorf("%s: it was read beside another document", k)
		default:
		}
	}
	close(first.release)
	if err := <-ended; err == nil {
		t.Error("a document that cannot be read has a text")
	}
	if got, _, err := convert(t, Page, []byte("<p>x")); got != "x\n" || err != nil {
		t.Errorf("after it: got %q, %v", got, err)
	}
}

// A document has a limit of time, however long its caller waits.
func TestADocumentHasALimitOfTime(t *testing.T) {
	doc := []byte(strings.Repeat("<p>x", 1<<20))
	if _, _, err := Text(t.Context(), time.Nanosecond, Page, bytes.NewReader(doc), int64(len(doc))); !errors.Is(
		err, context.DeadlineExceeded) || errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
}

func FuzzDocuments(f *testing.F) {
	kinds := []Kind{PDF, Word, Page, Notebook, Slides, Sheets, Book, Mail}
	f.Add(uint8(0), pdfOf("BT /F1 12 Tf 72 700 Td [(a) -500 (b)] TJ ET", "BT"))
	f.Add(uint8(1), wordOf("<w:p><w:r><w:t>x</w:t></w:r></w:p>"))
	f.Add(uint8(2), []byte("<ul><li>a<pre>b<title>c</table><a href=http://x>d</a>"))
	f.Add(uint8(3), []byte(`{"cells":[{"cell_type":"code","source":["a"],"outputs":[{"data":{"text/plain":"x"}}]}]}`))
	for i, name := range []string{"aes128.pdf", "", "", "", "", "prices.xlsx", "storms.epub", "forwarded.eml"} {
		if b, err := os.ReadFile("testdata/" + name); name != "" && err == nil {
			f.Add(uint8(i), b)
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		k := kinds[int(kind)%len(kinds)]
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		text, _, _ := Text(ctx, time.Minute, k, bytes.NewReader(b), int64(len(b)))
		if !utf8.ValidString(text) || len(text) > MostOut+1 {
			t.Errorf("%s: %d bytes, or not UTF-8", k, len(text))
		}
		Narrow(b)
	})
}

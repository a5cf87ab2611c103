package extract

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write testdata/want.txt as it is now")

// Documents of real programs, which testdata/make.py wrote, become the texts of testdata/want.txt.
func TestRealDocuments(t *testing.T) {
	all, err := filepath.Glob("testdata/*.*")
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	n := 0
	for _, path := range all {
		name := filepath.Base(path)
		if name == "want.txt" || name == "make.py" {
			continue
		}
		n++
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text, cut, err := convert(t, KindOf(name, b[:min(len(b), 512)]), b)
		fmt.Fprintf(&got, "======== %s, cut %t, error %v\n%s", name, cut, err, text)
	}
	if *update {
		if err := os.WriteFile("testdata/want.txt", []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/want.txt")
	if err != nil || n < 18 {
		t.Fatalf("%d documents, %v", n, err)
	}
	have, wanted := strings.Split(got.String(), "\n"), strings.Split(string(want), "\n")
	for i := range max(len(have), len(wanted)) {
		if i >= len(have) || i >= len(wanted) || have[i] != wanted[i] {
			t.Fatalf("line %d of testdata/want.txt differs: got\n%s", i+1,
				strings.Join(have[min(i, len(have)):min(i+10, len(have))], "\n"))
		}
	}
}

// Cut and changed, no document of a real program ends in more than an error.
func TestDamagedDocuments(t *testing.T) {
	for _, name := range []string{"report.pdf", "handbook.docx", "talk.pptx", "prices.xlsx", "storms.epub", "forwarded.eml",
		"version3.ipynb", "latin1.html"} {
		b, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		k := KindOf(name, b[:min(len(b), 512)])
		for i := range 12 {
			bad := bytes.Clone(b)
			at := len(b) * (2*i + 1) / 24
			if i%2 == 0 {
				bad = bad[:at]
			} else {
				for j := at; j < min(at+40, len(bad)); j += 3 {
					bad[j] ^= 0x55
				}
			}
			if text, _, _ := convert(t, k, bad); len(text) > MostOut+1 {
				t.Errorf("%s: %d bytes", name, len(text))
			}
		}
	}
}

func TestWordNotes(t *testing.T) {
	doc := archiveOf(map[string]string{
		"word/document.xml": `<w:document xmlns:w="w" xmlns:mc="mc"><w:body><w:p><w:pPr><w:pStyle w:val="Kop1"/></w:pPr><w:r><w:t>Head` +
			`</w:t></w:r></w:p><w:p><w:moveFrom><w:r><w:t>moved</w:t></w:r></w:moveFrom><w:del><w:r><w:delText>gone</w:delText></w:r></w:del>` +
			`<w:r><w:t>kept</w:t><w:footnoteReference w:id="2"/></w:r><mc:AlternateContent><mc:Choice><w:t> box</w:t></mc:Choice>` +
			`<mc:Fallback><w:t> box</w:t></mc:Fallback></mc:AlternateContent></w:p></w:body></w:document>`,
		"word/styles.xml": `<w:styles xmlns:w="w"><w:style w:styleId="Kop1"><w:name w:val="heading 1"/></w:style></w:styles>`,
		"word/footnotes.xml": `<w:footnotes xmlns:w="w"><w:footnote w:type="separator" w:id="0"><w:p><w:t>x</w:t></w:p></w:footnote>` +
			`<w:footnote w:id="2"><w:p><w:r><w:t>The note.</w:t></w:r></w:p></w:footnote></w:footnotes>`,
	})
	got, _, err := convert(t, Word, doc)
	if want := "# Head\n\nkept[^2] box\n\n[^2]: The note.\n"; got != want || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestDateFormats(t *testing.T) {
	for format, want := range map[string]bool{
		"yyyy-mm-dd": true, "[h]:mm": true, `d\.m\.yy`: true, "General": false, "0.00": false, `0.0" days"`: false, `#,##0\d`: false,
		"[Red]0;[Blue]0": false, `[$-409]mmm yy`: true, "0.00E+00": false,
	} {
		if got := isDateFormat(format); got != want {
			t.Errorf("%s: got %v", format, got)
		}
	}
	b := &workbook{epoch: time.Date(1899, 12, 30, 0, 0, 0, 0, time.UTC)}
	for value, want := range map[string]string{"45366": "2024-03-15", "0.5": "12:00:00", "45366.25": "2024-03-15 06:00:00",
		"-1": "-1", "1e300": "1e300", "NaN": "NaN", "": ""} {
		if got := b.date(value); got != want {
			t.Errorf("%s: got %q, want %q", value, got, want)
		}
	}
}

// The chapters of a protected book are noise.
func TestAProtectedBookIsAnError(t *testing.T) {
	doc := archiveOf(map[string]string{
		"META-INF/container.xml": `<container><rootfile full-path="b.opf"/></container>`,
		"META-INF/encryption.xml": `<encryption><EncryptedData><CipherData><CipherReference URI="a.xhtml"/></CipherData></EncryptedData>` +
			`</encryption>`,
		"b.opf": `<package><manifest><item id="a" href="a.xhtml" media-type="application/xhtml+xml"/></manifest><spine>` +
			`<itemref idref="a"/></spine></package>`,
		"a.xhtml": "\x8f\x12\x00",
	})
	if got, _, err := convert(t, Book, doc); err == nil || !strings.Contains(err.Error(), "protected") {
		t.Errorf("got %q, %v", got, err)
	}
}

// Forms that contain each other many times over end soon.
func TestFormsInForms(t *testing.T) {
	doc := pdfOf("/X Do " + strings.Repeat("/X Do ", 9))
	doc = bytes.Replace(doc, []byte("/Resources<</Font<</F1 3 0 R>>>>"), []byte("/Resources<</XObject<</X 5 0 R>>>>"), 1)
	doc = bytes.Replace(doc, []byte("5 0 obj\n<<"), []byte("5 0 obj\n<</Subtype/Form "), 1)
	begun := time.Now()
	if got, _, err := convert(t, PDF, doc); err != nil && !strings.Contains(err.Error(), "damaged") {
		t.Errorf("got %q, %v after %v", got, err, time.Since(begun))
	}
}

// A document whose every line is large has no headings, and one that is a single one costs little.
func TestHeadingsOfPDF(t *testing.T) {
	if got, _, err := convert(t, PDF, pdfOf("BT /F1 30 Tf 72 700 Td (all large) Tj ET")); got != "[page 1]\nall large\n" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	small := "BT /F1 10 Tf 72 600 Td (" + strings.Repeat("body text ", 60) + ") Tj 0 -12 Td (# no heading) Tj ET "
	got, _, err := convert(t, PDF, pdfOf("BT /F1 20 Tf 72 700 Td (A long) Tj 0 -22 Td (title) Tj ET "+small))
	if err != nil || !strings.HasPrefix(got, "[page 1]\n# A long title\n\nbody text") || !strings.Contains(got, "\n # no heading") {
		t.Errorf("got %q, %v", got, err)
	}
	p := pdfPage{text: strings.Repeat("a\n", 1<<20)}
	for range 1 << 20 {
		p.lines = append(p.lines, lineSize{20, 1})
	}
	if got := p.marked(map[float64]int{20: 1}); len(got) < 1<<21 {
		t.Errorf("%d bytes", len(got))
	}
}

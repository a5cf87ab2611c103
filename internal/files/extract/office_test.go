package extract

import (
	"archive/zip"
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"
)

func archiveOf(parts map[string]string) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		w, _ := z.Create(name)
		w.Write([]byte(parts[name]))
	}
	z.Close()
	return b.Bytes()
}

const relations = `<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">
	<Relationship Id="rId1" Target="%1"/><Relationship Id="rId2" Target="%2"/>
	<Relationship Id="rId3" Target="../../../etc/passwd"/>
	<Relationship Id="rId4" TargetMode="External" Target="http://127.0.0.1/"/></Relationships>`

const office = `xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships" xmlns:a="a" xmlns:p="p"`

// Slides are in the order of the presentation and not of their names.
func TestSlides(t *testing.T) {
	slide := func(text string) string {
		return `<p:sld ` + office + `><p:sp><a:p><a:r><a:t>` + text + `</a:t></a:r></a:p><a:p><a:r><a:t>more &amp; more` +
			`</a:t></a:r></a:p></p:sp></p:sld>`
	}
	doc := archiveOf(map[string]string{
		"ppt/presentation.xml": `<p:presentation ` + office + `><p:sldIdLst><p:sldId id="256" r:id="rId2"/>` +
			`<p:sldId r:id="rId1"/><p:sldId r:id="rId3"/><p:sldId r:id="rId4"/></p:sldIdLst></p:presentation>`,
		"ppt/_rels/presentation.xml.rels": strings.NewReplacer("%1", "slides/slide1.xml", "%2",
			"/ppt/slides/slide2.xml").Replace(relations),
		"ppt/slides/slide1.xml": slide("one"), "ppt/slides/slide2.xml": slide("two"),
	})
	got, _, err := convert(t, Slides, doc)
	if want := "[page 1]\n\n# Slide 1\n\ntwo\nmore & more\n\n[page 2]\n\n# Slide 2\n\none\nmore & more\n"; got != want || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if k := KindOf("A.PPTX", doc); k != Slides {
		t.Errorf("its kind is %q", k)
	}
}

func TestSheets(t *testing.T) {
	doc := archiveOf(map[string]string{
		"xl/workbook.xml": `<workbook ` + office + `><sheets><sheet name="Prices" sheetId="1" r:id="rId1"/>` +
			`<sheet name="Other" r:id="rId2"/></sheets></workbook>`,
		"xl/_rels/workbook.xml.rels": strings.NewReplacer("%1", "worksheets/sheet1.xml", "%2",
			"worksheets/sheet2.xml").Replace(relations),
		"xl/sharedStrings.xml": `<sst><si><t>Name</t></si><si><r><t>Bolt</t></r><r><t> M6</t></r><rPh><t>x</t></rPh></si></sst>`,
		"xl/worksheets/sheet1.xml": `<worksheet><sheetData><row r="1"><c r="A1" t="s"><v>0</v></c><c r="C1" t="inlineStr">` +
			`<is><t>Price</t></is></c></row><row r="2"><c r="A2" t="s"><v>1</v></c><c r="B2"><f>1+1</f><v>2</v></c>` +
			`<c r="C2" t="b"><v>1</v></c><c r="D2" t="s"><v>99</v></c></row></sheetData></worksheet>`,
		"xl/worksheets/sheet2.xml": `<worksheet><sheetData><row><c><v>1</v></c><c><v>2</v></c></row></sheetData></worksheet>`,
	})
	got, _, err := convert(t, Sheets, doc)
	want := "# Prices\n\nName | | Price\nBolt M6 | 2 | TRUE\n\n# Other\n\n1 | 2\n"
	if got != want || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestBook(t *testing.T) {
	doc := archiveOf(map[string]string{
		"mimetype":               "application/epub+zip",
		"META-INF/container.xml": `<container><rootfiles><rootfile full-path="OPS/book.opf"/></rootfiles></container>`,
		"OPS/book.opf": `<package><manifest><item id="b" href="b.xhtml" media-type="application/xhtml+xml"/>` +
			`<item id="a" href="text/a%20b.xhtml" media-type="application/xhtml+xml"/>` +
			`<item id="p" href="p.png" media-type="image/png"/></manifest><spine><itemref idref="a"/><itemref idref="b"/>` +
			`<itemref idref="p"/><itemref idref="none"/></spine></package>`,
		"OPS/b.xhtml":        `<html><body><h1>Second</h1><p>end</p><script>x</script></body></html>`,
		"OPS/text/a b.xhtml": `<html><body><h1>First</h1><p>begin</p></body></html>`,
		"OPS/p.png":          "\x89PNG",
	})
	got, _, err := convert(t, Book, doc)
	if want := "# First\n\nbegin\n\n# Second\n\nend\n"; got != want || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestMail(t *testing.T) {
	text := strings.ReplaceAll(`From: =?utf-8?q?J=C3=B6rg?= <j@example.org>
To: a@example.org
Subject: =?iso-8859-1?q?Gr=FC=DFe?=
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="x"

preamble
--x
Content-Type: multipart/alternative; boundary="y"

--y
Content-Type: text/plain; charset=utf-8
Content-Transfer-Encoding: quoted-printable

The caf=C3=A9 opens at =
nine.
--y
Content-Type: text/html

<p>not <b>this</b></p>
--y--
--x
Content-Type: multipart/alternative; boundary="z"

--z
Content-Type: text/html; charset=utf-8
Content-Transfer-Encoding: base64

PGgxPkhlYWQ8L2gxPjxwPnRleHQ8L3A+
--z--
--x
Content-Type: application/pdf; name="plan.pdf"
Content-Disposition: attachment; filename="plan.pdf"

%PDF-
--x--
`, "\n", "\r\n")
	got, _, err := convert(t, Mail, []byte(text))
	want := "Subject: Grüße\nFrom: Jörg <j@example.org>\nTo: a@example.org\n\nThe café opens at nine.\n\n# Head\n\ntext\n\n" +
		"[attachment plan.pdf, application/pdf]\n"
	if got != want || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	var deep strings.Builder
	deep.WriteString("Subject: s\n")
	for range 100 {
		deep.WriteString("Content-Type: multipart/mixed; boundary=b\n\n--b\n")
	}
	if got, _, err := convert(t, Mail, []byte(deep.String())); !strings.HasPrefix(got, "Subject: s") {
		t.Errorf("nested parts: got %q, %v", got, err)
	}
}

// What is damaged, cut off, nested or a bomb ends without a panic and within the limits.
func TestHostileOffice(t *testing.T) {
	rels := strings.NewReplacer("%1", "slides/slide1.xml", "%2", "presentation.xml").Replace(relations)
	bomb := map[string]string{
		"ppt/presentation.xml":            `<p ` + office + `><sldId r:id="rId1"/><sldId r:id="rId2"/></p>`,
		"ppt/_rels/presentation.xml.rels": rels,
		"ppt/slides/slide1.xml":           "<a>" + strings.Repeat("<t>"+strings.Repeat("x", 1<<20)+"</t>", 80) + "</a>",
	}
	got, cut, err := convert(t, Slides, archiveOf(bomb))
	if len(got) > MostOut+100 || !cut && err == nil {
		t.Errorf("a bomb gave %d bytes, %v, %v", len(got), cut, err)
	}
	bomb["ppt/slides/slide1.xml"] = strings.Repeat("<t>", 5000)
	if _, _, err := convert(t, Slides, archiveOf(bomb)); err == nil {
		t.Error("deep nesting is taken")
	}
	for _, k := range []Kind{Slides, Sheets, Book} {
		for _, bad := range [][]byte{[]byte("PK\x03\x04"), archiveOf(nil), archiveOf(bomb)[:400],
			archiveOf(map[string]string{"xl/workbook.xml": "<", "META-INF/container.xml": "<rootfile full-path='../x'/>"})} {
			if got, _, err := convert(t, k, bad); err == nil && got != "" {
				t.Errorf("%s: %q is taken as %q", k, bad[:min(20, len(bad))], got)
			}
		}
	}
}

package extract

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"

	"github.com/ledongthuc/pdf"
)

// mostPages limits the pages of a document that are read.
const mostPages = 5000

// fromPDF writes the text of each page below its number. Lines in larger letters than the rest are its headings.
func fromPDF(w *writer, f *guarded) error {
	r, err := pdf.NewReader(f, f.size)
	if err != nil {
		return pdfError(err)
	}
	d := &pdfDocument{sizes: map[float64]int{}}
	pages, empty := min(r.NumPage(), mostPages), 0
	for i := 1; i <= pages && empty < 200 && d.bytes < MostOut; i++ { // the page count may be false
		p := d.page(r, i)
		if cause := f.stopReading(); cause != nil {
			d.write(w)
			return cause
		}
		if empty++; p {
			empty = 0
		}
	}
	if len(d.pages) == 0 {
		return w.raw("[the pages have no text; they may be images]")
	}
	return d.write(w)
}

// pdfError says why a document cannot be read.
func pdfError(err error) error {
	switch text := err.Error(); {
	case strings.Contains(text, "invalid password"):
		return fmt.Errorf("the document is encrypted and needs a password: %w", err)
	case strings.Contains(text, "256-bit"), strings.Contains(text, "encryption"):
		return fmt.Errorf("the document is encrypted in a way that is not read here; save it without encryption: %w", err)
	}
	return fmt.Errorf("the document is damaged: %w", err)
}

// lineSize is the mean size of the letters of a line.
type lineSize struct {
	sum     float64
	letters int
}

func (l *lineSize) add(size float64, text string) {
	n := 0
	for _, r := range text {
		if !unicode.IsSpace(r) {
			n++
		}
	}
	l.sum += size * float64(n)
	l.letters += n
}

// size returns the mean in points, in steps of a half.
func (l *lineSize) size() float64 {
	if l.letters == 0 {
		return 0
	}
	return math.Round(l.sum/float64(l.letters)*2) / 2
}

// pdfDocument holds the text of pages until the sizes of all letters are known.
type pdfDocument struct {
	pages []pdfPage
	bytes int
	sizes map[float64]int // letters of each size
}

type pdfPage struct {
	number int
	text   string
	lines  []lineSize
}

// page reads one page and reports whether it has text.
func (d *pdfDocument) page(r *pdf.Reader, i int) bool {
	text, lines, err := pageText(r, i, MostOut-d.bytes)
	if err != nil {
		text, lines = "[this page cannot be read: "+err.Error()+"]", nil
	}
	if strings.TrimSpace(text) == "" {
		return false
	}
	for _, l := range lines {
		d.sizes[l.size()] += l.letters
	}
	d.bytes += len(text) + 8
	d.pages = append(d.pages, pdfPage{i, text, lines})
	return true
}

// write writes all pages.
func (d *pdfDocument) write(w *writer) error {
	levels := d.headingSizes()
	for _, p := range d.pages {
		w.paragraph()
		if err := w.raw(fmt.Sprintf("[page %d]\n%s", p.number, tidy(p.marked(levels)))); err != nil {
			return err
		}
	}
	return nil
}

// Headings are larger than the size that most letters have by this factor, and are a small part of the text.
const (
	largerBy     = 1.15
	mostHeadings = 0.25
)

// headingSizes returns the levels of the sizes that headings have.
func (d *pdfDocument) headingSizes() map[float64]int {
	body, all, large := 0.0, 0, 0
	for size, n := range d.sizes {
		if all += n; n > d.sizes[body] || n == d.sizes[body] && size < body {
			body = size
		}
	}
	var sizes []float64
	for size, n := range d.sizes {
		if size >= body*largerBy {
			sizes = append(sizes, size)
			large += n
		}
	}
	if float64(large) > mostHeadings*float64(all) {
		return nil
	}
	slices.Sort(sizes)
	slices.Reverse(sizes)
	levels := map[float64]int{}
	for i, size := range sizes {
		levels[size] = min(i+1, 6)
	}
	return levels
}

// longestHeading is the number of bytes of a line that can be a heading.
const longestHeading = 160

// marked returns the text of a page with the marks of headings. A heading of several lines becomes one.
func (p *pdfPage) marked(levels map[float64]int) string {
	var out []string
	last := 0 // the level of the line before, if that is a heading
	i := -1
	for line := range strings.Lines(p.text) {
		i++
		level, text := 0, strings.TrimSpace(line)
		if i < len(p.lines) && len(text) <= longestHeading && strings.ContainsFunc(text, unicode.IsLetter) {
			level = levels[p.lines[i].size()]
		}
		line = strings.TrimRight(line, "\n")
		switch {
		case level > 0 && level == last && len(out[len(out)-1]) < 2*longestHeading:
			out[len(out)-1] += " " + text
		case level > 0:
			out = append(out, "", strings.Repeat("#", level)+" "+text)
		case strings.HasPrefix(line, "#"):
			out = append(out, " "+line) // it is no heading
		case last > 0 && text != "":
			out = append(out, "", line)
		default:
			out = append(out, line)
		}
		last = level
	}
	return strings.Join(out, "\n")
}

// pageText returns the text of one page, at most so many bytes. If the decoder panics, it returns what was read before,
// so that the other pages can still be read.
func pageText(r *pdf.Reader, i, most int) (text string, lines []lineSize, err error) {
	t := &textState{scale: 1, line: identity, text: identity, page: identity, fonts: map[string]*font{}, most: most}
	defer func() {
		if p := recover(); p != nil && t.b.Len() == 0 && p != errFull {
			err = fmt.Errorf("%v", p)
		}
		text, lines = t.b.String(), t.lines
	}()
	p := r.Page(i)
	if p.V.IsNull() || p.V.Key("Contents").IsNull() {
		return "", nil, nil
	}
	t.resources = p.Resources()
	t.execute(p.V.Key("Contents"))
	return "", nil, nil
}

// tidy removes spaces at the ends of lines and repeated blank lines.
func tidy(text string) string {
	var b strings.Builder
	blank := 0
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \t\r\n")
		if line == "" {
			if blank++; blank > 1 {
				continue
			}
		} else {
			blank = 0
		}
		b.WriteString(line)
		b.WriteByte('\n')
	}
	return strings.Trim(b.String(), "\n")
}

package extract

import (
	"math"
	"strings"

	"github.com/ledongthuc/pdf"
)

// matrix is an affine transformation in the order of the operator Tm.
type matrix [6]float64

var identity = matrix{1, 0, 0, 1, 0, 0}

func (m matrix) times(n matrix) matrix {
	return matrix{
		m[0]*n[0] + m[1]*n[2], m[0]*n[1] + m[1]*n[3],
		m[2]*n[0] + m[3]*n[2], m[2]*n[1] + m[3]*n[3],
		m[4]*n[0] + m[5]*n[2] + n[4], m[4]*n[1] + m[5]*n[3] + n[5],
	}
}

func shift(x, y float64) matrix { return matrix{1, 0, 0, 1, x, y} }

type font struct {
	pdf.Font
	two    bool // codes have two bytes, and are the numbers of glyphs
	widths map[int]float64
	other  float64 // the width of the rest, in thousandths of the size
}

// textState executes the operators that place text. If a piece of text begins away
// from the end of the piece before, a space or a line break is written between.
type textState struct {
	b     strings.Builder
	most  int
	lines []lineSize // of the lines of b

	resources pdf.Value
	forms     int // that were executed
	depth     int // of forms in forms

	page, text, line matrix
	saved            []matrix
	fonts            map[string]*font
	font             *font
	size, leading    float64
	spacing, wordGap float64
	scale            float64

	x, y    float64 // end of the last piece, in units of the page
	started bool
}

func numbers(args []pdf.Value) (n [6]float64) {
	for i := range min(len(args), 6) {
		n[i] = args[i].Float64()
	}
	return n
}

func (t *textState) applyOperator(op string, args []pdf.Value) {
	n := numbers(args)
	switch op {
	case "q":
		if len(t.saved) < 1000 {
			t.saved = append(t.saved, t.page)
		}
	case "Q":
		if last := len(t.saved) - 1; last >= 0 {
			t.page, t.saved = t.saved[last], t.saved[:last]
		}
	case "cm":
		t.page = matrix(n).times(t.page)
	case "BT":
		t.text, t.line = identity, identity
	case "Tm":
		t.text, t.line = n, n
	case "Td", "TD":
		if op == "TD" {
			t.leading = -n[1]
		}
		t.nextLine(n[0], n[1])
	case "T*":
		t.nextLine(0, -t.leading)
	case "TL":
		t.leading = n[0]
	case "Tc":
		t.spacing = n[0]
	case "Tw":
		t.wordGap = n[0]
	case "Tz":
		t.scale = n[0] / 100
	case "Tf":
		if len(args) == 2 {
			t.size = n[1]
			t.font = t.use(args[0].Name())
		}
	case "Do":
		if len(args) == 1 {
			t.form(t.resources.Key("XObject").Key(args[0].Name()))
		}
	default:
		t.shows(op, args)
	}
}

// shows executes the operators that show text.
func (t *textState) shows(op string, args []pdf.Value) {
	if len(args) == 0 {
		return
	}
	last := args[len(args)-1]
	switch op {
	case "'", "\"":
		t.nextLine(0, -t.leading)
		t.showText(last.RawString())
	case "Tj":
		t.showText(last.RawString())
	case "TJ":
		for i := range last.Len() {
			if v := last.Index(i); v.Kind() == pdf.String {
				t.showText(v.RawString())
			} else {
				t.text = shift(-v.Float64()/1000*t.size*t.scale, 0).times(t.text)
			}
		}
	}
}

func (t *textState) nextLine(x, y float64) {
	t.line = shift(x, y).times(t.line)
	t.text = t.line
}

// Limits of the forms of a page: forms may contain each other, and a few of them millions.
const (
	mostForms     = 2000
	mostFormDepth = 12
)

// execute runs the operators of a page or of a form.
func (t *textState) execute(content pdf.Value) {
	pdf.Interpret(content, func(stack *pdf.Stack, op string) {
		args := make([]pdf.Value, min(stack.Len(), 16))
		for i := range args {
			args[len(args)-1-i] = stack.Pop()
		}
		for stack.Len() > 0 {
			stack.Pop()
		}
		t.applyOperator(op, args)
	})
}

// form writes the text of a form, which is a part of a page with fonts of its own.
func (t *textState) form(v pdf.Value) {
	if v.Key("Subtype").Name() != "Form" || t.depth >= mostFormDepth || t.forms >= mostForms {
		return
	}
	t.forms++
	t.depth++
	resources, fonts, now, saved := t.resources, t.fonts, t.font, t.saved
	page, text, line, size := t.page, t.text, t.line, t.size
	if m := v.Key("Matrix"); m.Len() == 6 {
		n := matrix{}
		for i := range n {
			n[i] = m.Index(i).Float64()
		}
		t.page = n.times(t.page)
	}
	if own := v.Key("Resources"); own.Kind() == pdf.Dict {
		t.resources, t.fonts = own, map[string]*font{}
	}
	t.execute(v)
	t.resources, t.fonts, t.font, t.saved = resources, fonts, now, saved
	t.page, t.text, t.line, t.size = page, text, line, size
	t.depth--
}

func (t *textState) use(name string) *font {
	if f := t.fonts[name]; f != nil {
		return f
	}
	f := &font{Font: pdf.Font{V: t.resources.Key("Font").Key(name)}, widths: map[int]float64{}, other: 500}
	if f.V.Key("Subtype").Name() == "Type0" {
		f.composite()
	} else {
		f.simple()
	}
	t.fonts[name] = f
	return f
}

// mostWidths is the number of widths of a font that are known.
const mostWidths = 1 << 16

// simple reads the widths of a font whose codes have one byte. A font that every reader has need not have any.
func (f *font) simple() {
	w, first := f.V.Key("Widths"), f.FirstChar()
	if w.Len() > 0 {
		f.other = f.V.Key("FontDescriptor").Key("MissingWidth").Float64()
	} else if known := standardWidths(f.BaseFont()); known != nil {
		for i, n := range known {
			f.widths[' '+i] = float64(n)
		}
		f.other = 556
	} else if strings.Contains(f.BaseFont(), "Courier") {
		f.other = 600
	}
	for i := range min(w.Len(), 256) {
		f.widths[first+i] = w.Index(i).Float64()
	}
	if m := f.V.Key("FontMatrix"); f.V.Key("Subtype").Name() == "Type3" && m.Len() == 6 {
		for code := range f.widths { // in units of the font's own
			f.widths[code] *= 1000 * m.Index(0).Float64()
		}
	}
}

// composite reads the widths of a font whose codes are the numbers of its glyphs.
func (f *font) composite() {
	of := f.V.Key("DescendantFonts").Index(0)
	if f.V.Key("Encoding").Name() != "Identity-H" {
		return // the widths are estimated
	}
	f.two, f.other = true, 1000
	if dw := of.Key("DW"); !dw.IsNull() {
		f.other = dw.Float64()
	}
	w := of.Key("W")
	for i := 0; i+1 < w.Len() && len(f.widths) < mostWidths; {
		first, next := int(w.Index(i).Int64()), w.Index(i+1)
		if next.Kind() == pdf.Array { // of the glyphs from the first on
			for k := range min(next.Len(), mostWidths) {
				f.widths[first+k] = next.Index(k).Float64()
			}
			i += 2
			continue
		}
		last := min(int(next.Int64()), first+mostWidths)
		for k := first; k <= last && i+2 < w.Len(); k++ {
			f.widths[k] = w.Index(i + 2).Float64()
		}
		i += 3
	}
}

// ligatures are glyphs of several letters, which searches would not find.
var ligatures = strings.NewReplacer("\uFB00", "ff", "\uFB01", "fi", "\uFB02", "fl", "\uFB03", "ffi", "\uFB04", "ffl",
	"\uFB05", "st", "\uFB06", "st", "\u00AD", "")

// showText writes a piece of text and what separates it from the piece before.
func (t *textState) showText(raw string) {
	if t.font == nil {
		return
	}
	text := strings.Map(func(r rune) rune {
		if r < ' ' || r == '\uFFFD' {
			return -1
		}
		return r
	}, ligatures.Replace(t.font.Encoder().Decode(raw)))
	at := t.text.times(t.page)
	t.text = shift(t.width(raw, text), 0).times(t.text)
	end := t.text.times(t.page)
	if text == "" {
		return
	}
	height := max(math.Hypot(at[2], at[3])*math.Abs(t.size), 1)
	if t.started {
		gap := t.between(at, height)
		t.b.WriteString(gap)
		t.lines = append(t.lines, make([]lineSize, strings.Count(gap, "\n"))...)
	} else if len(t.lines) == 0 {
		t.lines = make([]lineSize, 1)
	}
	t.lines[len(t.lines)-1].add(height, text)
	t.x, t.y, t.started = end[4], end[5], true
	if t.b.Len()+len(text) > t.most {
		panic(errFull)
	}
	t.b.WriteString(text)
}

// between returns what separates a piece of text at a place from the piece before:
// nothing, a space, a line break or a blank line. height is that of the text.
func (t *textState) between(at matrix, height float64) string {
	down := math.Abs(at[5] - t.y)
	switch {
	case down > 1.9*height:
		return "\n\n"
	case down > 0.6*height, at[4] < t.x-3*height:
		return "\n"
	case at[4] > t.x+0.15*height && !strings.HasSuffix(t.b.String(), " "):
		return " "
	}
	return ""
}

// width returns how far a piece of text moves the start of the next.
func (t *textState) width(raw, text string) (w float64) {
	f := t.font
	if len(f.widths) == 0 && f.other == 500 { // an estimate
		return (0.5*t.size + t.spacing) * float64(len([]rune(text))) * t.scale
	}
	step := 1
	if f.two {
		step = 2
	}
	for i := 0; i+step <= len(raw); i += step {
		code := int(raw[i])
		if f.two {
			code = code<<8 | int(raw[i+1])
		}
		one, ok := f.widths[code]
		if !ok {
			one = f.other
		}
		if w += one/1000*t.size + t.spacing; !f.two && code == ' ' {
			w += t.wordGap
		}
	}
	return w * t.scale
}

// standardWidths returns the widths, from the blank to the tilde, of the fonts that every reader of PDF has.
func standardWidths(name string) []uint16 {
	bold := strings.Contains(name, "Bold")
	switch {
	case strings.Contains(name, "Helvetica") && bold, strings.Contains(name, "Arial") && bold:
		return helveticaBold[:]
	case strings.Contains(name, "Helvetica"), strings.Contains(name, "Arial"):
		return helvetica[:]
	case strings.Contains(name, "Times") && bold:
		return timesBold[:]
	case strings.Contains(name, "Times"):
		return times[:]
	}
	return nil
}

// The widths that Adobe's metrics of these fonts have, in thousandths of the size.
var helvetica = [...]uint16{
	278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556,
	556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667, 611, 778,
	722, 278, 500, 667, 556, 833, 722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278,
	278, 278, 469, 556, 333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556,
	556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584,
}

var helveticaBold = [...]uint16{
	278, 333, 474, 556, 556, 889, 722, 238, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556,
	556, 556, 556, 556, 556, 556, 333, 333, 584, 584, 584, 611, 975, 722, 722, 722, 722, 667, 611, 778,
	722, 278, 556, 722, 611, 833, 722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 333,
	278, 333, 584, 556, 333, 556, 611, 556, 611, 556, 333, 611, 611, 278, 278, 556, 278, 889, 611, 611,
	611, 611, 389, 556, 333, 611, 556, 778, 556, 556, 500, 389, 280, 389, 584,
}

var times = [...]uint16{
	250, 333, 408, 500, 500, 833, 778, 180, 333, 333, 500, 564, 250, 333, 250, 278, 500, 500, 500, 500,
	500, 500, 500, 500, 500, 500, 278, 278, 564, 564, 564, 444, 921, 722, 667, 667, 722, 611, 556, 722,
	722, 333, 389, 722, 611, 889, 722, 722, 556, 722, 667, 556, 611, 722, 722, 944, 722, 722, 611, 333,
	278, 333, 469, 500, 333, 444, 500, 444, 500, 444, 333, 500, 500, 278, 278, 500, 278, 778, 500, 500,
	500, 500, 333, 389, 278, 500, 500, 722, 500, 500, 444, 480, 200, 480, 541,
}

var timesBold = [...]uint16{
	250, 333, 555, 500, 500, 1000, 833, 278, 333, 333, 500, 570, 250, 333, 250, 278, 500, 500, 500, 500,
	500, 500, 500, 500, 500, 500, 333, 333, 570, 570, 570, 500, 930, 722, 667, 722, 722, 667, 611, 778,
	778, 389, 500, 778, 667, 944, 722, 778, 611, 778, 722, 556, 667, 722, 722, 1000, 722, 722, 667, 333,
	278, 333, 581, 500, 333, 500, 556, 444, 556, 444, 333, 500, 556, 278, 333, 556, 278, 833, 556, 500,
	556, 556, 444, 389, 333, 556, 500, 722, 500, 500, 444, 394, 220, 394, 520,
}

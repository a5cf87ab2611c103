package extract

import (
	"fmt"
	"math"
	"strings"

	"github.com/ledongthuc/pdf"
)

// mostPages limits the pages of a document that are read.
const mostPages = 5000

// fromPDF writes the text of each page below its number.
func fromPDF(w *writer, f *guarded) error {
	r, err := pdf.NewReader(f, f.size)
	if err != nil {
		return fmt.Errorf("the document is damaged or encrypted: %w", err)
	}
	pages, empty := min(r.NumPage(), mostPages), 0
	for i := 1; i <= pages && empty < 200; i++ { // the page count may be false
		text, err := pageText(w, r, i)
		if cause := f.stopReading(); cause != nil {
			return cause
		}
		if err != nil {
			text = "[this page cannot be read: " + err.Error() + "]"
		}
		if text = tidy(text); text == "" {
			empty++
			continue
		}
		empty = 0
		w.paragraph()
		if err := w.raw(fmt.Sprintf("[page %d]\n%s", i, text)); err != nil {
			return err
		}
	}
	if w.b.Len() == 0 {
		return w.raw("[the pages have no text; they may be images]")
	}
	return nil
}

// pageText returns the text of one page. If the decoder panics, it returns what was
// read before, so that the other pages can still be read.
func pageText(w *writer, r *pdf.Reader, i int) (text string, err error) {
	t := &textState{
		scale: 1,
		line:  identity,
		text:  identity,
		page:  identity,
		fonts: map[string]*font{},
		most:  MostOut - w.b.Len(),
	}
	defer func() {
		if p := recover(); p != nil && t.b.Len() == 0 && p != errFull {
			err = fmt.Errorf("%v", p)
		}
		text = t.b.String()
	}()
	p := r.Page(i)
	if p.V.IsNull() || p.V.Key("Contents").IsNull() {
		return "", nil
	}
	pdf.Interpret(p.V.Key("Contents"), func(stack *pdf.Stack, op string) {
		args := make([]pdf.Value, min(stack.Len(), 16))
		for i := range args {
			args[len(args)-1-i] = stack.Pop()
		}
		for stack.Len() > 0 {
			stack.Pop()
		}
		t.applyOperator(p, op, args)
	})
	return "", nil
}

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
	widths []float64
	first  int
}

// textState executes the operators that place text. If a piece of text begins away
// from the end of the piece before, a space or a line break is written between.
type textState struct {
	b    strings.Builder
	most int

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

func (t *textState) applyOperator(p pdf.Page, op string, args []pdf.Value) {
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
			t.font = t.use(p, args[0].Name())
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

func (t *textState) use(p pdf.Page, name string) *font {
	if f := t.fonts[name]; f != nil {
		return f
	}
	f := &font{Font: p.Font(name)}
	f.first = f.FirstChar()
	if w := f.V.Key("Widths"); w.Len() <= 1<<16 {
		f.widths = f.Widths()
	}
	t.fonts[name] = f
	return f
}

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
	}, t.font.Encoder().Decode(raw))
	at := t.text.times(t.page)
	t.text = shift(t.width(raw, text), 0).times(t.text)
	end := t.text.times(t.page)
	if text == "" {
		return
	}
	if height := max(math.Hypot(at[2], at[3])*t.size, 1); t.started {
		t.b.WriteString(t.between(at, height))
	}
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
	if t.font.V.Key("Subtype").Name() == "Type0" || len(t.font.widths) == 0 {
		return (0.5*t.size + t.spacing) * float64(
			len([]rune(text)),
		) * t.scale // an estimate: the widths of composite fonts are not decoded
	}
	for i := range len(raw) {
		if k := int(raw[i]) - t.font.first; k >= 0 && k < len(t.font.widths) {
			w += t.font.widths[k] / 1000 * t.size
		}
		if w += t.spacing; raw[i] == ' ' {
			w += t.wordGap
		}
	}
	return w * t.scale
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

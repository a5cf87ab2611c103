package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// sheet holds what was measured: for each figure and subject one value per
// repetition, in order, so that what was measured side by side can be divided.
type sheet struct {
	sections []*section
	figures  map[string]*figure
}

// section is one table.
type section struct {
	title   string
	figures []*figure
}

type figure struct {
	name   string
	unit   string
	values map[string][]float64 // by subject
}

func newSheet() *sheet { return &sheet{figures: map[string]*figure{}} }

// begin starts a table; figures that are noted from now on stand in it.
func (s *sheet) begin(title string) {
	s.sections = append(s.sections, &section{title: title})
}

// add notes one value. A figure appears in the table where it was first noted.
func (s *sheet) add(name, unit, subject string, v float64) {
	f := s.figures[name]
	if f == nil {
		f = &figure{name, unit, map[string][]float64{}}
		s.figures[name] = f
		last := s.sections[len(s.sections)-1]
		last.figures = append(last.figures, f)
	}
	f.values[subject] = append(f.values[subject], v)
}

// median of the values; NaN without any.
func median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	v = slices.Sorted(slices.Values(v))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// counts are units that say nothing when they are divided.
var counts = []string{"%", "ratio", "more", "each", "times", "s"}

// ratios divides what two subjects got in each repetition; none when that
// would say nothing.
func (f *figure) ratios(a, b string) []float64 {
	if slices.Contains(counts, f.unit) {
		return nil
	}
	var all []float64
	for i := range min(len(f.values[a]), len(f.values[b])) {
		if f.values[a][i] <= 0 || f.values[b][i] <= 0 {
			return nil
		}
		all = append(all, f.values[a][i]/f.values[b][i])
	}
	return all
}

// show writes a value with as many digits as mean something.
func show(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "–"
	case a == 0:
		return "0"
	case a < 0.1:
		return fmt.Sprintf("%.3f", v)
	case a >= 10_000:
		return thousands(fmt.Sprintf("%.0f", v))
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

func thousands(s string) string {
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// spread is the median and, of several, the range.
func spread(v []float64) string {
	if len(v) == 0 {
		return "–"
	}
	if len(v) == 1 {
		return show(v[0])
	}
	return fmt.Sprintf("%s (%s–%s)", show(median(v)), show(slices.Min(v)), show(slices.Max(v)))
}

// tables writes every section as Markdown.
func (s *sheet) tables(w io.Writer) {
	for _, sec := range s.sections {
		fmt.Fprintf(w, "\n## %s\n\n", sec.title)
		if sec.alone() {
			sec.column(w)
		} else {
			sec.columns(w)
		}
	}
}

// alone reports whether only Gatehouse was measured.
func (sec *section) alone() bool {
	for _, f := range sec.figures {
		if len(f.values) > 1 || f.values[ours] == nil {
			return false
		}
	}
	return true
}

func (sec *section) column(w io.Writer) {
	fmt.Fprintln(w, "| figure | unit | gatehouse |")
	fmt.Fprintln(w, "|---|---|---|")
	for _, f := range sec.figures {
		fmt.Fprintf(w, "| %s | %s | %s |\n", f.name, f.unit, spread(f.values[ours]))
	}
}

func (sec *section) columns(w io.Writer) {
	fmt.Fprintln(w, "| figure | unit | gatehouse | plain | mcp-go | go-sdk | of plain | of mcp-go | of go-sdk |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|")
	for _, f := range sec.figures {
		cells := []string{f.name, f.unit}
		for _, who := range everyone {
			cells = append(cells, spread(f.values[who]))
		}
		for _, who := range everyone[1:] {
			cells = append(cells, spread(f.ratios(ours, who)))
		}
		fmt.Fprintln(w, "| "+strings.Join(cells, " | ")+" |")
	}
}

// bar is what a figure of ours must not pass.
type bar struct {
	figure string
	of     string // the subject it is divided by; "" for the value itself
	least  bool   // it must not fall below, instead of not rising above
	limit  float64
}

// judge writes which bars hold, as far as they were measured, and returns how
// many do not.
func (s *sheet) judge(w io.Writer, bars []bar) (broken int) {
	fmt.Fprintln(w, "| figure | bar | found | |")
	fmt.Fprintln(w, "|---|---|---|---|")
	for _, b := range bars {
		f := s.figures[b.figure]
		if f == nil {
			continue
		}
		got, of := f.values[ours], " "+f.unit
		if b.of != "" {
			got, of = f.ratios(ours, b.of), "x "+b.of
		}
		if len(got) == 0 {
			continue
		}
		word := "holds"
		if !b.holds(median(got)) {
			word = "**does not**"
			broken++
		}
		fmt.Fprintf(w, "| %s | %s%s | %s | %s |\n", b.figure, b.sign()+" "+show(b.limit), of, spread(got), word)
	}
	return broken
}

func (b bar) sign() string {
	if b.least {
		return "≥"
	}
	return "≤"
}

func (b bar) holds(v float64) bool {
	if b.least {
		return v >= b.limit
	}
	return v <= b.limit
}

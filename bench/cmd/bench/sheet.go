package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// sheet holds what was measured: for each figure and subject one value per
// repetition, in order, so that what was measured side by side can be divided.
type sheet struct {
	order   []string
	figures map[string]*figure
}

type figure struct {
	name   string
	unit   string
	values map[string][]float64 // by subject
}

func newSheet() *sheet { return &sheet{figures: map[string]*figure{}} }

// add notes one value. A figure appears in the table where it was first noted.
func (s *sheet) add(name, unit, subject string, v float64) {
	f := s.figures[name]
	if f == nil {
		f = &figure{name, unit, map[string][]float64{}}
		s.figures[name] = f
		s.order = append(s.order, name)
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

// ratios divides what two subjects got in each repetition.
func (f *figure) ratios(a, b string) []float64 {
	var all []float64
	for i := range min(len(f.values[a]), len(f.values[b])) {
		if d := f.values[b][i]; d != 0 {
			all = append(all, f.values[a][i]/d)
		}
	}
	return all
}

// show writes a value with as many digits as mean something.
func show(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "–"
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

// table writes the figures as Markdown.
func (s *sheet) table(w io.Writer) {
	fmt.Fprintln(w, "| figure | unit | gatehouse | plain | mcp-go | go-sdk | of plain | of mcp-go | of go-sdk |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|")
	for _, name := range s.order {
		f := s.figures[name]
		cells := []string{name, f.unit}
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
	unit   string
}

// judge writes which bars hold.
func (s *sheet) judge(w io.Writer, bars []bar) {
	fmt.Fprintln(w, "| figure | bar | found | |")
	fmt.Fprintln(w, "|---|---|---|---|")
	for _, b := range bars {
		f := s.figures[b.figure]
		if f == nil {
			continue
		}
		got, of := f.values[ours], ""
		if b.of != "" {
			got, of = f.ratios(ours, b.of), "x "+b.of
		}
		if len(got) == 0 {
			continue
		}
		sign, holds := "≤", cmp.Compare(median(got), b.limit) <= 0
		if b.least {
			sign, holds = "≥", cmp.Compare(median(got), b.limit) >= 0
		}
		word := "holds"
		if !holds {
			word = "**does not hold**"
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", b.figure, strings.TrimSpace(sign+" "+show(b.limit)+" "+of+" "+b.unit), spread(got), word)
	}
}

package main

import (
	"math"
	"slices"
	"strings"
	"testing"
)

func TestRatiosPairRepetitions(t *testing.T) {
	s := newSheet()
	s.begin("t")
	for i, v := range []float64{10, 20, 90} {
		s.add("cost", "µs", ours, v)
		s.add("cost", "µs", plain, []float64{10, 10, 30}[i])
		s.add("count", "each", ours, v)
		s.add("count", "each", plain, v)
	}
	if got := s.figures["cost"].ratios(ours, plain); !slices.Equal(got, []float64{1, 2, 3}) {
		t.Errorf("got %v, want 1, 2 and 3", got)
	}
	if got := s.figures["count"].ratios(ours, plain); got != nil {
		t.Errorf("got %v, want nothing: counts are not divided", got)
	}
}

func TestBarsAreJudgedByTheMedian(t *testing.T) {
	s := newSheet()
	s.begin("t")
	for _, v := range []float64{9, 1, 2} {
		s.add("cost", "µs", ours, v)
	}
	for _, c := range []struct {
		bar    bar
		broken int
	}{
		{bar{figure: "cost", limit: 2}, 0},
		{bar{figure: "cost", limit: 1.9}, 1},
		{bar{figure: "cost", limit: 2, least: true}, 0},
		{bar{figure: "cost", limit: 2.1, least: true}, 1},
		{bar{figure: "not measured", limit: 0}, 0},
		{bar{figure: "cost", of: plain, limit: 0}, 0},
	} {
		var out strings.Builder
		if got := s.judge(&out, []bar{c.bar}); got != c.broken {
			t.Errorf("%+v: %d broken, want %d\n%s", c.bar, got, c.broken, out.String())
		}
	}
}

func TestNumbersAreShownAsFarAsTheyMeanSomething(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.0123: "0.012", 1.234: "1.23", 12.34: "12.3", 123.4: "123", 1234.5: "1234", 12345: "12,345",
		1234567: "1,234,567", -12345: "-12,345",
	} {
		if got := show(v); got != want {
			t.Errorf("%v is shown as %s, want %s", v, got, want)
		}
	}
	if got := spread(nil); got != "–" || !math.IsNaN(median(nil)) {
		t.Errorf("nothing is shown as %s", got)
	}
}

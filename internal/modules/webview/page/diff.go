package page

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/aymanbagabas/go-udiff"
)

func unmarshal(b []byte, into any) error { return json.Unmarshal(b, into) }

const mostDiffed = 1 << 20 // bytes of both sides; larger pages are shown anew

// difference words what has changed between two snapshots: lines that are gone begin with -, new ones with +.
func difference(before, after []string, room int) (text string, shown int) {
	a, b := join(before), join(after)
	if a == b {
		return "Nothing has changed.\n", 0
	}
	if len(a)+len(b) > mostDiffed {
		return fmt.Sprintf("The page has changed too much for a difference (%d lines before, %d now).\n", len(before),
			len(after)), 0
	}
	var out []string
	last := 0
	for _, e := range udiff.Lines(a, b) {
		if strings.Count(a[last:e.Start], "\n") > 0 && len(out) > 0 {
			out = append(out, "…")
		}
		last = e.End
		for l := range strings.Lines(a[e.Start:e.End]) {
			out = append(out, "-"+strings.TrimSuffix(l, "\n"))
		}
		for l := range strings.Lines(e.New) {
			out = append(out, "+"+strings.TrimSuffix(l, "\n"))
		}
	}
	for i, l := range out {
		if room -= len(l) + 1; room < 0 {
			return join(append(out[:i:i], fmt.Sprintf("… %d more changed lines: take a snapshot", len(out)-i))), i
		}
	}
	return join(out), len(out)
}

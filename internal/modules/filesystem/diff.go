package filesystem

import (
	"fmt"
	"slices"
	"strings"
)

const (
	around   = 4    // lines shown before and after a change
	farthest = 1000 // lines that differ; texts that differ in more are shown as one change
)

// unified writes a diff the way the original does. Line endings count as one
// kind in it, since they are kept anyway.
func unified(path string, before, after []byte) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Index: %s\n%s\n--- %s\toriginal\n+++ %s\tmodified\n", path, strings.Repeat("=", 67), path, path)
	old, now := cut(before), cut(after)
	all := compare(old, now)
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].a-all[n-1].b <= 2*around {
			n++
		}
		hunk(&b, all[:n], old, now)
		all = all[n:]
	}
	return b.String()
}

// cut makes lines, each with its newline; the last may have none.
func cut(b []byte) []string {
	all := strings.SplitAfter(string(crlfToLF(b)), "\n")
	if all[len(all)-1] == "" {
		all = all[:len(all)-1]
	}
	return all
}

// block is lines [a, b) of the old text that became [c, d) of the new one.
type block struct{ a, b, c, d int }

// hunk writes blocks that lie near each other, with the lines around them.
func hunk(w *strings.Builder, all []block, old, now []string) {
	first, last := all[0], all[len(all)-1]
	from, to := max(first.a-around, 0), min(last.b+around, len(old))
	shift := first.c - first.a
	added := last.d - last.b - shift
	fmt.Fprintf(w, "@@ -%s +%s @@\n", span(from, to-from), span(from+shift, to-from+added))
	at := from
	for _, e := range all {
		put(w, " ", old[at:e.a])
		put(w, "-", old[e.a:e.b])
		put(w, "+", now[e.c:e.d])
		at = e.b
	}
	put(w, " ", old[at:to])
}

func span(from, n int) string {
	if n == 0 {
		return fmt.Sprintf("%d,0", from)
	}
	return fmt.Sprintf("%d,%d", from+1, n)
}

func put(w *strings.Builder, sign string, lines []string) {
	for _, l := range lines {
		w.WriteString(sign)
		w.WriteString(l)
		if !strings.HasSuffix(l, "\n") {
			w.WriteString("\n\\ No newline at end of file\n")
		}
	}
}

// compare finds the blocks that differ.
func compare(old, now []string) []block {
	head := 0
	for head < len(old) && head < len(now) && old[head] == now[head] {
		head++
	}
	foot := 0
	for foot < len(old)-head && foot < len(now)-head && old[len(old)-1-foot] == now[len(now)-1-foot] {
		foot++
	}
	o, n := old[head:len(old)-foot], now[head:len(now)-foot]
	if len(o)+len(n) == 0 {
		return nil
	}
	all := shortest(o, n)
	for i := range all {
		all[i] = block{all[i].a + head, all[i].b + head, all[i].c + head, all[i].d + head}
	}
	return all
}

// shortest is the shortest way from one text to the other (Myers 1986). far
// says how many lines of o are behind us on each diagonal; what cannot be
// reached is negative.
func shortest(o, n []string) []block {
	const none = -1 << 30
	mid := farthest + 1
	far := make([]int, 2*mid+1)
	var trail [][]int // far before each step, around the middle
	for d := 0; d <= farthest; d++ {
		trail = append(trail, slices.Clone(far[mid-d-1:mid+d+2]))
		for k := -d; k <= d; k += 2 {
			x := far[mid+cameFrom(far[mid-d-1:], d, k)]
			if cameFrom(far[mid-d-1:], d, k) < k {
				x++
			}
			if x < 0 || x > len(o) || x-k > len(n) || x-k < 0 {
				far[mid+k] = none
				continue
			}
			for x < len(o) && x-k < len(n) && o[x] == n[x-k] {
				x++
			}
			far[mid+k] = x
			if x == len(o) && x-k == len(n) {
				return walkBack(trail, len(o), len(n))
			}
		}
	}
	return []block{{0, len(o), 0, len(n)}}
}

// cameFrom is the diagonal from which step d gets to diagonal k. far begins at
// diagonal -d-1.
func cameFrom(far []int, d, k int) int {
	if k == -d || k != d && far[k+d] < far[k+d+2] {
		return k + 1
	}
	return k - 1
}

// walkBack follows the way from the end to the beginning.
func walkBack(trail [][]int, x, y int) (all []block) {
	for d := len(trail) - 1; d > 0; d-- {
		k := x - y
		before := cameFrom(trail[d], d, k)
		px := trail[d][before+d+1]
		py := px - before
		if before > k { // a line was added
			all = append(all, block{px, px, py, py + 1})
		} else {
			all = append(all, block{px, px + 1, py, py})
		}
		x, y = px, py
	}
	slices.Reverse(all)
	return merge(all)
}

// merge joins blocks that touch.
func merge(all []block) (out []block) {
	for _, e := range all {
		if n := len(out); n > 0 && out[n-1].b == e.a && out[n-1].d == e.c {
			out[n-1].b, out[n-1].d = e.b, e.d
			continue
		}
		out = append(out, e)
	}
	return out
}

package edit

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// furtherKinds are disturbances that the nine of the matrix do not have: what
// models do to escapes, slips in a line that stays, several disturbances at
// once, and edits of texts that are not in the file any more.
var furtherKinds = map[string][]disturbance{
	"escapes written out":    {escapedTwice},
	"line break for its \\n": {lineBreakForEscape},
	"slip in a line":         {slipped},
	"two disturbances":       {twice},
	"indented deeper":        {deeper},
	"tabs for spaces":        {tabbed},
	"new block": {
		newBlock(spaced(4, true)),
		newBlock(spaced(2, true)),
		newBlock(dedented(true)),
		newBlock(spaced(4, true), dedented(true)),
		newBlock(
			spaced(2, true),
			dedented(true),
		),
		newBlock(deeper),
		newBlock(tabbed),
		newBlock(tabbed, dedented(true)),
		newBlock(stripped(true)),
	},
	"text that is gone":     {gone},
	"changed line is stale": {stale},
}

// escapedTwice writes both texts as a model does that escapes them once more
// than JSON asks for.
func escapedTwice(_ *rand.Rand, t trial) (trial, bool) {
	if strings.Contains(t.old+t.new, `\`) {
		return t, false
	}
	escape := strings.NewReplacer("\n", `\n`, "\t", `\t`, `"`, `\"`)
	return both(t, true, escape.Replace)
}

// lineBreakForEscape puts \n into a string of the file, and a line break in its
// place into an edit of that line: the model escaped it once too few.
func lineBreakForEscape(r *rand.Rand, t trial) (trial, bool) {
	lines := strings.Split(t.old, "\n")
	for _, i := range r.Perm(len(lines)) {
		line := lines[i]
		at := strings.IndexByte(line, '"') + 1
		if at <= 0 || strings.Count(t.file, line) != 1 || strings.TrimSpace(line[:at]) == "" ||
			strings.Contains(t.file, `\`) {
			continue
		}
		word := fmt.Sprintf("word%d", r.IntN(100))
		changed := line[:at] + word + line[at:]
		escaped := func(s string) string { return strings.Replace(s, `"`, `"\n`, 1) }
		broken := func(s string) string { return strings.Replace(s, `"`, "\"\n", 1) }
		t.want = strings.Replace(t.file, line, escaped(changed), 1)
		t.file = strings.Replace(t.file, line, escaped(line), 1)
		t.old, t.new = broken(strings.TrimSpace(line)), broken(strings.TrimSpace(changed))
		return t, strings.Count(t.file, escaped(strings.TrimSpace(line))) == 1
	}
	return t, false
}

// slipped changes one letter of a line that stays, in both texts.
func slipped(r *rand.Rand, t trial) (trial, bool) {
	old, new := strings.Split(t.old, "\n"), strings.Split(t.new, "\n")
	if len(t.old) < 2*minNearKey {
		return t, false
	}
	for _, i := range r.Perm(len(old)) {
		if i == 0 || i >= len(old)-2 || len(strings.TrimSpace(old[i])) < 8 || strings.Count(t.old, old[i]) != 1 ||
			strings.Count(t.new, old[i]) != 1 {
			continue
		}
		j := slices.Index(new, old[i])
		if j < 0 {
			continue
		}
		at := len(old[i]) - len(strings.TrimLeft(old[i], "\t ")) + r.IntN(4)
		wrong := old[i][:at] + old[i][at+1:]
		old[i], new[j] = wrong, wrong
		t.old, t.new = strings.Join(old, "\n"), strings.Join(new, "\n")
		return t, true
	}
	return t, false
}

// twice disturbs an edit in two of the nine ways.
func twice(r *rand.Rand, t trial) (trial, bool) {
	kinds := []disturbance{
		spaced(4, true),
		trailed(true),
		trailedFile,
		dedented(true),
		crlfFile,
		quoted(true),
		unblanked(true),
		marked,
	}
	two := r.Perm(len(kinds))[:2]
	slices.Sort(two) // those of the texts before that of line endings
	t, ok := kinds[two[0]](r, t)
	if !ok {
		return t, false
	}
	return kinds[two[1]](r, t)
}

// stepOf is one step of the indentation of a file, "" if it has none.
func stepOf(file string) string {
	if strings.Contains(file, "\n\t") {
		return "\t"
	}
	return unitOf(split(file))
}

// deeper indents both texts one step more than the file.
func deeper(_ *rand.Rand, t trial) (trial, bool) {
	step := stepOf(t.file)
	return both(t, true, func(s string) string {
		return eachLine(s, func(l string) string {
			if strings.TrimSpace(l) == "" {
				return l
			}
			return step + l
		})
	})
}

// tabbed indents both texts with a tab for each step of spaces.
func tabbed(_ *rand.Rand, t trial) (trial, bool) {
	step := stepOf(t.file)
	if step == "\t" || step == "" {
		return t, false
	}
	even := true
	t, ok := both(t, true, func(s string) string {
		return eachLine(s, func(l string) string {
			body := strings.TrimLeft(l, " ")
			deep := len(l) - len(body)
			if body == "" {
				return l
			}
			even = even && deep%len(step) == 0
			return strings.Repeat("\t", deep/len(step)) + body
		})
	})
	return t, ok && even
}

// newBlock lets an edit insert a block of two depths as well, or put one around
// its lines, and disturbs the indentation of that.
func newBlock(disturb ...disturbance) disturbance {
	return func(r *rand.Rand, t trial) (trial, bool) {
		unit, head, foot := stepOf(t.file), "if fresh {", "}"
		if unit != "\t" {
			head, foot = "if fresh:", ""
		}
		lines := strings.SplitAfter(t.old, "\n")
		lines = lines[:len(lines)-1]
		i := r.IntN(len(lines))
		deep := lines[i][:len(lines[i])-len(strings.TrimLeft(lines[i], "\t "))]
		if strings.TrimSpace(lines[i]) == "" || opens(strings.TrimSpace(lines[i])) ||
			i+1 < len(lines) && !strings.HasPrefix(lines[i+1], deep) ||
			slices.Contains(lines, "\n") {
			return t, false
		}
		block := []string{deep + head + "\n", deep + unit + "call(1)\n"}
		if foot != "" {
			block = append(block, deep+foot+"\n")
		}
		if r.IntN(3) == 0 { // around them
			for j, l := range lines {
				if strings.TrimSpace(l) == "" {
					continue
				}
				if !strings.HasPrefix(l, deep) {
					return t, false
				}
				lines[j] = unit + l
			}
			lines = append([]string{block[0]}, append(lines, block[2:]...)...)
		} else {
			lines = slices.Insert(lines, i+1, block...)
		}
		was := t.old
		t.new = strings.Join(lines, "")
		t.want = strings.Replace(t.file, was, t.new, 1)
		ok := !strings.Contains(t.file, t.new)
		for i := 0; ok && i < len(disturb); i++ {
			t, ok = disturb[i](r, t)
		}
		return t, ok
	}
}

// gone takes the text of an edit out of the file.
func gone(_ *rand.Rand, t trial) (trial, bool) {
	t.file = strings.Replace(t.file, t.old, "", 1)
	t.want = ""
	return t, t.file != ""
}

// stale changes, in the file, a word of a line that the edit changes.
func stale(_ *rand.Rand, t trial) (trial, bool) {
	for line := range strings.SplitSeq(t.old, "\n") {
		words := strings.FieldsFunc(line, func(r rune) bool { return !wordRune(r) })
		if len(words) == 0 || strings.Count(t.old, line) != 1 || strings.Contains(t.new, line) ||
			strings.Count(t.file, line) != 1 {
			continue
		}
		t.file = strings.Replace(t.file, line, strings.Replace(line, words[0], words[0]+"Now", 1), 1)
		t.want = ""
		return t, !strings.Contains(t.file, t.old)
	}
	return t, false
}

// trialsOf draws edits of every kind, as many as there are texts.
func trialsOf(kinds map[string][]disturbance, seed uint64, texts int, dialects ...dialect) map[string][]trial {
	r := rand.New(rand.NewPCG(seed, seed+1))
	all := map[string][]trial{}
	files := corpus(r, texts, dialects...)
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		for i, text := range files {
			for try := range 100 {
				x, ok := draw(r, text)
				if ok {
					x, ok = kinds[kind][(i+try/25)%len(kinds[kind])](r, x)
				}
				if ok && x.old != x.new {
					all[kind] = append(all[kind], x)
					break
				}
			}
		}
	}
	return all
}

// tried tells what comes of an edit if only levels up to one are tried.
func tried(t *testing.T, kind string, x trial, last Level) (v tally) {
	without := ^(setOf(last+1) - 1)
	r, err := (&text{name: "f.go", content: []byte(x.file), without: without}).applyEdits([]Edit{{Old: x.old, New: x.new}})
	got := ""
	if err == nil {
		got = string(r.Content())
	}
	switch {
	case got == x.want:
		v.right++
	case err != nil:
		v.refused++
	default:
		v.wrong++
		if last == Near {
			t.Errorf("%s: wrong\nold  %q\nnew  %q\ndiff\n%s", kind, x.old, x.new, r.Diff(40))
		}
	}
	return v
}

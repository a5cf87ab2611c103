// Package edit replaces text in a file that the caller quotes from memory.
//
// An Edit names the text to replace. Apply looks for it level by level, from
// byte for byte to nearly equal, and uses the first level at which it is found.
// At that level there must be one place: Apply never chooses between two.
//
// Finding is tolerant, writing is not. Apply writes the difference of the old
// and the new text, carried over to the bytes of the file: a line that is the
// same in both keeps all its bytes, its blanks, quotes and line ending included.
// If it is not clear how to carry the difference over, Apply refuses the edit.
// The refusal names the places and shows where they differ.
//
// Each level must win edits that the levels before it do not find. TestLevels
// measures that on the matrix of disturbed edits and on further kinds of them
// (go test -v -run '^TestLevels$'):
//
//	level                  right  wrong  mostly
//	exact                   +880      0  exact, byte order mark, and refusals that are right
//	newlines                 +91      0  CRLF file
//	trailing blanks         +203      0  trailing blanks
//	indentation             +681      0  lost or deeper indentation, tabs and spaces, new blocks
//	look-alike characters   +198      0  typographic quotes
//	blank lines             +173      0  lost blank line
//	escapes                 +320      0  escapes written out; a line break for \n in a string
//	near miss               +157      0  a letter missing in a line that stays
//
// Of 2,720 edits 17 are refused although one result would be right.
//
// The package touches no files. All functions are safe for concurrent use.
package edit

import (
	"cmp"
	"fmt"
	"slices"

	"gatehouse/tool"
)

// An Edit replaces one text by another.
type Edit struct {
	Old  string // the text to replace; not empty
	New  string // its replacement; may be empty
	All  bool   // replace every place
	Near int    // if there are several places, use the one nearest to this line, from 1; 0 refuses several
}

// Level says how closely the old text was found.
type Level int

// The levels, in the order in which they are tried. Each ignores what its comment
// names, and what the levels before it ignore.
const (
	Exact      Level = iota
	Newlines         // line endings, the byte order mark, a missing last newline
	Trailing         // blanks at the ends of lines
	Indent           // one change of the indentation of all lines
	Lookalikes       // typographic quotes, dashes, spaces; composed letters
	Blanks           // blank lines
	Escapes          // \n and \t for the characters they stand for
	Near             // a few characters, in lines that the edit keeps
)

var levels = [...]string{
	"exact",
	"newlines",
	"trailing blanks",
	"indentation",
	"look-alike characters",
	"blank lines",
	"escapes",
	"near miss",
}

func (l Level) String() string { return levels[l] }

// levelSet is a set of levels, one bit for each.
type levelSet uint16

func setOf(levels ...Level) (s levelSet) {
	for _, l := range levels {
		s |= 1 << l
	}
	return s
}

const (
	// MaxPlaces is how many places one edit may have, because each takes memory.
	MaxPlaces = 1 << 20
	// maxTolerant is the largest content, in bytes, that is searched at the levels
	// after Newlines, because these take time and several times its memory.
	maxTolerant = 8 << 20
)

// Result describes the changes that edits make to a content.
type Result struct {
	Replacements int
	Line         int   // line of the first change, from 1
	Level        Level // the most tolerant level that an edit needed

	before  []byte
	changes []splice
	lines   index
}

// splice replaces the bytes [from, to) by with.
type splice struct {
	from, to int
	with     string
}

// place is where an old text was found, and the change to make there.
type place struct {
	start, end int // of the whole old text
	splice
}

// Apply finds all edits in content, which it does not change. All edits are
// found in content as it is, not as an earlier edit leaves it. The error is a
// *tool.Refusal, in which name stands for the file. Apply refuses edits that
// overlap and edits that change nothing.
func Apply(name string, content []byte, edits []Edit) (*Result, error) {
	return (&text{name: name, content: content}).applyEdits(edits)
}

// applyEdits is Apply for a prepared text.
func (t *text) applyEdits(edits []Edit) (*Result, error) {
	r := &Result{before: t.content, Line: -1}
	var all []place
	owner := map[int]int{} // from the start of a place to the number of its edit
	for i, e := range edits {
		places, level, err := t.findPlaces(e)
		if err != nil {
			return nil, withEditNumber(err, i, len(edits))
		}
		for _, p := range places {
			owner[p.start] = i + 1
		}
		all = append(all, places...)
		r.Level = max(r.Level, level)
	}
	slices.SortStableFunc(all, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.end, b.end))
	})
	for i, p := range all {
		if i > 0 && p.start < all[i-1].end {
			return nil, &tool.Refusal{
				Code: tool.CodeOverlap,
				Message: fmt.Sprintf(
					"edits %d and %d overlap in %s, on line %d; nothing was written",
					owner[all[i-1].start],
					owner[p.start],
					t.name,
					t.lineAt(p.start),
				),
				Next: "Make one edit of the two. All edits are found in the file as it is, " +
					"not as an earlier one leaves it.",
			}
		}
		r.changes = append(r.changes, p.splice)
	}
	r.Replacements = len(all)
	return r, r.dropUnchanged(t)
}

// dropUnchanged drops the changes that leave the bytes as they are. It refuses
// if none is left.
func (r *Result) dropUnchanged(t *text) error {
	r.changes = slices.DeleteFunc(r.changes, func(s splice) bool { return string(r.before[s.from:s.to]) == s.with })
	if len(r.changes) == 0 {
		return &tool.Refusal{
			Code:    tool.CodeUnchanged,
			Message: t.name + " already has new_string in the place of old_string",
			Next:    "Read that part of the file before changing it further.",
		}
	}
	r.Line = t.lineAt(r.changes[0].from)
	r.lines = index{t.content, t.newlines}
	return nil
}

// withEditNumber adds the number of the edit to a refusal if there are several
// edits.
func withEditNumber(err error, i, n int) error {
	if r, ok := err.(*tool.Refusal); ok && n > 1 {
		c := *r
		c.Message = fmt.Sprintf("edit %d of %d: %s; nothing was written", i+1, n, r.Message)
		return &c
	}
	return err
}

// Size returns the size of the new content in bytes, without making it.
func (r *Result) Size() int64 {
	n := int64(len(r.before))
	for _, s := range r.changes {
		n += int64(len(s.with) - (s.to - s.from))
	}
	return n
}

// Content returns the new content.
func (r *Result) Content() []byte {
	out := make([]byte, 0, r.Size())
	at := 0
	for _, s := range r.changes {
		out = append(out, r.before[at:s.from]...)
		out = append(out, s.with...)
		at = s.to
	}
	return append(out, r.before[at:]...)
}

// findPlaces tries the levels in order.
func (t *text) findPlaces(e Edit) ([]place, Level, error) {
	if e.Old == "" {
		return nil, 0, &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: "old_string is empty",
			Next:    "Give the text to replace; file_write writes a whole file.",
		}
	}
	if e.Old == e.New {
		return nil, 0, tool.Refuse(
			tool.CodeInvalidArguments,
			"old_string and new_string are the same: there is nothing to change",
		)
	}
	if places, level := t.findLiteral(e); len(places) > 0 && t.without&setOf(level) == 0 {
		return t.choose(e, level, places)
	}
	if len(t.content) > maxTolerant || len(e.Old) > maxTolerant || len(e.New) > maxTolerant {
		return nil, 0, t.notFound(e)
	}
	places, level, err := t.findTolerant(e)
	if err == nil && len(places) == 0 && t.without&setOf(Escapes) == 0 {
		places, level, err = t.findEscaped(e)
	}
	if err == nil && len(places) == 0 && t.without&setOf(Near) == 0 {
		places, level, err = t.findNear(e)
	}
	switch {
	case err != nil:
		return nil, 0, err
	case len(places) == 0:
		return nil, 0, t.notFound(e)
	}
	return t.choose(e, level, places)
}

// choose returns the places that the edit means among those found at one level:
// all, the one nearest to a line, or the only one.
func (t *text) choose(e Edit, level Level, places []place) ([]place, Level, error) {
	switch {
	case len(places) > MaxPlaces:
		return nil, 0, tool.Refuse(tool.CodeTooLarge, "old_string occurs more than %d times in %s", MaxPlaces, t.name)
	case len(places) == 1 || e.All:
		return places, level, nil
	case e.Near > 0:
		if p, ok := t.nearestTo(e.Near, places); ok {
			return []place{p}, level, nil
		}
	}
	return nil, 0, t.ambiguous(level, places)
}

// nearestTo returns the place that begins nearest to a line. It returns false if
// two are equally near.
func (t *text) nearestTo(line int, places []place) (best place, ok bool) {
	least := -1
	for _, p := range places {
		d := t.lineAt(p.start) - line
		d = max(d, -d)
		switch {
		case least < 0 || d < least:
			best, least, ok = p, d, true
		case d == least:
			ok = false
		}
	}
	return best, ok
}

// lineAt returns the number of the line that a byte lies on, from 1.
func (t *text) lineAt(at int) int {
	if t.newlines == nil {
		t.newlines = make([]int, 0, len(t.content)/32+1)
		for i, c := range t.content {
			if c == '\n' {
				t.newlines = append(t.newlines, i)
			}
		}
	}
	n, _ := slices.BinarySearch(t.newlines, at)
	return n + 1
}

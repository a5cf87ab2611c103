package language

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// clues.txt says what lines of a language look like: its name, what such a
// line is worth, and the line, in which … stands for anything. It is kept by
// hand.
//
//go:embed clues.txt
var cluesText string

// clue is one kind of line.
type clue struct {
	language string
	worth    float64
	parts    []string // between the dots; the first begins the line, the last ends it
}

// clueTable holds the clues by the first byte of the line; those that may
// begin anyhow are under 0.
var clueTable = sync.OnceValue(func() map[byte][]clue {
	all := make(map[byte][]clue)
	for line := range strings.Lines(cluesText) {
		col := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 3)
		worth, _ := strconv.ParseFloat(col[1], 64)
		c := clue{col[0], worth, strings.Split(col[2], "…")}
		if len(c.parts) == 1 {
			c.parts = append(c.parts, "") // the beginning is enough
		}
		var first byte
		if c.parts[0] != "" {
			first = c.parts[0][0]
		}
		all[first] = append(all[first], c)
	}
	return all
})

func (c *clue) fits(line []byte) bool {
	last := len(c.parts) - 1
	rest, ok := bytes.CutPrefix(line, []byte(c.parts[0]))
	if !ok {
		return false
	}
	if rest, ok = bytes.CutSuffix(rest, []byte(c.parts[last])); !ok {
		return false
	}
	for _, p := range c.parts[1:last] {
		i := bytes.Index(rest, []byte(p))
		if i < 0 {
			return false
		}
		rest = rest[i+len(p):]
	}
	return true
}

const (
	clueLines = 300 // lines that are looked at
	clueMost  = 8   // how often one clue counts
)

// evidence is what the lines of one text have shown.
type evidence struct {
	sums    map[string]float64 // by language
	seen    map[*clue]int
	comment bool // the line is inside a comment of several lines
	hashes  bool // the line before began with #
	begun   bool // a line that is no comment was seen

	all, pairs, lists, prose int
}

// clues adds up what the lines of a text show, by language.
func clues(head []byte) map[string]float64 {
	e := &evidence{sums: make(map[string]float64), seen: make(map[*clue]int)}
	if bytes.HasPrefix(head, []byte("//")) || bytes.HasPrefix(head, []byte("/*")) {
		e.sums["C"] += 3
		e.sums["Go"] += 2
	}
	n := 0
	for line := range bytes.Lines(head) {
		if n++; n > clueLines {
			break
		}
		if line = bytes.TrimSpace(line); len(line) > 0 && !e.skips(line) {
			e.readLine(line)
		}
	}
	e.weigh()
	if isJSON(head) {
		e.sums["JSON"] += 60
	}
	return e.sums
}

// skips leaves out comments of several lines, but for what they say of types.
func (e *evidence) skips(line []byte) bool {
	hashes := bytes.HasPrefix(line, []byte("# "))
	again := hashes && e.hashes
	e.hashes = hashes
	switch {
	case e.comment:
		e.comment = !bytes.Contains(line, []byte("*/"))
		return !bytes.Contains(line, []byte("@"))
	case bytes.HasPrefix(line, []byte("/*")):
		e.comment = !bytes.Contains(line, []byte("*/"))
		return true
	}
	return again
}

func (e *evidence) readLine(line []byte) {
	table := clueTable()
	e.countClues(table[line[0]], line)
	if bytes.HasPrefix(line, []byte("//")) {
		return
	}
	e.countClues(table[0], line)
	e.all++
	if !e.begun && isPackage(line) {
		e.sums["Go"] += 40
	}
	if !e.begun && isModule(line) {
		e.sums["Go Module"] += 20
	}
	e.begun = true
	switch {
	case isPair(line):
		e.pairs++
	case line[0] == '#' || bytes.HasPrefix(line, []byte("- ")):
		e.lists++
	case bytes.HasPrefix(line, []byte("-- ")) && bytes.HasSuffix(line, []byte(" --")):
		e.sums[plain] += 20 // files in one, as tests of Go have them
	case isProse(line):
		e.prose++
	}
}

func (e *evidence) countClues(list []clue, line []byte) {
	for i := range list {
		if c := &list[i]; e.seen[c] < clueMost && c.fits(line) {
			e.seen[c]++
			e.sums[c.language] += c.worth / math.Sqrt(float64(e.seen[c]))
		}
	}
}

// weigh weighs what shows in the shares of lines.
func (e *evidence) weigh() {
	if e.all == 0 {
		return
	}
	all := float64(e.all)
	if e.pairs > 0 && float64(e.pairs+e.lists) > all/2 {
		e.sums["YAML"] += 24 * float64(e.pairs) / all
	}
	if share := float64(e.prose) / all; share > 0.2 {
		e.sums["Markdown"] += 10 * share
		e.sums[plain] += 14 * share
	}
}

// isModule recognises the first line of a go.mod file.
func isModule(line []byte) bool {
	path, ok := bytes.CutPrefix(line, []byte("module "))
	return ok && bytes.IndexByte(path, '.') > 0 && !bytes.ContainsAny(path, " ;{(")
}

// isPackage recognises the clause that every Go file begins with.
func isPackage(line []byte) bool {
	name, ok := bytes.CutPrefix(line, []byte("package "))
	name, _, _ = bytes.Cut(name, []byte("//"))
	name = bytes.TrimSpace(name)
	return ok && len(name) > 0 &&
		span(name, func(c byte) bool { return isNumber(c) && c != '.' || c == '_' }) == len(name)
}

const plain = "Text"

// isPair recognises key: value, as YAML writes it.
func isPair(line []byte) bool {
	line = bytes.TrimPrefix(line, []byte("- "))
	key, value, ok := bytes.Cut(line, []byte(":"))
	if !ok || len(key) == 0 || len(key) > 40 || len(value) > 0 && value[0] != ' ' {
		return false
	}
	if bytes.ContainsAny(key, "(){};=<>") ||
		slices.Contains([]string{"else", "try", "default", "public", "private", "finally"}, string(key)) {
		return false
	}
	return bytes.Count(key, []byte(" ")) < 3 && !bytes.HasSuffix(value, []byte(";")) &&
		!bytes.HasSuffix(value, []byte("{"))
}

// isProse recognises a line of words.
func isProse(line []byte) bool {
	if len(line) < 20 || bytes.ContainsAny(line, "{}=;") {
		return false
	}
	spaces := bytes.Count(line, []byte(" "))
	letters := 0
	for _, c := range line {
		if isLetter(c) || c >= 0x80 {
			letters++
		}
	}
	return spaces >= 3 && (letters+spaces)*10 > len(line)*9
}

// isJSON reports whether a text that begins as an object, an array or a
// string is JSON up to where it was cut off.
func isJSON(head []byte) bool {
	head = bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\xEF\xBB\xBF")), " \t\r\n")
	if len(head) == 0 || strings.IndexByte(`{["`, head[0]) < 0 {
		return false
	}
	d := json.NewDecoder(bytes.NewReader(head))
	for n := 0; ; n++ {
		if _, err := d.Token(); err != nil {
			_, bad := err.(*json.SyntaxError)
			return !bad && n > 0 || len(head) >= HeadSize-1 && n > 8
		}
	}
}

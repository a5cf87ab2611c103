package pins

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/mcp/rawjson"
)

const (
	mostDiffLines = 400 // of one entry
	mostLine      = 500 // bytes of one line
)

// Diff returns the difference between two definitions as lines that begin with "- ", "+ " or two
// blanks, with up to two equal lines around each change. Text is escaped so that no line can control
// a terminal or hide what it says. was is nil if the earlier definition is not known; then every line
// is new.
func Diff(was, now json.RawMessage) []string {
	return diffLines(describe(was), describe(now))
}

// describe returns a definition as lines: description and title as text, all else as indented JSON
// with sorted members.
func describe(entry json.RawMessage) (lines []string) {
	if len(entry) == 0 {
		return nil
	}
	for _, member := range []string{"title", "description"} {
		v, ok := rawjson.Get(entry, member)
		if !ok {
			continue
		}
		text, isText := rawjson.String(v)
		if !isText {
			text = string(v)
		}
		for i, line := range strings.Split(text, "\n") {
			if i == 0 {
				line = member + ": " + line
			} else {
				line = "    " + line
			}
			lines = append(lines, shown(line)...)
		}
	}
	rest := rawjson.Splice(entry, rawjson.Edit{Key: "title"}, rawjson.Edit{Key: "description"},
		rawjson.Edit{Key: "name"})
	var indented bytes.Buffer
	if json.Indent(&indented, canonical(nil, rest), "", "  ") != nil {
		return append(lines, shown(string(rest))...)
	}
	for line := range strings.SplitSeq(indented.String(), "\n") {
		lines = append(lines, shown(line)...)
	}
	return lines
}

// shown returns a line safe to display, cut into several if it is long, so that nothing of it is hidden.
func shown(line string) (lines []string) {
	line = displaytext.Line(strings.ToValidUTF8(strings.ReplaceAll(line, "\t", "    "), "\uFFFD"))
	for len(line) > mostLine {
		head := displaytext.Cut(line, mostLine, "")
		lines = append(lines, head)
		line = line[len(head):]
	}
	return append(lines, line)
}

// diffLines compares lines by their longest common subsequence. Texts of more than 2000 lines in the
// changed part are shown as replaced.
func diffLines(was, now []string) (out []string) {
	head := 0
	for head < len(was) && head < len(now) && was[head] == now[head] {
		head++
	}
	tail := 0
	for tail < len(was)-head && tail < len(now)-head && was[len(was)-1-tail] == now[len(now)-1-tail] {
		tail++
	}
	a, b := was[head:len(was)-tail], now[head:len(now)-tail]
	for _, line := range was[max(0, head-2):head] {
		out = append(out, "  "+line)
	}
	out = append(out, changes(a, b)...)
	for _, line := range was[len(was)-tail:][:min(tail, 2)] {
		out = append(out, "  "+line)
	}
	if len(a)+len(b) == 0 {
		return nil
	}
	if more := len(out) - mostDiffLines; more > 0 {
		out = append(out[:mostDiffLines:mostDiffLines], fmt.Sprintf("  [%d more lines]", more))
	}
	return out
}

func changes(a, b []string) (out []string) {
	const most = 2000
	if len(a) > most || len(b) > most {
		for _, line := range a[:min(len(a), mostDiffLines/2)] {
			out = append(out, "- "+line)
		}
		for _, line := range b {
			out = append(out, "+ "+line)
		}
		return out
	}
	// length[i][j] is the longest common subsequence of a[i:] and b[j:].
	length := make([][]uint16, len(a)+1)
	for i := range length {
		length[i] = make([]uint16, len(b)+1)
	}
	for i, line := range slices.Backward(a) {
		for j := len(b) - 1; j >= 0; j-- {
			if line == b[j] {
				length[i][j] = length[i+1][j+1] + 1
			} else {
				length[i][j] = max(length[i+1][j], length[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			out = append(out, "  "+a[i])
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && length[i+1][j] >= length[i][j+1]:
			out = append(out, "- "+a[i])
			i++
		default:
			out = append(out, "+ "+b[j])
			j++
		}
	}
	return out
}

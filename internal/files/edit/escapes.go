package edit

import (
	"bytes"
	"slices"
	"strings"
)

// findEscaped finds an old text in which line breaks, tabs and quotes were
// escaped once too often (\n for a line break), or once too few.
func (t *text) findEscaped(e Edit) ([]place, Level, error) {
	if plain := (Edit{unescape(e.Old), unescape(e.New), e.All, e.Near}); plain.Old != e.Old &&
		!strings.Contains(e.Old+e.New, "\n") &&
		plain.Old != plain.New {
		places, _, err := t.findTolerant(plain)
		if len(places) > 0 || err != nil {
			return places, Escapes, err
		}
	}
	return t.findUnescaped(e)
}

var unescaper = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\r`, "\r", `\t`, "\t", `\"`, `"`, `\'`, `'`)

// unescape replaces escapes by the characters they stand for.
func unescape(s string) string { return unescaper.Replace(s) }

var controls = strings.NewReplacer(`\n`, "\n", `\t`, "\t")

// findUnescaped finds an old text that has line breaks or tabs where the file
// has \n or \t, for instance in a string literal.
func (t *text) findUnescaped(e Edit) ([]place, Level, error) {
	if !bytes.Contains(t.content, []byte(`\n`)) && !bytes.Contains(t.content, []byte(`\t`)) ||
		bytes.Contains(t.content, crlf) {
		return nil, 0, nil
	}
	old, new := controls.Replace(withoutCR(e.Old)), controls.Replace(withoutCR(e.New))
	if old == new || !strings.ContainsAny(e.Old, "\n\t") {
		return nil, 0, nil
	}
	bare, at := unescapeControls(t.content)
	head, tail := common(old, new)
	var places []place
	for _, i := range t.indexes(bare, old, e.All) {
		p := place{start: at(i), end: at(i + len(old))}
		with := new[head : len(new)-tail]
		if strings.ContainsAny(with, "\n\t") {
			region := string(t.content[p.start:p.end])
			if strings.Contains(region, "\n") && strings.Contains(with, "\n") ||
				strings.Contains(region, "\t") && strings.Contains(with, "\t") {
				return nil, 0, nil // It is not clear whether a new line break is to be escaped.
			}
			with = strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(with)
		}
		p.splice = splice{at(i + head), at(i + len(old) - tail), with}
		places = append(places, p)
	}
	return places, Escapes, nil
}

// unescapeControls replaces \n and \t in a content by line breaks and tabs. at
// translates a place in the result back to the content.
func unescapeControls(content []byte) (bare []byte, at func(int) int) {
	var cuts []int // places in bare, each behind a character that took two bytes in the content
	for i := 0; i < len(content); i++ {
		if content[i] == '\\' && i+1 < len(content) && (content[i+1] == 'n' || content[i+1] == 't') {
			c := byte('\n')
			if content[i+1] == 't' {
				c = '\t'
			}
			bare = append(bare, c)
			cuts = append(cuts, len(bare))
			i++
			continue
		}
		bare = append(bare, content[i])
	}
	return bare, func(i int) int {
		n, found := slices.BinarySearch(cuts, i)
		if found {
			n++
		}
		return i + n
	}
}

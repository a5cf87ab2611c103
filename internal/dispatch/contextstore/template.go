package contextstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Template is a text with placeholders: {{name}} must have a value, {{name?}} may have none. A backslash before {{
// makes it plain text. Values are inserted once and unchanged: a placeholder in a value is text.
type Template struct{ parts []part }

type part struct {
	text     string
	name     string // of a placeholder; then text is ""
	optional bool
}

// ErrAbsent is the error of Expand if a required value is missing.
var ErrAbsent = errors.New("has no value")

var placeholder = lazy(`^[A-Za-z_][A-Za-z0-9_.-]{0,127}$`)

// ParseTemplate parses a template.
func ParseTemplate(s string) (t Template, err error) {
	for s != "" {
		before, after, found := strings.Cut(s, "{{")
		if !found {
			t.addText(s)
			break
		}
		if plain, escaped := strings.CutSuffix(before, `\`); escaped {
			t.addText(plain + "{{")
			s = after
			continue
		}
		t.addText(before)
		inner, rest, closed := strings.Cut(after, "}}")
		if !closed {
			return t, errors.New(`a {{ has no }}; write \{{ for the text itself`)
		}
		name, optional := strings.CutSuffix(strings.TrimSpace(inner), "?")
		if !placeholder().MatchString(name) {
			return t, fmt.Errorf(
				"{{%s}} is not a placeholder; expected a name such as {{path}}, or {{path?}} for one that may be missing",
				inner,
			)
		}
		t.parts = append(t.parts, part{name: name, optional: optional})
		s = rest
	}
	return t, nil
}

func (t *Template) addText(text string) {
	if text != "" {
		t.parts = append(t.parts, part{text: text})
	}
}

// Names returns the names of the placeholders, each once.
func (t Template) Names() (names []string) {
	for _, p := range t.parts {
		if p.name != "" && !slices.Contains(names, p.name) {
			names = append(names, p.name)
		}
	}
	return names
}

// Only returns the name of the placeholder, if the template consists of one.
func (t Template) Only() (name string, ok bool) {
	if len(t.parts) != 1 {
		return "", false
	}
	return t.parts[0].name, t.parts[0].name != ""
}

// Leads returns the name of the placeholder with which the template begins, or "" if it begins with text.
func (t Template) Leads() string {
	if len(t.parts) == 0 {
		return ""
	}
	return t.parts[0].name
}

// Droppable reports whether the template should be left out because one of its optional values is missing.
func (t Template) Droppable(has func(name string) bool) bool {
	return slices.ContainsFunc(t.parts, func(p part) bool { return p.optional && !has(p.name) })
}

// Expand inserts the values. A missing value is "" if it is optional, and an error otherwise. before is the text
// so far, for values whose encoding depends on their position.
func (t Template) Expand(value func(name, before string) (string, bool)) (string, error) {
	var b strings.Builder
	for _, p := range t.parts {
		if p.name == "" {
			b.WriteString(p.text)
			continue
		}
		v, ok := value(p.name, b.String())
		if !ok && !p.optional {
			return "", fmt.Errorf("%s %w", p.name, ErrAbsent)
		}
		b.WriteString(v)
	}
	return b.String(), nil
}

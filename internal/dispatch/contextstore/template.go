package contextstore

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Template is a text with placeholders: {{name}} must have a value, {{name?}}
// may have none. A backslash before {{ makes it plain text. Values are put in
// once, as they are: what looks like a placeholder in them is text.
type Template struct{ parts []part }

type part struct {
	text     string
	name     string // of a placeholder; then text is ""
	optional bool
}

// ErrAbsent is the answer of Expand when a value is missing that must be there.
var ErrAbsent = errors.New("has no value")

var placeholder = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]{0,127}$`)

// ParseTemplate reads a template.
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
		if !placeholder.MatchString(name) {
			return t, fmt.Errorf(
				"{{%s}} is no placeholder; expected a name such as {{path}}, or {{path?}} for one that may be missing",
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

// Names are the placeholders, each once.
func (t Template) Names() (names []string) {
	for _, p := range t.parts {
		if p.name != "" && !slices.Contains(names, p.name) {
			names = append(names, p.name)
		}
	}
	return names
}

// Only is the name of the placeholder that is all of the template.
func (t Template) Only() (name string, ok bool) {
	if len(t.parts) != 1 {
		return "", false
	}
	return t.parts[0].name, t.parts[0].name != ""
}

// Leads is the name of the placeholder that the template begins with; "" when it
// begins with a text of its own.
func (t Template) Leads() string {
	if len(t.parts) == 0 {
		return ""
	}
	return t.parts[0].name
}

// Droppable reports whether the template means nothing without one of its
// optional values, because that value is missing.
func (t Template) Droppable(has func(name string) bool) bool {
	return slices.ContainsFunc(t.parts, func(p part) bool { return p.optional && !has(p.name) })
}

// Expand puts the values in. One that is missing is "" where it is optional,
// and otherwise an error. before is what the text holds so far, for values that
// are written differently in different places.
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

package schema

import (
	"fmt"
	"strconv"
	"strings"

	"gatehouse/internal/mcp/rawjson"
)

// Mismatch is the error of a value that does not fit its schema.
type Mismatch struct{ Problems []Problem } // 1 to 5, in the order of the text

// Error puts one problem on a line.
func (m *Mismatch) Error() string {
	lines := make([]string, len(m.Problems))
	for i, p := range m.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Problem is one thing that is wrong. Without Expected a member is unknown;
// without Got a member is absent.
type Problem struct {
	Path     string // like edits[2].old; "" is the value itself
	Expected string
	Got      string
	Hint     string // what to do about it, "" when there is nothing to add
}

// String is a line for whoever sent the value, a model most of the time.
func (p Problem) String() string {
	path := p.Path
	if path == "" {
		path = "arguments"
	}
	var s string
	switch {
	case p.Expected == "":
		s = path + ": unknown argument"
	case p.Got == "":
		s = path + ": required, expected " + p.Expected
	default:
		s = path + ": expected " + p.Expected + ", got " + p.Got
	}
	if p.Hint != "" {
		s += ", " + p.Hint
	}
	return s
}

func costProblem() Problem {
	return Problem{Expected: "a value that can be checked in reasonable time", Got: "too many parts for this schema", Hint: "send less at once"}
}

// pathAt gives the path of the value that starts at a place. The walker keeps no
// path while it goes; the text is read again when one is wanted.
func pathAt(text []byte, at int) string {
	path, _ := locate(text, at)
	return path
}

// lastName gives the name of the member whose value starts at a place.
func lastName(text []byte, at int) string {
	_, name := locate(text, at)
	return name
}

func locate(text []byte, at int) (path, name string) {
	c := rawjson.At(text)
	for {
		kind := c.Kind()
		if c.Offset() >= at || kind != '{' && kind != '[' {
			return clip(path, 200), name
		}
		c.Enter()
		ok := false
		if kind == '{' {
			if name, ok = enterMember(&c, at); ok {
				path = joinPath(path, name)
			}
		} else {
			var i int
			if i, ok = enterElement(&c, at); ok {
				path += "[" + strconv.Itoa(i) + "]"
			}
		}
		if !ok || len(path) > 1000 {
			return clip(path, 200), name
		}
	}
}

// enterMember stops before the member's value in which a place lies.
func enterMember(c *rawjson.Cursor, at int) (name string, ok bool) {
	for {
		key, ok := c.Key()
		if !ok {
			return "", false
		}
		probe := *c
		if probe.Value(); at < probe.Offset() {
			return string(key), true
		}
		*c = probe
	}
}

func enterElement(c *rawjson.Cursor, at int) (i int, ok bool) {
	for ; c.More(); i++ {
		probe := *c
		if probe.Value(); at < probe.Offset() {
			return i, true
		}
		*c = probe
	}
	return 0, false
}

// joinPath appends a member's name, quoted where it would read as something
// else.
func joinPath(path, name string) string {
	plain := name != "" && len(name) <= 100
	for _, r := range name {
		plain = plain && (r == '_' || r == '-' || r == '$' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r > 127)
	}
	switch {
	case !plain:
		return path + "[" + string(rawjson.AppendString(nil, clip(name, 100))) + "]"
	case path == "":
		return name
	}
	return path + "." + name
}

// clip cuts a text for display, at a whole character.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && s[most]&0xC0 == 0x80 {
		most--
	}
	return s[:most] + "..."
}

func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

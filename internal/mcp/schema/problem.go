package schema

import (
	"fmt"
	"strconv"
	"strings"

	"gatehouse/internal/mcp/rawjson"
)

// Mismatch is the error for a value that does not fit its schema.
type Mismatch struct{ Problems []Problem } // 1 to 5, in the order of the text

// Error returns the problems, one on each line.
func (m *Mismatch) Error() string {
	lines := make([]string, len(m.Problems))
	for i, p := range m.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Problem is one mistake in a value. If Expected is empty, the member is
// unknown. If Got is empty, the member is missing.
type Problem struct {
	Path     string // like edits[2].old; "" is the value itself
	Expected string
	Got      string
	Hint     string // how to correct it, "" if that is obvious
}

// String returns the problem in one line that tells the sender, mostly a model,
// what to correct.
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

// costProblem is the problem of a value that would take too long to check.
func costProblem() Problem {
	return Problem{
		Expected: "a value that can be checked in reasonable time",
		Got:      "too many parts for this schema",
		Hint:     "send less at once",
	}
}

// pathAt returns the path of the value that starts at a byte. It reads the text
// again, because the walker does not record paths while it checks.
func pathAt(text []byte, at int) string {
	path, _ := locate(text, at)
	return path
}

// lastName returns the name of the member whose value starts at a byte.
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

// enterMember stops before the value of the member that a byte lies in.
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

// joinPath appends the name of a member, quoted if it is not plain.
func joinPath(path, name string) string {
	plain := name != "" && len(name) <= 100
	for _, r := range name {
		plain = plain &&
			(r == '_' || r == '-' || r == '$' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' ||
				r >= 'A' && r <= 'Z' || r > 127)
	}
	switch {
	case !plain:
		return path + "[" + string(rawjson.AppendString(nil, clip(name, 100))) + "]"
	case path == "":
		return name
	}
	return path + "." + name
}

// clip shortens a text for display, between two characters.
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

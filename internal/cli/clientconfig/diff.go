package clientconfig

import (
	"regexp"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/access/secret"
)

// maxShown is how many bytes of a line a diff shows.
const maxShown = 160

// Diff returns a change as a unified diff, "" if nothing changes. Values that
// look like secrets are not shown, and nothing in it steers a terminal.
func (c *Change) Diff() string {
	before, after := string(withoutBOM(c.Before)), string(withoutBOM(c.After))
	from, to := c.File, c.File
	if !c.Existed {
		from = "/dev/null"
	}
	if c.Delete {
		to = "/dev/null"
	}
	lines := strings.Split(strings.TrimSuffix(udiff.Unified(from, to, before, after), "\n"), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, `\ No newline`) })
	for i, l := range lines {
		lines[i] = displaytext.Text(mask(strings.TrimSuffix(l, "\r")))
	}
	for i := 1; i < len(lines); i++ {
		if len(lines[i]) > maxShown && len(lines[i-1]) > maxShown && lines[i][0] == '+' && lines[i-1][0] == '-' {
			lines[i-1], lines[i] = around(lines[i-1], lines[i])
		}
	}
	for i, l := range lines {
		lines[i] = displaytext.Cut(l, 3*maxShown, "…")
	}
	return strings.Join(lines, "\n")
}

// around shows of two long lines what differs and a little on both sides.
func around(old, now string) (string, string) {
	const margin = 40
	begin := 1
	for begin < len(old) && begin < len(now) && old[begin] == now[begin] {
		begin++
	}
	end := 0
	for end < len(old)-begin && end < len(now)-begin && old[len(old)-1-end] == now[len(now)-1-end] {
		end++
	}
	part := func(line string) string {
		from, to := max(begin-margin, 1), min(len(line)-end+margin, len(line))
		return line[:1] + "…" + strings.ToValidUTF8(line[from:to], "") + "…"
	}
	return part(old), part(now)
}

var (
	assigned = regexp.MustCompile(`(["']?)([A-Za-z0-9_.-]+)(["']?\s*[:=]\s*)("(?:[^"\\]|\\.)*"|'[^']*'|[^\s"',}\]]+)`)
	refers   = regexp.MustCompile(`^(?i:bearer )?(\$[A-Z_]+|\$?\{[^{}]+\})$`) // to a variable
	bearer   = regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}`)
)

// mask hides the values of members whose name or value looks like a secret.
func mask(line string) string {
	line = assigned.ReplaceAllStringFunc(line, func(m string) string {
		p := assigned.FindStringSubmatch(m)
		value := strings.Trim(p[4], `"'`)
		header := strings.EqualFold(p[2], "authorization")
		if refers.MatchString(value) || !header && !secretive(p[2], value) {
			return m
		}
		return p[1] + p[2] + p[3] + `"` + secret.Mask + `"`
	})
	return bearer.ReplaceAllString(line, "$1 "+secret.Mask)
}

// secretive reports whether the value of a variable or of a header looks like a
// secret.
func secretive(name, value string) bool {
	return secret.Suspicious(strings.ReplaceAll(name, "-", "_"), value)
}

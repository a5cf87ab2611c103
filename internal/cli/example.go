package cli

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gatehouse/internal/mcp/client"
)

// exampleOf returns a command line that calls a tool and runs unchanged: its values fit the schema, and for
// read-only tools its path exists.
func exampleOf(t client.Tool, flags []string) string {
	words := slices.Concat([]string{"gatehouse", "call", t.Name}, example(t), flags)
	for i, w := range words {
		words[i] = quoted(w)
	}
	return strings.Join(words, " ")
}

// sameTarget repeats the flags that select the server. A token is not printed, because the caller has it.
func sameTarget(c *cobra.Command, t *target) (flags []string) {
	for _, name := range append(t.host.names(), "url", "unix", "daemon", "ca", "token") {
		f := c.Flags().Lookup(name)
		switch {
		case f == nil || !f.Changed || name == "verbose":
		case name == "token" && t.token != "local":
		case name == "directory":
			for _, dir := range t.host.folders {
				flags = append(flags, "--directory="+dir)
			}
		case f.Value.Type() == "bool" && f.Value.String() == "true":
			flags = append(flags, "--"+name)
		default:
			flags = append(flags, "--"+name+"="+flagValue(f))
		}
	}
	return flags
}

// quoted returns a word as a POSIX shell reads it.
func quoted(word string) string {
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,@%+", r)
	}) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// wanted are optional arguments that an example contains even so, if the tool requires none.
var wanted = []string{"path", "pattern", "old_string", "new_string", "input"}

// example returns values for the arguments that the tool requires, and for those of which it gives an example.
func example(t client.Tool) (words []string) {
	s := t.Input
	for _, p := range s.Properties {
		needed := slices.Contains(s.Required, p.Name)
		given := needed || len(p.Examples) > 0
		if !given && (len(p.Default) > 0 || !slices.Contains(wanted, p.Name)) {
			continue
		}
		if p.Name == "path" && !given && len(s.Required) > 0 {
			continue
		}
		v := sampleOf(t, p.Name, p.Schema, 0)
		text, isString := v.(string)
		if !isString || p.Items != nil && len(p.Type) > 0 && !slices.Contains(p.Type, "string") {
			text = asJSON(v)
		}
		words = append(words, p.Name+"="+text)
	}
	return words
}

func asJSON(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return "null"
	}
	return strings.TrimSpace(b.String())
}

// sampleDepth bounds how deep a sample follows a schema, which may come from a third party.
const sampleDepth = 4

// sampleOf returns a value that fits a schema.
func sampleOf(t client.Tool, name string, s client.Schema, depth int) any {
	given := slices.Concat(s.Enum, s.Examples)
	var usual any
	if json.Unmarshal(s.Default, &usual) == nil && usual != nil {
		given = append(given, usual)
	}
	switch {
	case depth > sampleDepth:
		return nil
	case s.Const != nil:
		return s.Const
	case len(given) > 0:
		return given[0]
	case len(s.Type) == 0 && len(s.AnyOf) > 0:
		return sampleOf(t, name, s.AnyOf[0], depth+1)
	case len(s.Type) == 0 && len(s.OneOf) > 0:
		return sampleOf(t, name, s.OneOf[0], depth+1)
	case slices.Contains(s.Type, "string"), len(s.Type) == 0 && len(s.Properties) == 0:
		return sampleText(t, name, s)
	}
	switch s.Type = append(s.Type, "object"); s.Type[0] {
	case "boolean":
		return true
	case "null":
		return nil
	case "integer", "number":
		return sampleNumber(s)
	case "array":
		list := []any{}
		if s.Items != nil {
			for range int(min(max(s.MinItems, 1), 10)) {
				list = append(list, sampleOf(t, name, *s.Items, depth+1))
			}
		}
		return list
	}
	object := map[string]any{}
	for _, p := range s.Properties {
		if slices.Contains(s.Required, p.Name) {
			object[p.Name] = sampleOf(t, p.Name, p.Schema, depth+1)
		}
	}
	return object
}

// sampleNumber returns 1, or the next number that the limits allow.
func sampleNumber(s client.Schema) float64 {
	n := 1.0
	step := 1.0
	if s.MultipleOf != nil && *s.MultipleOf > 0 {
		n, step = *s.MultipleOf, *s.MultipleOf
	}
	if s.Minimum != nil && n < *s.Minimum {
		n = math.Ceil(*s.Minimum/step) * step
	}
	if s.ExclusiveMinimum != nil && n <= *s.ExclusiveMinimum {
		n = (math.Floor(*s.ExclusiveMinimum/step) + 1) * step
	}
	if s.Maximum != nil && n > *s.Maximum {
		n = math.Floor(*s.Maximum/step) * step
	}
	if s.ExclusiveMaximum != nil && n >= *s.ExclusiveMaximum {
		n = (math.Ceil(*s.ExclusiveMaximum/step) - 1) * step
	}
	return n
}

var formats = map[string]string{
	"uri": "https://example.com/", "email": "user@example.com", "date": "2026-01-31", "time": "12:00:00Z",
	"date-time": "2026-01-31T12:00:00Z", "uuid": "123e4567-e89b-12d3-a456-426614174000", "hostname": "example.com",
	"ipv4": "192.0.2.1", "ipv6": "2001:db8::1", "duration": "PT1M",
}

// sampleText returns a string that fits a schema. If none of the usual ones matches the pattern, it is the name in
// capitals, to be replaced by the user.
func sampleText(t client.Tool, name string, s client.Schema) string {
	all := []string{
		strings.ToUpper(name),
		strings.ToLower(name),
		"1",
		"a1",
		"example",
		"https://example.com/",
		"example.com",
		"192.0.2.1",
		"2026-01-31",
		"12:00",
		"1m",
		"/example",
		"example/example",
		"@example",
	}
	switch lower := strings.ToLower(name); {
	case s.Format != "" && formats[s.Format] != "":
		all = slices.Insert(all, 0, formats[s.Format])
	case strings.HasSuffix(lower, "path"),
		lower == "file",
		lower == "paths",
		lower == "directory",
		lower == "dir",
		lower == "source",
		lower == "destination":
		all = slices.Insert(all, 0, samplePath(t, lower, s))
	case lower == "command":
		all = slices.Insert(all, 0, "whoami") // exists on every system, as a program and in every shell
	}
	for _, text := range all {
		if fits(s, text) {
			return text
		}
	}
	if n := int(min(s.MinLength, 1000)) - len(all[0]); n > 0 {
		if long := all[0] + strings.Repeat("x", n); fits(s, long) {
			return long
		}
	}
	return strings.ToUpper(name)
}

// fits reports whether the schema accepts a text. A pattern that Go cannot compile matches nothing.
func fits(s client.Schema, text string) bool {
	n := float64(len(text))
	if n < s.MinLength || s.MaxLength != nil && n > *s.MaxLength {
		return false
	}
	if s.Pattern == "" {
		return true
	}
	p, err := regexp.Compile(s.Pattern)
	return err == nil && p.MatchString(text)
}

// samplePath returns a path that exists here if the tool only reads. For other tools it is a file that is unlikely
// to exist, because a user may run the example only to look at it.
func samplePath(t client.Tool, name string, s client.Schema) string {
	about := strings.ToLower(t.Name + " " + s.Description)
	dir := strings.HasPrefix(about, "dir") || strings.Contains(about, "director") || strings.HasPrefix(name, "dir")
	switch {
	case effect(t) != "reads" && (strings.HasPrefix(name, "new") || name == "destination"):
		return "example-2"
	case effect(t) != "reads" && dir:
		return "example"
	case effect(t) != "reads":
		return "example.txt"
	case dir:
		return "."
	}
	entries, _ := os.ReadDir(".") // without entries the result is a likely name
	file := "README.md"
	for _, e := range entries {
		switch {
		case !e.Type().IsRegular() || strings.HasPrefix(e.Name(), "."):
		case e.Name() == "README.md":
			return e.Name()
		case file == "README.md" || strings.HasPrefix(e.Name(), "README"):
			file = e.Name()
		}
	}
	return printable(file)
}

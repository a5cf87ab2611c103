package config

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/access/secret"
)

// Show writes the settings in force in the form of a file, each with its source. Secrets are left out.
func (l *Loaded) Show(w io.Writer) error {
	s := yamlWriter{from: l, out: w}
	s.section(reflect.ValueOf(l.Config), "", "")
	return s.err
}

// yamlWriter writes settings as YAML.
type yamlWriter struct {
	from *Loaded
	out  io.Writer
	err  error
}

func (y *yamlWriter) writeLine(format string, args ...any) {
	if y.err == nil {
		_, y.err = fmt.Fprintf(y.out, format+"\n", args...)
	}
}

func (y *yamlWriter) section(v reflect.Value, path, indent string) {
	for _, one := range settingsIn(v.Type(), path) {
		f := v.Field(one.at)
		from := y.from.Where(one.path)
		switch {
		case one.section():
			y.writeLine("%s%s:", indent, one.key)
			y.section(f, one.path, indent+"  ")
		case unsaid(f):
		case one.secret():
			y.writeLine("%s# %s: %s, from %v", indent, one.key, secret.Mask, from)
		case one.isList():
			y.writeLine("%s%s:", indent, one.key)
			y.writeList(f, one.path, indent+"  ")
		case f.Kind() == reflect.Map:
			y.writeLine("%s%s: # %v", indent, one.key, from)
			y.table(f, indent+"  ")
		default:
			y.writeLine("%s%s: %s # %v", indent, one.key, one.formatValue(f), from)
		}
	}
}

// unsaid reports whether a value is the one that stands for an unset setting.
func unsaid(v reflect.Value) bool {
	if t, ok := v.Interface().(secret.Text); ok {
		return t.Empty()
	}
	switch v.Kind() {
	case reflect.Slice, reflect.Map, reflect.Pointer:
		return v.IsNil()
	case reflect.String:
		return v.Len() == 0
	}
	return false
}

func (y *yamlWriter) writeList(v reflect.Value, path, indent string) {
	for i := range v.Len() {
		at := fmt.Sprintf("%s[%d]", path, i)
		y.writeLine("%s- # %v", indent, y.from.near(at))
		y.entry(v.Index(i), at, indent+"  ")
	}
}

// entry writes one entry of a list without its unset fields.
func (y *yamlWriter) entry(v reflect.Value, at, indent string) {
	for _, one := range settingsIn(v.Type(), at) {
		f := v.Field(one.at)
		switch {
		case unsaid(f), f.IsZero() && f.Kind() != reflect.Slice:
		case one.section():
			y.writeLine("%s%s:", indent, one.key)
			y.entry(f, one.path, indent+"  ")
		case f.Kind() == reflect.Map:
			y.writeLine("%s%s:", indent, one.key)
			y.table(f, indent+"  ")
		default:
			y.writeLine("%s%s: %s", indent, one.key, one.formatValue(f))
		}
	}
}

func (y *yamlWriter) table(v reflect.Value, indent string) {
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	for _, k := range keys {
		y.writeLine("%s%s: %s", indent, quote(k.String()), setting{typ: v.Type().Elem()}.formatValue(v.MapIndex(k)))
	}
}

// formatValue formats a value as the file would contain it.
func (s setting) formatValue(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return showDuration(x)
	case slog.Level:
		return strings.ToLower(x.String())
	case string:
		return quote(x)
	case []string:
		var list []string
		for _, w := range x {
			list = append(list, quote(w))
		}
		return "[" + strings.Join(list, ", ") + "]"
	case *float64:
		return strconv.FormatFloat(*x, 'f', -1, 64)
	case float64:
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	if s.tag.Get("unit") == "bytes" {
		return showCount(v.Int())
	}
	return fmt.Sprint(v.Interface())
}

// quote quotes a text so that it is read back unchanged. JSON's quoted strings are valid in YAML as well.
func quote(s string) string {
	// YAML reads such a text as text without quotes.
	if spelled(strings.TrimPrefix(s, "/"), 1<<10, "_./-", "_.-0123456789") &&
		!slices.Contains([]string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"}, strings.ToLower(s)) {
		return s
	}
	b, _ := json.Marshal(s) // a string cannot fail
	return string(b)
}

// Differences returns the settings that differ between two configurations: those that a running host can apply,
// and those that require a restart.
func Differences(a, b Config) (live, restart []string) {
	compare := func(s setting, x, y reflect.Value) {
		same := reflect.DeepEqual(x.Interface(), y.Interface())
		if t, ok := x.Interface().(secret.Text); ok {
			same = t.Equal(y.Interface().(secret.Text))
		}
		if same {
			return
		}
		if s.tag.Get("live") != "" {
			live = append(live, s.path)
		} else {
			restart = append(restart, s.path)
		}
	}
	var walk func(x, y reflect.Value, path string)
	walk = func(x, y reflect.Value, path string) {
		for _, s := range settingsIn(x.Type(), path) {
			if s.section() {
				walk(x.Field(s.at), y.Field(s.at), s.path)
			} else {
				compare(s, x.Field(s.at), y.Field(s.at))
			}
		}
	}
	walk(reflect.ValueOf(a), reflect.ValueOf(b), "")
	return live, restart
}

// Env returns the environment variables of the programs that run in a context, as the file states them.
func (c Config) Env(context string) map[string]string {
	for _, x := range c.Contexts {
		if x.Name == context {
			return maps.Clone(x.Env)
		}
	}
	return nil
}

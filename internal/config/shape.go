package config

import (
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"gatehouse/internal/access/secret"
)

// setting is one field of the settings' structs as the file, the environment, the schema and the documentation use
// it.
type setting struct {
	path string // listen.http.port; of a list's entries, without their index
	key  string // the last part of the path
	typ  reflect.Type
	tag  reflect.StructTag
	at   int // the field's place in its struct
}

// settingsIn returns the settings of a struct.
func settingsIn(t reflect.Type, path string) (all []setting) {
	for i := range t.NumField() {
		f := t.Field(i)
		key := f.Tag.Get("yaml")
		if key == "-" {
			continue
		}
		if key == "" {
			key = snake(f.Name)
		}
		all = append(all, setting{join(path, key), key, f.Type, f.Tag, i})
	}
	return all
}

// leaves returns all settings below a type that hold a value of their own. Lists of structs are leaves.
func leaves(t reflect.Type, path string) (all []setting) {
	for _, s := range settingsIn(t, path) {
		if s.section() {
			all = append(all, leaves(s.typ, s.path)...)
		} else {
			all = append(all, s)
		}
	}
	return all
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// section reports whether a setting is a group of others.
func (s setting) section() bool { return s.typ.Kind() == reflect.Struct && s.typ != secretType }

// isList reports whether a setting is a list of structs.
func (s setting) isList() bool {
	return s.typ.Kind() == reflect.Slice && s.typ.Elem().Kind() == reflect.Struct
}

// enum returns the values that a setting, or each of its entries, may have.
func (s setting) enum() []string {
	if e := s.tag.Get("enum"); e != "" {
		return strings.Split(e, ",")
	}
	return nil
}

func (s setting) secret() bool { return s.tag.Get("secret") != "" }

// variable returns the environment variable of a setting, or "" if it has none.
func (s setting) variable() string {
	switch e := s.tag.Get("env"); {
	case e == "-", s.isList(), s.typ.Kind() == reflect.Map:
		return ""
	case e != "":
		return e
	}
	return "GATEHOUSE_" + strings.ToUpper(strings.ReplaceAll(s.path, ".", "_"))
}

// snake converts a Go name into its form in the file: SpoolEntry becomes spool_entry, ClientCA becomes client_ca.
func snake(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		begins := i > 0 && unicode.IsUpper(r) &&
			(!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if begins {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	levelType    = reflect.TypeFor[slog.Level]()
	secretType   = reflect.TypeFor[secret.Text]()
)

// expects describes the values of a setting for an error text.
func (s setting) expects() string {
	switch t := s.typ; {
	case s.tag.Get("kind") == "address":
		return "host:port"
	case s.isList(), t.Kind() == reflect.Slice:
		return "a list, such as [a, b]"
	case t == durationType:
		return "a duration, such as 30s, 10m or 24h"
	case t == levelType || s.enum() != nil:
		return oneOf(s.enum())
	case s.tag.Get("unit") == "bytes":
		return "a number of bytes, such as 65536, 64KiB or 24MiB"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.String, t == secretType:
		return "text"
	case t.Kind() == reflect.Map, s.section():
		return "a mapping of names to values"
	case t.Kind() == reflect.Pointer, t.Kind() == reflect.Float64:
		return "a number"
	}
	return "a whole number"
}

func oneOf(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// formerly returns what a value that an earlier version had means now.
func (s setting) formerly(text string) string {
	for pair := range strings.SplitSeq(s.tag.Get("former"), ",") {
		if was, now, ok := strings.Cut(pair, "="); ok && was == text {
			return now
		}
	}
	return text
}

// parseText parses a text into a setting's field: a value of the environment, or a scalar of the file.
func (s setting) parseText(v reflect.Value, text string) error {
	text = s.formerly(text)
	if e := s.enum(); e != nil && s.typ.Kind() == reflect.String {
		if !slices.Contains(e, text) {
			return fmt.Errorf("%q: expected %s", text, s.expects())
		}
	}
	switch {
	case s.tag.Get("kind") == "address":
		addr, err := ParseTCP(text)
		v.SetString(addr)
		return err
	case s.tag.Get("kind") == "port":
		n, err := ParsePort(text)
		v.SetInt(int64(n))
		return err
	case s.typ == levelType:
		l, err := ParseLevel(text)
		v.SetInt(int64(l))
		return err
	case s.typ == secretType:
		v.Set(reflect.ValueOf(secret.New(text)))
		return nil
	case s.typ == durationType:
		d, err := parseDuration(text)
		v.SetInt(int64(d))
		return err
	}
	return s.takeKind(v, text)
}

func (s setting) takeKind(v reflect.Value, text string) error {
	bad := fmt.Errorf("%q: expected %s", text, s.expects())
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return bad
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int64:
		n, err := parseCount(text, s.tag.Get("unit") == "bytes")
		if err != nil || v.OverflowInt(n) {
			return bad
		}
		v.SetInt(n)
	case reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			return bad
		}
		v.SetFloat(f)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return s.takeKind(v.Elem(), text)
	case reflect.Slice:
		v.Set(reflect.ValueOf(splitWords(text)))
	default:
		return bad
	}
	return nil
}

// splitWords splits the value that an environment variable gives a list.
func splitWords(text string) (list []string) {
	for w := range strings.SplitSeq(text, ",") {
		if w = strings.TrimSpace(w); w != "" {
			list = append(list, w)
		}
	}
	return list
}

// sizes are the units of bytes, by their suffix.
var sizes = []struct {
	suffix string
	shift  uint
}{{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}}

func parseCount(text string, bytes bool) (int64, error) {
	shift := uint(0)
	for _, u := range sizes {
		if rest, ok := strings.CutSuffix(text, u.suffix); bytes && ok {
			text, shift = strings.TrimSpace(rest), u.shift
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n > math.MaxInt64>>shift || n < 0 && shift > 0 {
		return 0, strconv.ErrRange
	}
	return n << shift, nil
}

// showCount formats a number of bytes as briefly as parseCount reads it.
func showCount(n int64) string {
	for i := len(sizes) - 1; i >= 0; i-- {
		if u := sizes[i]; n > 0 && n%(1<<u.shift) == 0 {
			return strconv.FormatInt(n>>u.shift, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}

// parseDuration parses a duration; besides Go's units it accepts days.
func parseDuration(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration; expected one such as 30s, 10m or 24h", text)
	}
	return d, nil
}

// showDuration formats a duration without the zeros of Duration.String.
func showDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

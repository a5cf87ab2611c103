package tool

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"strings"
	"unicode/utf8"
)

// decoder reads arguments into a struct as encoding/json does. Flat objects of
// plain texts, whole numbers and truth values, which most calls bring, it reads
// itself, in a fifth of the time; all else it leaves to encoding/json.
type decoder struct {
	fields map[string]plainField // by the name on the wire; nil when nothing is read here
}

type plainField struct {
	index int
	kind  reflect.Kind // String, Bool, Int or Int64; Invalid is for encoding/json
}

func newDecoder(t reflect.Type) decoder {
	if t.Kind() != reflect.Struct {
		return decoder{}
	}
	fields := map[string]plainField{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous, strings.ContainsFunc(name, unusual):
			return decoder{} // its rules are encoding/json's own
		case !f.IsExported(), name == "-" && options == "":
			continue
		case name == "":
			name = f.Name
		}
		if _, twice := fields[name]; twice {
			return decoder{}
		}
		fields[name] = plainField{i, plainKind(f.Type, options)}
	}
	return decoder{fields}
}

func unusual(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_' || r == '-')
}

func plainKind(t reflect.Type, options string) reflect.Kind {
	p := reflect.PointerTo(t)
	if p.Implements(reflect.TypeFor[json.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) ||
		strings.Contains(options, "string") {
		return reflect.Invalid
	}
	switch k := t.Kind(); k {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64:
		return k
	}
	return reflect.Invalid
}

// decode reads args into the struct that into points to. The error is a *Refusal.
func (d decoder) decode(args []byte, into any) error {
	if err := d.read(args, into); err != nil {
		return &Refusal{Code: CodeInvalidArguments, Message: err.Error()}
	}
	return nil
}

func (d decoder) read(args []byte, into any) error {
	if d.fields != nil {
		v := reflect.ValueOf(into).Elem()
		if d.plain(args, v) {
			return nil
		}
		v.SetZero()
	}
	err := json.Unmarshal(args, into)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && strings.HasPrefix(wrong.Value, "number") {
		reflect.ValueOf(into).Elem().SetZero()
		err = json.Unmarshal(integers(args), into)
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field != "" {
		return fmt.Errorf("%s: expected %s, got %s", wrong.Field, expected(wrong.Type), wrong.Value)
	}
	return err
}

// expected words what a value of a type is written as.
func expected(t reflect.Type) string {
	switch k := t.Kind(); {
	case k >= reflect.Int && k <= reflect.Int64:
		half := uint64(1) << (t.Bits() - 1)
		return fmt.Sprintf("an integer from -%d to %d", half, half-1)
	case k >= reflect.Uint && k <= reflect.Uintptr:
		return fmt.Sprintf("an integer from 0 to %d", uint64(1)<<(t.Bits()-1)*2-1)
	case k == reflect.Float32 || k == reflect.Float64:
		return "a number of at most 1.8e308"
	}
	return "a " + t.Kind().String()
}

// integers writes the integers among the numbers of a JSON text without a
// fraction and an exponent, which JSON Schema allows and encoding/json does not
// read into integers.
func integers(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); {
		n := 1
		switch c := text[i]; {
		case c == '"':
			for i+n < len(text) && text[i+n] != '"' {
				if text[i+n] == '\\' {
					n++
				}
				n++
			}
			n = min(n+1, len(text)-i)
		case c == '-' || '0' <= c && c <= '9':
			for i+n < len(text) && strings.IndexByte("0123456789.eE+-", text[i+n]) >= 0 {
				n++
			}
			out = append(out, integer(string(text[i:i+n]))...)
			i += n
			continue
		}
		out = append(out, text[i:i+n]...)
		i += n
	}
	return out
}

// longestNumber bounds what is calculated with.
const longestNumber = 64

func integer(number string) string {
	e := strings.IndexAny(number, "eE")
	if len(number) > longestNumber || e >= 0 && len(number)-e > len("e+999") {
		return number
	}
	if r, ok := new(big.Rat).SetString(number); ok && r.IsInt() && r.Num().IsInt64() {
		return r.Num().String()
	}
	return number
}

// plain reports whether args were plain enough to be read here.
func (d decoder) plain(args []byte, v reflect.Value) bool {
	c := cursor{b: args}
	if !c.take('{') {
		return false
	}
	if c.take('}') {
		return c.over()
	}
	for {
		name, ok := c.text()
		if !ok || !c.take(':') {
			return false
		}
		f, known := d.fields[string(name)]
		if !known || !c.value(v.Field(f.index), f.kind) {
			return false
		}
		if !c.take(',') {
			return c.take('}') && c.over()
		}
	}
}

// cursor reads JSON up to what is not plain.
type cursor struct {
	b  []byte
	at int
}

func (c *cursor) space() {
	for c.at < len(c.b) && (c.b[c.at] == ' ' || c.b[c.at] == '\n' || c.b[c.at] == '\t' || c.b[c.at] == '\r') {
		c.at++
	}
}

func (c *cursor) over() bool {
	c.space()
	return c.at == len(c.b)
}

func (c *cursor) take(want byte) bool {
	c.space()
	if c.at == len(c.b) || c.b[c.at] != want {
		return false
	}
	c.at++
	return true
}

// text reads a string without escapes, of valid UTF-8.
func (c *cursor) text() ([]byte, bool) {
	if !c.take('"') {
		return nil, false
	}
	ascii := true
	for i := c.at; i < len(c.b); i++ {
		switch ch := c.b[i]; {
		case ch == '"':
			s := c.b[c.at:i]
			c.at = i + 1
			return s, ascii || utf8.Valid(s)
		case ch == '\\' || ch < ' ':
			return nil, false
		case ch >= utf8.RuneSelf:
			ascii = false
		}
	}
	return nil, false
}

func (c *cursor) value(to reflect.Value, kind reflect.Kind) bool {
	switch kind {
	case reflect.String:
		s, ok := c.text()
		to.SetString(string(s))
		return ok
	case reflect.Bool:
		c.space()
		yes := c.word("true")
		to.SetBool(yes)
		return yes || c.word("false")
	case reflect.Int, reflect.Int64:
		n, ok := c.whole()
		if ok && !to.OverflowInt(n) {
			to.SetInt(n)
			return true
		}
	}
	return false
}

func (c *cursor) word(w string) bool {
	if len(c.b)-c.at < len(w) || string(c.b[c.at:c.at+len(w)]) != w {
		return false
	}
	c.at += len(w)
	return true
}

// whole reads a number of up to 18 digits and nothing else.
func (c *cursor) whole() (n int64, ok bool) {
	c.space()
	at, minus := c.at, false
	if at < len(c.b) && c.b[at] == '-' {
		minus, at = true, at+1
	}
	first := at
	for at < len(c.b) && '0' <= c.b[at] && c.b[at] <= '9' {
		n = 10*n + int64(c.b[at]-'0')
		if at++; at-first > 18 {
			return 0, false
		}
	}
	if at == first || c.b[first] == '0' && at-first > 1 || at < len(c.b) && strings.IndexByte(".eE", c.b[at]) >= 0 {
		return 0, false
	}
	if c.at = at; minus {
		n = -n
	}
	return n, true
}

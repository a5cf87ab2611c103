package tool

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
)

// What a field of a tool's arguments names of the host, as its tag names says.
// Permission rules are given what the host makes of it.
const (
	NamesPath    = "path"    // a path in the roots of the call, or a list of them
	NamesLine    = "line"    // a command line of a shell
	NamesShell   = "shell"   // the shell of that line; "" is the host's
	NamesProgram = "program" // a program that is started without a shell
	NamesArgs    = "args"    // its arguments
	NamesEnv     = "env"     // variables for what is started, NAME=value
	NamesUnknown = "unknown" // the call touches paths that its arguments do not hold
	NamesCode    = "code"    // the call runs programs that its arguments do not hold
)

// Named is what the arguments of one call name of the host, by kind.
type Named map[string][]string

// Named reads what arguments name of the host, as the handler will read them.
// It returns an error for a tool without Go types: which of its arguments name
// something is not known.
func (d *Def) Named(args json.RawMessage) (Named, error) {
	if d.In == nil || d.Raw != nil {
		return nil, errors.New("what the arguments of " + d.Name + " name is not declared")
	}
	n := Named{}
	if d.In.Kind() != reflect.Struct || !names(d.In) {
		return n, nil
	}
	in := reflect.New(d.In)
	if err := newDecoder(d.In).decode(args, in.Interface()); err != nil {
		return nil, err
	}
	n.collect(in.Elem())
	return n, nil
}

func names(t reflect.Type) bool {
	for f := range t.Fields() {
		if f.Tag.Get("names") != "" || f.Anonymous && f.Type.Kind() == reflect.Struct && names(f.Type) {
			return true
		}
	}
	return false
}

func (n Named) collect(v reflect.Value) {
	for f, value := range v.Fields() {
		kind := f.Tag.Get("names")
		switch {
		case f.Anonymous && value.Kind() == reflect.Struct:
			n.collect(value)
		case kind == "":
		case value.Kind() == reflect.String:
			s := value.String()
			if _, options, _ := strings.Cut(f.Tag.Get("json"), ","); s == "" && kind == NamesPath && options == "" {
				s = "." // an empty path that must be given is the first folder, or refused
			}
			if s != "" || kind == NamesUnknown || kind == NamesCode {
				n[kind] = append(n[kind], s)
			}
		case value.Kind() == reflect.Slice:
			for i := range value.Len() {
				n[kind] = append(n[kind], value.Index(i).String())
			}
		}
	}
}

// NameKind is what an argument names of the host; "" if that is nothing.
func (d *Def) NameKind(argument string) string {
	if d.In == nil || d.In.Kind() != reflect.Struct {
		return ""
	}
	for f := range d.In.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == argument {
			return f.Tag.Get("names")
		}
	}
	return ""
}

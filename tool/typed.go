package tool

import (
	"encoding/json"
	"reflect"
	"strings"
	"sync"
)

// A Facter is a typed output that words its own facts. Facts returns what the
// model needs to know beside the product, such as how to read on, or "".
type Facter interface{ Facts() string }

// Typed makes the result of a typed output. If the output's type has a member
// tagged text:"product", clients are sent that member as text, followed by the
// facts: those that its method Facts words, or else its numbers and every other
// member that is not empty, as [name=value; name=value].
//
// Members tagged text:"facts" are worded by Facts alone.
func Typed(out any) Result {
	res := Result{Structured: Filled(out)}
	switch o := out.(type) {
	case Facter:
		res.Facts = o.Facts()
	default:
		if members := factsOf(reflect.TypeOf(out)); members != nil {
			res.Facts = wordFacts(reflect.ValueOf(out), members)
		}
	}
	return res
}

// fact is one member of an output that is worded beside its product.
type fact struct {
	name  string
	index []int
	rare  bool // is left out when it is zero
}

// knownFacts holds the facts of each output type, because types do not change.
var knownFacts sync.Map // reflect.Type -> []fact

// factsOf lists the members of a type that has a product, and returns nil for
// every other type.
func factsOf(t reflect.Type) []fact {
	if t == nil || t.Kind() != reflect.Struct {
		return nil
	}
	if known, ok := knownFacts.Load(t); ok {
		return known.([]fact)
	}
	var all []fact
	product := false
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Tag.Get("text") == "product":
			product = true
		case f.IsExported() && !f.Anonymous && name != "" && name != "-" && f.Tag.Get("text") == "":
			number := f.Type.Kind() >= reflect.Int && f.Type.Kind() <= reflect.Float64
			all = append(all, fact{name, f.Index, !number || options != ""})
		}
	}
	if !product {
		all = nil
	}
	knownFacts.Store(t, all)
	return all
}

func wordFacts(v reflect.Value, members []fact) string {
	var words []string
	for _, m := range members {
		f := v.FieldByIndex(m.index)
		if m.rare && f.IsZero() {
			continue
		}
		words = append(words, m.name+"="+Fact(f.Interface()))
	}
	return Facts(words...)
}

// Facts words facts as one line, in brackets. Empty ones are left out; without
// any it returns "".
func Facts(words ...string) string {
	var b strings.Builder
	for _, w := range words {
		if w == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteString("; ")
		}
		b.WriteString(w)
	}
	if b.Len() == 0 {
		return ""
	}
	return "[" + b.String() + "]"
}

// Fact words one value of a fact: a plain word as it is, everything else as
// JSON, so that a value can pose neither as another fact nor as another line.
func Fact(v any) string {
	if s, ok := v.(string); ok && s != "" && !strings.ContainsFunc(s, notPlain) {
		return s
	}
	b, err := json.Marshal(v)
	if err != nil {
		return "?"
	}
	return string(b)
}

func notPlain(r rune) bool {
	return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"[];=\`, r)
}

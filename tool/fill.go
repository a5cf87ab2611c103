package tool

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"sync"
)

// Filled returns out with an empty slice or map for every nil one that
// encoding/json would write as null. A list without entries is an empty list:
// clients that pass schemas on take no list that may be null. out itself is
// not changed; what holds nothing to fill is returned as it is.
func Filled(out any) any {
	v := reflect.ValueOf(out)
	if !v.IsValid() || !fillable(v.Type()) {
		return out
	}
	return filled(v).Interface()
}

// known holds which types can hold a nil slice or map, because types do not
// change.
var known sync.Map // reflect.Type -> bool

var (
	marshaler     = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

// fillable reports whether a value of a type can hold a nil slice or map that
// is written as null. Of a type that holds itself, as a tree does, it can.
func fillable(t reflect.Type) bool {
	if yes, ok := known.Load(t); ok {
		return yes.(bool)
	}
	known.Store(t, true)
	yes := holds(t)
	known.Store(t, yes)
	return yes
}

func holds(t reflect.Type) bool {
	if t.Implements(marshaler) || t.Implements(textMarshaler) {
		return false
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Map:
		return true
	case reflect.Pointer, reflect.Array:
		return fillable(t.Elem())
	case reflect.Struct:
		for f := range t.Fields() {
			if (f.IsExported() || f.Anonymous) && f.Tag.Get("json") != "-" && fillable(f.Type) {
				return true
			}
		}
	}
	return false
}

// filled returns a copy of v, of the parts of it that can hold a nil slice or
// map.
func filled(v reflect.Value) reflect.Value {
	t := v.Type()
	if !fillable(t) {
		return v
	}
	switch t.Kind() {
	case reflect.Slice:
		if v.IsNil() {
			return reflect.MakeSlice(t, 0, 0)
		}
		if !fillable(t.Elem()) {
			return v
		}
		c := reflect.MakeSlice(t, v.Len(), v.Len())
		for i := range v.Len() {
			c.Index(i).Set(filled(v.Index(i)))
		}
		return c
	case reflect.Map:
		if v.IsNil() {
			return reflect.MakeMap(t)
		}
		if !fillable(t.Elem()) {
			return v
		}
		c := reflect.MakeMapWithSize(t, v.Len())
		for key, e := range v.Seq2() {
			c.SetMapIndex(key, filled(e))
		}
		return c
	case reflect.Pointer:
		if v.IsNil() {
			return v
		}
		c := reflect.New(t.Elem())
		c.Elem().Set(filled(v.Elem()))
		return c
	case reflect.Array:
		c := reflect.New(t).Elem()
		for i := range v.Len() {
			c.Index(i).Set(filled(v.Index(i)))
		}
		return c
	case reflect.Struct:
		c := reflect.New(t).Elem()
		c.Set(v)
		for i := range t.NumField() {
			f := t.Field(i)
			_, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			rare := strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
			if c.Field(i).CanSet() && !(rare && v.Field(i).IsZero()) {
				c.Field(i).Set(filled(v.Field(i)))
			}
		}
		return c
	}
	return v
}

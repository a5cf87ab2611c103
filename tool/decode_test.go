package tool

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"time"
)

type word string

func (w *word) UnmarshalText(b []byte) error { *w = word("read " + string(b)); return nil }

type arguments struct {
	Path   string   `json:"path"`
	Limit  int      `json:"limit,omitempty"`
	Size   int64    `json:"size"`
	All    bool     `json:"all"`
	Named  string   // without a tag
	Quoted int      `json:"quoted,string"`
	Word   word     `json:"word"`
	Wait   duration `json:"wait"`
	Names  []string `json:"names"`
	Small  int8     `json:"small"`
	Hidden string   `json:"-"`
}

type duration time.Duration

// What is read here is what encoding/json reads, and what it refuses is refused,
// but for integers in other notations.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{
		`{}`, ` { "path" : "a" , "limit" : -12,"all":true } `, `{"path":"a","path":"ä"}`, `{"path":"\u0061"}`,
		`{"path":null}`, `{"Path":"a"}`,
		`{"limit":01}`, `{"limit":-0}`, `{"limit":1.0}`, `{"limit":1e3}`, `{"size":9223372036854775807}`,
		`{"size":123456789012345678}`, `{"all":falsey}`,
		`{"Named":"a","hidden":"b","-":"c","secret":"d"}`, `{"quoted":"12"}`, `{"word":"a"}`, `{"wait":5}`,
		`{"names":["a"]}`, `{"small":300}`,
		`{"path":"a"} x`, `{"path":"a",}`, "{\"path\":\"\xff\"}", `[]`, `null`, ``, `{"path"`, `{"limit":-}`,
		`{"limit":1,"all":tru`,
	} {
		f.Add([]byte(text))
	}
	d := newDecoder(reflect.TypeFor[arguments]())
	f.Fuzz(func(t *testing.T, text []byte) {
		var want, got arguments
		wantErr := json.Unmarshal(text, &want)
		if _, ok := errors.AsType[*json.UnmarshalTypeError](wantErr); ok {
			want = arguments{}
			wantErr = json.Unmarshal(integers(text), &want)
		}
		if err := d.decode(text, &got); (err == nil) != (wantErr == nil) ||
			err == nil && !reflect.DeepEqual(got, want) {
			t.Fatalf("%q is read as %+v, %v; encoding/json reads %+v, %v", text, got, err, want, wantErr)
		}
	})
}

func TestPlainArgumentsAreReadWithoutEncodingJSON(t *testing.T) {
	d := newDecoder(reflect.TypeFor[arguments]())
	var in arguments
	if !d.plain([]byte(`{"path":"a/ä","limit":40,"size":-7,"all":true,"wait":3}`), reflect.ValueOf(&in).Elem()) {
		t.Error("it is left to encoding/json")
	}
	if d := newDecoder(reflect.TypeFor[struct{ arguments }]()); d.fields != nil {
		t.Error("embedded fields are not for us")
	}
}

func BenchmarkDecode(b *testing.B) {
	text := []byte(`{"path":"docs/design.md","limit":40,"all":true}`)
	d := newDecoder(reflect.TypeFor[arguments]())
	b.Run("here", func(b *testing.B) {
		for b.Loop() {
			var in arguments
			if err := d.decode(text, &in); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("encoding json", func(b *testing.B) {
		for b.Loop() {
			var in arguments
			if err := json.Unmarshal(text, &in); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// JSON Schema takes 2.0 for an integer, so a tool does; what no integer holds
// is refused in words about the argument.
func TestIntegersInEveryNotation(t *testing.T) {
	type in struct {
		N    int      `json:"n"`
		IDs  []int64  `json:"ids"`
		Byte uint8    `json:"byte"`
		F    float64  `json:"f"`
		S    []string `json:"s"`
	}
	d := newDecoder(reflect.TypeFor[in]())
	for text, want := range map[string]in{
		`{"n":2.0}`:                                 {N: 2},
		`{"ids":[1.0,-1e2,9007199254740993.0]}`:     {IDs: []int64{1, -100, 9007199254740993}},
		`{"n":1.20e1,"s":["2.0\"","3.0"],"f":2.50}`: {N: 12, S: []string{`2.0"`, "3.0"}, F: 2.5},
	} {
		var got in
		if err := d.decode([]byte(text), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		`{"n":99999999999999999999}`: "n: expected an integer from -9223372036854775808 to 9223372036854775807, " +
			"got number 99999999999999999999",
		`{"ids":[1.5]}`: "ids: expected an integer from -9223372036854775808 to 9223372036854775807, " +
			"got number 1.5",
		`{"byte":256.0}`: "byte: expected an integer from 0 to 255, got number 256",
		`{"n":1e999999999}`: "n: expected an integer from -9223372036854775808 to 9223372036854775807, " +
			"got number 1e999999999",
		`{"f":1e400}`: "f: expected a number of at most 1.8e308, got number 1e400",
	} {
		var got in
		if err := d.decode([]byte(text), &got); err == nil || err.Error() != "invalid_arguments: "+want {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}

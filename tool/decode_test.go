package tool

import (
	"encoding/json"
	"fmt"
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

// What is read here is what encoding/json reads, and what it refuses is refused.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{
		`{}`, ` { "path" : "a" , "limit" : -12,"all":true } `, `{"path":"a","path":"ä"}`, `{"path":"\u0061"}`, `{"path":null}`, `{"Path":"a"}`,
		`{"limit":01}`, `{"limit":-0}`, `{"limit":1.0}`, `{"limit":1e3}`, `{"size":9223372036854775807}`, `{"size":123456789012345678}`, `{"all":falsey}`,
		`{"Named":"a","hidden":"b","-":"c","secret":"d"}`, `{"quoted":"12"}`, `{"word":"a"}`, `{"wait":5}`, `{"names":["a"]}`, `{"small":300}`,
		`{"path":"a"} x`, `{"path":"a",}`, "{\"path\":\"\xff\"}", `[]`, `null`, ``, `{"path"`, `{"limit":-}`, `{"limit":1,"all":tru`,
	} {
		f.Add([]byte(text))
	}
	d := newDecoder(reflect.TypeFor[arguments]())
	f.Fuzz(func(t *testing.T, text []byte) {
		var want, got arguments
		wantErr := json.Unmarshal(text, &want)
		if err := d.decode(text, &got); fmt.Sprint(err) != fmt.Sprint(wantErr) || !reflect.DeepEqual(got, want) {
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

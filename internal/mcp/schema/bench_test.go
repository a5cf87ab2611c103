package schema

import (
	"reflect"
	"strings"
	"testing"

	"gatehouse/internal/mcp/rawjson"
)

type readArgs struct {
	Path   string `json:"path" doc:"the file" min:"1"`
	Offset int    `json:"offset,omitempty" doc:"first line" min:"1"`
	Limit  int    `json:"limit" doc:"lines" min:"1" max:"2000" default:"200"`
	Mode   string `json:"mode" enum:"text,hex,auto" default:"auto"`
}

func compiled(tb testing.TB, t reflect.Type) *Schema {
	tb.Helper()
	raw, err := For(t)
	if err != nil {
		tb.Fatal(err)
	}
	s, err := Compile(raw)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func BenchmarkCanonical(b *testing.B) {
	s := compiled(b, reflect.TypeFor[readArgs]())
	for name, args := range map[string]string{
		"complete":        `{"path":"docs/design.md","offset":10,"limit":500,"mode":"text"}`,
		"two defaults in": `{"path":"docs/design.md","offset":10}`,
	} {
		b.Run(name, func(b *testing.B) {
			raw := []byte(args)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Canonical(raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCheck(b *testing.B) {
	s := compiled(b, reflect.TypeFor[readArgs]())
	any, err := Compile([]byte(`{"allOf":[` + string(s.Raw()) + `]}`))
	if err != nil {
		b.Fatal(err)
	}
	type write struct {
		Path    string `json:"path"`
		Content string `json:"content"`
	}
	big := `{"path":"a","content":` + string(rawjson.AppendString(nil, strings.Repeat("a line of text\n", 70000))) + `}`
	for name, c := range map[string]struct {
		s    *Schema
		text string
	}{
		"walker": {s, `{"path":"docs/design.md","offset":10,"limit":500,"mode":"text"}`},
		"full":   {any, `{"path":"docs/design.md","offset":10,"limit":500,"mode":"text"}`},
		"wrong":  {s, `{"pth":"docs/design.md","offset":"x"}`},
		"1MB":    {compiled(b, reflect.TypeFor[write]()), big},
	} {
		b.Run(name, func(b *testing.B) {
			raw := []byte(c.text)
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if err := c.s.Check(raw); err != nil && name != "wrong" {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	raw, err := For(reflect.TypeFor[readArgs]())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Compile(raw); err != nil {
			b.Fatal(err)
		}
	}
}

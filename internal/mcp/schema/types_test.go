package schema

import (
	"encoding/json"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"testing/quick"
	"time"

	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

type inner struct {
	A string `json:"a"`
	B int    `json:"b,omitempty"`
}

type loop struct {
	Name string `json:"name"`
	Kids []loop `json:"kids,omitempty"`
}

type pair struct {
	Left  *loop `json:"left,omitempty"`
	Right loop  `json:"right"`
}

type list []list

type deepName struct {
	Name string `json:"name"`
	Only string `json:"only"`
}

// Every tag and every kind of type, with the complete schema.
func TestFor(t *testing.T) {
	const end = `,"additionalProperties":false}`
	for _, c := range []struct {
		what string
		of   any
		want string
	}{
		{"nothing", struct{}{}, `{"type":"object","properties":{}` + end},
		{"plain types, in order", struct {
			Z string
			B bool    `json:"b"`
			N float64 `json:"n"`
			I int     `json:"i"`
			X any     `json:"x"`
			hidden,
			_ int
			Skip int `json:"-"`
		}{}, `{"type":"object","properties":{"Z":{"type":"string"},"b":{"type":"boolean"},"n":{"type":"number"},"i":{"type":"integer"},"x":{}},"required":["Z","b","n","i","x"]` + end},
		{"optional members", struct {
			A int    `json:"a,omitempty"`
			B int    `json:"b,omitzero"`
			C *int   `json:"c"`
			D string `json:"d" default:"x"`
		}{}, `{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"},"c":{"type":"integer"},"d":{"type":"string","default":"x"}}` + end},
		{"documentation", struct {
			A string `json:"a,omitempty" doc:"the \"a\" <b>"`
		}{}, `{"type":"object","properties":{"a":{"type":"string","description":"the \"a\" <b>"}}` + end},
		{"defaults by type", struct {
			S string        `json:"s" default:"[1]"`
			Q string        `json:"q" default:"\"quoted\""`
			E string        `json:"e" default:""`
			I int           `json:"i" default:"7"`
			B bool          `json:"b" default:"true"`
			L []int         `json:"l" default:"[1, 2]"`
			D time.Duration `json:"d" default:"5"`
			T time.Time     `json:"t" default:"2026-01-02T03:04:05Z"`
		}{}, `{"type":"object","properties":{"s":{"type":"string","default":"[1]"},"q":{"type":"string","default":"quoted"},"e":{"type":"string","default":""},"i":{"type":"integer","default":7},"b":{"type":"boolean","default":true},"l":{"type":"array","items":{"type":"integer"},"default":[1,2]},"d":{"type":"integer","default":5},"t":{"type":"string","format":"date-time","default":"2026-01-02T03:04:05Z"}}` + end},
		{"bounds by type", struct {
			I int      `json:"i,omitempty" min:"1" max:"9"`
			S string   `json:"s,omitempty" min:"1" max:"9"`
			L []string `json:"l,omitempty" min:"1" max:"9"`
			F float64  `json:"f,omitempty" min:"-0.5" max:"1e3"`
		}{}, `{"type":"object","properties":{"i":{"type":"integer","minimum":1,"maximum":9},"s":{"type":"string","minLength":1,"maxLength":9},"l":{"type":"array","items":{"type":"string"},"minItems":1,"maxItems":9},"f":{"type":"number","minimum":-0.5,"maximum":1e3}}` + end},
		{"small integers", struct {
			A int8   `json:"a,omitempty"`
			B uint16 `json:"b,omitempty" min:"5"`
			C uint   `json:"c,omitempty"`
		}{}, `{"type":"object","properties":{"a":{"type":"integer","minimum":-128,"maximum":127},"b":{"type":"integer","minimum":5,"maximum":65535},"c":{"type":"integer","minimum":0}}` + end},
		{"choices, patterns and formats", struct {
			E string   `json:"e,omitempty" enum:"a,b,c"`
			N int      `json:"n,omitempty" enum:"1,2"`
			L []string `json:"l,omitempty" enum:"x,y"`
			P string   `json:"p,omitempty" pattern:"^a+$"`
			U string   `json:"u,omitempty" format:"uri"`
		}{}, `{"type":"object","properties":{"e":{"type":"string","enum":["a","b","c"]},"n":{"type":"integer","enum":[1,2]},"l":{"type":"array","items":{"type":"string","enum":["x","y"]}},"p":{"type":"string","pattern":"^a+$"},"u":{"type":"string","format":"uri"}}` + end},
		{"headers", struct {
			R string `json:"r,omitempty" header:"Region"`
		}{}, `{"type":"object","properties":{"r":{"type":"string","x-mcp-header":"Region"}}` + end},
		{"types that encode themselves", struct {
			T time.Time       `json:"t,omitzero"`
			R json.RawMessage `json:"r,omitempty"`
			N json.Number     `json:"n,omitempty"`
			A netip.Addr      `json:"a,omitzero"`
			B []byte          `json:"b,omitempty"`
			S int             `json:"s,omitempty,string"`
		}{}, `{"type":"object","properties":{"t":{"type":"string","format":"date-time"},"r":{},"n":{"type":"number"},"a":{"type":"string"},"b":{"type":"string","contentEncoding":"base64"},"s":{"type":"string"}}` + end},
		{"nested", struct {
			M map[string]int `json:"m,omitempty"`
			A map[string]any `json:"a,omitempty"`
			F [2]bool        `json:"f,omitempty"`
			S []inner        `json:"s,omitempty"`
		}{}, `{"type":"object","properties":{"m":{"type":"object","additionalProperties":{"type":"integer"}},"a":{"type":"object"},"f":{"type":"array","items":{"type":"boolean"},"minItems":2,"maxItems":2},"s":{"type":"array","items":{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer"}},"required":["a"],"additionalProperties":false}}}` + end},
		{"embedded structs", struct {
			inner
			*deepName
			Name string `json:"name"`
		}{}, `{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer"},"name":{"type":"string"}},"required":["a","name"]` + end},
		{
			"a type inside itself",
			loop{},
			`{"type":"object","properties":{"name":{"type":"string"},"kids":{"type":"array","items":{"$ref":"#"}}},"required":["name"]` + end,
		},
		{
			"a type inside itself, further in",
			pair{},
			`{"type":"object","properties":{"left":{"$ref":"#/$defs/loop"},"right":{"$ref":"#/$defs/loop"}},"required":["right"],"additionalProperties":false,"$defs":{"loop":{"type":"object","properties":{"name":{"type":"string"},"kids":{"type":"array","items":{"$ref":"#/$defs/loop"}}},"required":["name"],"additionalProperties":false}}}`,
		},
		{"a list of itself", list{}, `{"type":"array","items":{"$ref":"#"}}`},
	} {
		got, err := For(reflect.TypeOf(c.of))
		if err != nil || string(got) != c.want {
			t.Errorf("%s: got\n%s, %v, want\n%s", c.what, got, err, c.want)
		}
	}
}

func TestForOutput(t *testing.T) {
	for _, c := range []struct {
		what string
		of   any
		want string
	}{
		{"what is always written is required", struct {
			A int `json:"a" default:"3"`
			B int `json:"b,omitempty"`
		}{}, `{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"required":["a"]}`},
		{"what can be nil may be null", struct {
			L []int          `json:"l"`
			O []int          `json:"o,omitempty"`
			D [][]int        `json:"d,omitempty"`
			M map[string]int `json:"m"`
			P *inner         `json:"p"`
			E *string        `json:"e" enum:"a,b"`
			B []byte         `json:"b"`
		}{}, `{"type":"object","properties":{"l":{"type":"array","items":{"type":"integer"}},"o":{"type":"array","items":{"type":"integer"}},"d":{"type":"array","items":{"type":"array","items":{"type":"integer"}}},"m":{"type":"object","additionalProperties":{"type":"integer"}},"p":{"type":["object","null"],"properties":{"a":{"type":"string"},"b":{"type":"integer"}},"required":["a"]},"e":{"type":["string","null"],"enum":["a","b",null]},"b":{"type":"string","contentEncoding":"base64"}},"required":["l","m","p","e","b"]}`},
		{"the product is a member like any other", struct {
			Text string `json:"text" text:"product"`
			Next int    `json:"next"`
		}{}, `{"type":"object","properties":{"text":{"type":"string"},"next":{"type":"integer"}},"required":["text","next"]}`},
		{"references that may be nil", struct {
			L *loop `json:"l"`
		}{}, `{"type":"object","properties":{"l":{"anyOf":[{"$ref":"#/$defs/loop"},{"type":"null"}]}},"required":["l"],"$defs":{"loop":{"type":"object","properties":{"name":{"type":"string"},"kids":{"type":"array","items":{"$ref":"#/$defs/loop"}}},"required":["name"]}}}`},
	} {
		got, err := ForOutput(reflect.TypeOf(c.of))
		if err != nil || string(got) != c.want {
			t.Errorf("%s: got\n%s, %v, want\n%s", c.what, got, err, c.want)
		}
	}
}

func TestForRefuses(t *testing.T) {
	for _, c := range []struct {
		of   any
		want string
	}{
		{struct {
			F func() `json:"f"`
		}{}, "f: func() has no JSON form"},
		{struct {
			C []chan int `json:"c"`
		}{}, "c: items: chan int has no JSON form"},
		{struct {
			M map[float64]int `json:"m"`
		}{}, "m: map[float64]int: keys must be strings or integers"},
		{struct {
			A int `json:"a" min:"x"`
		}{}, `a: min: "x" is not a number`},
		{struct {
			A bool `json:"a" max:"1"`
		}{}, "a: min and max do not apply to this type"},
		{struct {
			A int `json:"a" pattern:"x"`
		}{}, "a: pattern does not apply to this type"},
		{struct {
			A int `json:"a" enum:"1,x"`
		}{}, `a: enum: "x" is no integer`},
		{struct {
			A string `json:"a" pattern:"("`
		}{}, "/properties/a/pattern: error parsing regexp"},
		{struct {
			A int `json:"a" default:"x"`
		}{}, `a: default: "x" is not JSON`},
		{struct {
			A int `json:"a" max:"5" default:"7"`
		}{}, "default of a: arguments: expected an integer of at most 5, got 7"},
		{struct {
			L []struct {
				A int `json:"a" default:"true"`
			} `json:"l"`
		}{}, "default of l[].a: arguments: expected an integer, got true"},
		{struct {
			A float64 `json:"a" header:"X"`
		}{}, `a: x-mcp-header "X" needs the type`},
		{struct {
			A []struct {
				B string `json:"b" header:"X"`
			} `json:"a"`
		}{}, `x-mcp-header "X" can stand only where properties alone lead`},
		{struct {
			A string `json:"a" header:"X"`
			B string `json:"b" header:"x"`
		}{}, `b: x-mcp-header "x" is used twice`},
	} {
		if _, err := For(reflect.TypeOf(c.of)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%T: got %v, want %q", c.of, err, c.want)
		}
	}
	if _, err := ForOutput(reflect.TypeFor[struct {
		N int `json:"n" text:"product"`
	}]()); err == nil || !strings.Contains(err.Error(), "n: the product of a tool must be a string") {
		t.Errorf("got %v", err)
	}
}

func TestProduct(t *testing.T) {
	type page struct {
		inner
		Text string `json:"text" text:"product"`
	}
	type two struct {
		A string `text:"product"`
		B string `text:"product"`
	}
	for _, c := range []struct {
		of   reflect.Type
		want string
	}{
		{reflect.TypeFor[page](), "text"}, {reflect.TypeFor[*page](), "text"}, {reflect.TypeFor[inner](), ""},
		{reflect.TypeFor[two](), ""}, {reflect.TypeFor[[]page](), ""},
	} {
		if got, ok := Product(c.of); got != c.want || ok != (c.want != "") {
			t.Errorf("%s: got %q, %v, want %q", c.of, got, ok, c.want)
		}
	}
}

type everything struct {
	S    string
	I    int64   `json:"i"`
	U    uint8   `json:"u,omitempty"`
	F    float32 `json:"f"`
	B    []byte
	L    []inner        `json:"l"`
	LL   [][]string     `json:"ll,omitempty"`
	A    [3]*int        `json:"a"`
	M    map[string]any `json:"m"`
	MI   map[int]*inner `json:"mi,omitempty"`
	P    *inner         `json:"p"`
	O    *inner         `json:"o,omitempty"`
	Any  any
	T    time.Time       `json:"t"`
	D    time.Duration   `json:"d,omitzero"`
	Raw  json.RawMessage `json:"raw"`
	Q    int             `json:"q,string"`
	Addr netip.Addr      `json:"addr"`
	inner
	*deepName
	Tree  *loop `json:"tree"`
	Trees []loop
}

// Generate generates values for types that testing/quick does not support.
func (everything) Generate(r *rand.Rand) everything {
	some := func() bool { return r.IntN(2) == 0 }
	text := func() string { return string([]rune{rune(r.IntN(0x3000)), '"', rune(r.IntN(128))}) }
	var e everything
	e.S, e.I, e.U, e.F = text(), r.Int64()-r.Int64(), uint8(r.IntN(256)), r.Float32()
	e.A[1] = new(int)
	e.D = time.Duration(r.IntN(2))
	e.Raw = json.RawMessage(`{"x":[1]}`)
	if some() {
		e.B, e.L, e.LL = []byte(text()), []inner{{A: text()}, {B: 1}}, [][]string{nil, {}, {text()}}
	}
	if some() {
		e.M, e.MI = map[string]any{text(): 1, "n": nil}, map[int]*inner{-1: nil, 5: {}}
	}
	if some() {
		e.P, e.O, e.Any, e.deepName = &inner{}, &inner{A: text()}, []any{1.5, nil}, &deepName{}
	}
	if some() {
		e.T, e.Addr = time.Now(), netip.MustParseAddr("::1")
		e.Tree, e.Trees = &loop{Kids: []loop{{}, {Name: text(), Kids: []loop{{}}}}}, []loop{}
	}
	return e
}

// The encoding of any Go value is valid by the output schema of its type.
func TestOutputsFitTheirOwnSchema(t *testing.T) {
	raw, err := ForOutput(reflect.TypeFor[everything]())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Compile(raw)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		text, err := json.Marshal(tool.Filled(everything{}.Generate(r)))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Check(text); err != nil {
			t.Fatalf("%s\n%s\n%v", raw, text, err)
		}
	}
	type plain struct {
		A string
		B []int8
		C map[string][]bool
		D *float64
		E [2]uint16
		F struct{ G, H *string }
	}
	if raw, err = ForOutput(reflect.TypeFor[plain]()); err != nil {
		t.Fatal(err)
	}
	if s, err = Compile(raw); err != nil {
		t.Fatal(err)
	}
	if err := quick.Check(func(v plain) bool {
		text, err := json.Marshal(v)
		return err == nil && s.Check(text) == nil
	}, nil); err != nil {
		t.Error(err)
	}
}

// Arguments that are valid by the schema of a type can be decoded into the type.
func TestArgumentsThatFitDecode(t *testing.T) {
	s := compiled(t, reflect.TypeFor[readArgs]())
	args, err := s.Canonical([]byte(`{"path":"a"}`))
	if err != nil {
		t.Fatal(err)
	}
	var got readArgs
	if err := json.Unmarshal(args, &got); err != nil {
		t.Fatal(err)
	}
	if want := (readArgs{Path: "a", Limit: 200, Mode: "auto"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if rawjson.Check(args, 0) != nil {
		t.Errorf("%s is not JSON", args)
	}
}

package rawjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestCheckAccepts(t *testing.T) {
	for _, text := range []string{
		`{}`, `[]`, `""`, `0`, `-0`, `1.5e+10`, `-12.25E-3`, `true`, `false`, `null`,
		" \t\r\n[ 1 , {\"a\" : [ ] } ] \n", `{"a":{"a":{"a":1}},"b":{"a":1}}`,
		`"\ud83d\ude00 \u0000 \/ é 日本 😀"`, `123456789012345678901234567890`,
		`{"":1," ":2}`, strings.Repeat("[", 128) + strings.Repeat("]", 128),
	} {
		if err := Check([]byte(text), 0); err != nil {
			t.Errorf("%s: got %v, want nil", text, err)
		}
	}
}

func TestCheckRefuses(t *testing.T) {
	for _, c := range []struct {
		text   string
		offset int
		msg    string
	}{
		{``, 0, "end of text"},
		{`  `, 2, "end of text"},
		{`{`, 1, "end of text"},
		{`"abc`, 4, "end of text"},
		{`"\`, 1, "bad escape"},
		{`{"a":1`, 6, "end of text"},
		{`{"a" 1}`, 5, "colon"},
		{`{"a":1,}`, 7, "member name"},
		{`{a:1}`, 1, "member name"},
		{`[1,]`, 3, "expected a value"},
		{`[1 2]`, 3, "comma or ]"},
		{`{"a":1;}`, 6, "comma or }"},
		{`1 2`, 2, "after the value"},
		{`01`, 1, "leading zero"},
		{`-`, 1, "end of text"},
		{`1.`, 2, "end of text"},
		{`[1.]`, 3, "digit"},
		{`[1e]`, 3, "digit"},
		{`[-]`, 2, "digit"},
		{`+1`, 0, "expected a value"},
		{`NaN`, 0, "expected a value"},
		{`[truE]`, 1, "expected true"},
		{"\"a\nb\"", 2, "control character"},
		{"\"a\x00b\"", 2, "control character"},
		{"\"\xff\"", 1, "UTF-8"},
		{"\"\xed\xa0\x80\"", 1, "UTF-8"},
		{"\xef\xbb\xbf1", 0, "expected a value"},
		{`"\ud800"`, 1, "escape"},
		{`"\ud800\u0041"`, 1, "escape"},
		{`"\udc00\ud800"`, 1, "escape"},
		{`"\u12g4"`, 1, "escape"},
		{`"\x"`, 1, "escape"},
		{`{"a":1,"a":2}`, 7, "same name"},
		{`{"a":1,"\u0061":2}`, 7, "same name"},
		{`[{"b":{"a":1,"a":2}}]`, 13, "same name"},
		{strings.Repeat("[", 129) + strings.Repeat("]", 129), 128, "too deep"},
		{strings.Repeat(`{"a":`, 129), 5 * 128, "too deep"},
	} {
		err := Check([]byte(c.text), 0)
		se, ok := errors.AsType[*SyntaxError](err)
		if !ok || se.Offset != c.offset || !strings.Contains(se.Msg, c.msg) {
			t.Errorf("%q: got %v, want %q at %d", c.text, err, c.msg, c.offset)
		}
	}
}

func TestCheckKeepsToTheDepthItIsGiven(t *testing.T) {
	if err := Check([]byte(`[{"a":1}]`), 2); err != nil {
		t.Error(err)
	}
	if err := Check([]byte(`[{"a":[]}]`), 2); err == nil {
		t.Error("three levels passed as two")
	}
	if err := Check([]byte(`[[],[],[],{}]`), 2); err != nil {
		t.Errorf("siblings counted as levels: %v", err)
	}
}

// A repeated name in a large object, escaped the second time, is found in every position, also if large
// objects nest in small ones and the other way round.
func TestCheckFindsDuplicatesInLargeObjects(t *testing.T) {
	for _, n := range []int{1, smallObject - 1, smallObject, smallObject + 1, 1000} {
		var b []byte
		for i := range n {
			b = fmt.Appendf(b, `"key%d":{"key0":%d},`, i, i)
		}
		good := "{" + string(b) + `"last":[{"key0":1}]}`
		if err := Check([]byte(good), 0); err != nil {
			t.Errorf("%d members: %v", n, err)
		}
		for _, again := range []string{"key0", `\u006bey0`, fmt.Sprintf("key%d", n-1)} {
			if err := Check([]byte("{"+string(b)+`"`+again+`":1}`), 0); err == nil {
				t.Errorf("%d members: second %s passed", n, again)
			}
		}
	}
}

func TestCheckDoesNotAllocate(t *testing.T) {
	msg := []byte(message)
	if n := testing.AllocsPerRun(100, func() {
		if Check(msg, 0) != nil {
			t.Fail()
		}
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

const message = `{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"file_read","arguments":{"path":"docs/design.md","offset":10,"limit":200,"text":"a \"quoted\" line\nand another"},"_meta":{"progressToken":"p-17"}}}`

func TestWalkingDoesNotAllocate(t *testing.T) {
	msg, arr := []byte(message), []byte(`[1, {"a":[2]}, "x"]`)
	if n := testing.AllocsPerRun(100, func() {
		count := 0
		for k := range Object(msg) {
			count += len(k)
		}
		for v := range Elements(arr) {
			count += len(v)
		}
		params, _ := Get(msg, "params")
		name, _ := Get(params, "name")
		if !Equal(name, "file_read") || count != 7+2+6+6+1+9+3 {
			t.Fail()
		}
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

func TestMembers(t *testing.T) {
	var got []string
	err := Each([]byte(` { "a" : 1 , "\u0062\n" : { "x" : [ 1 , 2 ] } ,"c":"}\"" } `), func(k string, v []byte) bool {
		got = append(got, k+"="+string(v))
		return true
	})
	want := []string{"a=1", "b\n={ \"x\" : [ 1 , 2 ] }", `c="}\""`}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if err := Each([]byte(`[1]`), func(string, []byte) bool { return true }); err == nil {
		t.Error("an array passed as an object")
	}
	n := 0
	_ = Each([]byte(`{"a":1,"b":2}`), func(string, []byte) bool { n++; return false })
	if n != 1 {
		t.Errorf("stopped after %d members, want 1", n)
	}
}

func TestElements(t *testing.T) {
	var got []string
	for v := range Elements([]byte(` [ 1 ,"a]", [ 2 ] , {"b":[]},null ] `)) {
		got = append(got, string(v))
	}
	if want := []string{"1", `"a]"`, "[ 2 ]", `{"b":[]}`, "null"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A cursor enters some values and skips the rest, once.
func TestCursor(t *testing.T) {
	text := []byte(`{"a":[1,[2],{}],"b":{"c":true}} `)
	c := At(text)
	c.Enter()
	var got []string
	for {
		k, ok := c.Key()
		if !ok {
			break
		}
		if c.Kind() == '[' {
			for c.Enter(); c.More(); {
				got = append(got, string(c.Value()))
			}
			continue
		}
		got = append(got, string(k)+string(c.Value()))
	}
	if want := []string{"1", "[2]", "{}", `b{"c":true}`}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if c.Offset() != len(text)-1 {
		t.Errorf("offset %d, want %d", c.Offset(), len(text)-1)
	}
}

func TestGet(t *testing.T) {
	obj := []byte(`{"a":{"b":1},"\u0062":2}`)
	if v, ok := Get(obj, "b"); !ok || string(v) != "2" {
		t.Errorf("got %s, %v, want 2", v, ok)
	}
	if v, ok := Get(obj, "c"); ok {
		t.Errorf("got %s, want nothing", v)
	}
}

func TestKind(t *testing.T) {
	for text, want := range map[string]byte{
		"{}": '{', " [1]": '[', "\n\"a\"": '"', "-1": '0', "7": '0', "true": 't', "false": 'f', "null": 'n',
		"": 0, "  ": 0, "x": 0, "}": 0, "+1": 0,
	} {
		if got := Kind([]byte(text)); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestStrings(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`""`, ""}, {`"abc"`, "abc"}, {` "a\nb" `, "a\nb"}, {`"\ud83d\ude00"`, "😀"},
		{`"\"\\\/\b\f\r\t\u00e9"`, "\"\\/\b\f\r\té"},
	} {
		if got, ok := String([]byte(c.text)); !ok || got != c.want {
			t.Errorf("%s: got %q, %v, want %q", c.text, got, ok, c.want)
		}
		if !Equal([]byte(c.text), c.want) {
			t.Errorf("%s does not equal %q", c.text, c.want)
		}
		if Equal([]byte(c.text), c.want+"x") || Equal([]byte(c.text), "y"+c.want) {
			t.Errorf("%s equals something else", c.text)
		}
	}
	for _, text := range []string{``, `"`, `1`, `null`, `"a`, `"a"b"`, `"\x"`} {
		if got, ok := String([]byte(text)); ok {
			t.Errorf("%s: got %q, want nothing", text, got)
		}
		if Equal([]byte(text), "a") {
			t.Errorf("%s equals a", text)
		}
	}
	if Equal([]byte(`"\n"`), `\n`) {
		t.Error("an escape equals its own spelling")
	}
}

func TestLengthCountsCodePoints(t *testing.T) {
	for text, want := range map[string]int{
		`""`: 0, `"abc"`: 3, `"日本"`: 2, `"\u00e9"`: 1, `"\ud83d\ude00"`: 1, `"a\nb"`: 3, `"😀é"`: 2, `12`: 0, ``: 0,
	} {
		if got := Length([]byte(text)); got != want {
			t.Errorf("%s: got %d, want %d", text, got, want)
		}
	}
}

func TestWhole(t *testing.T) {
	for text, want := range map[string]bool{
		"1": true, "-3.00": true, "1e400": true, "15e-1": false, "0.5e1": true, "0.5": false, "1e-400": false,
		"0e-9": true, `"1"`: false,
	} {
		if got := Whole([]byte(text)); got != want {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
	}
}

func TestInt(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "-0": 0, "42": 42, "-42": -42, "1.0": 1, "1e2": 100, "1.5e1": 15, "1200e-2": 12, "0e999999999999": 0,
		"0.0": 0, "0.000e-5": 0, "9223372036854775807": math.MaxInt64, "-9223372036854775808": math.MinInt64,
		"0.000000000000000000001e21": 1, "100000000000000000000000e-23": 1, "-5E+0": -5,
	} {
		if got, ok := Int([]byte(text)); !ok || got != want {
			t.Errorf("%s: got %d, %v, want %d", text, got, ok, want)
		}
	}
	for _, text := range []string{
		"", "1.5", "1e-1", "9223372036854775808", "-9223372036854775809", "1e19", "1e999999999999", "1e-999999999999",
		"99999999999999999999", `"1"`, "true", "01", "1x", "-", "1e", "0.1e0",
	} {
		if got, ok := Int([]byte(text)); ok {
			t.Errorf("%s: got %d, want nothing", text, got)
		}
	}
}

func TestIsInteger(t *testing.T) {
	for text, want := range map[string]bool{
		"0": true, "-0": true, "12": true, "-7": true, "123456789012345678901234567890": true,
		"": false, "-": false, "01": false, "1.0": false, "1e2": false, "+1": false, " 1": false, `"1"`: false,
	} {
		if got := IsInteger([]byte(text)); got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
}

func TestAppendString(t *testing.T) {
	for text, want := range map[string]string{
		"": `""`, "a<b>&c": `"a<b>&c"`, "\"\\\n\r\t": `"\"\\\n\r\t"`, "\x00\x1f\x7f": "\"\\u0000\\u001f\x7f\"",
		"é\u2028😀": "\"é\u2028😀\"", "a\xff\xfeb": "\"a\uFFFD\uFFFDb\"", "\xc3": "\"\uFFFD\"",
	} {
		if got := string(AppendString(nil, text)); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

func TestCompact(t *testing.T) {
	src := []byte(" { \"a b\" : [ 1 ,\n\t2 ] , \"c\\\" \" : \" \" }\r\n")
	want := `{"a b":[1,2],"c\" ":" "}`
	if got := string(Compact(nil, src)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := string(Compact(src[:0], src)); got != want {
		t.Errorf("in place: got %s, want %s", got, want)
	}
}

func TestSplice(t *testing.T) {
	set := func(k, v string) Edit { return Edit{k, []byte(v)} }
	drop := func(k string) Edit { return Edit{Key: k} }
	for _, c := range []struct {
		obj   string
		edits []Edit
		want  string
	}{
		{`{}`, nil, `{}`},
		{``, []Edit{set("a", "1")}, `{"a":1}`},
		{`{ }`, []Edit{set("a", "1")}, `{"a":1 }`},
		{`{"a":1}`, []Edit{set("a", "2")}, `{"a":2}`},
		{`{"a":1,"b":2,"c":3}`, []Edit{drop("b")}, `{"a":1,"c":3}`},
		{`{"a":1,"b":2,"c":3}`, []Edit{drop("a"), drop("c")}, `{"b":2}`},
		{`{"a":1}`, []Edit{drop("a")}, `{}`},
		{`{"a":1}`, []Edit{drop("a"), set("z", "9")}, `{"z":9}`},
		{`{"a":1}`, []Edit{drop("x")}, `{"a":1}`},
		{`{"a":1}`, []Edit{set("b", "2"), set("b", "3")}, `{"a":1,"b":3}`},
		{`{"\u0061":1}`, []Edit{set("a", "2")}, `{"\u0061":2}`},
		{"{\n \"n\" : 12345678901234567890 ,\n \"s\" : \"}\"\n}", []Edit{set("x", "[]")},
			"{\n \"n\" : 12345678901234567890,\n \"s\" : \"}\",\"x\":[]\n}"},
		{`{"a":{"a":1}}`, []Edit{set(`q"`, `null`)}, `{"a":{"a":1},"q\"":null}`},
		{`[1]`, []Edit{set("a", "1")}, `[1]`},
	} {
		if got := string(Splice([]byte(c.obj), c.edits...)); got != c.want {
			t.Errorf("%s with %q: got %s, want %s", c.obj, c.edits, got, c.want)
		}
	}
}

func FuzzCheck(f *testing.F) {
	for _, s := range []string{message, `{"a":1,"a":2}`, `"\ud800"`, "\"\xff\"", `[[[]]]`, ` 1e5 `} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		err := Check(b, 0)
		valid := json.Valid(b)
		if err == nil && !valid {
			t.Fatalf("%q passed and is not JSON", b)
		}
		if err == nil {
			holdsAgainstStd(t, b)
			return
		}
		se, ok := errors.AsType[*SyntaxError](err)
		if !ok || se.Offset < 0 || se.Offset > len(b) {
			t.Fatalf("%q: odd error %#v", b, err)
		}
		if valid &&
			!strings.Contains(
				"second member of the same name, nested too deep, invalid UTF-8 in a string, bad escape in a string",
				se.Msg,
			) {
			t.Fatalf("%q is JSON and was refused: %v", b, err)
		}
	})
}

// holdsAgainstStd compares the results for a checked text with encoding/json.
func holdsAgainstStd(t *testing.T, b []byte) {
	var v any
	if json.Unmarshal(b, &v) != nil { // numbers beyond float64
		return
	}
	var want bytes.Buffer
	_ = json.Compact(&want, b)
	if got := Compact(nil, b); !bytes.Equal(got, want.Bytes()) {
		t.Fatalf("compact: got %s, want %s", got, want.Bytes())
	}
	switch v := v.(type) {
	case string:
		if s, ok := String(b); !ok || s != v || !Equal(b, v) {
			t.Fatalf("%s: got %q, want %q", b, s, v)
		}
	case map[string]any:
		keys := map[string]bool{}
		for k, raw := range Object(b) {
			keys[string(k)] = true
			if Check(raw, 0) != nil {
				t.Fatalf("%s: member %s is %s", b, k, raw)
			}
		}
		if len(keys) != len(v) {
			t.Fatalf("%s: got members %v", b, slices.Collect(maps.Keys(keys)))
		}
	case []any:
		n := 0
		for raw := range Elements(b) {
			if n++; Check(raw, 0) != nil {
				t.Fatalf("%s: element %s", b, raw)
			}
		}
		if n != len(v) {
			t.Fatalf("%s: got %d elements, want %d", b, n, len(v))
		}
	}
}

// On unchecked text, every function ends without a panic.
func FuzzUnchecked(f *testing.F) {
	for _, s := range []string{message, `{"a":`, `{"a`, `[1,,2`, `{"\`, `{,,,`, `{"a":}`, `"\`} {
		f.Add([]byte(s), "a")
	}
	f.Fuzz(func(t *testing.T, b []byte, key string) {
		n := 0
		for range Object(b) {
			n++
		}
		for range Elements(b) {
			n++
		}
		if n > len(b) {
			t.Fatalf("%q has %d parts", b, n)
		}
		Get(b, key)
		Kind(b)
		String(b)
		Equal(b, key)
		Int(b)
		Whole(b)
		Bytes(b)
		Length(b)
		IsInteger(b)
		Compact(nil, b)
		Splice(b, Edit{key, []byte("1")}, Edit{"b", nil})
		if s := AppendString(nil, key); Check(s, 0) != nil {
			t.Fatalf("%q quoted is %s", key, s)
		}
	})
}

func FuzzSplice(f *testing.F) {
	f.Add([]byte(`{"a":1, "b":[2] ,"c":{}}`), "b", "d")
	f.Add([]byte(" {\n\"a\" : 1\n} "), "a", "a")
	f.Fuzz(func(t *testing.T, b []byte, set, drop string) {
		set, drop = strings.ToValidUTF8(set, "?"), strings.ToValidUTF8(drop, "?")
		if Check(b, 0) != nil || Kind(b) != '{' {
			return
		}
		got := Splice(b, Edit{drop, nil}, Edit{set, []byte(`["new"]`)})
		if err := Check(got, 0); err != nil {
			t.Fatalf("%s became %s: %v", b, got, err)
		}
		var want [][2]string
		for k, v := range Object(b) {
			if string(k) != drop && string(k) != set {
				want = append(want, [2]string{string(k), string(v)})
			}
		}
		for k, v := range Object(got) {
			if string(k) == set {
				if string(v) != `["new"]` {
					t.Fatalf("%s became %s", b, got)
				}
				continue
			}
			if len(want) == 0 || want[0] != [2]string{string(k), string(v)} {
				t.Fatalf("%s became %s", b, got)
			}
			want = want[1:]
		}
		if len(want) > 0 {
			t.Fatalf("%s became %s without %v", b, got, want)
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	big := []byte(
		`{"content":` + string(AppendString(nil, strings.Repeat("some text of a file, line by line\n", 30000))) + `}`,
	)
	var wide []byte
	for i := range 10000 {
		wide = fmt.Appendf(wide, `,"key%d":%d`, i, i)
	}
	wide = append([]byte(`{"a":1`), append(wide, '}')...)
	for name, text := range map[string][]byte{"message": []byte(message), "1MB": big, "10k members": wide} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if err := Check(text, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkGet(b *testing.B) {
	text := []byte(message)
	b.ReportAllocs()
	for b.Loop() {
		params, _ := Get(text, "params")
		if name, _ := Get(params, "name"); !Equal(name, "file_read") {
			b.Fatal("lost")
		}
	}
}

func BenchmarkSplice(b *testing.B) {
	text := []byte(message)
	b.ReportAllocs()
	for b.Loop() {
		Splice(text, Edit{"id", []byte("18")})
	}
}

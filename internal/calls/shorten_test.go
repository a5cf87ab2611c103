package calls

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"gatehouse/internal/rawjson"
)

func numbers(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprint(1000+i))
	}
	return "[" + strings.Join(all, ",") + "]"
}

func TestWhatIsLongestIsCut(t *testing.T) {
	table := "{"
	for i := range 100 {
		table += fmt.Sprintf(`"k%d":"%s",`, i, strings.Repeat("v", 50))
	}
	table = strings.TrimSuffix(table, ",") + "}"
	for name, c := range map[string]struct {
		whole  string
		budget int
		cuts   []string
	}{
		"a list":             {`{"n":12345678901234567890,"list":` + numbers(100) + `,"note":"short"}`, 200, []string{"list holds 30 of 100"}},
		"of two the longer":  {`{"a":` + numbers(100) + `,"b":` + numbers(20) + `}`, 300, []string{"a holds 37 of 100"}},
		"inside":             {`{"x":{"y":{"list":` + numbers(100) + `}}}`, 100, []string{"x.y.list holds 15 of 100"}},
		"the whole":          {numbers(100), 52, []string{"it holds 10 of 100"}},
		"a text at a line":   {`{"t":"` + strings.Repeat(`line of text\n`, 20) + `"}`, 100, []string{"t holds 65 of 260 bytes"}},
		"a text of one line": {`{"t":"` + strings.Repeat(`é`, 100) + `"}`, 100, []string{"t holds 92 of 200 bytes"}},
		"a table":            {table, 600, []string{"it holds 10 of 100"}},
		"a list of one":      {`{"list":["` + strings.Repeat("x", 500) + `"]}`, 100, []string{"list holds 0 of 1"}},
	} {
		short, cuts, ok := shorten([]byte(c.whole), c.budget)
		if !ok || len(short) > c.budget || !reflect.DeepEqual(cuts, c.cuts) {
			t.Errorf("%s: got %d bytes, %v, %q, want at most %d, %q", name, len(short), ok, cuts, c.budget, c.cuts)
		}
		if err := beginning([]byte(c.whole), short); err != nil {
			t.Errorf("%s: %v in %s", name, err, short)
		}
	}
	for name, whole := range map[string]string{
		"a number":       strings.Repeat("1", 500),
		"many keys":      `{"a":{` + `"k":1` + `,"` + strings.Repeat("k", 500) + `":1}}`,
		"too many texts": `{"a":[],` + strings.TrimSuffix(strings.Repeat(`"`+strings.Repeat("k", 20)+`":"`+strings.Repeat("v", 40)+`",`, 30), ",") + `}`,
	} {
		if short, _, ok := shorten([]byte(whole), 100); ok {
			t.Errorf("%s: got %s, want nothing", name, short)
		}
	}
}

// beginning says where short is anything but whole with ends cut off.
func beginning(whole, short []byte) error {
	if err := rawjson.Check(short, 0); err != nil {
		return err
	}
	switch rawjson.Kind(short) {
	case '{':
		for key, v := range rawjson.Object(short) {
			was, ok := rawjson.Get(whole, string(key))
			if !ok {
				return fmt.Errorf("%s was not there", key)
			}
			if err := beginning(was, v); err != nil {
				return err
			}
		}
	case '[':
		i := 0
		var all [][]byte
		for e := range rawjson.Elements(whole) {
			all = append(all, e)
		}
		for e := range rawjson.Elements(short) {
			if i >= len(all) || string(all[i]) != string(e) {
				return fmt.Errorf("element %d is another", i)
			}
			i++
		}
	case '"':
		a, _ := rawjson.String(whole)
		b, _ := rawjson.String(short)
		if !strings.HasPrefix(a, b) {
			return fmt.Errorf("%q is not the beginning of %q", b, a)
		}
	default:
		if string(whole) != string(short) {
			return fmt.Errorf("%s is now %s", whole, short)
		}
	}
	return nil
}

func FuzzShorten(f *testing.F) {
	f.Add([]byte(`{"a":`+numbers(50)+`,"b":"`+strings.Repeat(`\"é\n`, 40)+`"}`), 60)
	f.Add([]byte(`[{"a":{"b":"c"}},[1,2,[3]]]`), 5)
	f.Fuzz(func(t *testing.T, whole []byte, budget int) {
		if !json.Valid(whole) || rawjson.Check(whole, 0) != nil {
			t.Skip()
		}
		short, _, ok := shorten(whole, budget)
		if !ok {
			return
		}
		if len(short) > budget {
			t.Fatalf("%d bytes, want at most %d", len(short), budget)
		}
		if err := beginning(whole, short); err != nil {
			t.Fatalf("%v in %s", err, short)
		}
	})
}

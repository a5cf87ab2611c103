package rawjson

import (
	"strings"
	"testing"
)

func TestSalvage(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	for text, want := range map[string]string{
		`{"jsonrpc":"2.0","id":7,"method":"a"`:                                         "", // more members may follow
		`{"jsonrpc":"2.0","id":7,"method":"a"}`:                                        "7",
		`{"method":"a","params":{"id":3,"x":[{"id":4}],"s":"},\"id\":5"},"id":"q\"1"}`: `"q\"1"`,
		`{"method":"a","params":{"x":` + "\"\xff\x01" + `"},"id":9}`:                   "9",
		`{"method":"a","params":{"x":tru},"id":9}`:                                     "9",
		`{"method":"a","params":{"x":"` + long + `"},"id":9}`:                          "9",
		`{"id":1,"method":"a","id":2}`:                                                 "",
		`{"id":1,"result":{}}`:                                                         "",
		`{"id":null,"method":"a"}`:                                                     "",
		`{"id":{},"method":"a"}`:                                                       "",
		`{"id":1x,"method":"a"}`:                                                       "",
		`{"id":"` + long + `","method":"a"}`:                                           "",
		`[{"id":1,"method":"a"}]`:                                                      "",
		`{"a":1}{"id":1,"method":"a"}`:                                                 "",
		`GET / HTTP/1.1`:                                                               "",
		`{"id":2,"method":"tools/call" "params" {"a":1}}`:                              "2",
	} {
		for _, step := range []int{1, 7, len(text)} {
			var s Salvage
			for rest := text; rest != ""; {
				n := min(step, len(rest))
				s.Write([]byte(rest[:n]))
				rest = rest[n:]
			}
			if got := string(s.Request()); got != want {
				t.Errorf("%.80s, %d bytes at once: got %q, want %q", text, step, got, want)
			}
		}
	}
}

func FuzzSalvage(f *testing.F) {
	f.Add([]byte(`{"method":"a","params":{"x":["]"]},"id":"q"}`))
	f.Add([]byte(`{"id":1,"method":"a","params":{"x":"\ud800"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s Salvage
		s.Write(b)
		id := s.Request()
		if Check(b, 0) != nil || Kind(b) != '{' {
			return // the result is a guess, which must only be an ID
		}
		method, ok := Get(b, "method")
		want, _ := Get(b, "id")
		if k := Kind(want); !ok || method == nil || k != '"' && k != '0' || len(want) > mostToken {
			want = nil
		}
		if string(id) != string(want) {
			t.Errorf("%s: got %s, want %s", b, id, want)
		}
	})
}

func TestRepair(t *testing.T) {
	for was, want := range map[string]string{
		`"a\ud83d"`:               `"a\ufffd"`,
		`"\ude00\ud83d\ude00"`:    `"\ufffd\ud83d\ude00"`,
		`"\ud83d\ud83d\ude00"`:    `"\ufffd\ud83d\ude00"`,
		`"\\ud83d"`:               `"\\ud83d"`,
		`"\ud83d\n"`:              `"\ufffd\n"`,
		`"\ud83`:                  `"\ud83`,
		`"\uD83D" , "\uzzzz" "\q`: `"\ufffd" , "\uzzzz" "\q`,
		``:                        ``,
		`\`:                       `\`,
	} {
		b := []byte(was)
		n := Repair(b)
		if string(b) != want || n != strings.Count(want, `\ufffd`) {
			t.Errorf("%s: got %s, %d", was, b, n)
		}
	}
}

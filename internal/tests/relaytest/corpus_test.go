package relaytest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// jsonMaker writes JSON that the bytes of a fuzzer choose: any bytes make a valid object.
type jsonMaker struct {
	b    strings.Builder
	from []byte
}

// choose returns the next of n choices, 0 when the bytes are used up.
func (m *jsonMaker) choose(n int) int {
	if len(m.from) == 0 {
		return 0
	}
	c := int(m.from[0])
	m.from = m.from[1:]
	return c % n
}

func (m *jsonMaker) space() {
	m.b.WriteString([]string{"", "", "", " ", "\n\t", "\r"}[m.choose(6)])
}

// oddNumbers are some that a float64, or a parser that writes its own form, does not keep.
var oddNumbers = []string{
	"0", "-0", "0.0", "1.0", "1E+400", "1e-400", "12345678901234567890", "-9223372036854775809", "0.1000", "1E5", "3",
}

// oddTexts are parts of strings that parsers write in another form.
var oddTexts = []string{
	"a", "", `\u00e9`, "é", `\/`, "/", `\ud83d\ude00`, "😀", `\u0000`, `\u2028`, "\u2028", `\"`, `\\`, "<&>", `\b\f\n\r\t`, "\u007f",
}

func (m *jsonMaker) text() string {
	var s strings.Builder
	for range m.choose(4) {
		s.WriteString(oddTexts[m.choose(len(oddTexts))])
	}
	return `"` + s.String() + `"`
}

// value writes a value whose containers are at most so deep.
func (m *jsonMaker) value(deep int) {
	kind := m.choose(8)
	if deep == 0 {
		kind %= 5
	}
	switch kind {
	case 0:
		m.b.WriteString(m.text())
	case 1:
		m.b.WriteString(oddNumbers[m.choose(len(oddNumbers))])
	case 2:
		m.b.WriteString("null")
	case 3:
		m.b.WriteString("true")
	case 4:
		m.b.WriteString("false")
	case 5:
		m.b.WriteByte('[')
		for i := range m.choose(4) {
			if i > 0 {
				m.b.WriteByte(',')
			}
			m.space()
			m.value(deep - 1)
			m.space()
		}
		m.b.WriteByte(']')
	default:
		m.object(deep, nil)
	}
}

// object writes an object with some of the named members, and others, in any order. No name occurs twice.
func (m *jsonMaker) object(deep int, names []string) {
	m.b.WriteByte('{')
	for i := range m.choose(6) {
		if i > 0 {
			m.b.WriteByte(',')
		}
		m.space()
		name := m.text()
		name = strconv.Itoa(i) + name[1:]
		if len(names) > 0 && m.choose(2) == 0 {
			at := m.choose(len(names))
			name, names = names[at]+`"`, append(append([]string{}, names[:at]...), names[at+1:]...)
		}
		m.b.WriteString(`"` + name)
		m.space()
		m.b.WriteByte(':')
		m.space()
		m.value(deep - 1)
		m.space()
	}
	m.b.WriteByte('}')
}

// resultOf returns the result that some bytes stand for. Its members are also those of results, of any type.
func resultOf(from []byte) []byte {
	m := &jsonMaker{from: from}
	m.object(5, []string{
		"content", "structuredContent", "isError", "_meta", "ttlMs", "cacheScope", "nextCursor", "requestState", "error",
		"id", "jsonrpc", "method", "params", "result", "arguments",
	})
	return []byte(m.b.String())
}

// Results and arguments of any form pass byte for byte in all pairings of eras.
func TestAFuzzedCorpusPassesByteForByte(t *testing.T) {
	n := 200
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" {
		n = 5000
	}
	all := pairings(t, echoTools)
	random := rand.NewChaCha8([32]byte{18})
	long := 0
	for i := range n {
		from := make([]byte, 8+i%240)
		random.Read(from)
		result := resultOf(from)
		if !utf8.Valid(result) {
			t.Fatalf("the test made %q", result)
		}
		if len(result) > 200 {
			long++
		}
		for _, p := range all {
			p.check(t, result)
		}
		if t.Failed() {
			t.Fatalf("result %d of %d", i, n)
		}
	}
	if long < n/20 {
		t.Errorf("only %d of %d results are longer than 200 bytes", long, n)
	}
	t.Log(fmt.Sprint(n, " results in ", len(all), " pairings"))
}

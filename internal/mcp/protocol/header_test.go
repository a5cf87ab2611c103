package protocol

import (
	"encoding/base64"
	"strings"
	"testing"

	"gatehouse/internal/mcp/rawjson"
)

// FuzzHeader checks that every string can be encoded and decoded, and that decoding accepts no other
// encoding.
func FuzzHeader(f *testing.F) {
	for _, s := range []string{"", "plain", " edges ", "é", "=?base64?x?=", "=?base64?SGVsbG8=?=", "42", "-0", "1e2",
		"true", "\x00", "\xff"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, body, header string) {
		raw := rawjson.AppendString(nil, body)
		value, ok := rawjson.String(raw)
		if !ok {
			t.Fatal("no string")
		}
		encoded := "=?base64?" + base64.StdEncoding.EncodeToString([]byte(value)) + "?="
		if got, ok := decodeHeader(" " + encoded + "\t"); !ok || got != value || !mirrors(got, raw) {
			t.Errorf("%q does not survive: got %q, %t", value, got, ok)
		}
		got, ok := decodeHeader(header)
		if ok && mirrors(got, raw) != (got == value) {
			t.Errorf("header %q stands for %q", header, value)
		}
		if !strings.HasPrefix(header, "=?base64?") && ok && got != strings.Trim(header, " \t") {
			t.Errorf("%q became %q", header, got)
		}
		for _, val := range []string{"true", "false", "null", "42", "-1", "1e400", "[1]", "{}"} {
			mirrors(got, []byte(val))
		}
	})
}

func TestMirroredNumbers(t *testing.T) {
	for _, c := range []struct {
		header, body string
		want         bool
	}{
		{"42", "42", true}, {"42", "42.0", true}, {"4.2e1", "42", true}, {"-0", "0", true}, {"007", "7", false},
		{"42", "43", false}, {"42", "42.5", false}, {"", "0", false}, {"+42", "42", false}, {"0x2a", "42", false},
		{"9223372036854775807", "9223372036854775807", true}, {"9223372036854775808", "9223372036854775807", false},
		{"9223372036854775808", "9223372036854775808", true}, {"1.5", "1.5", true}, {"true", "true", true},
		{"True", "true", false},
	} {
		if got := mirrors(c.header, []byte(c.body)); got != c.want {
			t.Errorf("header %q, body %s: got %t", c.header, c.body, got)
		}
	}
}

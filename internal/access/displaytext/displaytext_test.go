package displaytext

import (
	"encoding/json"
	"reflect"
	"testing"
)

// What would steer a terminal or change the direction of text is shown by its number.
//
//redteam:attack A package's server is a stranger: control characters and marks of direction for the terminal of a command
func TestNothingSteersATerminal(t *testing.T) {
	for in, want := range map[string]string{
		"plain text, äöü, 漢字, 🙂":          "plain text, äöü, 漢字, 🙂",
		"a\x1b[31mred":                    `a\u001b[31mred`,
		"evil\u202etxt.exe":               `evil\u202etxt.exe`,
		"\u2066isolated\u2069":            `\u2066isolated\u2069`,
		"no\u200bspace\ufeff":             `no\u200bspace\ufeff`,
		"\U000e0041tag":                   `\udb40\udc41tag`,
		"a\u009bb\x7f":                    `a\u009bb\u007f`,
		"two\nlines\tand a tab":           "two\nlines\tand a tab",
		"over\rwritten":                   `over\u000dwritten`,
		"क्\u200dष needs its zero joiner": "क्\u200dष needs its zero joiner",
	} {
		if got := Text(in); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := Line("a\nb\tc"); got != `a\u000ab\u0009c` {
		t.Errorf("got %q", got)
	}
}

func TestJSONStaysTheSameValue(t *testing.T) {
	in := "{\n  \"a\u202eb\": \"\u2066\U000e0041\u00ad\", \"c\": [1, \"\\n\"]\n}"
	out := JSON([]byte(in))
	var was, is any
	if err := json.Unmarshal([]byte(in), &was); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &is); err != nil || !reflect.DeepEqual(was, is) {
		t.Errorf("%v: %s is %v, want %v", err, out, is, was)
	}
	for _, r := range string(out) {
		if Deceives(r) && r != '\n' {
			t.Errorf("%s holds %U", out, r)
		}
	}
}

// Texts that people and models read are escaped; names and values stay unchanged.
//
//redteam:attack A package's server is a stranger: descriptions with text that cannot be seen, that runs backwards, or steers a terminal
func TestDescriptionsAreEscaped(t *testing.T) {
	in := `{ "name":"a\u202e", "title" : "x\u202ey","description":"\u001b[2J` + "\u2066" +
		`z", "n": 1.50, "p":{"description":{"title":"\udb40\udc41","const":"\u202e"},"q":["title","\u202e"]}}`
	want := `{ "name":"a\u202e", "title" : "x\\u202ey","description":"\\u001b[2J\\u2066z", "n": 1.50, "p":{"description":{"title":"\\udb40\\udc41","const":"\u202e"},"q":["title","\u202e"]}}`
	if got := string(Described([]byte(in))); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	plain := `{"description":"ein Text, 漢字","title":"\n"}`
	if got := string(Described([]byte(plain))); got != plain {
		t.Errorf("got %s, want it unchanged", got)
	}
}

package module_test

import (
	"encoding/json"
	"strings"
	"testing"

	"gatehouse/module"
)

func TestDecodeConfigIsStrict(t *testing.T) {
	type settings struct{ Depth int }
	for section, want := range map[string]string{
		`{"depth":2}`:          "",
		`{"depht":2}`:          "depht",
		`{"depth":"deep"}`:     "cannot unmarshal string",
		`{"depth":2}{}`:        "more after the first value",
		`{"depth":2`:           "unexpected EOF",
		`[{"depth":2}]`:        "cannot unmarshal array",
		`{"depth":2,"x":null}`: `unknown field "x"`,
	} {
		var got settings
		err := module.DecodeConfig(json.RawMessage(section), &got)
		if want == "" && (err != nil || got.Depth != 2) ||
			want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %+v, %v, want an error with %q", section, got, err, want)
		}
	}
}

func TestDecodeConfigNeedsAPointer(t *testing.T) {
	for _, into := range []any{nil, 42, struct{}{}, (*int)(nil)} {
		for _, section := range []json.RawMessage{nil, json.RawMessage(`1`)} {
			if err := module.DecodeConfig(section, into); err == nil ||
				!strings.Contains(err.Error(), "expected a pointer") {
				t.Errorf("into %#v, %q: got %v", into, section, err)
			}
		}
	}
	value := 7
	if err := module.DecodeConfig(nil, &value); err != nil || value != 7 {
		t.Errorf("without a configuration: got %d, %v, want 7", value, err)
	}
}

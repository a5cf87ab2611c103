package secret

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
)

const plain = "hunter2-hunter2"

// holder has a secret in an unexported field, which fmt prints without calling its methods.
type holder struct {
	Open   Text
	hidden Text
	list   []Text
	table  map[string]Text
	any    any
}

func newHolder() holder {
	t := New(plain)
	return holder{t, t, []Text{t}, map[string]Text{"k": t}, t}
}

//redteam:attack Keys stay here: a secret is printed, logged and encoded
func TestASecretDoesNotPrintItself(t *testing.T) {
	h := newHolder()
	for verb := range strings.SplitSeq("v,+v,#v,s,q,x,X,d,o,b,c,U,e,t,p,T,10s,-20v,w", ",") {
		for _, v := range []any{h.Open, &h.Open, h, &h, h.list, h.table, []any{h}, errors.New(fmt.Sprint(h.Open)),
			reflect.ValueOf(h)} {
			if got := fmt.Sprintf("%"+verb, v); strings.Contains(strings.ToLower(got), "hunter2") ||
				strings.Contains(got, fmt.Sprintf("%x", plain)) {
				t.Errorf("%%%s of %T says %s", verb, v, got)
			}
		}
	}
	if got := fmt.Sprintln(h.Open, h.Open.String(), h.Open.GoString()); got != "[secret] [secret] [secret]\n" {
		t.Errorf("says %q", got)
	}
}

func TestASecretIsNotLogged(t *testing.T) {
	var said bytes.Buffer
	h := newHolder()
	for _, handler := range []slog.Handler{slog.NewTextHandler(&said, nil), slog.NewJSONHandler(&said, nil)} {
		slog.New(handler).
			Info("x", "one", h.Open, "group", slog.GroupValue(slog.Any("two", h.Open)), "three", h, "four", &h,
				"five", h.table)
	}
	if strings.Contains(said.String(), "hunter2") || strings.Count(said.String(), Mask) < 4 {
		t.Errorf("the log says\n%s", said.String())
	}
}

func TestASecretIsNotWrittenOut(t *testing.T) {
	h := newHolder()
	for name, write := range map[string]func() ([]byte, error){
		"JSON":   func() ([]byte, error) { return json.Marshal(h.Open) },
		"in":     func() ([]byte, error) { return json.Marshal(h) },
		"XML":    func() ([]byte, error) { return xml.Marshal(h.Open) },
		"text":   h.Open.MarshalText,
		"append": func() ([]byte, error) { return h.Open.AppendText(nil) },
		"gob": func() ([]byte, error) {
			var b bytes.Buffer
			err := gob.NewEncoder(&b).Encode(h.Open)
			return b.Bytes(), err
		},
	} {
		if b, err := write(); err == nil || bytes.Contains(b, []byte("hunter2")) {
			t.Errorf("%s: got %q, %v; want an error", name, b, err)
		}
	}
}

func TestASecretComesInAsText(t *testing.T) {
	var in struct{ Token Text }
	if err := json.Unmarshal([]byte(`{"Token":"`+plain+`"}`), &in); err != nil || in.Token.Reveal() != plain {
		t.Errorf("got %q, %v", in.Token.Reveal(), err)
	}
}

func TestEquality(t *testing.T) {
	for _, c := range []struct {
		a, b Text
		want bool
	}{
		{New("a"), New("a"), true}, {New("a"), New("b"), false}, {New("a"), New("aa"), false},
		{Text{}, New(""), true}, {Text{}, New("a"), false},
	} {
		if got := c.a.Equal(c.b); got != c.want {
			t.Errorf("Equal(%q, %q) = %v", c.a.Reveal(), c.b.Reveal(), got)
		}
	}
	if !(Text{}).Empty() || New("a").Empty() {
		t.Error("Empty is wrong")
	}
}

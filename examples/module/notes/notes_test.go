package notes

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

// The module keeps the contract of every module.
func TestContract(t *testing.T) {
	moduletest.Run(t, New, moduletest.Options{Config: json.RawMessage(`{"most":5}`)})
}

// A note is found by its words, followed, and gone when its text is empty.
func TestANote(t *testing.T) {
	m, err := New(t.Context(), moduletest.NewHost(t).Deps())
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	stop, err := m.(*notes).watch(tool.Caller{}, "notes://plan", func(json.RawMessage) { told++ })
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) string {
		return moduletest.NewCall(t, "name", "plan", "text", text).Ask(t, m, "note_write", nil)
	}
	if refused := write("ship on Friday"); refused != "" {
		t.Fatal(refused)
	}
	var got found
	moduletest.NewCall(t, "word", "Friday").Ask(t, m, "note_find", &got)
	if want := []string{"plan"}; !reflect.DeepEqual(got.Names, want) {
		t.Errorf("found %v, want %v", got.Names, want)
	}
	stop()
	if refused := write(""); refused != "" || told != 1 {
		t.Errorf("%q, and the watcher was told %d times, want once", refused, told)
	}
	moduletest.NewCall(t, "word", "Friday").Ask(t, m, "note_find", &got)
	if len(got.Names) != 0 {
		t.Errorf("found %v after it was removed", got.Names)
	}
}

// There are no more notes than the program allows.
func TestTooManyNotes(t *testing.T) {
	host := moduletest.NewHost(t)
	d := host.Deps()
	d.Config = func(into any) error { return json.Unmarshal([]byte(`{"most":1}`), into) }
	m, err := New(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	moduletest.NewCall(t, "name", "a", "text", "x").Ask(t, m, "note_write", nil)
	refused := moduletest.NewCall(t, "name", "b", "text", "x").Ask(t, m, "note_write", nil)
	if !strings.HasPrefix(refused, "too_many:") {
		t.Errorf("the second note: %q", refused)
	}
}

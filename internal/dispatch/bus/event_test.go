package bus

import (
	"encoding/json"
	"testing"
)

type done struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
}

const workDone = Topic[done]("work.done")

// TestTopic publishes events of a topic, of another one, from another process
// and with malformed data.
func TestTopic(t *testing.T) {
	b := New()
	follow := workDone.Follow(t.Context(), b, 10)
	e, err := workDone.Event(done{"here", 1})
	if err != nil {
		t.Fatal(err)
	}
	b.Publish(Event{Subject: "work.begun", Data: json.RawMessage(`{"name":"other"}`)})
	b.Publish(Event{Subject: "work.done", Data: json.RawMessage(`[]`)})
	b.Publish(e)
	b.Publish(Event{Subject: "work.done", Data: json.RawMessage(`{"name":"there","count":2}`)})
	var got []done
	for _, d := range follow {
		if got = append(got, d); len(got) == 2 {
			break
		}
	}
	if got[0] != (done{"here", 1}) || got[1] != (done{"there", 2}) {
		t.Errorf("got %+v", got)
	}

	// The value of this process is passed on unchanged; JSON contains the same.
	if string(e.Data) != `{"name":"here","count":1}` {
		t.Errorf("data is %s", e.Data)
	}
	if _, ok := Decode[int](e); ok {
		t.Error("an object was decoded as an int")
	}
	if d, ok := Decode[struct{ Name string }](e); !ok || d.Name != "here" {
		t.Errorf("decoded by JSON: %+v, %t", d, ok)
	}
	if _, err := NewEvent("work.done", func() {}); err == nil {
		t.Error("a function was encoded")
	}
}

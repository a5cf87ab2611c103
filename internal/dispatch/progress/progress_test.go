package progress

import (
	"encoding/json"
	"slices"
	"testing"
)

func TestPhasesAreShownAsTheyBegin(t *testing.T) {
	var said []string
	track := New(func(p Progress) {
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var back Progress
		if err := json.Unmarshal(b, &back); err != nil || !slices.Equal(back.Phases, p.Phases) ||
			back.Overall != p.Overall {
			t.Errorf("%s comes back as %+v, %v", b, back, err)
		}
		said = append(said, string(b))
	}, "look", "carry", "tidy")
	track.At("look", 0, 0, "")
	track.At("carry", 10, 100, "bytes")
	track.At("look", 5, 5, "") // over
	track.At("sing", 1, 1, "") // never announced
	track.At("tidy", 3, 0, "steps")
	track.Finish()
	want := []string{
		`{"overall":{"done":0,"total":3,"units":"steps"},"phases":[{"name":"look","progress":false},{"name":"carry","progress":null},{"name":"tidy","progress":null}]}`,
		`{"overall":{"done":1,"total":3,"units":"steps"},"phases":[{"name":"look","progress":true},{"name":"carry","progress":{"done":10,"total":100,"units":"bytes"}},{"name":"tidy","progress":null}]}`,
		`{"overall":{"done":2,"total":3,"units":"steps"},"phases":[{"name":"look","progress":true},{"name":"carry","progress":true},{"name":"tidy","progress":{"done":3,"total":null,"units":"steps"}}]}`,
		`{"overall":true,"phases":[{"name":"look","progress":true},{"name":"carry","progress":true},{"name":"tidy","progress":true}]}`,
	}
	if !slices.Equal(said, want) {
		t.Errorf("said\n%s", said)
	}
}

// Frequent steps are shown at intervals.
func TestSmallStepsAreNotAllShown(t *testing.T) {
	shown := 0
	track := New(func(Progress) { shown++ }, "carry")
	for i := range int64(10_000) {
		track.At("carry", i, 10_000, "bytes")
	}
	track.Finish()
	if shown < 2 || shown > 1000 {
		t.Errorf("shown %d times", shown)
	}
}

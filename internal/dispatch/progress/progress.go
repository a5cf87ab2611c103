// Package progress says how far something is that takes long and goes through
// phases, in a form that people and programs can follow.
package progress

import (
	"encoding/json"
	"sync"
	"time"
)

// Progress is where something stands as a whole and in each of its phases.
type Progress struct {
	Overall Amount  `json:"overall"`
	Phases  []Phase `json:"phases"`
}

// Phase is one step of several.
type Phase struct {
	Name     string `json:"name"`
	Progress Amount `json:"progress"`
}

// Amount is null before it has begun, false while it runs and it is unknown how
// far it is, true when it is done, and otherwise an object with done, total
// and units. The zero value has not begun.
type Amount struct {
	State State
	Done  int64
	Total int64  // 0 means unknown
	Units string // bytes or steps
}

// State is how far an Amount is in words.
type State uint8

const (
	Pending State = iota
	Running
	Done
)

// MarshalJSON implements json.Marshaler.
func (a Amount) MarshalJSON() ([]byte, error) {
	switch {
	case a.State == Pending:
		return []byte("null"), nil
	case a.State == Done:
		return []byte("true"), nil
	case a.Done == 0 && a.Total == 0:
		return []byte("false"), nil
	}
	var total *int64
	if a.Total > 0 {
		total = &a.Total
	}
	return json.Marshal(amount{a.Done, total, a.Units})
}

type amount struct {
	Done  int64  `json:"done"`
	Total *int64 `json:"total"`
	Units string `json:"units,omitempty"`
}

// UnmarshalJSON implements json.Unmarshaler.
func (a *Amount) UnmarshalJSON(b []byte) error {
	*a = Amount{}
	switch string(b) {
	case "null":
		return nil
	case "true":
		a.State = Done
		return nil
	case "false":
		a.State = Running
		return nil
	}
	var in amount
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	*a = Amount{State: Running, Done: in.Done, Units: in.Units}
	if in.Total != nil {
		a.Total = *in.Total
	}
	return nil
}

// showEvery is how often what moves is shown; a new phase is shown at once.
const showEvery = 250 * time.Millisecond

// Track follows something through its phases, in their order. Safe for
// concurrent use.
type Track struct {
	show func(Progress)

	mu    sync.Mutex
	now   Progress
	at    int
	shown time.Time
}

// New makes a track. show is told of every step that is worth showing, one
// call at a time; what it is given is its own.
func New(show func(Progress), names ...string) *Track {
	t := &Track{show: show, at: -1}
	for _, n := range names {
		t.now.Phases = append(t.now.Phases, Phase{Name: n})
	}
	return t
}

// At says how far a phase is, and that those before it are done. A phase that
// was not announced is ignored, and so is one that is over.
func (t *Track) At(name string, done, total int64, units string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := t.phaseIndex(name)
	if i < 0 {
		return
	}
	fresh := i > t.at
	for j := range i {
		t.now.Phases[j].Progress = Amount{State: Done}
	}
	t.at = i
	t.now.Phases[i].Progress = Amount{Running, done, total, units}
	t.now.Overall = Amount{Running, int64(i), int64(len(t.now.Phases)), "steps"}
	if fresh || time.Since(t.shown) >= showEvery {
		t.reportState()
	}
}

func (t *Track) phaseIndex(name string) int {
	for i := max(t.at, 0); i < len(t.now.Phases); i++ {
		if t.now.Phases[i].Name == name {
			return i
		}
	}
	return -1
}

// Finish says that all is done.
func (t *Track) Finish() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.now.Phases {
		t.now.Phases[i].Progress = Amount{State: Done}
	}
	t.now.Overall, t.at = Amount{State: Done}, len(t.now.Phases)
	t.reportState()
}

// reportState shows a copy; t.mu is held.
func (t *Track) reportState() {
	t.shown = time.Now()
	p := t.now
	p.Phases = append([]Phase(nil), p.Phases...)
	t.show(p)
}

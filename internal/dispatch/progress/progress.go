// Package progress describes the progress of a long operation through its phases, in a form that users and
// programs can follow.
package progress

import (
	"encoding/json"
	"sync"
	"time"
)

// Progress is the progress of an operation as a whole and in each of its phases.
type Progress struct {
	Overall Amount  `json:"overall"`
	Phases  []Phase `json:"phases"`
}

// Phase is one step of an operation.
type Phase struct {
	Name     string `json:"name"`
	Progress Amount `json:"progress"`
}

// Amount is encoded as null before it has begun, as false while it runs and its progress is unknown, as true when
// it is done, and otherwise as an object with done, total and units. The zero value has not begun.
type Amount struct {
	State State
	Done  int64
	Total int64  // 0 means unknown
	Units string // bytes or steps
}

// State is the state of an Amount.
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

// showEvery is the interval at which progress within a phase is shown; a new phase is shown at once.
const showEvery = 250 * time.Millisecond

// Track follows an operation through its phases, in their order. It is safe for concurrent use.
type Track struct {
	show func(Progress)

	mu    sync.Mutex
	now   Progress
	at    int
	shown time.Time
}

// New returns a Track. show is called for every step that is shown, one call at a time; its argument is a copy.
func New(show func(Progress), names ...string) *Track {
	t := &Track{show: show, at: -1}
	for _, n := range names {
		t.now.Phases = append(t.now.Phases, Phase{Name: n})
	}
	return t
}

// At reports the progress of a phase, and that the phases before it are done. An unknown phase is ignored, and so
// is one that has ended.
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

// Finish marks all phases as done.
func (t *Track) Finish() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.now.Phases {
		t.now.Phases[i].Progress = Amount{State: Done}
	}
	t.now.Overall, t.at = Amount{State: Done}, len(t.now.Phases)
	t.reportState()
}

// reportState shows a copy. t.mu must be held.
func (t *Track) reportState() {
	t.shown = time.Now()
	p := t.now
	p.Phases = append([]Phase(nil), p.Phases...)
	t.show(p)
}

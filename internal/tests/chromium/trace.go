package chromium

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// event is an event of Chromium's tracing. Times are in microseconds.
type event struct {
	Name  string  `json:"name"`
	Phase string  `json:"ph"`
	PID   int     `json:"pid"`
	TID   int     `json:"tid"`
	At    float64 `json:"ts"`
	Took  float64 `json:"dur"`
	CPU   float64 `json:"tdur"`
	Args  struct {
		Data struct {
			FunctionName string `json:"functionName"`
			URL          string `json:"url"`
		} `json:"data"`
	} `json:"args"`
}

// Task is a task that the main thread of a page ran.
type Task struct {
	Took time.Duration // by the clock, with the time in which the machine ran something else
	CPU  time.Duration // of the thread
	Ran  []string      // the longest parts of it with their times
}

// Trace begins to record what the main threads of the pages run that are opened over HTTP from now on. The function that it returns ends
// the recording and returns the tasks, those that used most of the processor first.
func (b *Browser) Trace() func() []Task {
	b.t.Helper()
	b.trace, b.whole = nil, false
	b.do("", "Tracing.start", map[string]any{"transferMode": "ReportEvents", "traceConfig": map[string]any{
		"includedCategories": []string{"toplevel", "devtools.timeline", "disabled-by-default-devtools.timeline"},
		"recordMode":         "recordAsMuchAsPossible",
	}})
	return func() []Task {
		b.t.Helper()
		b.do("", "Tracing.end", nil)
		for end := time.Now().Add(time.Minute); !b.whole; time.Sleep(20 * time.Millisecond) {
			b.do("", "Browser.getVersion", nil) // the events are read meanwhile
			if time.Now().After(end) {
				b.t.Fatal("the recording does not end")
			}
		}
		return tasksOf(b.trace)
	}
}

// tasksOf returns the tasks of the main threads that show pages over HTTP. The browser shows pages of its own in
// others.
func tasksOf(events []event) (all []Task) {
	type thread struct{ pid, tid int }
	main := map[thread]bool{}
	for _, e := range events {
		if e.Name == "CommitLoad" && strings.HasPrefix(e.Args.Data.URL, "http") {
			main[thread{e.PID, e.TID}] = true
		}
	}
	parts := slices.DeleteFunc(slices.Clone(events), func(e event) bool {
		return e.Phase != "X" || !main[thread{e.PID, e.TID}] // complete events alone have a duration
	})
	for _, e := range parts {
		if e.Name != "RunTask" {
			continue
		}
		t := Task{Took: microseconds(e.Took), CPU: microseconds(e.CPU)}
		if t.CPU > 10*time.Millisecond {
			t.Ran = inside(e, parts)
		}
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b Task) int { return cmp.Compare(b.CPU, a.CPU) })
	return all
}

// inside names the parts of a task that used the processor for more than 2 ms.
func inside(task event, parts []event) (names []string) {
	for _, e := range parts {
		if e.PID == task.PID && e.TID == task.TID && e.Name != "RunTask" && e.At >= task.At &&
			e.At+e.Took <= task.At+task.Took && e.CPU > 2000 {
			names = append(names, e.Name+" "+e.Args.Data.FunctionName+" "+microseconds(e.CPU).String())
		}
	}
	return names
}

func microseconds(n float64) time.Duration { return time.Duration(n * float64(time.Microsecond)) }

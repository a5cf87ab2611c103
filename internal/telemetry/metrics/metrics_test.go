package metrics

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var noon = time.Date(2026, 3, 10, 12, 30, 0, 0, time.UTC)

func at(t time.Time) Options { return Options{Now: func() time.Time { return t }} }

func value(v float64) *float64 { return new(v) }

func open(t *testing.T, o Options) *Store {
	s := Open(filepath.Join(t.TempDir(), "metrics.db"), o)
	t.Cleanup(func() { s.Close() })
	return s
}

func record(t *testing.T, s *Store, scope string, events ...Event) {
	t.Helper()
	if _, err := s.Record(t.Context(), scope, events...); err != nil {
		t.Fatal(err)
	}
}

func ask(t *testing.T, s *Store, q Query) Answer {
	t.Helper()
	a, err := s.Query(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// However the time is divided into days, hours and single events, the sums are
// those of the events one by one.
func TestSumsAreThoseOfTheEvents(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s := open(t, at(noon))
	var all []Event
	for i := range 3000 {
		e := Event{
			At:    noon.Add(-time.Duration(r.Int64N(int64(20 * day)))).Truncate(time.Millisecond),
			Type:  "call." + strconv.Itoa(r.IntN(3)),
			Repo:  []string{"", "one", "two"}[r.IntN(3)],
			Agent: strconv.Itoa(r.IntN(2)),
		}
		if i%3 > 0 {
			e.Value = new(float64(r.IntN(100) - 50))
		}
		if i%4 == 0 {
			e.Labels = map[string]string{"tool": "t" + strconv.Itoa(r.IntN(3))}
		}
		all = append(all, e)
	}
	record(t, s, "c", all...)
	record(t, s, "elsewhere", all[:100]...)
	for range 60 {
		q := Query{Scope: "c", Since: noon.Add(-time.Duration(r.Int64N(int64(19 * day)))).Truncate(time.Millisecond),
			Group: []string{"", "type", "repo", "agent_id", "tool"}[r.IntN(5)],
			Type:  []string{"", "call.1", "call.[02]"}[r.IntN(3)],
			Step:  []time.Duration{0, 6 * hour, day, 90 * time.Minute}[r.IntN(4)]}
		if got, want := ask(t, s, q), byHand(all, q); !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v:\ngot  %+v\nwant %+v", q, got, want)
		}
	}
}

// byHand answers a query from a list of events.
func byHand(all []Event, q Query) Answer {
	r := &reader{
		q:      q,
		types:  map[string]*Sum{},
		repos:  map[string]*Sum{},
		agents: map[string]*Sum{},
		groups: map[string]*Sum{},
		steps:  map[place]*Sum{},
	}
	for _, e := range all {
		asked := q.Type == "" || e.Type == q.Type || q.Type == "call.[02]" && e.Type != "call.1"
		if e.At.Before(q.Since) || !asked {
			continue
		}
		k, label := key{"c", e.Type, e.Repo, e.Agent}, e.Labels[q.Group]
		r.addPoint(k, label, rowOf(&e))
		if q.Step > 0 {
			addTo(
				r.steps,
				place{e.At.UnixMilli() - e.At.UnixMilli()%q.Step.Milliseconds(), r.groupOf(k, label)},
				rowOf(&e),
			)
		}
	}
	return r.buildAnswer()
}

func TestTheNewestEventsComeFirst(t *testing.T) {
	s := open(t, at(noon))
	for i := range 15 {
		record(
			t,
			s,
			"c",
			Event{
				At:     noon.Add(time.Duration(i) * time.Second),
				Type:   "n" + strconv.Itoa(i%2),
				Agent:  "a",
				Labels: map[string]string{"k": "v"},
				Data:   json.RawMessage(`{"i": 1}`),
			},
		)
	}
	got := ask(t, s, Query{Scope: "c", Since: noon, Last: 2, Type: "n1"}).Events
	if len(got) != 2 || got[0].At != noon.Add(13*time.Second) || got[1].At != noon.Add(11*time.Second) {
		t.Fatalf("got %+v", got)
	}
	want := Event{
		At:     noon.Add(13 * time.Second),
		Type:   "n1",
		Agent:  "a",
		Labels: map[string]string{"k": "v"},
		Data:   json.RawMessage(`{"i": 1}`),
		Count:  1,
	}
	if !reflect.DeepEqual(got[0], want) {
		t.Errorf("got %+v, want %+v", got[0], want)
	}
}

func TestNothingWasRecorded(t *testing.T) {
	s := open(t, at(noon))
	if a := ask(t, s, Query{Scope: "c", Since: noon.Add(-day)}); !reflect.DeepEqual(a, Answer{}) {
		t.Errorf("got %+v", a)
	}
}

func TestBadEventsAreRefusedWhole(t *testing.T) {
	s := open(t, at(noon))
	for want, e := range map[string]Event{
		"type is empty":     {},
		"type has 201":      {Type: strings.Repeat("x", 201)},
		"labels: a name":    {Type: "x", Labels: map[string]string{"": "x"}},
		"data has 8193":     {Type: "x", Data: make([]byte, 8193)},
		"agent_id has 1000": {Type: "x", Agent: strings.Repeat("x", 1000)},
	} {
		if _, err := s.Record(t.Context(), "c", Event{Type: "good"}, e); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if a := ask(t, s, Query{Scope: "c", Since: noon.Add(-day)}); a.Count != 0 {
		t.Errorf("%d events were kept", a.Count)
	}
}

// One agent that makes up names cannot fill the disk with series; what it
// counts is still there.
func TestTooManySeriesAreCountedTogether(t *testing.T) {
	const most = 40
	s := open(t, Options{Most: most, Now: func() time.Time { return noon }})
	var many []Event
	for i := range most + 50 {
		many = append(many, Event{Type: "x", Agent: fmt.Sprint(i)})
	}
	folded, err := s.Record(t.Context(), "c", many...)
	if err != nil || !folded {
		t.Fatalf("folded %v, %v", folded, err)
	}
	a := ask(t, s, Query{Scope: "c", Since: noon.Add(-day)})
	if a.Count != most+50 || len(a.Agents) != most+1 || a.Agents[0].Name != Other || a.Agents[0].Count != 50 {
		t.Errorf("got %d events of %d agents, first %+v", a.Count, len(a.Agents), a.Agents[0])
	}
	var kinds []Event
	for i := range 3 * most {
		kinds = append(kinds, Event{Type: fmt.Sprint("k", i)})
	}
	record(t, s, "c", kinds...)
	if a := ask(t, s, Query{Scope: "c", Since: noon.Add(-day)}); a.Count != most+50+3*most || len(a.Types) > 2*most {
		t.Errorf("got %d events of %d types", a.Count, len(a.Types))
	}
	if folded, err := s.Record(t.Context(), "fresh", Event{Type: "x"}); folded || err != nil {
		t.Errorf("another scope: folded %v, %v", folded, err)
	}
}

func TestOldEventsAreForgotten(t *testing.T) {
	now := noon
	s := open(t, Options{Keep: 10 * day, Now: func() time.Time { return now }})
	record(t, s, "c", Event{Type: "old"})
	now = noon.Add(20 * day)
	record(t, s, "c", Event{Type: "new"})
	a := ask(t, s, Query{Scope: "c", Since: noon.Add(-100 * day).Truncate(day), Last: 10})
	if a.Count != 2 || len(a.Events) != 1 || a.Events[0].Type != "new" {
		t.Errorf("got %+v, want both in the daily sums and one event", a)
	}
	if b := ask(t, s, Query{Scope: "c", Since: noon.Add(-day), Step: 6 * hour, Group: "type"}); len(b.Steps) != 1 ||
		b.Steps[0].Group != "new" {
		t.Errorf("hourly sums: got %+v", b)
	}
}

func TestEventsOutliveTheStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.db")
	s := Open(path, at(noon))
	record(t, s, "c", Event{Type: "x", Value: value(2)})
	s.Close()
	s = Open(path, at(noon))
	defer s.Close()
	record(t, s, "c", Event{Type: "x", Value: value(4)}, Event{Type: "x"})
	a := ask(t, s, Query{Scope: "c", Since: noon.Add(-2 * day)})
	if (a.Sum != Sum{3, 2, 6, 2, 4}) {
		t.Errorf("got %+v", a.Sum)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func TestManyRecordAtOnce(t *testing.T) {
	s := open(t, at(noon))
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 25 {
				if _, err := s.Record(context.Background(), "c", Event{Type: "x", Agent: strconv.Itoa(i)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if a := ask(t, s, Query{Scope: "c", Since: noon.Add(-day)}); a.Count != 200 || len(a.Agents) != 8 {
		t.Errorf("got %+v", a)
	}
}

func TestQuestionsThatCannotBeAnswered(t *testing.T) {
	s := open(t, at(noon))
	for want, q := range map[string]Query{
		"not a pattern":  {Type: "["},
		"more than 500":  {Since: noon.Add(-600 * time.Minute), Step: time.Minute},
		"at least 1s":    {Since: noon, Step: time.Millisecond},
		"step is at lea": {Since: noon, Step: -1},
	} {
		if _, err := s.Query(t.Context(), q); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q", q, err, want)
		}
	}
}

// BenchmarkQuery asks about a week of 20,000 events, or of as many as
// GATEHOUSE_EVENTS says. The bar is 200 ms for 1,000,000.
func BenchmarkQuery(b *testing.B) {
	s := Open(filepath.Join(b.TempDir(), "m.db"), at(noon))
	defer s.Close()
	r := rand.New(rand.NewPCG(1, 2))
	n, err := strconv.Atoi(cmp.Or(os.Getenv("GATEHOUSE_EVENTS"), "20000"))
	if err != nil {
		b.Fatal(err)
	}
	for range n / 10_000 {
		batch := make([]Event, 10_000)
		for i := range batch {
			batch[i] = Event{
				At:    noon.Add(-time.Duration(r.Int64N(int64(7 * day)))),
				Type:  "t" + strconv.Itoa(r.IntN(10)),
				Repo:  "r" + strconv.Itoa(r.IntN(10)),
				Agent: "a" + strconv.Itoa(r.IntN(10)),
				Value: new(r.Float64()),
			}
		}
		if _, err := s.Record(b.Context(), "c", batch...); err != nil {
			b.Fatal(err)
		}
	}
	for name, q := range map[string]Query{
		"week":        {Since: noon.Add(-7 * day), Last: 10},
		"type":        {Since: noon.Add(-7 * day), Last: 10, Type: "t3"},
		"hourly":      {Since: noon.Add(-7 * day), Step: hour, Last: 10},
		"daily by":    {Since: noon.Add(-7 * day), Step: day, Group: "repo", Last: 10},
		"last minute": {Since: noon.Add(-hour), Step: time.Minute, Last: 10},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				q.Scope = "c"
				if a, err := s.Query(b.Context(), q); err != nil || a.Count == 0 {
					b.Fatal(a.Count, err)
				}
			}
		})
	}
}

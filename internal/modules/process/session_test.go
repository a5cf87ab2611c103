package process

import (
	"context"
	"iter"
	"testing"

	"gatehouse/module/moduletest"
)

// visits are sessions that a test ends.
type visits struct {
	alive map[string]bool
	ended chan func(string) bool
}

func (v visits) Lives(id string) bool { return v.alive[id] }

func (v visits) Ended(ctx context.Context) iter.Seq[func(string) bool] {
	return func(yield func(func(string) bool) bool) {
		for {
			select {
			case has := <-v.ended:
				if !yield(has) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

func withSessions(t *testing.T, v visits) *fixture {
	t.Helper()
	host := moduletest.NewHost(t)
	deps := host.Deps()
	m, err := New(Config{Sessions: v})(t.Context(), deps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(context.Background()) })
	return &fixture{t: t, m: m, host: host, dir: moduletest.Folder(t)}
}

// A process that was told to ends with its session; others stay.
func TestSomeProcessesEndWithTheirSession(t *testing.T) {
	v := visits{alive: map[string]bool{"s1": true, "s2": true}, ended: make(chan func(string) bool)}
	d := withSessions(t, v)
	begin := func(session, lifetime string) string {
		d.session = session
		defer func() { d.session = "" }()
		return d.do("start", args{"command": "sleep", "args": []string{"1000"}, "lifetime": lifetime}).ID
	}
	stays, ends, others := begin("s1", "host"), begin("s1", "session"), begin("s2", "session")
	v.ended <- func(id string) bool { return id == "s1" }
	if r := d.ended(ends); r.Status != "killed" {
		t.Errorf("got %+v", r)
	}
	for _, id := range []string{stays, others} {
		if r := d.do("output", args{"id": id}); r.Status != "running" {
			t.Errorf("got %+v", r)
		}
	}
	d.session = "s3"
	if _, code := d.try("start",
		args{"command": "sleep", "args": []string{"1000"}, "lifetime": "session"}); code != "unsupported" {
		t.Errorf("a session that is over: %q", code)
	}
	d.session = ""
	if _, code := d.try("start",
		args{"command": "sleep", "args": []string{"1000"}, "lifetime": "session"}); code != "unsupported" {
		t.Errorf("no session: %q", code)
	}
	for _, p := range d.do("list", args{}).Processes {
		if p.Status == "running" && p.ID != stays && p.ID != others {
			r := d.ended(p.ID) // it is being stopped
			if r.Status != "killed" {
				t.Errorf("got %+v", r)
			}
		}
	}
}

func TestARunReadsWhatItIsGiven(t *testing.T) {
	d := open(t, "")
	if r := d.do("run", args{"command": "tr", "args": []string{"a-z", "A-Z"},
		"stdin": "caf\xc3\xa9 and\nmore"}); r.Output != "CAF\xc3\xa9 AND\nMORE" ||
		*r.ExitCode != 0 {
		t.Errorf("got %+v", r)
	}
	if r := d.do("run", args{"command": "cat"}); r.Output != "" || *r.ExitCode != 0 {
		t.Errorf("without input: %+v", r)
	}
	if r := d.do("run", args{"command": "true", "stdin": string(make([]byte, 1<<20))}); *r.ExitCode != 0 {
		t.Errorf("a program that does not read: %+v", r)
	}
	if _, code := d.try("run", args{"command": "cat", "stdin": string(make([]byte, 1<<20+1))}); code != "too_large" {
		t.Errorf("got %q", code)
	}
}

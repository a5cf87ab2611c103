package session

import (
	"fmt"
	"reflect"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/tool"
)

// clientFacts are the facts of a client of a principal.
func clientFacts(principal, wire string) Facts {
	return Facts{Caller: tool.Caller{
		Principal: principal, Owner: principal + "/", Wire: wire, Client: "client/1.0", Scopes: []string{"call"},
		Roles: []string{"member"}, Credential: "token " + principal,
	}}
}

// TestAnIdleSessionIsSmall opens many sessions, and measures them.
func TestAnIdleSessionIsSmall(t *testing.T) {
	table := NewTable(Options{})
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const count = 30_000
	before := heap()
	for i := range count {
		f := clientFacts(fmt.Sprint("p", i%100), "wire")
		s, err := table.Open(f)
		if err != nil {
			t.Fatal(err)
		}
		s.Initialize(f)
	}
	each := (heap() - before) / count
	t.Logf("a session takes %d bytes", each)
	if each > 400 {
		t.Errorf("a session takes %d bytes", each)
	}
	if n := len(table.shared.all); n != 100 {
		t.Errorf("the sessions of 100 principals have %d different facts", n)
	}
	table.All(func(s *Session) { table.End(s, ErrClosed) })
	if n := len(table.shared.all); n != 0 {
		t.Errorf("without sessions %d facts are kept", n)
	}
	if used, _ := table.shares.Usage(); used != 0 {
		t.Errorf("without sessions %d are counted", used)
	}
}

// TestPackedFacts changes the facts of sessions that share them, and of one that is idle again.
func TestPackedFacts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable(Options{})
		var all []*Session
		for i := range 3 {
			f := clientFacts("ada", fmt.Sprint("wire ", i))
			s, err := table.Open(f)
			if err != nil {
				t.Fatal(err)
			}
			s.Initialize(f)
			all = append(all, s)
		}
		first := all[0].Facts()
		all[1].Move("other", "ada/other")
		all[2].Authenticated(&tool.Caller{Principal: "ada", Credential: "new"}, time.Time{})
		if got := all[0].Facts(); !reflect.DeepEqual(got, first) || got.Session != all[0].ID || got.Wire != "wire 0" {
			t.Errorf("the facts of a session became %+v", got)
		}
		if got := all[1].Known(); got.Context != "other" || got.Wire != "wire 1" || got.Credential != "token ada" {
			t.Errorf("a session that was moved has %+v", got)
		}
		terms, ok := all[2].BeginRequest("1", func(error) {})
		if !ok || terms.Facts.Credential != "new" || terms.Facts.Session != all[2].ID {
			t.Errorf("a request has %+v", terms.Facts)
		}
		time.Sleep(time.Minute)
		table.endIdle(clock())
		if all[1].facts != nil || all[2].facts == nil || all[2].extra == nil {
			t.Error("an idle session was not packed, or one with a request was")
		}
		all[2].FinishRequest("1")
		time.Sleep(time.Minute)
		table.endIdle(clock())
		if s := all[2]; s.facts != nil || s.extra != nil || s.Facts().Credential != "new" {
			t.Errorf("a session is not packed after its request: %+v", s.Facts())
		}
		if _, ok := table.Get(all[1].ID, "ada"); !ok {
			t.Error("a packed session is not found by its principal")
		}
		if _, ok := table.Get(all[1].ID, "bob"); ok {
			t.Error("a packed session is found by another principal")
		}
	})
}

// TestFactsThatDifferAreNotShared sets each field of the facts, which must make them different.
func TestFactsThatDifferAreNotShared(t *testing.T) {
	var pool factsPool
	none := pool.get(Facts{})
	check := func(name string, f Facts) {
		if s := pool.get(f); s == none {
			t.Errorf("facts that differ in %s are shared", name)
		}
	}
	set := func(v reflect.Value) bool {
		switch v.Kind() {
		case reflect.String:
			v.SetString("x")
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Uint8, reflect.Uint16:
			v.SetUint(2)
		case reflect.Slice:
			v.Set(reflect.ValueOf([]string{"x"}))
		case reflect.Struct:
			if v.Type() != reflect.TypeFor[time.Time]() {
				return false
			}
			v.Set(reflect.ValueOf(time.Unix(1, 0)))
		default:
			t.Fatalf("what is a %v?", v.Type())
		}
		return true
	}
	for i := range reflect.TypeFor[Facts]().NumField() {
		var f Facts
		if set(reflect.ValueOf(&f).Elem().Field(i)) {
			check(reflect.TypeFor[Facts]().Field(i).Name, f)
		}
	}
	for i := range reflect.TypeFor[tool.Caller]().NumField() {
		var f Facts
		set(reflect.ValueOf(&f.Caller).Elem().Field(i))
		check(reflect.TypeFor[tool.Caller]().Field(i).Name, f)
	}
}

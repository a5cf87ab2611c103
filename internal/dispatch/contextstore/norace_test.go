//go:build !race

package contextstore_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/dispatch/views"
)

// What is listed is exactly what can be used, in every way; and a context that is hidden from a caller is answered
// like one that does not exist.
func TestWhatIsListedIsWhatCanBeDone(t *testing.T) {
	w := newWorld(t)
	entered, hidden, known := 0, 0, 0
	for seed := range uint64(120) {
		w.r = rand.New(rand.NewPCG(seed, 2))
		f := contextstore.Fixed{Specs: []views.Spec{{Name: "default"}}, Policy: w.policy(), Modules: shops}
		var records []contextstore.Record
		for i := range 3 {
			records = append(records, w.record(fmt.Sprintf("c%d", i)))
		}
		rules, err := f.With(records)
		if err != nil {
			t.Fatal(err)
		}
		w.host.Views.Set(rules)
		for range 4 {
			who := w.caller()
			for _, in := range []string{"default", "c0", "c1", "c2", "admin", "nowhere"} {
				entry := rules.Policy.Enter(rules.Policy.Cut(who), in)
				if rules.Spec(in) != nil && entry == permit.Welcome {
					entered++
					w.check(who, in)
					continue
				}
				status, says := 404, "Context not found"
				if rules.Spec(in) != nil && entry == permit.Forbidden {
					known++
					status, says = 403, "Context not allowed"
					if i := slices.IndexFunc(records,
						func(r contextstore.Record) bool { return r.Name == in }); i < 0 ||
						!slices.ContainsFunc(records[i].KnownTo,
							func(r string) bool { return slices.Contains(who.Roles, r) }) {
						t.Errorf("%+v learns of %s", who, in)
					}
				} else {
					hidden++
				}
				for method, params := range everything {
					got, body := w.ask(who, in, method, params)
					want := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":%q}}`, says)
					if got != status || body != want {
						t.Errorf("%+v in %s, %s: got %d %s, want %d %s", who, in, method, got, body, status, want)
					}
				}
			}
		}
		if t.Failed() {
			t.Fatalf("with seed %d", seed)
		}
	}
	t.Logf("%d times entered, %d hidden, %d known and not allowed", entered, hidden, known)
	if entered < 100 || hidden < 100 || known < 10 {
		t.Error("chance has tried too little")
	}
}

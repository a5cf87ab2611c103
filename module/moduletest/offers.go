package moduletest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/module"
)

// offersAreSteady: asking is cheap and free of races, the answer is the same
// until Changed is called, and an offer once given stays as it is.
func (g *instance) offersAreSteady(t *testing.T) {
	for _, to := range audiences {
		given := g.offer(t, to)
		before := describe(given)
		g.askOften(t, to, before)
		g.callEverything(t)
		if now := describe(given); now != before {
			t.Errorf(
				"an offer that was given became another, which must not happen: make a new one for each change\n%s",
				difference(before, now),
			)
		}
	}
	everyone := g.offer(t, audiences[0])
	if everyone.Personal {
		return
	}
	for _, to := range audiences[1:] {
		if mine := g.offer(t, to); len(g.host.Changed()) == 0 && describe(mine) != describe(everyone) {
			t.Errorf(
				"what is offered to %+v is not what is offered to everyone: say so with Personal\n%s",
				to,
				difference(describe(everyone), describe(mine)),
			)
		}
	}
}

// askOften asks for the same offer a hundred times from four goroutines.
func (g *instance) askOften(t *testing.T, to module.Audience, before string) {
	changes := len(g.host.Changed())
	began := time.Now()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 25 {
				o, err := g.module.Offer(t.Context(), to)
				if err != nil || o == nil {
					t.Errorf("offer for %+v, asked for again: %v, %v", to, o, err)
					return
				}
				if now := describe(o); now != before && len(g.host.Changed()) == changes {
					t.Errorf("the offer for %+v changed without Deps.Changed\n%s", to, difference(before, now))
					return
				}
			}
		})
	}
	wg.Wait()
	if took := time.Since(began); took > patience {
		t.Errorf("a hundred offers take %v: make the offer once and keep it", took)
	}
}

// describe writes out what of an offer can be compared, a line for each thing.
func describe(o *module.Offer) string {
	var b strings.Builder
	line := func(kind string, v any) {
		raw, err := json.Marshal(v)
		if err != nil {
			raw = []byte(err.Error())
		}
		fmt.Fprintf(&b, "%s %s\n", kind, raw)
	}
	line("personal", o.Personal)
	for _, t := range o.Tools {
		d := t.Def
		types := fmt.Sprintf("tool(%v)%v", d.In, d.Out)
		d.In, d.Out = nil, nil
		line(types, d)
	}
	for _, r := range o.Resources {
		line("resource", listed(r))
	}
	for _, r := range o.Templates {
		line("template", listed(r))
	}
	for _, p := range o.Prompts {
		p.Get, p.Complete = nil, nil
		line("prompt", []any{p.Name, p.Title, p.Description, p.Args, p.Icons, p.Raw})
	}
	line("methods", slices.Sorted(maps.Keys(o.Methods)))
	line("extensions", o.Extensions)
	return b.String()
}

// listed is a resource without its handlers.
func listed(r module.Resource) []any {
	return []any{r.URI, r.Name, r.Title, r.Description, r.MIME, r.Size, r.Icons, r.Annotations, r.Raw}
}

// difference shows the lines that only one of two texts has.
func difference(before, after string) string {
	a, b := strings.Split(before, "\n"), strings.Split(after, "\n")
	var out []string
	for _, l := range a {
		if !slices.Contains(b, l) {
			out = append(out, "- "+l)
		}
	}
	for _, l := range b {
		if !slices.Contains(a, l) {
			out = append(out, "+ "+l)
		}
	}
	if out == nil {
		return "the order changed"
	}
	return strings.Join(out, "\n")
}

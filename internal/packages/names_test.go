package packages

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/mcp/rawjson"
)

// Whatever servers name their tools, each has one name here, which every client accepts and which does not depend
// on the order. Servers know the hash, and use the names that it makes as well.
func TestNamesAreUniqueAndStable(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 2))
	form := regexp.MustCompile(`^[A-Za-z0-9_]{1,64}$`)
	ids := []string{"a", "a-b", "long-" + strings.Repeat("x", 27)}
	parts := []string{"b", "_", "-", ".", "a_b", "ü", "get", "a-b_c", strings.Repeat("y", 40)}
	for range 1000 {
		id, seen := ids[r.IntN(len(ids))], map[string]bool{}
		var all []wanted
		add := func(own string) {
			if own != "" && !seen[own] {
				seen[own] = true
				all = append(all, wanted{id: id, own: own, name: nameHere(id, own)})
			}
		}
		for range 1 + r.IntN(30) {
			var own strings.Builder
			for range 1 + r.IntN(3) {
				own.WriteString(parts[r.IntN(len(parts))])
			}
			add(own.String())
			for level := 1; level < len(hashSizes) && r.IntN(2) == 0; level++ {
				w := wanted{id: id, own: own.String(), name: nameHere(id, own.String()), level: level}
				add(w.hashed())
				add(strings.TrimPrefix(w.hashed(), prefix(id)+"_"))
			}
		}
		byTool := map[string]string{}
		for i, name := range uniqueNames(slices.Clone(all)) {
			if !form.MatchString(name) {
				t.Fatalf("seed %d: %q is no name", seed, name)
			}
			byTool[all[i].own] = name
		}
		if names := slices.Collect(maps.Values(byTool)); len(
			slices.Compact(slices.Sorted(slices.Values(names))),
		) != len(all) {
			t.Fatalf("seed %d: two of %v have one name", seed, all)
		}
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for i, name := range uniqueNames(slices.Clone(all)) {
			if byTool[all[i].own] != name {
				t.Fatalf("seed %d: %v is %s in another order", seed, all[i], name)
			}
		}
	}
}

func listed(names ...string) (entries []json.RawMessage) {
	for _, n := range names {
		entries = append(
			entries,
			json.RawMessage(`{"name":`+string(rawjson.AppendString(nil, n))+`,"inputSchema":{"type":"object"}}`),
		)
	}
	return entries
}

// A name that a server gives to one tool unchanged stays with it, and names only change for those that collide.
func TestNamesThatCollide(t *testing.T) {
	long := strings.Repeat("long_", 20)
	for _, c := range []struct {
		own  []string
		want string
	}{
		{[]string{"get_it", "other"}, "up_get_it up_other"},
		{[]string{"get it"}, "up_get_it"},
		{[]string{"get_it", "get it", "get-it"}, "up_get_it up_get_it_HASH up_get_it_HASH"},
		{[]string{"get it", "get-it"}, "up_get_it_HASH up_get_it_HASH"},
		{[]string{"x", "up_x"}, "up_x up_x_HASH"},
		{[]string{long + "1", long + "2"}, "up_" + long[:52] + "_HASH up_" + long[:52] + "_HASH"},
		{[]string{"twice", "twice"}, "up_twice"},
	} {
		tools, left := makeTools(naming{id: "up"}, listed(c.own...))
		var got []string
		for i, o := range tools {
			name := o.Name
			if slices.Contains(got, name) || len(name) > longestName {
				t.Errorf("%q: %s again, or too long", c.own, name)
			}
			if w := (wanted{id: "up", own: o.Own, name: nameHere("up", o.Own), level: 1}); name == w.hashed() {
				name = name[:len(name)-8] + "HASH"
			}
			got = append(got, name)
			if o.Own != c.own[i] {
				t.Errorf("%q: %s is %s", c.own, o.Own, o.Name)
			}
		}
		if s := strings.Join(got, " "); s != c.want || len(tools)+len(left) != len(c.own) {
			t.Errorf("%q are %s, want %s; left out %q", c.own, s, c.want, left)
		}
		prompts, _ := makeOffer(naming{id: "up"}, &listing{Prompts: listed(c.own...)})
		for i, p := range prompts.Prompts {
			if p.Name != tools[i].Name || p.Own != tools[i].Own {
				t.Errorf("prompt %q is %s, and the tool is %s", p.Own, p.Name, tools[i].Name)
			}
		}
	}
}

// A tool that an administrator has turned off stays off if its server lists another that wants its name.
func TestAToolThatIsOffIsNotRenamedIntoTheList(t *testing.T) {
	h := openHome(t, Options{})
	r := server(t, "up", "good")
	r.NewTools = AllowNew
	h.install(r)
	p, _ := h.findPackage("up")
	p.setTools(listing{Tools: listed("wipe it", "echo")}, nil, false, false)
	if _, err := h.Decide("up", nil, true, "", "test"); err != nil { // its echo is another
		t.Fatal(err)
	}
	if _, err := h.ChooseTools("up", []string{"up_wipe_it"}, nil); err != nil {
		t.Fatal(err)
	}
	p.setTools(listing{Tools: listed("wipe-it", "wipe it", "echo")}, nil, false, false)
	if got := fmt.Sprint(h.names()); got != "[up_echo]" {
		t.Errorf("offers %s", got)
	}
	all, err := h.ChooseTools("up", nil, []string{"wipe-it"})
	if err != nil || len(h.names()) != 2 {
		t.Fatalf("offers %v, %v", h.names(), err)
	}
	for _, one := range all {
		if one.Off != (one.Own == "wipe it") {
			t.Errorf("%s is off: %v", one.Own, one.Off)
		}
	}
}

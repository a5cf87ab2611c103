// Command generate writes the tables of package language from the data of
// go-enry, which takes them from GitHub's Linguist. They are copied rather
// than linked in because linking costs every process 20 ms and 16 MB at its
// start, before it knows whether it will ever be asked.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"maps"
	"math"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unsafe"

	"github.com/go-enry/go-enry/v2/data"
)

func main() {
	log.SetFlags(0)
	if err := languages("languages.txt"); err != nil {
		log.Fatal(err)
	}
	if err := heuristics("heuristics.json"); err != nil {
		log.Fatal(err)
	}
	if err := weights("weights.txt"); err != nil {
		log.Fatal(err)
	}
}

// languages writes one line per language that a name can lead to: name,
// extensions with the primary one first, file names, interpreters, aliases,
// and how rare it is.
func languages(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	infos := slices.Collect(maps.Values(data.LanguageInfoByID))
	slices.SortFunc(infos, func(a, b data.LanguageInfo) int { return strings.Compare(a.Name, b.Name) })
	for _, l := range infos {
		if len(l.Extensions)+len(l.Filenames)+len(l.Interpreters) == 0 {
			continue
		}
		lists := []string{
			l.Name,
			list(l.Extensions),
			list(l.Filenames),
			list(l.Interpreters),
			list(l.Aliases),
			fmt.Sprint(rarity(l.Name)),
		}
		fmt.Fprintln(w, strings.Join(lists, "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Close()
}

func list(words []string) string {
	for _, w := range words {
		if strings.ContainsAny(w, "|\t\n") {
			log.Fatalf("%q cannot be written in a list", w)
		}
	}
	return strings.Join(words, "|")
}

// rarity is the negative logarithm of a language's share of Linguist's
// samples, in thousandths; a language without samples is the rarest.
func rarity(name string) int {
	p, ok := data.LanguagesLogProbabilities[name]
	if !ok {
		return 99999
	}
	return int(math.Round(-1000 * p))
}

// rule mirrors the rule type of package language.
type rule struct {
	Languages []string `json:"languages,omitempty"`
	Op        string   `json:"op"` // and, or, not, always, never, match
	Of        []rule   `json:"of,omitempty"`
	Pattern   string   `json:"pattern,omitempty"`
}

func heuristics(path string) error {
	all := make(map[string][]rule)
	for ext, hs := range data.ContentHeuristics {
		for _, h := range *hs {
			r := convert(reflect.ValueOf(h))
			r.Languages = nil
			for _, name := range h.Languages() {
				if l, ok := data.LanguageByAlias(name); ok {
					r.Languages = append(r.Languages, l)
				}
			}
			all[ext] = append(all[ext], r)
		}
	}
	b, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

// convert reads a go-enry rule, whose fields are unexported.
func convert(v reflect.Value) rule {
	if v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if v.Type() == reflect.TypeFor[*regexp.Regexp]() {
		if v.IsNil() { // a pattern Go's regular expressions cannot say
			return rule{Op: "never"}
		}
		re := (*regexp.Regexp)(unsafe.Pointer(v.Pointer()))
		return rule{Op: "match", Pattern: re.String()}
	}
	r := rule{Op: v.Type().Name()}
	switch r.Op {
	case "always":
	case "or":
		r.Of = []rule{convert(v.FieldByName("pattern"))}
	case "and":
		r.Of = several(v.FieldByName("patterns"))
	case "not":
		r.Of = several(v.FieldByName("Patterns"))
	default:
		log.Fatalf("unknown rule %s", v.Type())
	}
	return r
}

// several leaves out the patterns that cannot be said, as go-enry does.
func several(v reflect.Value) []rule {
	var rules []rule
	for i := range v.Len() {
		if r := convert(v.Index(i)); r.Op != "never" {
			rules = append(rules, r)
		}
	}
	return rules
}

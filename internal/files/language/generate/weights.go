package main

import (
	"bufio"
	"cmp"
	"fmt"
	"log"
	"maps"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/go-enry/go-enry/v2/data"
)

// known are the languages that are told by their words. Every further one
// makes mistakes among these likelier, so only what people meet is here.
var known = []string{
	"Assembly", "Batchfile", "C", "C#", "C++", "CMake", "CSS", "Clojure", "Common Lisp", "CoffeeScript", "Dart", "Diff",
	"Dockerfile", "Elixir", "Emacs Lisp", "Erlang", "F#", "Fortran", "GLSL", "Go", "GraphQL", "Groovy", "HCL", "HTML",
	"Haskell",
	"INI", "JSON", "Java", "JavaScript", "Julia", "Kotlin", "Less", "Lua", "Makefile", "Markdown", "MATLAB", "Nix",
	"OCaml",
	"Objective-C", "PHP", "Pascal", "Perl", "PowerShell", "Prolog", "Protocol Buffer", "Python", "R", "Ruby", "Rust",
	"SCSS",
	"SQL", "SVG", "Scala", "Scheme", "Shell", "Swift", "TOML", "Tcl", "TeX", "TypeScript", "Unix Assembly",
	"Vim Script",
	"Visual Basic .NET", "Vue", "XML", "YAML", "Zig", "reStructuredText",
}

const (
	strongest = 900 // words kept per language
	usual     = 0.2 // share of a language's text that could be in any language
	digit     = 8   // steps of a weight per unit of the natural logarithm
)

// weights writes the logarithm of how much more often a word stands in a
// language than anywhere, for the words that tell most: one line with the
// languages, then one per word with a letter for each language that has it
// and a digit for the weight.
func weights(path string) error {
	anywhere := backgrounds()
	kept := make(map[string]map[int]int)
	for _, name := range known {
		words := data.TokensLogProbabilities[name]
		if words == nil && name != "SVG" { // which lines alone tell
			log.Fatalf("there are no words of %s", name)
		}
		type scored struct {
			word string
			gain float64
		}
		var all []scored
		for w, lp := range words {
			if len(w) > 24 || strings.ContainsAny(w, " \t\n") || math.Exp(lp) < 1e-6 {
				continue
			}
			p := math.Exp(lp)
			ratio := math.Log((1-usual)*p/anywhere[w] + usual)
			all = append(all, scored{w, p * math.Abs(ratio)})
		}
		slices.SortFunc(
			all,
			func(a, b scored) int { return cmp.Or(cmp.Compare(b.gain, a.gain), strings.Compare(a.word, b.word)) },
		)
		for _, s := range all[:min(len(all), strongest)] {
			if kept[s.word] == nil {
				kept[s.word] = make(map[int]int)
			}
		}
	}
	return writeWeights(path, kept, anywhere)
}

// backgrounds is how often each word stands in the mean of all languages.
func backgrounds() map[string]float64 {
	anywhere := make(map[string]float64)
	for _, name := range known {
		for w, lp := range data.TokensLogProbabilities[name] {
			anywhere[w] += math.Exp(lp) / float64(len(known))
		}
	}
	return anywhere
}

func writeWeights(path string, kept map[string]map[int]int, anywhere map[string]float64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	fmt.Fprintln(w, strings.Join(known, "\t"))
	for _, word := range slices.Sorted(maps.Keys(kept)) {
		var line strings.Builder
		for i, name := range known {
			if lp, ok := data.TokensLogProbabilities[name][word]; ok {
				ratio := math.Log((1-usual)*math.Exp(lp)/anywhere[word] + usual)
				fmt.Fprintf(&line, "%c%c", '0'+i, '0'+16+max(-16, min(int(math.Round(ratio*digit)), 70)))
			}
		}
		fmt.Fprintf(w, "%s\t%s\n", word, line.String())
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Close()
}

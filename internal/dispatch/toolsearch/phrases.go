package toolsearch

import (
	_ "embed" // phrases.txt
	"slices"
	"strings"
	"sync"
)

//go:embed phrases.txt
var phraseText string

// phrase is a line of phrases.txt for one key.
type phrase struct{ key, adds []string }

// phrases are the lines of phrases.txt by the first word of their keys.
var phrases = sync.OnceValue(func() map[string][]phrase {
	all := map[string][]phrase{}
	for line := range strings.Lines(phraseText) {
		keys, adds, ok := strings.Cut(line, ":")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		words := terms(adds + " " + keys)
		slices.Sort(words)
		words = slices.Compact(words)
		for key := range strings.SplitSeq(keys, ";") {
			if k := terms(key); len(k) > 0 {
				all[k[0]] = append(all[k[0]], phrase{k, words})
			}
		}
	}
	return all
})

// phraseWords returns the words that phrases.txt adds to a document, with their weights.
func phraseWords(d *Document) map[string]float64 {
	weights := map[string]float64{}
	add := func(text string, weight float64) {
		list := terms(text)
		for i, w := range list {
			for _, p := range phrases()[w] {
				if len(p.key) > len(list)-i || !slices.Equal(p.key, list[i:i+len(p.key)]) {
					continue
				}
				for _, a := range p.adds {
					weights[a] = max(weights[a], weight*(1+0.5*float64(len(p.key)-1)))
				}
			}
		}
	}
	for _, name := range append([]string{d.Name, d.Title}, d.Aliases...) {
		add(name, phraseInName)
	}
	add(d.Description[:min(len(d.Description), phraseReached)], phraseInText)
	return weights
}

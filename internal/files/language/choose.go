package language

import (
	"fmt"
	"path/filepath"
	"strings"
)

// Lookup finds the id of a language by its id, its name or one of its other
// names, or by an extension with or without its dot, whatever the case.
func Lookup(word string) (id string, ok bool) {
	t := load()
	word = strings.ToLower(strings.TrimSpace(word))
	for _, l := range t.all {
		if l.ID == word || strings.EqualFold(l.Name, word) {
			return l.ID, true
		}
	}
	if l := t.alias[word]; l != nil {
		return l.id, true
	}
	if c := t.extension["."+strings.TrimPrefix(word, ".")]; len(c) > 0 {
		return t.likeliest(c).id, true
	}
	return "", false
}

// Chooser makes a test for file names that are of one of some languages, each
// given as Lookup takes it; an extension with its dot means just that one.
func Chooser(words []string) (func(name string) bool, error) {
	ids, extensions := make(map[string]bool), make(map[string]bool)
	for _, w := range words {
		if w = strings.ToLower(strings.TrimSpace(w)); strings.HasPrefix(w, ".") {
			extensions[w] = true
			continue
		}
		id, ok := Lookup(w)
		if !ok {
			return nil, fmt.Errorf("there is no language %q", w)
		}
		ids[id] = true
	}
	return func(name string) bool {
		return extensions[strings.ToLower(filepath.Ext(name))] || len(ids) > 0 && ids[ByName(name)]
	}, nil
}

package language

import (
	_ "embed"
	"slices"
	"strconv"
	"strings"
	"sync"
)

//go:embed languages.txt
var languages string

// tables is what the generated files say, indexed. Immutable.
type tables struct {
	all         []Language
	named       map[string]*entry
	alias       map[string]*entry
	filename    map[string][]*entry
	extension   map[string][]*entry // keys in lower case
	interpreter map[string][]*entry
}

type entry struct {
	name    string
	id      string
	primary string // extension
	rarity  int
	common  bool
}

// load parses languages.txt once, which takes about a millisecond.
var load = sync.OnceValue(func() *tables {
	t := &tables{
		named:       make(map[string]*entry),
		alias:       make(map[string]*entry),
		filename:    make(map[string][]*entry),
		extension:   make(map[string][]*entry),
		interpreter: make(map[string][]*entry),
	}
	listed := make(map[string]int)
	for line := range strings.Lines(languages) {
		col := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		extensions, filenames, interpreters, aliases := split(col[1]), split(col[2]), split(col[3]), split(col[4])
		l := &entry{name: col[0], id: idOf(col[0])}
		l.rarity, _ = strconv.Atoi(col[5])
		l.common = common[l.id]
		if len(extensions) > 0 {
			l.primary = strings.ToLower(extensions[0])
		}
		t.named[l.name] = l
		for _, e := range extensions {
			addEntry(t.extension, strings.ToLower(e), l)
		}
		for _, f := range filenames {
			addEntry(t.filename, f, l)
		}
		for _, i := range interpreters {
			addEntry(t.interpreter, i, l)
		}
		t.alias[strings.ToLower(l.name)] = l
		for _, a := range aliases {
			t.alias[strings.ToLower(a)] = l
		}
		t.listEntry(listed, l, extensions)
	}
	slices.SortFunc(t.all, func(a, b Language) int { return strings.Compare(a.ID, b.ID) })
	return t
})

// listEntry adds a language to what All returns. Two of Linguist's languages may
// have one id; the one whose name it is keeps its name.
func (t *tables) listEntry(at map[string]int, l *entry, extensions []string) {
	i, ok := at[l.id]
	if !ok {
		at[l.id] = len(t.all)
		t.all = append(t.all, Language{l.id, l.name, extensions})
		return
	}
	if merged[l.name] == "" {
		t.all[i].Name, t.all[i].Extensions = l.name, append(extensions, t.all[i].Extensions...)
	} else {
		t.all[i].Extensions = append(t.all[i].Extensions, extensions...)
	}
}

func split(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, "|")
}

func addEntry(m map[string][]*entry, key string, l *entry) {
	if !slices.Contains(m[key], l) {
		m[key] = append(m[key], l)
	}
}

func (t *tables) id(l *entry) string {
	if l == nil {
		return Unknown
	}
	return l.id
}

// likeliest settles a tie by what people mostly mean: the everyday languages
// first, then the one whose usual extension this is, then the one Linguist
// has more samples of.
func (t *tables) likeliest(candidates []*entry) *entry {
	if len(candidates) == 0 {
		return nil
	}
	return slices.MinFunc(candidates, func(a, b *entry) int {
		if a.common != b.common {
			return first(a.common)
		}
		if pa, pb := a.isPrimary(t, candidates), b.isPrimary(t, candidates); pa != pb {
			return first(pa)
		}
		if a.rarity != b.rarity {
			return a.rarity - b.rarity
		}
		return strings.Compare(a.name, b.name)
	})
}

func first(yes bool) int {
	if yes {
		return -1
	}
	return 1
}

// isPrimary reports whether the extension the candidates share is this
// language's usual one.
func (l *entry) isPrimary(t *tables, candidates []*entry) bool {
	return l.primary != "" && slices.Equal(t.extension[l.primary], candidates)
}

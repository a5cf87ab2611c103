package catalog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/files/atomicfile"
)

// Pick is the choice of a user for a word.
type Pick struct {
	Word string    `json:"word"`
	Kind string    `json:"kind"`
	From string    `json:"from"`
	Name string    `json:"name"`
	At   time.Time `json:"at"`
}

// Picks are the remembered choices of one user, in a file. Several processes may use
// it at once.
type Picks struct{ Path string }

// PicksFile is the name of the file of choices, in the config folder.
const PicksFile = "picks.json"

const (
	maxPicks  = 1 << 20 // bytes
	mostPicks = 2000
)

// In returns the choices that are kept in a folder.
func In(folder string) Picks { return Picks{filepath.Join(folder, PicksFile)} }

func (p Picks) load() (map[string]Pick, error) {
	b, err := atomicfile.Read(p.Path, maxPicks)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]Pick{}, nil
	}
	if err != nil {
		return nil, err
	}
	all := map[string]Pick{}
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", p.Path, err)
	}
	return all, nil
}

// List returns the choices, sorted by word.
func (p Picks) List() (all []Pick, err error) {
	kept, err := p.load()
	for _, word := range slices.Sorted(maps.Keys(kept)) {
		all = append(all, kept[word])
	}
	return all, err
}

// Find returns the choice for a word.
func (p Picks) Find(word string) (Pick, bool, error) {
	kept, err := p.load()
	one, ok := kept[pickKey(word)]
	return one, ok, err
}

// Remember keeps the choice of an entry for a word.
func (p Picks) Remember(word string, e Entry, at time.Time) error {
	return p.change(func(all map[string]Pick) error {
		key := pickKey(word)
		if _, there := all[key]; !there && len(all) >= mostPicks {
			return fmt.Errorf("there are %d choices, which is as many as can be; forget some", len(all))
		}
		all[key] = Pick{key, e.Kind, e.From, e.Name, at.UTC().Truncate(time.Second)}
		return nil
	})
}

// Forget removes the choice for a word, and returns false if there is none.
func (p Picks) Forget(word string) (was bool, err error) {
	err = p.change(func(all map[string]Pick) error {
		_, was = all[pickKey(word)]
		delete(all, pickKey(word))
		return nil
	})
	return was, err
}

func (p Picks) change(f func(map[string]Pick) error) error {
	unlock, err := atomicfile.Lock(p.Path + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	all, err := p.load()
	if err != nil {
		return err
	}
	if err := f(all); err != nil {
		return err
	}
	b, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(p.Path, b)
}

func pickKey(word string) string { return strings.ToLower(strings.TrimSpace(word)) }

package image

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
)

// resolution is what a reference to a registry last resolved to.
type resolution struct {
	Ref string `json:"ref"`
	ID  string `json:"id"`
}

func (c *cache) meaningAt(ref string) string {
	return c.path("refs", fmt.Sprintf("%x.json", sha256.Sum256([]byte(ref))))
}

// remember records what a reference resolves to.
func (c *cache) remember(ref, id string) error {
	if c.recall(ref) == id {
		return nil
	}
	text, err := json.Marshal(resolution{ref, id})
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(c.path("refs"), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // it was renamed unless there was an error
	_, err = f.Write(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), c.meaningAt(ref))
}

// recall returns the ID that a reference last resolved to, or "".
func (c *cache) recall(ref string) string {
	m, err := readMeaning(c.meaningAt(ref))
	if err != nil || m.Ref != ref {
		return ""
	}
	return m.ID
}

func readMeaning(file string) (m resolution, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return m, err
	}
	return m, json.Unmarshal(text, &m)
}

// meanings yields all references with the IDs they resolved to.
func (c *cache) meanings() iter.Seq2[string, string] {
	return func(yield func(ref, id string) bool) {
		files, _ := filepath.Glob(c.path("refs", "*.json"))
		for _, f := range files {
			if m, err := readMeaning(f); err == nil && !yield(m.Ref, m.ID) {
				return
			}
		}
	}
}

// forgetRefs removes the references of a removed image.
func (c *cache) forgetRefs(id string) error {
	var errs []error
	for ref, meant := range c.meanings() {
		if meant != id {
			continue
		}
		if err := os.Remove(c.meaningAt(ref)); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

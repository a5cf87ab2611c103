// Package gomodule makes the Go module that a release publishes: the source under
// the path of its address, in the form in which Go's module proxies serve it.
//
// In the repository the module's path is a short name, which the go command can
// fetch from nowhere. Here go.mod and every import of ours get the address, and
// nothing else is changed.
package gomodule

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/module"
	modzip "golang.org/x/mod/zip"

	"gatehouse/release/archive"
	"gatehouse/release/product"
)

// Write writes the module below go/ in the folder of the release, as a proxy serves it from files, the whole
// source as an archive, and the page by which the go command finds both.
func Write(r *product.Release, level archive.Level) error {
	if err := module.CheckPath(r.Address); err != nil {
		return fmt.Errorf("the address is the path of the Go module: %w", err)
	}
	tree := filepath.Join(r.Work, "source")
	files, err := rename(r, tree)
	if err != nil {
		return err
	}
	if err := archive.TarGz(r.File(product.Name+"-"+r.Version+"-source.tar.gz"), files, r.Time, level); err != nil {
		return err
	}
	if err := proxy(r, tree); err != nil {
		return err
	}
	page := fmt.Sprintf(
		"<!doctype html>\n<meta name=\"go-import\" content=\"%s mod %s/go\">\n<title>%s</title>\n"+
			"<a href=\"%[2]s\">%[3]s</a>\n",
		r.Address,
		r.Page(),
		product.Title,
	)
	return os.WriteFile(r.File("go/index.html"), []byte(page), 0o644)
}

// skipped are folders of the source that are no part of it.
var skipped = []string{".git", "bin", "dist", "out", ".tools", "node_modules"}

// rename writes the source with the path of the address below tree, and returns its files.
func rename(r *product.Release, tree string) (files []archive.File, err error) {
	err = filepath.WalkDir(r.Source, func(at string, d fs.DirEntry, err error) error {
		rel, e := filepath.Rel(r.Source, at)
		if err != nil || e != nil {
			return fmt.Errorf("%w %w", err, e)
		}
		if d.IsDir() {
			if slices.Contains(skipped, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || d.Name() == ".git" {
			return nil
		}
		f, err := archive.Read(filepath.ToSlash(rel), at, false)
		if err != nil {
			return err
		}
		if info, err := d.Info(); err == nil && info.Mode()&0o100 != 0 {
			f.Mode = 0o755
		}
		if f.Body, err = renamed(f.Name, f.Body, r.Module, r.Address); err != nil {
			return fmt.Errorf("%s: %w", rel, err)
		}
		files = append(files, f)
		to := filepath.Join(tree, rel)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		return os.WriteFile(to, f.Body, f.Mode)
	})
	return files, err
}

// renamed returns a file of the source in which every path that begins with from begins with to.
func renamed(name string, body []byte, from, to string) ([]byte, error) {
	switch {
	case path.Base(name) == "go.mod":
		return renamedMod(body, from, to), nil
	case strings.HasSuffix(name, ".go"):
		return renamedGo(name, body, from, to)
	}
	return body, nil
}

func renamedMod(body []byte, from, to string) []byte {
	lines := strings.SplitAfter(string(body), "\n")
	for i, line := range lines {
		words := strings.Fields(line)
		if len(words) > 1 && (words[1] == from || strings.HasPrefix(words[1], from+"/")) || len(words) > 0 &&
			words[0] == from {
			lines[i] = strings.Replace(line, from, to, 1)
		}
	}
	return []byte(strings.Join(lines, ""))
}

// renamedGo changes the imports of a file. Files that are no Go, such as those of tests, stay as they are.
func renamedGo(name string, body []byte, from, to string) ([]byte, error) {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, name, body, parser.ImportsOnly)
	if _, ok := err.(scanner.ErrorList); ok {
		return body, nil
	}
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	done := 0
	for _, i := range f.Imports {
		imported, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			return nil, err
		}
		if imported != from && !strings.HasPrefix(imported, from+"/") {
			continue
		}
		at := set.Position(i.Path.Pos()).Offset
		b.Write(body[done:at])
		b.WriteString(strconv.Quote(to + strings.TrimPrefix(imported, from)))
		done = at + len(i.Path.Value)
	}
	b.Write(body[done:])
	return b.Bytes(), nil
}

// proxy writes the module's files of the proxy protocol.
func proxy(r *product.Release, tree string) error {
	version := module.Version{Path: r.Address, Version: "v" + r.Version}
	escaped, err := module.EscapePath(r.Address)
	if err != nil {
		return err
	}
	dir := r.File(filepath.Join("go", filepath.FromSlash(escaped), "@v"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var zipped bytes.Buffer
	if err := modzip.CreateFromDir(&zipped, version, tree); err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(tree, "go.mod"))
	if err != nil {
		return err
	}
	info, err := json.Marshal(struct {
		Version string
		Time    time.Time
	}{version.Version, r.Time})
	if err != nil {
		return err
	}
	for name, body := range map[string][]byte{
		"list":                    []byte(version.Version + "\n"),
		version.Version + ".info": info,
		version.Version + ".mod":  mod,
		version.Version + ".zip":  zipped.Bytes(),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), body, 0o644); err != nil {
			return err
		}
	}
	return nil
}

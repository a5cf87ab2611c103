// Package language says which language a file is written in, from its name
// and, where the name leaves a choice, from its first bytes.
//
// Names, extensions and rules are those of Linguist; the answers are ids as
// editors use them (go, cpp, csharp, typescript, shell, dockerfile), and
// plaintext for everything unknown. The tables are read when the first
// question comes, not when the process starts.
package language

//go:generate go run ./generate

import (
	"bytes"
	"path/filepath"
	"strings"
)

// Unknown is the id of plain text and of what nothing is known about.
const Unknown = "plaintext"

// HeadSize is how many bytes of a file are worth giving to Detect; it looks at
// no more.
const HeadSize = 16 << 10

// Language is one that Detect can return.
type Language struct {
	ID         string
	Name       string
	Extensions []string // with their dots, the usual one first
}

// All returns every language that Detect can return, ordered by id. The slice
// is shared: do not change it.
func All() []Language { return load().all }

// ByName answers from the name alone and always the same.
func ByName(name string) string {
	t := load()
	return t.id(t.likeliest(t.byName(filepath.Base(name))))
}

// Detect answers from the name and the beginning of the content. The method
// says what settled it: name, content, or guess when several languages share
// the name and the content favours none; unknown when nothing is known.
func Detect(name string, head []byte) (id, method string) {
	t := load()
	head = head[:min(len(head), HeadSize)]
	candidates := t.byName(filepath.Base(name))
	if len(candidates) == 1 {
		return t.id(candidates[0]), "name"
	}
	if l := t.byContent(name, head, candidates); l != nil {
		return t.id(l), "content"
	}
	if len(candidates) == 0 {
		return Unknown, "unknown"
	}
	return t.id(t.likeliest(candidates)), "guess"
}

// byName returns the languages a base name stands for.
func (t *tables) byName(base string) []*entry {
	if c := t.filename[base]; c != nil {
		return c
	}
	lower := strings.ToLower(base)
	for i := range lower {
		if lower[i] == '.' {
			if c := t.extension[lower[i:]]; c != nil {
				return c
			}
		}
	}
	if i := strings.LastIndexByte(base, '.'); i > 0 {
		return t.filename[base[:i]] // Dockerfile.dev
	}
	return nil
}

// byContent returns the one language the content shows, among the candidates
// if there are any.
func (t *tables) byContent(name string, head []byte, candidates []*entry) *entry {
	if len(head) == 0 {
		return nil
	}
	for _, found := range [][]*entry{
		t.modeline(head),
		t.interpreter[interpreter(head)],
		t.heuristic(name, head),
	} {
		if found = among(found, candidates); len(found) == 1 {
			return found[0]
		}
	}
	if len(candidates) == 0 {
		return t.byOpening(head)
	}
	return nil
}

// among keeps what the candidates allow; without candidates, everything.
func among(found, candidates []*entry) []*entry {
	if len(candidates) == 0 {
		return found
	}
	var both []*entry
	for _, l := range found {
		for _, c := range candidates {
			if l == c {
				both = append(both, l)
			}
		}
	}
	return both
}

// byOpening knows a few formats by how they begin.
func (t *tables) byOpening(head []byte) *entry {
	head = bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\xEF\xBB\xBF")), " \t\r\n")
	start := strings.ToLower(string(head[:min(len(head), 64)]))
	for _, o := range [...]struct{ start, language string }{
		{"<?xml", "XML"},
		{"<!doctype html", "HTML"},
		{"<html", "HTML"},
		{"<?php", "PHP"},
		{"diff --git ", "Diff"},
		{"%!ps", "PostScript"},
	} {
		if strings.HasPrefix(start, o.start) {
			if o.language == "XML" && bytes.Contains(head[:min(len(head), 1<<10)], []byte("<svg")) {
				return t.named["SVG"]
			}
			return t.named[o.language]
		}
	}
	if looksLikeJSON(head) {
		return t.named["JSON"]
	}
	return nil
}

// looksLikeJSON accepts an object or array that begins as one must.
func looksLikeJSON(head []byte) bool {
	if len(head) < 2 || (head[0] != '{' && head[0] != '[') {
		return false
	}
	next := bytes.TrimLeft(head[1:], " \t\r\n")
	if len(next) == 0 {
		return false
	}
	if head[0] == '{' {
		return next[0] == '"' && bytes.Contains(next, []byte(`":`)) || next[0] == '}'
	}
	return strings.IndexByte(`{["]`, next[0]) >= 0
}

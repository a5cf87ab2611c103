package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// readFiles is how many files are read, again and again, each of about readSize
// bytes.
const (
	readFiles = 1000
	readSize  = 2300
)

func readName(i int) string {
	i %= readFiles
	return fmt.Sprintf("pkg%02d/file%04d.go", i%40, i)
}

// readMark is in that file and in no other.
func readMark(i int) string { return fmt.Sprintf("number %04d of them", i%readFiles) }

// makeReads writes the files that are read.
func makeReads(dir string) error {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range readFiles {
		text := fmt.Sprintf(
			"// Package pkg%02d is %s.\npackage pkg%02d\n\n%s",
			i%40,
			readMark(i),
			i%40,
			source(r, readSize-60),
		)
		if err := writeFile(dir, readName(i), text); err != nil {
			return err
		}
	}
	return nil
}

// What is to be found in the tree, and in how many of its files of Go.
const (
	rareText  = "resolves the lantern against the wind" // one in 400
	rareEvery = 400
)

// makeTree writes n files of several kinds below directories up to five deep,
// the same ones every time: about 5 kB each, a fifth of them tests.
func makeTree(dir string, n int) error {
	r := rand.New(rand.NewPCG(3, 4))
	for i := range n {
		name := fmt.Sprintf("area%02d/team%d/part%02d/", i%25, i/25%8, i/200%15)
		if i%7 == 0 {
			name += "inner/deep/"
		}
		kind := [...]string{".go", "_test.go", ".ts", ".md", ".json"}[i%5]
		name += fmt.Sprintf("item%05d%s", i, kind)
		text := fmt.Sprintf("// item %05d\npackage item\n\n%s", i, source(r, 2000+r.IntN(6000)))
		if i%rareEvery == 0 {
			text += "// It " + rareText + ".\n"
		}
		if err := writeFile(dir, name, text); err != nil {
			return err
		}
	}
	return nil
}

var words = strings.Fields(
	`account adapter answer archive batch border bridge buffer bundle cable channel chapter client
cluster column command context counter cursor digest driver engine error event factor family field filter folder format
garden header index island journal kernel ladder layer letter limit list market matrix member method mirror module number
object offset option order owner packet page parser party patch pattern people permit picture pointer policy queue ready
reason record region result river road root route rule sample schema scope second server signal source space stage state
stream string switch system table target task thread ticket token tool tree value vector version view volume window`,
)

// source is text that looks like a program, of about n bytes.
func source(r *rand.Rand, n int) string {
	var b strings.Builder
	word := func() string { return words[r.IntN(len(words))] }
	title := func() string { w := word(); return strings.ToUpper(w[:1]) + w[1:] }
	for b.Len() < n {
		name := title() + title()
		fmt.Fprintf(&b, "// %s keeps the %s of a %s until the %s is there.\n", name, word(), word(), word())
		fmt.Fprintf(&b, "func %s(%s %s, %s []byte) (%s, error) {\n", name, word(), title(), word(), title())
		for range 3 + r.IntN(8) {
			fmt.Fprintf(
				&b,
				"\t%s, err := %s.%s(%q, %d)\n\tif err != nil {\n\t\treturn nil, err\n\t}\n",
				word(),
				word(),
				title(),
				word()+" "+word(),
				r.IntN(1000),
			)
		}
		fmt.Fprintf(&b, "\treturn %s.%s(), nil\n}\n\n", word(), title())
	}
	return b.String()
}

func writeFile(dir, name, text string) error {
	name = filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(text), 0o644)
}

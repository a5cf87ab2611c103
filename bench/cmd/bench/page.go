package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
)

// The section about files stands between marks of its own, since it is
// measured beside other peers and can be measured alone.
const (
	filesBegin = "<!-- files -->"
	filesEnd   = "<!-- /files -->"
)

// write puts what was found on a page that may exist. A run that measured
// files alone leaves everything else there as it is, and one that did not
// measure them leaves their section.
func (b *bench) write(file string) error {
	old, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	return os.WriteFile(file, []byte(b.page(string(old))), 0o644)
}

func (b *bench) page(old string) string {
	before, section, after := cutFiles(old)
	if !slices.Equal(b.only, []string{"files"}) {
		var all bytes.Buffer
		b.report(&all)
		before, after = all.String()+"\n", ""
	}
	if b.filesPart != nil {
		var found bytes.Buffer
		b.filesPart.report(&found)
		section = found.String()
	}
	if section == "" {
		return strings.TrimRight(before+after, "\n") + "\n"
	}
	if before != "" {
		before = strings.TrimRight(before, "\n") + "\n\n"
	}
	return before + section + after
}

// cutFiles takes the section about files out of a page.
func cutFiles(page string) (before, section, after string) {
	begin := strings.Index(page, filesBegin+"\n")
	end := strings.Index(page, filesEnd+"\n")
	if begin < 0 || end < begin {
		return page, "", ""
	}
	end += len(filesEnd) + 1
	return page[:begin], page[begin:end], page[end:]
}

package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
)

// asides are sections that stand between marks of their own, since each is
// measured beside other peers, or none, and can be measured alone. They come
// last on the page, in this order.
var asides = []string{"neighbours", "relay", "files"}

func beginMark(name string) string { return "<!-- " + name + " -->\n" }
func endMark(name string) string   { return "<!-- /" + name + " -->\n" }

// write puts what was found on a page that may exist. A run of asides alone
// leaves everything else there as it is, and one without them leaves theirs.
func (b *bench) write(file string) error {
	old, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	return os.WriteFile(file, []byte(b.page(string(old))), 0o644)
}

func (b *bench) page(old string) string {
	before, sections, after := cutAsides(old)
	if b.only == nil || slices.ContainsFunc(b.only, func(part string) bool { return !slices.Contains(asides, part) }) {
		var all bytes.Buffer
		b.report(&all)
		before, after = all.String(), ""
	}
	page := before
	for _, name := range asides {
		if report := b.asides[name]; report != nil {
			var found bytes.Buffer
			report(&found)
			sections[name] = fmt.Sprintf("%s%s%s", beginMark(name), found.String(), endMark(name))
		}
		if sections[name] == "" {
			continue
		}
		if page != "" {
			page = strings.TrimRight(page, "\n") + "\n\n"
		}
		page += sections[name]
	}
	return strings.TrimRight(page+after, "\n") + "\n"
}

// cutAsides takes the asides out of a page.
func cutAsides(page string) (before string, sections map[string]string, after string) {
	sections = map[string]string{}
	first, last := len(page), len(page)
	for _, name := range asides {
		begin, end := strings.Index(page, beginMark(name)), strings.Index(page, endMark(name))
		if begin < 0 || end < begin {
			continue
		}
		end += len(endMark(name))
		sections[name] = page[begin:end]
		if first == len(page) {
			last = end
		}
		first, last = min(first, begin), max(last, end)
	}
	return page[:first], sections, page[last:]
}

// Package documented runs the commands of README.md, docs/*.md and examples/*/README.md as they are
// written. Only its test uses it.
package documented

import (
	"regexp"
	"strings"
)

// block is an indented or fenced block of a document.
type block struct {
	file string
	line int    // of its first line, from 1
	lang string // what a fence says, "" for an indented block
	text string
}

// blocks returns the blocks of a document. An indented block follows an empty line and a paragraph that is not a
// list item.
func blocks(file, document string) []block {
	var all []block
	var now *block
	fenced, item, empty := false, false, true
	for i, line := range strings.Split(document, "\n") {
		switch {
		case strings.HasPrefix(line, "```") && !fenced:
			fenced = true
			all = append(all, block{file: file, line: i + 2, lang: strings.TrimPrefix(line, "```")})
			now = &all[len(all)-1]
		case strings.HasPrefix(line, "```"):
			fenced, now = false, nil
		case fenced:
			now.text += line + "\n"
		case strings.HasPrefix(line, "    ") && (now != nil || empty && !item):
			if now == nil {
				all = append(all, block{file: file, line: i + 1})
				now = &all[len(all)-1]
			}
			now.text += line[4:] + "\n"
		case strings.TrimSpace(line) == "":
			now = nil
		default:
			now = nil
			if !strings.HasPrefix(line, " ") {
				item = listItem.MatchString(line)
			}
		}
		empty = strings.TrimSpace(line) == ""
	}
	return all
}

var listItem = regexp.MustCompile(`^([-*+]|\d+\.) `)

// programs are the first words of commands in a document.
var programs = regexp.MustCompile(`^(\w+=\S* )*((bin/)?gatehouse|\./[\w-]+|make|go|git|mkdir|curl|kill|npm|age) `)

// isCommands reports whether a block is a list of commands.
func (b block) isCommands() bool {
	if b.lang == "sh" || b.lang == "console" {
		return true
	}
	if b.lang != "" {
		return false
	}
	for line := range strings.Lines(b.text) {
		if programs.MatchString(line) {
			return true
		}
	}
	return false
}

// command is one command of a block, which may be several lines.
type command struct {
	line int
	text string
}

// commands splits a block at line ends, except after a backslash and between single quotes. It leaves out comments.
func (b block) commands() []command {
	var all []command
	open := false
	for i, line := range strings.Split(strings.TrimSuffix(b.text, "\n"), "\n") {
		if !open {
			all = append(all, command{line: b.line + i})
		}
		now := &all[len(all)-1]
		now.text += line + "\n"
		open = strings.Count(now.text, "'")%2 == 1 || strings.HasSuffix(line, `\`)
	}
	for i := range all {
		all[i].text = strings.TrimSpace(comment.ReplaceAllString(all[i].text, ""))
	}
	return all
}

var comment = regexp.MustCompile(`(?m)\s+# .*$`)

var span = regexp.MustCompile("`((?:bin/)?gatehouse [a-z][^`]*)`")

// spans returns the commands in the text of a document, which may be incomplete: each names a command and may name
// flags.
func spans(document string) []string {
	var all []string
	for _, m := range span.FindAllStringSubmatch(document, -1) {
		all = append(all, strings.Join(strings.Fields(m[1]), " "))
	}
	return all
}

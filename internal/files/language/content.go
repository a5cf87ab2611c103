package language

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
)

//go:embed heuristics.json
var heuristics []byte

// rule is one of Linguist's: a tree of patterns, and the languages it speaks
// for when it matches.
type rule struct {
	Languages []string
	Op        string // and, or, not, always, never, match
	Of        []*rule
	Pattern   string

	compiled func() *regexp.Regexp
}

// rules are by extension. Their patterns are compiled when first needed.
var rules = sync.OnceValue(func() map[string][]*rule {
	var all map[string][]*rule
	if err := json.Unmarshal(heuristics, &all); err != nil {
		panic("language: heuristics.json: " + err.Error()) // generated, and read by the tests
	}
	for _, rs := range all {
		for _, r := range rs {
			r.compileRule()
		}
	}
	return all
})

func (r *rule) compileRule() {
	r.compiled = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(r.Pattern) })
	for _, s := range r.Of {
		s.compileRule()
	}
}

func (r *rule) match(b []byte) bool {
	switch r.Op {
	case "match":
		return r.compiled().Match(b)
	case "always":
		return true
	case "and":
		for _, s := range r.Of {
			if !s.match(b) {
				return false
			}
		}
		return true
	case "or":
		return anyMatches(r.Of, b)
	case "not":
		return !anyMatches(r.Of, b)
	}
	return false
}

func anyMatches(rules []*rule, b []byte) bool {
	for _, s := range rules {
		if s.match(b) {
			return true
		}
	}
	return false
}

// heuristic asks the rules of the name's extension; the first that matches
// answers.
func (t *tables) heuristic(name string, head []byte) []*entry {
	for _, r := range rules()[strings.ToLower(filepath.Ext(name))] {
		if r.match(head) {
			var found []*entry
			for _, l := range r.Languages {
				if e := t.named[l]; e != nil {
					found = append(found, e)
				}
			}
			return found
		}
	}
	return nil
}

// The lines in which editors are told the language.
var (
	emacsLine = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`-\*-\s*(.+?)\s*-\*-`) })
	emacsMode = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?i)\bmode\s*:\s*([^\s;]+)`) })
	vimLine   = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?m)(?:^|\s)(?:vim?(?:[<=>]?\d+)?|ex)\s*:.*?\b(?:filetype|ft|syntax)\s*=(\w+)`)
	})
)

// modeline reads a line for Emacs or Vim among the first five.
func (t *tables) modeline(head []byte) []*entry {
	top := firstLines(head, 5)
	var mode string
	if bytes.Contains(top, []byte("-*-")) {
		if m := emacsLine().FindSubmatch(top); m != nil {
			mode = string(m[1])
			if m := emacsMode().FindSubmatch(m[1]); m != nil {
				mode = string(m[1])
			}
		}
	} else if bytes.Contains(top, []byte("vi")) || bytes.Contains(top, []byte("ex:")) {
		if m := vimLine().FindSubmatch(top); m != nil {
			mode = string(m[1])
		}
	}
	if l := t.alias[strings.ToLower(mode)]; l != nil {
		return []*entry{l}
	}
	return nil
}

func firstLines(b []byte, n int) []byte {
	end := 0
	for range n {
		i := bytes.IndexByte(b[end:], '\n')
		if i < 0 {
			return b
		}
		end += i + 1
	}
	return b[:end]
}

// interpreter is the program named in a #! line, without its version.
func interpreter(head []byte) string {
	line, _, _ := bytes.Cut(head, []byte("\n"))
	words, ok := strings.CutPrefix(string(line), "#!")
	if !ok {
		return ""
	}
	fields := strings.Fields(words)
	if len(fields) == 0 {
		return ""
	}
	program := path.Base(fields[0])
	if program == "env" {
		if program = envCommand(fields[1:]); program == "" {
			return ""
		}
	}
	if strings.HasPrefix(program, "python") {
		program, _, _ = strings.Cut(program, ".")
	}
	return program
}

// envCommand is the program env would run.
func envCommand(args []string) string {
	for _, a := range args {
		if !strings.HasPrefix(a, "-") && !strings.Contains(a, "=") {
			return path.Base(a)
		}
	}
	return ""
}

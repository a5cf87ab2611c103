package builds

import (
	"regexp"
	"strings"
	"sync"
)

// prefixes are what CI runners, containers and tools put before the line of another program.
var prefixes = lazy(
	`^(?:\d{4}-\d\d-\d\dT[\d:.]+Z |#\d+ [\d.]+ |##\[error\]|\[tsl\] |ERROR in |\S*/ld(?:\.\w+)?: (?:\S+\.o: )?|collect2: )`,
)

func withoutPrefix(s string) string {
	for {
		i := prefixes().FindStringIndex(s)
		if i == nil || i[1] == len(s) {
			return s
		}
		s = s[i[1]:]
	}
}

// form is a form of lines with a place. The groups are file, line, column, severity and message, by their names.
type form struct {
	*regexp.Regexp
	trace bool // the place is a frame of a stack trace, innermost first
	after bool // it is used if nothing else was found, because it repeats a place less exactly
}

// forms are tried in their order, after those that the parser has functions for.
var forms = sync.OnceValue(func() []form {
	return []form{
		{
			Regexp: regexp.MustCompile(
				`^\s*(?P<file>[^()]+?)\((?P<line>\d+)(?:,(?P<column>\d+))?(?:,\d+,\d+)?\)\s?: (?:fatal )?(?P<severity>error|warning) (?P<message>.*)$`,
			),
		},
		{Regexp: regexp.MustCompile(`^(?P<file>\S+\.[cm]?[jt]sx?)\((?P<line>\d+),(?P<column>\d+)\)$`)},
		{
			Regexp: regexp.MustCompile(
				`^\[(?P<severity>ERROR|WARNING)\] (?P<file>\S+\.(?:kts?|scala|groovy)): \((?P<line>\d+), (?P<column>\d+)\) (?P<message>.*)$`,
			),
		},
		{
			Regexp: regexp.MustCompile(
				`^(?P<file>\S+\.(?:[cm]?[jt]sx?|vue|svelte)) \((?P<line>\d+):(?P<column>\d+)\)(?P<message>.*)$`,
			),
		},
		{
			Regexp: regexp.MustCompile(
				`^CMake (?P<severity>Error|Warning)(?: \(dev\))? at (?P<file>\S+):(?P<line>\d+)(?P<message>.*)$`,
			),
		},
		{
			Regexp: regexp.MustCompile(
				`^(?:PHP )?(?P<message>(?:Parse|Fatal) error: .*) in (?P<file>\S+\.php) on line (?P<line>\d+)$`,
			),
		},
		{Regexp: regexp.MustCompile(`^ {4}(?P<file>[^\s:]+\.\w+):(?P<line>\d+):(?P<column>\d+):$`)},
		{Regexp: regexp.MustCompile(`^\s*❯ (?:\S+ )?(?P<file>[^\s:]+\.\w+):(?P<line>\d+):(?P<column>\d+)$`), trace: true},
		{Regexp: regexp.MustCompile(`^\s+# (?P<file>\S+\.rb):(?P<line>\d+):in `), trace: true},
		{
			Regexp: regexp.MustCompile(
				`^\s+\S*(?:Error|Exception|Failure).* at (?P<file>\w+\.(?:java|kt|groovy|scala)):(?P<line>\d+)$`,
			),
		},
		{Regexp: regexp.MustCompile(`^\[ERROR\]\s+(?P<class>[A-Z]\w*)\.\w+:(?P<line>\d+)\b(?P<message>.*)$`), after: true},
	}
})

// more takes the forms of the table.
func (p *parser) more(s string) bool {
	for _, f := range forms() {
		m := f.FindStringSubmatch(s)
		if m == nil {
			continue
		}
		got := map[string]string{}
		for i, name := range f.SubexpNames() {
			got[name] = m[i]
		}
		file := got["file"]
		if got["class"] != "" {
			file = got["class"] + ".java"
		}
		severity := severityOf(got["severity"])
		switch {
		case strings.HasPrefix(s, "    ") && got["message"] == "" && p.bundler != "":
			severity, got["message"] = p.bundler, p.header
			p.bundler = ""
		case strings.HasPrefix(s, "    ") && got["message"] == "" && !f.trace && got["column"] != "":
			return false // a place without a message before it
		}
		switch {
		case f.trace:
			p.frame(file, got["line"], got["column"], innermostFirst)
		case f.after:
			p.fallback = append(p.fallback, p.problem(file, got["line"], "", severity, got["message"]))
		default:
			p.addProblem(file, got["line"], got["column"], severity, got["message"])
		}
		return true
	}
	return false
}

var bundlerHead = lazy(`^\s*(?:✘|X|▲|>)? ?\[(ERROR|WARNING)\] (.*)$`)

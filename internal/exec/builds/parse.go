package builds

import (
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// Problem is an error or a warning in the output of a build.
type Problem struct {
	File     string `json:"file"`
	Line     int    `json:"line"`
	Column   int    `json:"column,omitempty"`
	Severity string `json:"severity"` // error or warning
	Message  string `json:"message"`
	LogLine  int    `json:"log_line"`          // in the output, from 1
	Excerpt  string `json:"excerpt,omitempty"` // the line of the file
}

// MaxProblems is how many problems of one output are kept.
const MaxProblems = 500

// Parse finds the problems in the output of a build, each place once, in their order. It knows the forms of compilers,
// linters and test runners and not which of them ran, because one build runs several. Names of files below dir become
// relative to it. Output of other forms is ignored.
func Parse(output, dir string) []Problem {
	p := &parser{dir: strings.TrimSuffix(filepath.ToSlash(dir), "/"), seen: map[string]bool{}}
	for line := range strings.Lines(output) {
		p.n++
		p.line(withoutPrefix(strings.TrimRight(ansi().ReplaceAllString(line, ""), "\r\n")))
	}
	p.flushTrace()
	if len(p.found) == 0 {
		p.found = append(p.found, p.fallback...)
	}
	return p.found
}

var ansi = lazy("\x1b\\[[0-9;?]*[A-Za-z]")

type parser struct {
	dir      string
	n        int // lines read
	found    []Problem
	fallback []Problem // used if nothing else was found: the consequences of errors
	seen     map[string]bool

	header   string    // the latest line that begins a message whose place follows
	severity string    // of that
	bundler  string    // the severity of a message of a bundler, whose place follows; "" if none does
	section  string    // the file that the following lines are about, for linters
	trace    []Problem // frames of a stack trace, in the order in which they are to be preferred
	last     string    // the latest message of an exception
	marked   int       // the latest line that pytest marked with an E
	maker    []string  // the directories that make has entered
}

const pathPart = `((?:[A-Za-z]:)?[^\s:()'"<>|*?\[\]]+)`

var (
	// The names of tasks are those that Gradle 4 writes in front of the first error of a compiler, without a line break.
	gnu = lazy(
		`^(?:vet: |\[ERROR\] |ERROR: |error: |#\d+ [\d.]+ |(?::[A-Za-z][\w-]*)+)?\s*((?:[A-Za-z]:)?[^\s:()'"<>|]*[^\s:()'"<>|/.\d][^\s:()'"<>|]*):(\d+)(?::(\d+))?(?:-\d+(?::\d+)?)?:\s*(.*)$`,
	)
	tscPlain  = lazy(`^\s*` + `([^\s()][^()]*)\((\d+),(\d+)\):\s+(error|warning)\s+(.*)$`)
	tscPretty = lazy(`^\s*` + pathPart + `:(\d+):(\d+) - (error|warning)\s+(.*)$`)
	rustHead  = lazy(`^(error|warning|note|help)(?:\[[A-Za-z0-9_:]+\])?: (.*)$`)
	rustPlace = lazy(`^\s*-->\s+` + pathPart + `:(\d+):(\d+)`)
	rustPanic = lazy(`^thread '.*?'(?: \(\d+\))? panicked at (?:'.*', )?` + pathPart + `:(\d+):(\d+)`)
	maven     = lazy(`^\[(ERROR|WARNING)\]\s+` + pathPart + `:\[(\d+),(\d+)\]\s*(.*)$`)
	mavenPOM  = lazy(`@\s*(?:line (\d+), column (\d+)|.*?,\s*(\S+), line (\d+), column (\d+))`)
	javaFrame = lazy(
		`^(?:\[ERROR\]\s+)?\s*at (?:[\w.$/@<>-]+/)?([\w.$<>]+)\.([\w$<>]+)\(([\w$]+\.(?:java|kt|scala|groovy)):(\d+)\)`,
	)
	kotlin    = lazy(`^(e|w): (?:file://)?` + pathPart + `(?:: \((\d+), (\d+)\)|:(\d+):(\d+)):?\s*(.*)$`)
	gradle    = lazy(`^(?:Build file|Script|Settings file) '([^']+)' line: (\d+)`)
	pyFrame   = lazy(`^(?:E\s+)?\s*File "([^"<>]+)", line (\d+)`)
	pyPlace   = lazy(`^` + `([^\s:]+\.pyx?):(\d+): ?(.*)$`)
	pyFixture = lazy(`^file (\S+\.py), line (\d+)$`)
	pyError   = lazy(
		`^(?:E\s+)?((?:[A-Za-z_][\w.]*)?(?:Error|Exception|Warning|Interrupt|Failed|Exit)\b.*)$`,
	)
	exceptionHead = lazy(
		`^\s*(?:E\s+)?((?:[A-Za-z_][\w.]*)?(?:Error|Exception|Warning|Interrupt|Failed|Exit)(?::| \[\w+\]:|$).*|panic: .*)$`,
	)
	pyMark   = lazy(`^E\s{2,}(\S.*)$`)
	tapError = lazy(`^\s+error: '(.*)'$`)
	goFrame  = lazy(`^\t(\S+\.go):(\d+)(?: \+0x[0-9a-f]+)?$`)
	goTest   = lazy(`^\s+(\S+_test\.go|\S+\.go):(\d+): (.*)$`)
	jsFrame  = lazy(
		`^\s*at (?:.*? \()?(?:file://)?((?:[A-Za-z]:)?[^\s():]+\.[cm]?[jt]sx?):(\d+):(\d+)\)?[,;]?\s*\{?$`,
	)
	tapFrame = lazy(
		`^\s+[\w.<>\[\] ]+ \((?:file://)?((?:[A-Za-z]:)?[^\s():]+\.[cm]?[jt]sx?):(\d+):(\d+)\)$`,
	)
	jsPlace   = lazy(`^(?:file://)?((?:[A-Za-z]:)?[^\s:()]+\.[cm]?[jt]sx?):(\d+)$`)
	jsSyntax  = lazy(`SyntaxError: (?:file://)?([^\s:]+\.[cm]?[jt]sx?): (.*) \((\d+):(\d+)\)`)
	lint      = lazy(`^\s+(\d+):(\d+)\s+(error|warning|✖|⚠)\s+(.*)$`)
	lintFile  = lazy(`^(\S*[^\s:]+\.\w+)$`)
	makeFail  = lazy(`^\S*make(?:\[\d+\])?: \*\*\* \[(?:([^\s:\]]+):(\d+): )?(.*)\] Error \d+`)
	makeStop  = lazy(`^([^\s:]+):(\d+): \*\*\* (.*)$`)
	makeDir   = lazy(`make\[\d+\]: (Entering|Leaving) directory [` + "`" + `'](.*)'$`)
	severityR = lazy(
		`(?i)^\s*(?:fatal |internal compiler )?(error|warning|note|info|remark|help|hint|required from|in instantiation of|candidate)\b[^:]*:?\s*`,
	)
)

// line takes one line of the output.
func (p *parser) line(s string) {
	if m := bundlerHead().FindStringSubmatch(s); m != nil && !strings.HasPrefix(s, "[") {
		p.bundler, p.header = severityOf(m[1]), m[2]
		return
	}
	if p.structured(s) || p.compiler(s) || p.testRunner(s) || p.more(s) {
		return
	}
	p.exception(s)
	if p.endsTrace(s) {
		p.flushTrace()
	}
	if m := gnu().FindStringSubmatch(s); m != nil {
		p.gnu(m)
	}
}

// structured takes the forms that cannot be mistaken for others.
func (p *parser) structured(s string) bool {
	switch {
	case makeDir().MatchString(s):
		m := makeDir().FindStringSubmatch(s)
		if m[1] == "Entering" {
			p.maker = append(p.maker, m[2])
		} else if len(p.maker) > 0 {
			p.maker = p.maker[:len(p.maker)-1]
		}
	case makeFail().MatchString(s):
		if m := makeFail().FindStringSubmatch(s); m[1] != "" {
			p.fallback = append(p.fallback, Problem{File: p.name(m[1]), Line: number(m[2]), Severity: "error",
				Message: "the recipe of " + m[3] + " failed", LogLine: p.n})
		}
	case makeStop().MatchString(s):
		m := makeStop().FindStringSubmatch(s)
		p.addProblem(m[1], m[2], "", "error", m[3])
	case maven().MatchString(s):
		m := maven().FindStringSubmatch(s)
		p.addProblem(m[2], m[3], m[4], severityOf(m[1]), m[5])
	case strings.HasPrefix(s, "[ERROR]") && mavenPOM().MatchString(s) && strings.Contains(strings.ToLower(s), "pom"):
		m := mavenPOM().FindStringSubmatch(s)
		if m[3] != "" {
			p.addProblem(m[3], m[4], m[5], "error", strings.TrimPrefix(s, "[ERROR] "))
		} else {
			p.addProblem("pom.xml", m[1], m[2], "error", strings.TrimPrefix(s, "[ERROR] "))
		}
	case tscPretty().MatchString(s):
		m := tscPretty().FindStringSubmatch(s)
		p.addProblem(m[1], m[2], m[3], m[4], m[5])
	case tscPlain().MatchString(s):
		m := tscPlain().FindStringSubmatch(s)
		p.addProblem(m[1], m[2], m[3], m[4], m[5])
	case kotlin().MatchString(s):
		m := kotlin().FindStringSubmatch(s)
		p.addProblem(m[2], m[3]+m[5], m[4]+m[6], map[string]string{"e": "error", "w": "warning"}[m[1]], m[7])
	case gradle().MatchString(s):
		m := gradle().FindStringSubmatch(s)
		p.addProblem(m[1], m[2], "", "error", "the build script failed")
	case jsSyntax().MatchString(s):
		m := jsSyntax().FindStringSubmatch(s)
		p.trace = nil
		p.addProblem(m[1], m[3], m[4], "error", m[2])
	default:
		return false
	}
	return true
}

// compiler takes the forms whose message and place are on different lines.
func (p *parser) compiler(s string) bool {
	if m := rustHead().FindStringSubmatch(s); m != nil {
		p.severity, p.header = m[1], m[2]
		return true
	}
	if m := rustPlace().FindStringSubmatch(s); m != nil {
		if p.severity == "error" || p.severity == "warning" {
			p.addProblem(m[1], m[2], m[3], p.severity, p.header)
		}
		p.severity = ""
		return true
	}
	if m := rustPanic().FindStringSubmatch(s); m != nil {
		p.addProblem(m[1], m[2], m[3], "error", "panicked")
		return true
	}
	if m := lint().FindStringSubmatch(s); m != nil && p.section != "" {
		severity := "error"
		if m[3] == "warning" || m[3] == "⚠" {
			severity = "warning"
		}
		p.addProblem(p.section, m[1], m[2], severity, m[4])
		return true
	}
	if m := lintFile().FindStringSubmatch(s); m != nil && strings.ContainsAny(m[1], "/\\.") {
		p.section = m[1]
		return true
	}
	return false
}

// gnu takes a line of the form file:line:column: message.
func (p *parser) gnu(m []string) {
	severity, message := "error", m[4]
	if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "//") || number(m[2]) == 0 {
		return
	}
	if k := severityR().FindStringSubmatch(message); k != nil {
		switch word := strings.ToLower(k[1]); word {
		case "error", "warning":
			severity, message = word, message[len(k[0]):]
		default:
			return
		}
	} else if !looksLikeFile(m[1]) || message == "" {
		return
	}
	if strings.HasPrefix(message, "In function") || strings.HasPrefix(message, "from ") {
		return
	}
	p.addProblem(m[1], m[2], m[3], severity, message)
}

// looksLikeFile reports whether a word without further sign names a file: it has an extension or a slash.
func looksLikeFile(s string) bool {
	ext := filepath.Ext(s)
	return len(ext) > 1 && len(ext) < 8 && strings.Trim(ext[1:], "0123456789") != "" && !strings.Contains(s, "@") ||
		strings.HasSuffix(s, "Makefile") || strings.HasSuffix(s, "Dockerfile")
}

func severityOf(word string) string {
	if strings.EqualFold(word, "warning") {
		return "warning"
	}
	return "error"
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0
	}
	return n
}

// name returns a file as the problem names it.
func (p *parser) name(file string) string {
	file = strings.ReplaceAll(file, "\\", "/")
	file = strings.TrimPrefix(file, "./")
	if len(p.maker) > 0 && !strings.HasPrefix(file, "/") {
		file = p.maker[len(p.maker)-1] + "/" + file
	}
	if rest, ok := strings.CutPrefix(file, p.dir+"/"); ok && p.dir != "" {
		file = rest
	}
	return file
}

func (p *parser) problem(file, line, column, severity, message string) Problem {
	return Problem{
		File: p.name(file), Line: number(line), Column: number(column), Severity: severity,
		Message: cut(strings.TrimSpace(message), 500), LogLine: p.n,
	}
}

func (p *parser) addProblem(file, line, column, severity, message string) {
	p.keepProblem(p.problem(file, line, column, severity, message))
}

// keepProblem adds a problem unless the place is known.
func (p *parser) keepProblem(x Problem) {
	key := x.File + ":" + strconv.Itoa(x.Line) + x.Severity
	if p.seen[key] || len(p.found) >= MaxProblems || x.Line == 0 {
		return
	}
	p.seen[key] = true
	p.found = append(p.found, x)
}

func cut(s string, most int) string {
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// lazy compiles an expression when it is first used, because compiling all of them would delay each start.
func lazy(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

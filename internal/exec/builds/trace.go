package builds

import (
	"path"
	"strings"
)

// testRunner takes the forms of test runners and of stack traces. Of a trace, the problem is at the innermost frame of
// the project itself.
func (p *parser) testRunner(s string) bool {
	if m := goFrame().FindStringSubmatch(s); m != nil {
		p.frame(m[1], m[2], "", innermostFirst)
		return true
	}
	if m := goTest().FindStringSubmatch(s); m != nil {
		p.addProblem(m[1], m[2], "", "error", m[3])
		return true
	}
	if m := jsPlace().FindStringSubmatch(s); m != nil && (strings.HasPrefix(m[1], "/") || strings.Contains(m[1], ":")) {
		p.flushTrace()
		p.frame(m[1], m[2], "", innermostFirst)
		return true
	}
	if m := jsFrame().FindStringSubmatch(s); m != nil {
		p.frame(m[1], m[2], m[3], innermostFirst)
		return true
	}
	if m := tapFrame().FindStringSubmatch(s); m != nil {
		p.frame(m[1], m[2], m[3], innermostFirst)
		return true
	}
	if m := javaFrame().FindStringSubmatch(s); m != nil {
		file := m[3]
		if i := strings.LastIndexByte(m[1], '.'); i >= 0 {
			file = strings.ReplaceAll(m[1][:i], ".", "/") + "/" + file
		}
		p.frame(file, m[4], "", innermostFirst)
		return true
	}
	return p.python(s)
}

func (p *parser) python(s string) bool {
	if m := pyFixture().FindStringSubmatch(s); m != nil {
		p.flushTrace()
		p.addProblem(m[1], m[2], "", "error", "the test cannot be set up")
		return true
	}
	if m := pyFrame().FindStringSubmatch(s); m != nil {
		p.frame(m[1], m[2], "", innermostLast)
		return true
	}
	if m := pyPlace().FindStringSubmatch(s); m != nil {
		rest := strings.TrimSpace(m[3])
		k := severityR().FindStringSubmatch(rest)
		switch {
		case k != nil && !strings.HasPrefix(rest, k[1]+"Error"): // of a type checker
			return false
		case rest == "" || strings.HasPrefix(rest, "in ") || pyError().MatchString(rest) || isWord(rest):
			p.pyWord(m, rest)
			return true
		}
	}
	return false
}

// pyWord takes path:line: of pytest, with in function, with nothing, or with the type of an exception behind it.
func (p *parser) pyWord(m []string, rest string) {
	p.frame(m[1], m[2], "", innermostLast)
	if strings.HasSuffix(rest, "Warning") || strings.Contains(rest, "Warning:") {
		p.trace = nil
		return
	}
	if rest != "" && !strings.HasPrefix(rest, "in ") { // the type of the exception ends a trace
		if p.last == "" {
			p.last = rest
		}
		p.flushTrace()
	}
}

func isWord(s string) bool { return !strings.ContainsAny(s, " \t:") }

const (
	innermostFirst = true
	innermostLast  = false
)

// frame adds a frame of a stack trace. Frames of the tools themselves are left out.
func (p *parser) frame(file, line, column string, first bool) {
	if p.foreign(file) {
		return
	}
	x := p.problem(file, line, column, "error", p.last)
	if first {
		p.trace = append(p.trace, x)
	} else {
		p.trace = append([]Problem{x}, p.trace...)
	}
}

// foreign reports whether a file of a stack trace belongs to a tool or a library.
func (p *parser) foreign(file string) bool {
	file = strings.ReplaceAll(file, "\\", "/")
	for _, part := range []string{
		"node_modules/", "node:", "internal/modules/", "site-packages/", "dist-packages/", "/go/src/", "/src/runtime/",
		"/src/testing/", "/usr/lib/", "/rustc/", "/pkg/mod/", ".pyenv/", "<frozen", "/.cargo/",
	} {
		if strings.Contains(file, part) {
			return true
		}
	}
	for _, prefix := range []string{
		"java/", "javax/", "jdk/", "sun/", "org/junit/", "org/apache/", "org/gradle/", "org/testng/", "org/hamcrest/",
		"org/assertj/", "org/mockito/", "kotlin/", "_testmain.go", "com/sun/", "scala/", "groovy/",
	} {
		if strings.HasPrefix(file, prefix) {
			return true
		}
	}
	if strings.HasPrefix(file, "/") && p.dir != "" && strings.Contains(path.Dir(file), "/lib/python") {
		return true
	}
	return false
}

// endsTrace reports whether a line is the end of a stack trace.
func (p *parser) endsTrace(s string) bool {
	if len(p.trace) == 0 {
		return false
	}
	t := strings.TrimSpace(s)
	switch {
	case t == "":
		// jest, pytest and Go separate the message from the frames by an empty line, so that this ends nothing
		return false
	case strings.HasPrefix(t, "Traceback"), strings.HasPrefix(t, "=== "), strings.HasPrefix(t, "--- "),
		strings.HasPrefix(t, "___"), strings.HasPrefix(t, "● "), strings.HasPrefix(t, "not ok"),
		strings.HasPrefix(t, "ok "),
		strings.HasPrefix(t, "FAIL"), strings.HasPrefix(t, "===="), strings.HasPrefix(t, "[ERROR]"),
		strings.HasPrefix(t, "[INFO]"), strings.HasPrefix(t, "✖"), strings.HasPrefix(t, "goroutine "):
		return true
	case len(t) > 2 && t[0] >= '1' && t[0] <= '9' && strings.Contains(t[:min(4, len(t))], ") "):
		return true // the next failure of mocha
	}
	return false
}

// flushTrace adds the innermost frame of the stack trace that has ended. Python and Node write the message after it.
func (p *parser) flushTrace() {
	if len(p.trace) > 0 {
		if p.trace[0].Message == "" {
			p.trace[0].Message = cut(strings.TrimSpace(p.last), 500)
		}
		p.keepProblem(p.trace[0])
		p.last = ""
	}
	p.trace = nil
}

// exception takes the message of an exception: a line that begins with its type, what Go writes of a panic and TAP of a
// failed test, or the first line that pytest marks with an E.
func (p *parser) exception(s string) {
	if m := exceptionHead().FindStringSubmatch(s); m != nil {
		p.last = m[1]
	} else if m := tapError().FindStringSubmatch(s); m != nil {
		p.last = m[1]
	} else if m := pyMark().FindStringSubmatch(s); m != nil && p.marked != p.n-1 {
		p.last = m[1]
	}
	if strings.HasPrefix(s, "E  ") {
		p.marked = p.n
	}
}

package web

import (
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"testing"
)

// Elements of the templates of the pages are closed by their own tags. The template function ignores the names of
// closing tags, and returns an array of its own records for an element that is left open, which shows as text.
func TestElementsOfTemplatesAreClosed(t *testing.T) {
	err := fs.WalkDir(static, "static/js", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(static, name)
		if err != nil {
			return err
		}
		for _, wrong := range unclosed(string(b)) {
			t.Errorf("%s:%s", name, wrong)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for source, want := range map[string]int{
		"html`<p><${B} a=${x ? html`<i>y</i>` : '`'} />${/[`]/.test(x)}<//></p>`": 2, // <// is one too many
		"html`<div><${Card}>${a}</div>`":                                          2, // as in the page of a package
		"html`<${Card} title=${html`<b>${x}</b>`}><br />a > b<//>` // html`<p>`":  0,
	} {
		if got := unclosed(source); len(got) != want {
			t.Errorf("%s: got %q", source, got)
		}
	}
}

// unclosed returns where a script has a template in which an element is not closed, or is closed by another name.
func unclosed(script string) []string {
	s := &scanner{text: script}
	s.code()
	return s.wrong
}

type scanner struct {
	text  string
	at    int
	wrong []string
}

func (s *scanner) next(prefix string) bool { return strings.HasPrefix(s.text[s.at:], prefix) }

func (s *scanner) report(what string) {
	s.wrong = append(s.wrong, fmt.Sprintf("%d: %s", strings.Count(s.text[:min(s.at, len(s.text))], "\n")+1, what))
}

// skip goes on behind the next end.
func (s *scanner) skip(end string) {
	if _, rest, ok := strings.Cut(s.text[s.at:], end); ok {
		s.at = len(s.text) - len(rest)
	} else {
		s.at = len(s.text)
	}
}

var (
	quoted = regexp.MustCompile(`^(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|/(?:[^/\\\n\[*]|\\.|\[(?:[^\]\\]|\\.)*\])(?:[^/\\\n\[]|\\.|\[(?:[^\]\\]|\\.)*\])*/)`)
	// begins is what stands before a regular expression, and not before a division.
	begins = regexp.MustCompile(`(?:^|[(,=:\[!&|?{};>])\s*$`)
	named  = regexp.MustCompile(`^<[^\s/>]*`)
)

// code reads a script to its end, or to the brace that ends an expression of a template.
func (s *scanner) code() {
	for depth := 0; s.at < len(s.text); {
		literal := quoted.FindString(s.text[s.at:])
		switch {
		case s.next("//"):
			s.skip("\n")
		case s.next("/*"):
			s.skip("*/")
		case literal != "" && (literal[0] != '/' || begins.MatchString(s.text[max(0, s.at-20):s.at])):
			s.at += len(literal)
		case s.next("`"):
			s.at++
			s.template(strings.HasSuffix(s.text[:s.at-1], "html"))
		default:
			switch s.text[s.at] {
			case '{':
				depth++
			case '}':
				depth--
			}
			s.at++
			if depth < 0 {
				return
			}
		}
	}
}

// template reads a template to its end; one of elements has tags.
func (s *scanner) template(elements bool) {
	var open []string
	for s.at < len(s.text) && !s.next("`") {
		switch {
		case s.next("${"):
			s.at += 2
			s.code()
		case elements && s.next("<"):
			switch tag := s.tag(); {
			case strings.HasSuffix(tag, "/") && tag != "<//":
			case !strings.HasPrefix(tag, "</"):
				open = append(open, strings.TrimPrefix(named.FindString(tag), "<"))
			case len(open) == 0:
				s.report(tag + "> closes nothing")
			default:
				last := open[len(open)-1]
				open = open[:len(open)-1]
				if name := tag[2:]; name != last && (name != "/" || last != "$") {
					s.report(tag + "> closes <" + last + ">")
				}
			}
		case s.next(`\`):
			s.at += 2
		default:
			s.at++
		}
	}
	if len(open) > 0 {
		s.report("not closed: " + strings.Join(open, ", "))
	}
	s.at++
}

// tag returns a tag without its end, and $ for each expression in it.
func (s *scanner) tag() string {
	var tag strings.Builder
	for quote := byte(0); s.at < len(s.text) && (quote != 0 || !s.next(">")); {
		if s.next("${") {
			s.at += 2
			s.code()
			tag.WriteByte('$')
			continue
		}
		c := s.text[s.at]
		switch {
		case c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		}
		tag.WriteByte(c)
		s.at++
	}
	s.at++
	return tag.String()
}

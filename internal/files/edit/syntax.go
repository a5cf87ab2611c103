package edit

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"path"
	"strings"

	"github.com/BurntSushi/toml"
	yaml "github.com/goccy/go-yaml/parser"
)

const (
	maxSyntax = 1 << 20 // largest content that is parsed, in bytes

	// Limits for YAML and TOML, because the time of these parsers grows with the
	// square of the input.
	maxSlow      = 64 << 10 // bytes
	maxSlowLine  = 2 << 10  // bytes in a line
	maxSlowDepth = 64       // depth of nested brackets
)

// Broken returns the first syntax error of after, in one line, if before has
// none. It returns "" if after has none, and for files of other kinds than Go,
// JSON, YAML, TOML and XML, which it tells by the extension of name.
func Broken(name string, before, after []byte) string {
	parse := parsers[strings.ToLower(path.Ext(name))]
	if parse == nil || len(before) > maxSyntax || len(after) > maxSyntax {
		return ""
	}
	err := parseSafely(parse, after)
	if err == nil || errors.Is(err, errNotParsed) || parseSafely(parse, before) != nil {
		return ""
	}
	text, _, _ := strings.Cut(strings.TrimSpace(err.Error()), "\n")
	if len(text) > 300 {
		text = strings.ToValidUTF8(text[:300], "")
	}
	return text
}

var errNotParsed = errors.New("too large to parse")

var parsers = map[string]func([]byte) error{
	".go":   parseGo,
	".json": parseJSON,
	".yaml": parseYAML,
	".yml":  parseYAML,
	".toml": parseTOML,
	".xml":  parseXML,
	".svg":  parseXML,
}

// parseSafely turns a panic of a parser into an error.
func parseSafely(parse func([]byte) error, b []byte) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("cannot be parsed: %v", p)
		}
	}()
	return parse(bytes.TrimPrefix(b, []byte(bom)))
}

func parseGo(b []byte) error {
	_, err := parser.ParseFile(token.NewFileSet(), "", b, parser.SkipObjectResolution)
	return err
}

// parseJSON adds the line number to the error, because that of encoding/json has
// none.
func parseJSON(b []byte) error {
	if json.Valid(b) {
		return nil
	}
	var v json.RawMessage
	err := json.Unmarshal(b, &v)
	if s, ok := errors.AsType[*json.SyntaxError](err); ok {
		at := min(int(s.Offset), len(b))
		return fmt.Errorf("%d: %w", bytes.Count(b[:at], newline)+1, err)
	}
	return err
}

func parseYAML(b []byte) error {
	if !parsesFast(b) {
		return errNotParsed
	}
	_, err := yaml.ParseBytes(b, 0)
	return err
}

func parseTOML(b []byte) error {
	if !parsesFast(b) {
		return errNotParsed
	}
	var v map[string]any
	return toml.Unmarshal(b, &v)
}

// parsesFast reports whether a text is small and flat enough for a parser whose
// time grows with the square of the input.
func parsesFast(b []byte) bool {
	line, deep := 0, 0
	for _, c := range b {
		switch c {
		case '\n':
			line = -1
		case '[', '{':
			deep++
		case ']', '}':
			deep = max(deep-1, 0)
		}
		if line++; line > maxSlowLine || deep > maxSlowDepth {
			return false
		}
	}
	return len(b) <= maxSlow
}

func parseXML(b []byte) error {
	d := xml.NewDecoder(bytes.NewReader(b))
	d.CharsetReader = func(_ string, r io.Reader) (io.Reader, error) { return r, nil }
	for {
		if _, err := d.Token(); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
	}
}

package repotest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"gatehouse/internal/tests/repotest/catalog"
	"gatehouse/tool"
)

const (
	longestDescription = 200 // characters; a model reads it on every turn
	longestToolName    = 64  // characters; what every client accepts
)

var (
	toolName    = regexp.MustCompile(`^[a-z0-9_]+$`)
	sentenceEnd = regexp.MustCompile(`[.!?](\s+\p{Lu}|$)`)
)

// relaying are the tools that return another tool's result, with that tool's schema.
var relaying = map[string]bool{
	"job_wait": true, "tool_call_read": true, "tool_call_write": true, "tool_call_destructive": true,
}

// onHost are the modules whose arguments name files and programs of this host, and namesHost are those arguments.
var (
	onHost = map[string]bool{
		"file":       true,
		"dir":        true,
		"filesystem": true,
		"lang":       true,
		"shell":      true,
		"process":    true,
	}
	namesHost = regexp.MustCompile(`(?i)paths?$|^(dir|working_dir|source|destination|command|args|env|shell)$`)
)

// faults returns what is wrong with a tool of a module.
func faults(module string, t catalog.Tool) []string {
	var all []string
	say := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	d := t.Def
	if !toolName.MatchString(d.Name) || len(d.Name) > longestToolName {
		say("the name is not 1 to %d of a-z, 0-9 and _, which every client accepts", longestToolName)
	}
	// The module tool has context_use, because the module context, which has no tool of that name, is only for
	// administrators.
	if d.Name != "context_use" && !strings.HasPrefix(d.Name, module+"_") {
		say("the name does not begin with %s_, so that two modules could offer one name", module)
	}
	if n := utf8.RuneCountInString(d.Description); n == 0 || n > longestDescription {
		say(
			"the description has %d characters, want 1 to %d: a model reads it on every turn, the rest belongs in Help",
			n,
			longestDescription,
		)
	}
	if n := len(sentenceEnd.FindAllString(d.Description, -1)); d.Description != "" && (n < 1 || n > 2) {
		say("the description has %d sentences, want one or two", n)
	}
	if d.Effects == 0 {
		say("it claims nothing about its effects, so clients and rules have to take it for the worst")
	}
	var in struct{ Properties map[string]json.RawMessage }
	if err := json.Unmarshal(t.Input, &in); err == nil && onHost[module] {
		for name := range in.Properties {
			if namesHost.MatchString(name) && d.NameKind(name) == "" {
				say("the tag names of the argument %s is missing, so that rules are not given what it names", name)
			}
		}
	}
	schemas := map[string]json.RawMessage{"input": t.Input, "output": t.Output}
	if relaying[d.Name] {
		delete(schemas, "output")
	}
	for what, schema := range schemas {
		var object struct{ Type string }
		if err := json.Unmarshal(schema, &object); err != nil || object.Type != "object" {
			say("the %s schema is not that of an object: %.60s", what, schema)
		}
	}
	return all
}

func TestFaultsOfToolsAreFound(t *testing.T) {
	object := json.RawMessage(`{"type":"object"}`)
	good := tool.Def{
		Name:        "book_read",
		Description: "Reads a book, e.g. v1.2 of it. Pages are counted from 1.",
		Effects:     tool.Reads,
	}
	if got := faults("book", catalog.Tool{Def: good, Input: object, Output: object}); len(got) > 0 {
		t.Errorf("a good tool is refused: %q", got)
	}
	for name, spoil := range map[string]func(*catalog.Tool){
		"upper case":      func(t *catalog.Tool) { t.Def.Name = "book_Read" },
		"too long":        func(t *catalog.Tool) { t.Def.Name = "book_" + strings.Repeat("x", 60) },
		"foreign":         func(t *catalog.Tool) { t.Def.Name = "shelf_read" },
		"silent":          func(t *catalog.Tool) { t.Def.Description = "" },
		"talkative":       func(t *catalog.Tool) { t.Def.Description = "One. Two. Three." },
		"long-winded":     func(t *catalog.Tool) { t.Def.Description = strings.Repeat("so ", 70) + "long." },
		"without effects": func(t *catalog.Tool) { t.Def.Effects = 0 },
		"without output":  func(t *catalog.Tool) { t.Output = nil },
		"no object":       func(t *catalog.Tool) { t.Input = json.RawMessage(`{"type":"string"}`) },
	} {
		bad := catalog.Tool{Def: good, Input: object, Output: object}
		spoil(&bad)
		if got := faults("book", bad); len(got) != 1 {
			t.Errorf("%s: got faults %q, want one", name, got)
		}
	}
}

func TestArgumentsThatNameThingsOfTheHostAreDeclared(t *testing.T) {
	type in struct {
		Path string `json:"path"`
	}
	type declared struct {
		Path string `json:"path" names:"path"`
	}
	object := json.RawMessage(`{"type":"object","properties":{"path":{"type":"string"}}}`)
	for _, c := range []struct {
		module string
		in     reflect.Type
		want   int
	}{{"file", reflect.TypeFor[in](), 1}, {"file", reflect.TypeFor[declared](), 0},
		{"sandbox", reflect.TypeFor[in](), 0}} {
		d := tool.Def{Name: c.module + "_read", Description: "Reads.", Effects: tool.Reads, In: c.in}
		if got := faults(c.module, catalog.Tool{Def: d, Input: object, Output: object}); len(got) != c.want {
			t.Errorf("%s, %v: got faults %q, want %d", c.module, c.in, got, c.want)
		}
	}
}

// snapshot is the form in which a tool's definition is stored.
type snapshot struct {
	Name        string          `json:"name"`
	Title       string          `json:"title,omitempty"`
	Description string          `json:"description"`
	Effects     []string        `json:"effects"`
	Timeout     string          `json:"timeout,omitempty"`
	Handle      string          `json:"handle,omitempty"`
	Aliases     []string        `json:"aliases,omitempty"`
	Input       json.RawMessage `json:"input"`
	Output      json.RawMessage `json:"output,omitempty"`
	Product     string          `json:"product,omitempty"`
}

func snap(t catalog.Tool) ([]byte, error) {
	s := snapshot{
		Name: t.Def.Name, Title: t.Def.Title, Description: t.Def.Description,
		Effects: catalog.EffectWords(t.Def.Effects), Handle: t.Def.Handle, Aliases: t.Def.Aliases,
		Input: t.Input, Output: t.Output, Product: t.Product,
	}
	if t.Def.Timeout > 0 {
		s.Timeout = t.Def.Timeout.String()
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(s)
	return b.Bytes(), err
}

// keep compares a file below testdata with its expected content, or writes it with -update.
func keep(t *testing.T, file string, want []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Errorf("%v: a new tool is accepted with go test ./internal/tests/repotest -update", err)
		return
	}
	if !bytes.Equal(got, want) {
		t.Errorf(
			"%s has changed on the wire: clients and models see this. If it is meant, run go test "+
				"./internal/tests/repotest -update and commit the difference.\nwas:\n%s\nis:\n%s",
			file,
			got,
			want,
		)
	}
}

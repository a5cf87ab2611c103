package pages

import (
	"encoding/json"
	"strings"
	"testing"

	"gatehouse/internal/tests/repotest/catalog"
	"gatehouse/module"
	"gatehouse/tool"
)

const searchInput = `{
	"type": "object",
	"required": ["text"],
	"properties": {
		"text": {"type": "string", "description": "what to look for, | included", "minLength": 1},
		"limit": {"type": "integer", "default": 20, "minimum": 1, "maximum": 100},
		"order": {"type": ["string", "null"], "enum": ["name", "age"]}
	}
}`

const searchOutput = `{
	"type": "object",
	"properties": {
		"hits": {"type": ["null", "array"], "items": {
			"type": "object",
			"properties": {"line": {"type": "integer", "description": "counted from 1"}}
		}},
		"best": {"$ref": "#/$defs/Hit", "description": "the first of them"},
		"tree": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}
	},
	"$defs": {
		"Hit": {"type": "object", "properties": {"line": {"type": "integer"}}},
		"Tree": {"type": "object", "properties": {"below": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}
	}
}`

func TestPageTellsWhatTheDefinitionSays(t *testing.T) {
	got, err := Page(catalog.Module{
		Name: "book",
		Tools: []catalog.Tool{{
			Def: tool.Def{
				Name:        "book_search",
				Description: "Finds text in books.",
				Help:        "# Ranking\n\nBest first.\n\n```\n# not a heading\n```",
				Effects:     tool.Reads | tool.Idempotent,
				Aliases:     []string{"book.search"},
			},
			Input:   json.RawMessage(searchInput),
			Output:  json.RawMessage(searchOutput),
			Product: "text",
		}},
		Resources: []module.Resource{{URI: "book:///index", Name: "the index"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"# The book module\n",
		"## book_search\n\nFinds text in books.\n",
		"It only reads; doing it twice is like doing it once. It also answers to `book.search`",
		"| `text` | string | *needed* | what to look for, \\| included. Not empty. |\n",
		"| `limit` | integer | `20` | From 1 to 100. |\n",
		"| `order` | string |  | One of `name`, `age`. |\n",
		"| `hits` | list of object |  |\n| `hits[].line` | integer | counted from 1 |\n",
		"| `best` | object | the first of them |\n| `best.line` | integer |  |\n",
		"| `tree[].below[].below` | list of object |  |\n",
		"The result is the text of `text`, followed by the facts of the call.",
		"### Ranking\n",
		"\n# not a heading\n",
		"## Resource `book:///index`\n\nthe index\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(got)
	}
}

func TestBrokenSchemasAreNamed(t *testing.T) {
	_, err := Page(catalog.Module{Tools: []catalog.Tool{{
		Def:   tool.Def{Name: "book_search"},
		Input: json.RawMessage(`{"properties": []}`),
	}}})
	if err == nil || !strings.Contains(err.Error(), "book_search: input schema") {
		t.Errorf("got %v, want an error that names the tool and the schema", err)
	}
	if _, err := fields(json.RawMessage(`{"properties": {"a": {"$ref": "#/$defs/Gone"}}}`)); err == nil {
		t.Error("a reference to nothing went unnoticed")
	}
}

package lsp

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"gatehouse/tool"
)

type pagedTarget struct {
	target
	Cursor string `json:"cursor,omitempty"`
}

const targetHelp = `The position is line with column, or line with symbol, or symbol alone for its first occurrence in the
file. Lines and columns begin at 1; columns count characters.

- The first call for a folder and language starts the language server, which may take some seconds.
- Files are read as they are on the disk now.
- Give next_cursor as cursor for the next page.`

func (m *service) definitionTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "lsp_definition", Title: "Find a definition", Effects: tool.Reads,
		Description: "Finds where the symbol at a position is defined, with the text of the line.",
		Help:        targetHelp,
	}, func(ctx context.Context, c *tool.Call, in pagedTarget) (out pageOut, err error) {
		err = m.query(ctx, c, in.Path, func(s *server, f *file) error {
			where, err := in.at(s, f)
			if err != nil {
				return err
			}
			var raw json.RawMessage
			if err := s.callServer(ctx, "textDocument/definition", where, &raw); err != nil {
				return err
			}
			out, err = m.pageOfPlaces(c, "definitions", raw, s.encoding, in.Cursor)
			return err
		})
		return out, err
	})
}

type referencesIn struct {
	pagedTarget
	NoDeclaration bool `json:"no_declaration,omitempty" doc:"leave out the declaration itself"`
}

func (m *service) referencesTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "lsp_references", Title: "Find references", Effects: tool.Reads,
		Description: "Finds where the symbol at a position is used, with the text of each line, a page at a time.",
		Help:        targetHelp,
	}, func(ctx context.Context, c *tool.Call, in referencesIn) (out pageOut, err error) {
		err = m.query(ctx, c, in.Path, func(s *server, f *file) error {
			where, err := in.at(s, f)
			if err != nil {
				return err
			}
			var raw json.RawMessage
			if err := s.callServer(ctx, "textDocument/references", map[string]any{
				"textDocument": where.Document, "position": where.Position,
				"context": map[string]bool{"includeDeclaration": !in.NoDeclaration},
			}, &raw); err != nil {
				return err
			}
			out, err = m.pageOfPlaces(c, "references", raw, s.encoding, in.Cursor)
			return err
		})
		return out, err
	})
}

// pageOfPlaces words an answer that is a location, a list of locations or of links, or null.
func (m *service) pageOfPlaces(
	c *tool.Call,
	what string,
	raw json.RawMessage,
	encoding, cursor string,
) (pageOut, error) {
	var all []location
	if len(raw) > 0 && raw[0] == '{' {
		raw = append(append([]byte{'['}, raw...), ']')
	}
	if err := json.Unmarshal(raw, &all); len(raw) > 0 && err != nil {
		return pageOut{}, fmt.Errorf("answer of the language server: %w", err)
	}
	r := m.reader(c)
	var items []item
	for _, p := range places(all) {
		items = append(items, r.item(p, encoding, ""))
	}
	return page(what, items, cursor)
}

type hoverOut struct {
	Text string `json:"text" text:"product"`
	Line int    `json:"line" doc:"of the symbol"`
}

func (m *service) hoverTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "lsp_hover", Title: "Describe a symbol", Effects: tool.Reads,
		Description: "Returns the type and documentation of the symbol at a position.",
		Help:        targetHelp,
	}, func(ctx context.Context, c *tool.Call, in target) (out hoverOut, err error) {
		err = m.query(ctx, c, in.Path, func(s *server, f *file) error {
			where, err := in.at(s, f)
			if err != nil {
				return err
			}
			var answer struct {
				Contents json.RawMessage `json:"contents"`
			}
			if err := s.callServer(ctx, "textDocument/hover", where, &answer); err != nil {
				return err
			}
			out = hoverOut{hoverText(answer.Contents), where.Position.Line + 1}
			return nil
		})
		if err == nil && out.Text == "" {
			out.Text = "The language server knows nothing about this position.\n"
		}
		return out, err
	})
}

// hoverText returns the text of MarkupContent, a MarkedString or a list of those.
func hoverText(raw json.RawMessage) string {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) == nil {
		var parts []string
		for _, one := range list {
			parts = append(parts, hoverText(one))
		}
		return strings.Join(parts, "\n")
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var one struct{ Value string }
	if json.Unmarshal(raw, &one) != nil {
		return ""
	}
	return one.Value
}

package lsp

import (
	"context"
	"fmt"
	"strings"

	"gatehouse/tool"
)

type symbolsIn struct {
	Path   string `json:"path" names:"path" doc:"a file; with query, any file of the language"`
	Query  string `json:"query,omitempty" max:"1000" doc:"search the whole project for symbols with such a name"`
	Cursor string `json:"cursor,omitempty"`
}

func (m *service) symbolsTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "lsp_symbols", Title: "List symbols", Effects: tool.Reads,
		Description: "Lists the symbols of a file as an outline, or with query those of the whole project.",
		Help: `path:line:column, the kind and the name of each symbol; members are indented below their type. Give
next_cursor as cursor for the next page.`,
	}, func(ctx context.Context, c *tool.Call, in symbolsIn) (out pageOut, err error) {
		err = m.query(ctx, c, in.Path, func(s *server, f *file) error {
			var all []symbol
			method, params := "textDocument/documentSymbol", any(map[string]any{
				"textDocument": textDocument{URI: uriOf(f.path)},
			})
			if in.Query != "" {
				method, params = "workspace/symbol", map[string]string{"query": in.Query}
			}
			if err := s.callServer(ctx, method, params, &all); err != nil {
				return err
			}
			if in.Query != "" {
				out, err = page("symbols", m.projectSymbols(c, s, all), in.Cursor)
			} else {
				var items []item
				outline(f, s.encoding, all, 0, &items)
				out, err = page("symbols", items, in.Cursor)
			}
			return err
		})
		return out, err
	})
}

// outline words the symbols of a file in their order.
func outline(f *file, encoding string, all []symbol, depth int, items *[]item) {
	for _, s := range all {
		at := s.Selection
		if at == nil {
			at = &s.Location.Range
		}
		line := fmt.Sprintf("%d:%d: %s%s %s", at.Start.Line+1, f.column(at.Start, encoding),
			strings.Repeat("  ", depth), kindName(s.Kind), s.Name)
		if s.Detail != "" {
			line += " " + s.Detail
		}
		line = cutText(strings.ReplaceAll(line, "\n", " "))
		*items = append(*items, item{fmt.Sprintf("%08d", len(*items)), func() (string, bool) { return line, false }})
		outline(f, encoding, s.Children, depth+1, items)
	}
}

func (m *service) projectSymbols(c *tool.Call, s *server, all []symbol) []item {
	r := m.reader(c)
	var items []item
	for i, one := range all { // in the order of the server, the best first
		name := one.Name
		if one.Container != "" {
			name += " in " + one.Container
		}
		p := place{pathOf(one.Location.URI), one.Location.Range}
		if p.path == "" {
			continue
		}
		it := r.item(p, s.encoding, kindName(one.Kind)+" "+name)
		it.key = fmt.Sprintf("%08d", i)
		items = append(items, it)
	}
	return items
}

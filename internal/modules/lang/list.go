package lang

import (
	"context"
	"slices"
	"strings"

	"gatehouse/internal/files/language"
	"gatehouse/tool"
)

type listIn struct {
	Filter string `json:"filter,omitempty" doc:"part of an id, name or extension"`
	Limit  int    `json:"limit,omitempty" default:"50" min:"1" max:"1000"`
	Cursor string `json:"cursor,omitempty" doc:"next_cursor of the previous page"`
}

type listOut struct {
	Languages  []lang `json:"languages"`
	Total      int    `json:"total"`
	NextCursor string `json:"next_cursor,omitempty"`
}

type lang struct {
	ID         string   `json:"id"`
	Name       string   `json:"name"`
	Extensions []string `json:"extensions"`
}

// pageLanguages is the default of limit.
const pageLanguages = 50

const listHelp = `Lists the languages that lang_detect knows, ordered by id, 50 at a time.

- filter selects languages whose id or name contains it, or that have it as an extension: "script", ".pl".
- Give next_cursor as cursor for the next page.`

func (m *langs) listTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "lang_list",
		Title:       "List languages",
		Description: "Lists the languages that lang_detect knows.",
		Help:        listHelp,
		Effects:     tool.Reads,
		Task:        tool.TaskNever,
		Budget:      -1, // it pages itself
	}, m.listLanguages)
}

func (m *langs) listLanguages(_ context.Context, c *tool.Call, in listIn) (listOut, error) {
	if in.Limit == 0 {
		in.Limit = pageLanguages
	}
	if c.Unpaged && in.Limit == pageLanguages {
		in.Limit = len(language.All())
	}
	out := listOut{Languages: []lang{}}
	for _, l := range language.All() {
		if !matches(l, strings.ToLower(in.Filter)) {
			continue
		}
		out.Total++
		switch {
		case l.ID <= in.Cursor:
		case len(out.Languages) < in.Limit:
			out.Languages = append(out.Languages, lang{l.ID, l.Name, append([]string{}, l.Extensions...)})
		case out.NextCursor == "":
			out.NextCursor = out.Languages[in.Limit-1].ID
		}
	}
	return out, nil
}

func matches(l language.Language, filter string) bool {
	if filter == "" || strings.Contains(l.ID, filter) || strings.Contains(strings.ToLower(l.Name), filter) {
		return true
	}
	return slices.ContainsFunc(l.Extensions, func(e string) bool { return strings.EqualFold(e, filter) })
}

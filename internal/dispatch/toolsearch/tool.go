package toolsearch

import (
	"context"
	"encoding/json"

	"gatehouse/tool"
)

// Tool is what a caller is told of a tool.
type Tool struct {
	Name, Title, Description string
	Caller                   string // the tool that calls it
	Parameters               []Parameter
	Input                    json.RawMessage // its schema
}

// Parameter is an argument of a tool as its schema declares it.
type Parameter struct {
	Name, Description string
	Type              string // as JSON Schema names it, such as string[] or "a"|"b"; "" if it has none
	Required          bool
}

// Finder finds tools in the views of callers.
type Finder interface {
	// SearchTools returns the tools that fit a query best, at most limit, the best first.
	SearchTools(ctx context.Context, who tool.Caller, query string, limit int) []Tool
	// FindTool returns the tool of that name in the caller's view, and if there is none the most similar name.
	FindTool(ctx context.Context, who tool.Caller, name string) (found Tool, near string, ok bool)
}

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
	Output                   json.RawMessage // the schema of its whole result; nil if it declares none
}

// Catalog is what programs of a caller can call.
type Catalog struct {
	Tools   []Tool
	Asks    bool // tools that ask the caller, or need an approval, can be called too
	Version any  // is equal for equal catalogs; it can be the key of a map
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

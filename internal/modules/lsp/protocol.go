package lsp

import (
	"encoding/json"
	"net/url"
	"path/filepath"
	"strings"
)

// The parts of the Language Server Protocol that this module uses, in the words of its specification. Lines and
// characters begin at 0; characters are bytes or UTF-16 units, as the server chose.
type (
	position struct {
		Line      int `json:"line"`
		Character int `json:"character"`
	}
	span struct {
		Start position `json:"start"`
		End   position `json:"end"`
	}
	location struct {
		URI   string `json:"uri"`
		Range span   `json:"range"`
		// of a LocationLink, instead
		TargetURI   string `json:"targetUri"`
		TargetRange span   `json:"targetSelectionRange"`
	}
	textDocument struct {
		URI     string `json:"uri"`
		Version *int   `json:"version,omitempty"`
	}
	textEdit struct {
		Range   span   `json:"range"`
		NewText string `json:"newText"`
	}
	documentChange struct {
		Kind     string       `json:"kind"` // create, rename or delete; "" for edits
		URI      string       `json:"uri"`
		Document textDocument `json:"textDocument"`
		Edits    []textEdit   `json:"edits"`
	}
	workspaceEdit struct {
		Changes         map[string][]textEdit `json:"changes"`
		DocumentChanges []documentChange      `json:"documentChanges"`
	}
	diagnostic struct {
		Range    span            `json:"range"`
		Severity int             `json:"severity"` // 1 error, 2 warning, 3 information, 4 hint
		Code     json.RawMessage `json:"code,omitempty"`
		Source   string          `json:"source,omitempty"`
		Message  string          `json:"message"`
		Tags     []int           `json:"tags,omitempty"`
		Data     json.RawMessage `json:"data,omitempty"`
	}
	symbol struct { // a DocumentSymbol or a SymbolInformation
		Name      string   `json:"name"`
		Detail    string   `json:"detail"`
		Kind      int      `json:"kind"`
		Selection *span    `json:"selectionRange"`
		Range     *span    `json:"range"`
		Location  location `json:"location"`
		Container string   `json:"containerName"`
		Children  []symbol `json:"children"`
	}
	codeAction struct {
		Title    string                   `json:"title"`
		Kind     string                   `json:"kind"`
		Disabled *struct{ Reason string } `json:"disabled,omitempty"`
		Edit     *workspaceEdit           `json:"edit,omitempty"`
		Command  json.RawMessage          `json:"command,omitempty"` // a Command, or in a bare Command its name
		Args     json.RawMessage          `json:"arguments,omitempty"`
		Data     json.RawMessage          `json:"data,omitempty"`

		raw json.RawMessage
	}
	capabilities struct {
		PositionEncoding   string          `json:"positionEncoding"`
		DiagnosticProvider json.RawMessage `json:"diagnosticProvider"`
		CodeActionProvider json.RawMessage `json:"codeActionProvider"`
	}
)

// at is the position of a request.
type at struct {
	Document textDocument `json:"textDocument"`
	Position position     `json:"position"`
}

// kindNames are the names of the kinds of symbols, by their numbers.
var kindNames = []string{
	"", "file", "module", "namespace", "package", "class", "method", "property", "field", "constructor", "enum",
	"interface", "function", "variable", "constant", "string", "number", "boolean", "array", "object", "key", "null",
	"enum member", "struct", "event", "operator", "type parameter",
}

func kindName(n int) string {
	if n > 0 && n < len(kindNames) {
		return kindNames[n]
	}
	return "symbol"
}

var severities = []string{"", "error", "warning", "information", "hint"}

// clientCapabilities are what the module can do, for the initialize request.
var clientCapabilities = map[string]any{
	"general": map[string]any{"positionEncodings": []string{"utf-8", "utf-16"}},
	"window":  map[string]any{"workDoneProgress": true},
	"textDocument": map[string]any{
		"synchronization":    map[string]any{"didSave": true},
		"definition":         map[string]any{"linkSupport": true},
		"references":         map[string]any{},
		"hover":              map[string]any{"contentFormat": []string{"markdown", "plaintext"}},
		"documentSymbol":     map[string]any{"hierarchicalDocumentSymbolSupport": true},
		"rename":             map[string]any{"prepareSupport": true},
		"publishDiagnostics": map[string]any{"versionSupport": true, "codeDescriptionSupport": false},
		"diagnostic":         map[string]any{"dynamicRegistration": false},
		"codeAction": map[string]any{
			"codeActionLiteralSupport": map[string]any{"codeActionKind": map[string]any{"valueSet": []string{
				"", "quickfix", "refactor", "refactor.extract", "refactor.inline", "refactor.rewrite", "source",
				"source.organizeImports", "source.fixAll",
			}}},
			"resolveSupport": map[string]any{"properties": []string{"edit"}}, "dataSupport": true,
			"disabledSupport": true,
		},
	},
	"workspace": map[string]any{
		"applyEdit": true, "configuration": true, "workspaceFolders": true,
		"workspaceEdit":         map[string]any{"documentChanges": true, "resourceOperations": []string{"create"}},
		"symbol":                map[string]any{},
		"didChangeWatchedFiles": map[string]any{"dynamicRegistration": true},
		"executeCommand":        map[string]any{},
	},
}

// uriOf returns the URI of a file.
func uriOf(path string) string {
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return (&url.URL{Scheme: "file", Path: path}).String()
}

// pathOf returns the path of a URI, or "" if it is none of a file.
func pathOf(uri string) string {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "file" {
		return ""
	}
	path := u.Path
	if len(path) > 2 && path[0] == '/' && path[2] == ':' { // a volume of Windows
		path = path[1:]
	}
	return filepath.FromSlash(path)
}

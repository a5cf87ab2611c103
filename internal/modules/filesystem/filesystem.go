// Package filesystem is a module that replaces the official MCP file server: its
// tools have the same names, arguments, results and texts.
//
// It is for clients and prompts that were made for the original, and uses the
// same packages as the module file. It differs where the original loses data or
// discloses too much: it keeps line endings, does not edit files that are not
// text, and no error names a folder that the caller did not name. Its
// additional arguments are optional. The tests compare it with the original and
// list every intended difference.
package filesystem

import (
	"context"
	"encoding/json"

	"gatehouse/internal/files/roots"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/module"
	"gatehouse/tool"
)

// maxBytes is the number of bytes that one call can read or write.
const maxBytes = 10 << 20

type fileServer struct {
	offer  module.Offer
	writer roots.Writer
}

// New returns the module. It has no configuration.
func New(_ context.Context, _ module.Deps) (module.Module, error) {
	m := &fileServer{}
	m.offer.Tools = m.definitions()
	tool.Stage(m.offer.Tools)
	return m, nil
}

// Offer implements module.Module.
func (m *fileServer) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &m.offer, nil
}

// Close implements module.Module.
func (m *fileServer) Close(context.Context) error { return nil }

const (
	reads          = tool.Reads
	textOut        = `{"type":"object","properties":{"content":{"type":"string"}},"required":["content"],"additionalProperties":false}`
	mediaOut       = `{"type":"object","properties":{"content":{"type":"array","items":{"type":"object"}}},"required":["content"]}`
	pathOnly       = `"path":{"type":"string"}`
	lineProperties = `"offset":{"type":"number","description":"first line to return, from 1"},"limit":{"type":"number","description":"maximum of lines to return"}`
	headTail       = `"tail":{"type":"number","description":"return only the last N lines"},"head":{"type":"number","description":"return only the first N lines"},` + lineProperties
	excludes       = `"excludePatterns":{"type":"array","items":{"type":"string"},"default":[],"description":"globs of paths to exclude"}`
)

// Properties of schemas.
const (
	manyPaths = `"paths":{"type":"array","items":{"type":"string"},"minItems":1,"description":"files to read"}`
	editList  = `"edits":{"type":"array","items":{"type":"object","properties":{` +
		`"oldText":{"type":"string","description":"text to look for"},` +
		`"newText":{"type":"string","description":"its replacement"}},"required":["oldText","newText"]}},` +
		`"dryRun":{"type":"boolean","default":false,"description":"only show the diff"}`
	sortBy = `"sortBy":{"type":"string","enum":["name","size"],"default":"name","description":"what to sort by"}`
)

// definitions returns the tools in the order of the original.
func (m *fileServer) definitions() []tool.Tool {
	return []tool.Tool{
		define(
			"read_file", "Read File (Deprecated)", "Reads a file as text. Prefer read_text_file.", reads,
			pathOnly+","+headTail, []string{"path"}, readText,
		),
		define(
			"read_text_file", "Read Text File",
			"Reads a file as text: all of it, or the lines that head, tail, offset and limit choose.", reads,
			pathOnly+","+headTail, []string{"path"}, readText,
		),
		define(
			"read_media_file", "Read Media File",
			"Reads a file and returns it as an image, as audio, or as an embedded resource.", reads, pathOnly,
			[]string{"path"}, readMedia,
		),
		define(
			"read_multiple_files", "Read Multiple Files",
			"Reads several files as text at once. A file that cannot be read is reported in its place.", reads,
			manyPaths+","+lineProperties, []string{"paths"}, readMany,
		),
		define(
			"write_file", "Write File", "Writes a whole file and replaces an existing one.",
			tool.Writes|tool.Destroys|tool.Idempotent, pathOnly+`,"content":{"type":"string"}`,
			[]string{"path", "content"}, m.writeFile,
		),
		define(
			"edit_file", "Edit File", "Replaces text in a file and returns a diff of the changes.",
			tool.Writes|tool.Destroys, pathOnly+","+editList, []string{"path", "edits"}, m.editFile,
		),
		define(
			"create_directory", "Create Directory",
			"Makes a directory and its missing parents. If it exists, the call succeeds.", tool.Writes|tool.Idempotent,
			pathOnly, []string{"path"}, createDirectory,
		),
		define(
			"list_directory", "List Directory", "Lists a directory, each entry marked [FILE] or [DIR].", reads,
			pathOnly, []string{"path"}, listDirectory,
		),
		define(
			"list_directory_with_sizes", "List Directory with Sizes",
			"Lists a directory with the sizes of its files and a total.", reads, pathOnly+","+sortBy, []string{"path"},
			listSizes,
		),
		define(
			"directory_tree", "Directory Tree",
			"Returns the tree below a directory as JSON: name, type, and children of directories.", reads,
			pathOnly+","+excludes, []string{"path"}, directoryTree,
		),
		define(
			"move_file", "Move File", "Moves or renames a file or directory. It never replaces anything.",
			tool.Writes|tool.Destroys, `"source":{"type":"string"},"destination":{"type":"string"}`,
			[]string{"source", "destination"}, m.move,
		),
		define(
			"search_files", "Search Files",
			"Finds files and directories below a path by a glob such as **/*.ext, relative to that path.", reads,
			pathOnly+`,"pattern":{"type":"string"},`+excludes, []string{"path", "pattern"}, searchFiles,
		),
		define(
			"get_file_info", "Get File Info", "Returns size, times, type and permissions of a file or directory.",
			reads, pathOnly, []string{"path"}, fileInfo,
		),
		define(
			"list_allowed_directories", "List Allowed Directories", "Lists the directories that the tools can access.",
			reads, "", nil, listAllowed,
		),
	}
}

// define returns a tool that has the original's name in views that use such names.
// Like the original, it ignores unknown arguments.
func define[In any](
	name, title, description string, e tool.Effects, properties string, required []string,
	run func(context.Context, *tool.Call, In) (tool.Result, error),
) tool.Tool {
	in := `{"type":"object","properties":{` + properties + `}`
	if required != nil {
		list, _ := json.Marshal(required) // strings
		in += `,"required":` + string(list)
	}
	out := textOut
	if name == "read_media_file" {
		out = mediaOut
	}
	return tool.New(tool.Def{
		Name: "filesystem_" + name, Title: title, Description: description, Aliases: []string{name}, Effects: e,
		Input: json.RawMessage(in + "}"), Output: json.RawMessage(out), Budget: -1,
	}, run)
}

// textResult returns a result as the original does: as text, and again as the only
// member of the structured content.
func textResult(s string) (tool.Result, error) {
	quoted := rawjson.AppendString(nil, s)
	raw := make([]byte, 0, 2*len(quoted)+100)
	raw = append(raw, `{"content":[{"type":"text","text":`...)
	raw = append(raw, quoted...)
	raw = append(raw, `}],"structuredContent":{"content":`...)
	raw = append(raw, quoted...)
	return tool.Result{Raw: append(raw, "}}"...)}, nil
}

type pathIn struct {
	Path string `json:"path" names:"path"`
}

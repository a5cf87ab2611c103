// Package filesystem takes the place of the official MCP file server: the same
// tools by the same names, with the same arguments, results and texts.
//
// It is for clients and prompts that were made for the original, and stands on
// the same rooms as the file tools of this house. Where the original loses
// data or says too much, it does not follow: line endings stay, what is not
// text stays out of edits, and no refusal names a folder that the caller did
// not. Its extra arguments are optional. The tests compare it with the
// original, and list every difference that is meant.
package filesystem

import (
	"context"
	"encoding/json"

	"gatehouse/internal/files/roots"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/module"
	"gatehouse/tool"
)

// most is how much one call reads or writes, in bytes.
const most = 10 << 20

type fileServer struct {
	offer  module.Offer
	writer roots.Writer
}

// New makes the module. It takes no configuration.
func New(_ context.Context, _ module.Deps) (module.Module, error) {
	m := &fileServer{}
	m.offer.Tools = m.tools()
	return m, nil
}

// Offer implements module.Module.
func (m *fileServer) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &m.offer, nil
}

// Close implements module.Module.
func (m *fileServer) Close(context.Context) error { return nil }

const (
	reads    = tool.Reads
	textOut  = `{"type":"object","properties":{"content":{"type":"string"}},"required":["content"],"additionalProperties":false}`
	mediaOut = `{"type":"object","properties":{"content":{"type":"array","items":{"type":"object"}}},"required":["content"]}`
	pathOnly = `"path":{"type":"string"}`
	lines    = `"offset":{"type":"number","description":"first line to return, from 1"},"limit":{"type":"number","description":"most lines to return"}`
	headTail = `"tail":{"type":"number","description":"return only the last N lines"},"head":{"type":"number","description":"return only the first N lines"},` + lines
	excludes = `"excludePatterns":{"type":"array","items":{"type":"string"},"default":[],"description":"globs of what to leave out"}`
)

// tools are in the order of the original.
func (m *fileServer) tools() []tool.Tool {
	return []tool.Tool{
		define("read_file", "Read File (Deprecated)", "Reads a file as text. Prefer read_text_file.", reads, pathOnly+","+headTail, []string{"path"}, readText),
		define("read_text_file", "Read Text File", "Reads a file as text: all of it, or the lines that head, tail, offset and limit choose.", reads, pathOnly+","+headTail, []string{"path"}, readText),
		define("read_media_file", "Read Media File", "Reads a file and gives it as an image, as audio, or as an embedded resource.", reads, pathOnly, []string{"path"}, readMedia),
		define("read_multiple_files", "Read Multiple Files", "Reads several files as text at once. A file that cannot be read is reported in its place.", reads,
			`"paths":{"type":"array","items":{"type":"string"},"minItems":1,"description":"files to read"},`+lines, []string{"paths"}, readMany),
		define("write_file", "Write File", "Writes a whole file, replacing what was there.", tool.Writes|tool.Destroys|tool.Idempotent,
			pathOnly+`,"content":{"type":"string"}`, []string{"path", "content"}, m.write),
		define("edit_file", "Edit File", "Replaces pieces of text in a file and gives a diff of what was changed.", tool.Writes|tool.Destroys,
			pathOnly+`,"edits":{"type":"array","items":{"type":"object","properties":{"oldText":{"type":"string","description":"text to look for"},"newText":{"type":"string","description":"what to put there"}},"required":["oldText","newText"]}},`+
				`"dryRun":{"type":"boolean","default":false,"description":"only show the diff"}`, []string{"path", "edits"}, m.change),
		define("create_directory", "Create Directory", "Makes a directory and its missing parents; one that exists is fine.", tool.Writes|tool.Idempotent, pathOnly, []string{"path"}, createDirectory),
		define("list_directory", "List Directory", "Lists a directory, each entry marked [FILE] or [DIR].", reads, pathOnly, []string{"path"}, listDirectory),
		define("list_directory_with_sizes", "List Directory with Sizes", "Lists a directory with the sizes of its files and a total.", reads,
			pathOnly+`,"sortBy":{"type":"string","enum":["name","size"],"default":"name","description":"what to sort by"}`, []string{"path"}, listSizes),
		define("directory_tree", "Directory Tree", "Gives what lies below a directory as JSON: name, type, and children of directories.", reads, pathOnly+","+excludes, []string{"path"}, directoryTree),
		define("move_file", "Move File", "Moves or renames a file or directory. It never replaces what exists.", tool.Writes|tool.Destroys,
			`"source":{"type":"string"},"destination":{"type":"string"}`, []string{"source", "destination"}, m.move),
		define("search_files", "Search Files", "Finds files and directories below a path by a glob such as **/*.ext, which is matched from there.", reads,
			pathOnly+`,"pattern":{"type":"string"},`+excludes, []string{"path", "pattern"}, searchFiles),
		define("get_file_info", "Get File Info", "Tells size, times, kind and permissions of a file or directory.", reads, pathOnly, []string{"path"}, info),
		define("list_allowed_directories", "List Allowed Directories", "Lists the directories that can be used.", reads, "", nil, allowed),
	}
}

// define makes a tool that is called by the original's name where a view asks
// for such names. Like the original, it passes over arguments it does not know.
func define[In any](name, title, description string, e tool.Effects, properties string, required []string, run func(context.Context, *tool.Call, In) (tool.Result, error)) tool.Tool {
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

// text is a result the way the original gives it: as text, and once more as
// the one member of the structured content.
func text(s string) (tool.Result, error) {
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

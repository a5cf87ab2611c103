package ide

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"gatehouse/internal/exec/idelink"
	"gatehouse/internal/exec/rpc"
	"gatehouse/tool"
)

// maxServed is how many jobs of one owner may be editors for agents at once.
const maxServed = 4

// served is this host as an editor for agents, with the rights of the caller that started it.
type served struct {
	e      *editors
	server *idelink.Server
	owner  string
	call   *tool.Call // of the job
	agents map[*rpc.Conn]bool
	ctx    context.Context // of the job
}

type serveIn struct{}

type serveOut struct {
	Job  string            `json:"job" doc:"cancel it to stop"`
	Port int               `json:"port"`
	Lock string            `json:"lock" doc:"the lock file"`
	Env  map[string]string `json:"env" doc:"for agents that are started elsewhere than in the folders"`
}

func (e *editors) serveEditor(ctx context.Context, c *tool.Call, _ serveIn) (out serveOut, err error) {
	if err := e.refused(c); err != nil {
		return out, err
	}
	if e.m.deps.Job == nil {
		return out, tool.Refuse(tool.CodeUnsupported, "this host has no jobs")
	}
	dir, err := e.folder()
	if err != nil {
		return out, err
	}
	s := &served{e: e, owner: c.Caller.Owner, agents: map[*rpc.Conn]bool{}}
	s.server = &idelink.Server{Accept: s.accept, Handler: func(agent func() *rpc.Conn) rpc.Handler {
		return rpc.Handler{Request: func(ctx context.Context, method string, params json.RawMessage) (any, error) {
			return s.handleAgent(ctx, agent(), method, params)
		}, Notify: func(method string, _ json.RawMessage) {
			if sel := e.selected(s.owner); method == "ide_connected" && sel != nil {
				e.m.wg.Go(func() { _ = agent().Notify(e.m.ctx, "selection_changed", sel.wire()) })
			}
		}}
	}}
	s.server.Editor = "Gatehouse"
	for _, r := range c.Roots.List() {
		s.server.Folders = append(s.server.Folders, r.Path)
	}
	e.mu.Lock()
	n := 0
	for _, x := range e.served {
		if x.owner == s.owner {
			n++
		}
	}
	e.mu.Unlock()
	if n >= maxServed {
		return out, tool.Refuse(tool.CodeTooMany,
			"you have %d editors for agents; cancel a job of ide_editor_serve first", n)
	}
	if err := s.server.Listen(dir); err != nil {
		return out, tool.Refuse(tool.CodeNotStarted, "the port and its lock file cannot be made: %v", err)
	}
	out.Job, err = e.m.deps.Job(c, "editor for agents at port "+strconv.Itoa(s.server.Port), s.serveClaude)
	if err != nil {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		return out, errorsOf(err, s.server.Serve(ended))
	}
	out.Port, out.Lock = s.server.Port, s.server.Path
	out.Env = map[string]string{"CLAUDE_CODE_SSE_PORT": strconv.Itoa(out.Port), "ENABLE_IDE_INTEGRATION": "true"}
	return out, nil
}

func errorsOf(err, second error) error {
	if second != nil {
		return fmt.Errorf("%w; %v", err, second)
	}
	return err
}

// serveClaude serves agents until the job is cancelled or the module ends.
func (s *served) serveClaude(ctx context.Context, c *tool.Call) (tool.Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(s.e.m.ctx, cancel)
	defer stop()
	s.ctx, s.call = ctx, c
	s.e.mu.Lock()
	s.e.served[s.server.Path] = s
	s.e.mu.Unlock()
	err := s.server.Serve(ctx)
	s.e.mu.Lock()
	delete(s.e.served, s.server.Path)
	s.e.mu.Unlock()
	if err != nil {
		return tool.Result{}, err
	}
	return tool.Result{Content: []tool.Content{tool.Text("ended")}}, nil
}

func (s *served) accept(agent *rpc.Conn) (gone func()) {
	s.e.mu.Lock()
	s.agents[agent] = true
	s.e.mu.Unlock()
	return func() {
		s.e.mu.Lock()
		delete(s.agents, agent)
		s.e.mu.Unlock()
	}
}

// notifyAll tells the agents of all owners of a selection in an editor, which all of them may see.
func (e *editors) notifyAll(selection any) {
	ctx, cancel := context.WithTimeout(e.m.ctx, editorWait)
	defer cancel()
	e.notify(ctx, "", "selection_changed", selection)
}

// notify sends a notification to the agents of an owner, "" for all, and returns how many there are.
func (e *editors) notify(ctx context.Context, owner, method string, params any) (n int) {
	e.mu.Lock()
	var all []*rpc.Conn
	for _, s := range e.served {
		if owner == "" || s.owner == owner {
			for a := range s.agents {
				all = append(all, a)
			}
		}
	}
	e.mu.Unlock()
	var sent sync.WaitGroup
	for _, a := range all {
		sent.Go(func() { _ = a.Notify(ctx, method, params) }) // one that has gone is not told
	}
	sent.Wait()
	return len(all)
}

// wire returns a selection as it is sent.
func (s *selection) wire() map[string]any {
	return map[string]any{
		"text": s.Text, "filePath": s.Path, "fileUrl": uriOf(s.Path),
		"selection": map[string]any{
			"start":   map[string]int{"line": s.From - 1, "character": s.column[0] - 1},
			"end":     map[string]int{"line": s.To - 1, "character": s.column[1] - 1},
			"isEmpty": s.Text == "",
		},
	}
}

// handleAgent answers an agent, whose messages are those of MCP.
func (s *served) handleAgent(ctx context.Context, agent *rpc.Conn, method string, params json.RawMessage) (any, error) {
	switch method {
	case "initialize":
		var p struct{ ProtocolVersion string }
		if json.Unmarshal(params, &p) != nil || p.ProtocolVersion < oldestMCP || p.ProtocolVersion > latestMCP {
			p.ProtocolVersion = latestMCP
		}
		return map[string]any{
			"protocolVersion": p.ProtocolVersion, "serverInfo": map[string]string{"name": "gatehouse", "version": "1"},
			"capabilities": map[string]any{
				"tools":     map[string]any{},
				"prompts":   map[string]any{},
				"resources": map[string]any{},
			},
		}, nil
	case "ping":
		return map[string]any{}, nil
	case "tools/list":
		return map[string]any{"tools": agentTools}, nil
	case "prompts/list":
		return map[string]any{"prompts": []any{}}, nil
	case "resources/list":
		return map[string]any{"resources": []any{}}, nil
	case "tools/call":
		var p struct {
			Name      string
			Arguments json.RawMessage
		}
		if err := json.Unmarshal(params, &p); err != nil {
			return nil, &rpc.Error{Code: rpc.CodeInvalidParams, Message: err.Error()}
		}
		var in agentArguments
		if len(p.Arguments) > 0 {
			if err := json.Unmarshal(p.Arguments, &in); err != nil {
				return nil, &rpc.Error{Code: rpc.CodeInvalidParams, Message: err.Error()}
			}
		}
		texts, err := s.tool(ctx, agent, p.Name, in)
		if _, ok := err.(*rpc.Error); ok {
			return nil, err
		}
		if err != nil {
			return map[string]any{"isError": true, "content": textBlocks(err.Error())}, nil
		}
		return map[string]any{"content": textBlocks(texts...)}, nil
	}
	return nil, rpc.NotFound(method)
}

func textBlocks(texts ...string) []map[string]string {
	all := []map[string]string{}
	for _, t := range texts {
		all = append(all, map[string]string{"type": "text", "text": t})
	}
	return all
}

// agentArguments are the arguments of all tools of agents.
type agentArguments struct {
	URI      string `json:"uri"`
	FilePath string `json:"filePath"`
	Start    string `json:"startText"`
	Old      string `json:"old_file_path"`
	New      string `json:"new_file_path"`
	Contents string `json:"new_file_contents"`
	Tab      string `json:"tab_name"`
}

func textResult(names ...string) map[string]any {
	properties := map[string]any{}
	for _, n := range names {
		properties[strings.TrimSuffix(n, "?")] = map[string]string{"type": "string"}
	}
	var required []string
	for _, n := range names {
		if !strings.HasSuffix(n, "?") {
			required = append(required, n)
		}
	}
	schema := map[string]any{"type": "object", "properties": properties}
	if len(required) > 0 {
		schema["required"] = required
	}
	return schema
}

// agentTools are the tools that agents expect of an editor. executeCode, which runs code in a notebook, is not among
// them, because this host has no notebooks.
var agentTools = []map[string]any{
	{
		"name":        "openFile",
		"description": "Open a file in the editor",
		"inputSchema": textResult("filePath", "startText?", "endText?"),
	},
	{
		"name": "openDiff", "description": "Show a change and wait for the decision",
		"inputSchema": textResult("old_file_path", "new_file_path", "new_file_contents", "tab_name"),
	},
	{"name": "getCurrentSelection", "description": "Get the selection", "inputSchema": textResult()},
	{"name": "getLatestSelection", "description": "Get the latest selection", "inputSchema": textResult()},
	{"name": "getOpenEditors", "description": "List the open files", "inputSchema": textResult()},
	{"name": "getWorkspaceFolders", "description": "List the folders", "inputSchema": textResult()},
	{"name": "getDiagnostics", "description": "Get the errors and warnings of a file", "inputSchema": textResult("uri?")},
	{
		"name":        "checkDocumentDirty",
		"description": "Check for changes that are not saved",
		"inputSchema": textResult("filePath"),
	},
	{"name": "saveDocument", "description": "Save a file", "inputSchema": textResult("filePath")},
	{"name": "close_tab", "description": "Close a diff", "inputSchema": textResult("tab_name")},
	{"name": "closeAllDiffTabs", "description": "Close all diffs", "inputSchema": textResult()},
}

var diagnosticLine = regexp.MustCompile(`^\S.*?:(\d+):(\d+): (error|warning|information|hint):? (.*)$`)

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0
	}
	return n
}

func asJSON(v any) ([]string, error) {
	b, err := json.Marshal(v)
	return []string{string(b)}, err
}

// tool answers the call of a tool with the rights of the caller that started the job.
func (s *served) tool(ctx context.Context, agent *rpc.Conn, name string, in agentArguments) ([]string, error) {
	e, c := s.e, s.call
	switch name {
	case "openDiff":
		return s.openDiff(ctx, agent, in)
	case "close_tab", "closeAllDiffTabs":
		return s.closeDiffs(name == "closeAllDiffTabs", in.Tab)
	case "getCurrentSelection", "getLatestSelection":
		sel := e.selected(s.owner)
		if sel == nil {
			return asJSON(map[string]any{"success": false, "message": "No active editor found"})
		}
		w := sel.wire()
		w["success"] = true
		return asJSON(w)
	case "getWorkspaceFolders":
		var folders []map[string]string
		for _, f := range s.server.Folders {
			folders = append(folders, map[string]string{"name": filepath.Base(f), "uri": uriOf(f), "path": f})
		}
		return asJSON(map[string]any{"success": true, "folders": folders, "rootPath": folderOf(c)})
	case "getOpenEditors":
		return s.openEditors(ctx)
	case "getDiagnostics":
		return s.diagnostics(ctx, in.URI)
	}
	path, err := absolute(c, in.FilePath)
	if err != nil {
		return nil, err
	}
	switch name {
	case "openFile":
		k, err := e.first(ctx, c)
		if err != nil {
			return nil, err
		}
		if k != nil {
			return k.callEditor(ctx, "openFile", map[string]any{
				"filePath": path, "preview": false, "makeFrontmost": true, "startText": in.Start, "endText": in.Start,
			})
		}
		return nil, tool.Refuse(tool.CodeUnavailable, "no editor is connected to this host")
	case "checkDocumentDirty":
		_, _, dirty := e.Unsaved(ctx, c, path)
		return asJSON(map[string]any{"success": true, "filePath": path, "isDirty": dirty, "isUntitled": false})
	case "saveDocument":
		return s.save(ctx, path)
	}
	return nil, rpc.NotFound(name)
}

// openDiff shows a change and waits until it is decided, or the agent has gone or closes it.
func (s *served) openDiff(ctx context.Context, agent *rpc.Conn, in agentArguments) ([]string, error) {
	path, err := absolute(s.call, in.New)
	if err != nil {
		return nil, err
	}
	k, err := s.e.first(ctx, s.call)
	if err != nil {
		return nil, err
	}
	d, err := s.e.propose(s.owner, path, in.Contents, in.Tab, k)
	if err != nil {
		return nil, err
	}
	select {
	case <-d.done:
	case <-ctx.Done():
	case <-agent.Done():
	}
	s.e.decide(d, false, "", "agent") // unless it is decided
	if !d.accepted {
		if d.by == "agent" {
			return []string{closedReply}, nil
		}
		return []string{rejectReply, in.Tab}, nil
	}
	return []string{savedReply, d.final}, nil
}

// closeDiffs closes the diff with a name, or all, which the agent needs no longer: its person has decided there.
func (s *served) closeDiffs(all bool, tab string) ([]string, error) {
	s.e.mu.Lock()
	var open []*diff
	for _, d := range s.e.desk(s.owner).diffs {
		if all || d.tab == tab {
			open = append(open, d)
		}
	}
	s.e.mu.Unlock()
	n := 0
	for _, d := range open {
		if s.e.decide(d, false, "", "agent") {
			n++
		}
	}
	if all {
		return []string{fmt.Sprintf("CLOSED_%d_DIFF_TABS", n)}, nil
	}
	return []string{closedReply}, nil
}

func (s *served) openEditors(ctx context.Context) ([]string, error) {
	tabs := []map[string]any{}
	k, err := s.e.first(ctx, s.call)
	if err != nil {
		return nil, err
	}
	if k != nil {
		open, err := k.openTabs(ctx)
		if err != nil {
			return nil, err
		}
		for _, t := range open {
			tabs = append(tabs, map[string]any{
				"uri": uriOf(
					t.Path,
				), "isActive": t.Active, "label": t.Label, "languageId": t.Language, "isDirty": t.Dirty,
			})
		}
	}
	for path := range s.unsaved() {
		tabs = append(tabs, map[string]any{
			"uri": uriOf(
				path,
			), "isActive": false, "label": filepath.Base(path), "languageId": "plaintext", "isDirty": true,
		})
	}
	return asJSON(map[string]any{"tabs": tabs})
}

// unsaved returns the unsaved texts of the owner by path.
func (s *served) unsaved() map[string]string {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	all := map[string]string{}
	for path, b := range s.e.desk(s.owner).buffers {
		all[path] = b.text
	}
	return all
}

// diagnostics returns those of a file, or without one those of the files that have an unsaved text or the selection.
func (s *served) diagnostics(ctx context.Context, uri string) ([]string, error) {
	paths := map[string]bool{}
	if uri != "" {
		path, err := absolute(s.call, pathOf(uri))
		if err != nil {
			return nil, err
		}
		paths[path] = true
	} else {
		for path := range s.unsaved() {
			paths[path] = true
		}
		if sel := s.e.selected(s.owner); sel != nil {
			if path, err := absolute(s.call, sel.Path); err == nil {
				paths[path] = true
			}
		}
	}
	files := []wireFile{}
	for path := range paths {
		out, err := s.e.diagnostics(ctx, s.call, path)
		if err != nil {
			return nil, err
		}
		f := wireFile{URI: uriOf(path), Diagnostics: []wireDiagnostic{}}
		for _, p := range out.Problems {
			d := wireDiagnostic{Message: p.Message, Severity: severityWord(p.Severity), Source: p.From}
			d.Range.Start.Line, d.Range.Start.Character = p.Line-1, p.Column-1
			d.Range.End.Line, d.Range.End.Character = p.Line-1, p.Column
			f.Diagnostics = append(f.Diagnostics, d)
		}
		files = append(files, f)
	}
	return asJSON(files)
}

func severityWord(s string) string {
	switch s {
	case "error":
		return "Error"
	case "warning":
		return "Warning"
	case "hint":
		return "Hint"
	}
	return "Info"
}

// save writes an unsaved text to its file, or has the connected editor save it.
func (s *served) save(ctx context.Context, path string) ([]string, error) {
	if text, ok := s.unsaved()[path]; ok {
		var out struct{ Success bool }
		if err := s.e.m.callTool(ctx, s.call, "file_write",
			map[string]string{"path": path, "content": text}, &out); err != nil {
			return nil, err
		}
		if err := s.e.setBuffer(s.owner, path, nil); err != nil {
			return nil, err
		}
		return asJSON(
			map[string]any{"success": true, "filePath": path, "saved": true, "message": "Document saved successfully"},
		)
	}
	k, err := s.e.first(ctx, s.call)
	if err != nil {
		return nil, err
	}
	if k != nil && k.tools["saveDocument"] {
		return k.callEditor(ctx, "saveDocument", map[string]string{"filePath": path})
	}
	return asJSON(map[string]any{"success": false, "message": "Document not open: " + path})
}

package ide

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gatehouse/tool"
)

func (e *editors) tools() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "ide_editor_state", Title: "Show what the editors show", Effects: tool.Reads,
			Description: "Lists the editors of the host's user that run on this machine, with their open files, " +
				"the selection, texts that " +
				"are not saved, and changes that wait for a decision.",
			Help: stateHelp,
		}, e.state),
		tool.New(tool.Def{
			Name: "ide_editor_open", Title: "Open a file in an editor", Effects: tool.Writes,
			Description: "Opens a file in the connected editor of the host's user.",
		}, e.openFile),
		tool.New(tool.Def{
			Name: "ide_editor_diagnostics", Title: "Read the errors that an editor shows", Effects: tool.Reads,
			Description: "Returns the errors and warnings of a file as the connected editor knows them, " +
				"or else as the language server of " +
				"the module lsp does.",
		}, e.diagnosticsTool),
		tool.New(tool.Def{
			Name: "ide_editor_update", Title: "Tell what an editor shows", Effects: tool.Writes | tool.Idempotent,
			Description: "Tells this host the selection, the text of a file that is not saved, " +
				"or a part of a file that agents have to look at.",
			Help: updateHelp,
		}, e.update),
		tool.New(tool.Def{
			Name: "ide_editor_serve", Title: "Be an editor for agents", Effects: tool.Writes,
			Description: "Lets agents that look for an editor on this machine, such as Claude Code, " +
				"connect to this host, until the job ends.",
			Help: serveHelp,
		}, e.serveEditor),
		tool.New(tool.Def{
			Name: "ide_diff_open", Title: "Show a change for a decision", Effects: tool.Writes,
			Description: "Shows a new text of a file beside the old one in the person's editor, " +
				"and returns whether it was saved or rejected.",
			Help: `Waits up to 10 seconds for the decision; then status is pending, and ide_editor_state has it later. Without a
connected editor the change waits for ide_diff_decide. Nothing is written by this tool: an editor that accepts a change
saves the file itself.`,
		}, e.openDiff),
		tool.New(tool.Def{
			Name: "ide_diff_decide", Title: "Decide on a change", Effects: tool.Writes,
			Description: "Accepts or rejects a change that waits for a decision. The agent that proposed it writes " +
				"the file then.",
		}, e.decideTool),
	}
}

const stateHelp = `Editors are found by the lock files that their extensions for Claude Code write to ~/.claude/ide: VS Code,
JetBrains, Neovim and others. A lock file is used if it belongs to the host's user alone, its process is alive, and its
port belongs to that process. Those that are not used are in unusable, with the reason. Only administrators of the host
may use its user's editors.`

const updateHelp = `For editors without an extension for agents, and for scripts. selection and mention are passed on to the
agents that are connected by ide_editor_serve. A text in unsaved stays until it is given again without text, and file_read
and others say that the file has unsaved changes; file_read with unsaved returns the text.`

const serveHelp = `Opens a port on this machine and writes a lock file to ~/.claude/ide, which only the host's user can
read. Start Claude Code in the folder and use /ide, or set the variables in env before. It gets the selection of
ide_editor_update or of a connected editor, the errors of the language servers, and shows its changes in the connected
editor or, without one, in ide_editor_state. What agents ask for is called with your rights. Cancel the job to stop.`

type editorOut struct {
	Name      string     `json:"name"`
	Folders   []string   `json:"folders"`
	Port      int        `json:"port"`
	Tabs      []tab      `json:"tabs"`
	Selection *selection `json:"selection,omitempty"`
	Source    string     `json:"source"`
	Problem   string     `json:"problem,omitempty"`
}

type unusableOut struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

type unsavedOut struct {
	Path   string    `json:"path"`
	Bytes  int       `json:"bytes"`
	Since  time.Time `json:"since"`
	Source string    `json:"source"`
}

type stateIn struct{}

type editorStateOut struct {
	Editors   []editorOut   `json:"editors"`
	Unusable  []unusableOut `json:"unusable,omitempty"`
	Selection *selection    `json:"selection,omitempty" doc:"the latest of all"`
	Unsaved   []unsavedOut  `json:"unsaved,omitempty" doc:"texts of ide_editor_update"`
	Diffs     []diffOut     `json:"diffs,omitempty" doc:"changes that wait for a decision, or had one within the last hour"`
	Agents    int           `json:"agents" doc:"connected to ide_editor_serve"`
}

func (e *editors) state(ctx context.Context, c *tool.Call, _ stateIn) (out editorStateOut, err error) {
	if err := e.refused(c); err != nil {
		return out, err
	}
	links, unusable, err := e.findEditors(ctx, folderOf(c))
	if err != nil {
		return out, err
	}
	out.Editors = []editorOut{}
	for _, k := range links {
		o := editorOut{Name: k.lock.Editor, Folders: k.lock.Folders, Port: k.lock.Port, Source: fromEditor}
		if o.Tabs, err = k.openTabs(ctx); err != nil {
			o.Problem = err.Error()
		}
		k.mu.Lock()
		o.Selection = k.selection
		k.mu.Unlock()
		out.Editors = append(out.Editors, o)
	}
	for _, u := range unusable {
		out.Unusable = append(out.Unusable, unusableOut{u.Path, u.Err.Error()})
	}
	out.Selection = e.selected(c.Caller.Owner)
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.desk(c.Caller.Owner)
	for path, b := range d.buffers {
		out.Unsaved = append(out.Unsaved, unsavedOut{path, len(b.text), b.at.UTC(), fromHost})
	}
	slices.SortFunc(out.Unsaved, func(a, b unsavedOut) int { return strings.Compare(a.Path, b.Path) })
	for _, x := range d.diffs {
		out.Diffs = append(out.Diffs, x.out(false))
	}
	slices.SortFunc(out.Diffs, func(a, b diffOut) int { return strings.Compare(a.ID, b.ID) })
	for _, s := range e.served {
		if s.owner == c.Caller.Owner {
			out.Agents += len(s.agents)
		}
	}
	return out, nil
}

// selected returns the latest selection that an owner has, in a connected editor or by ide_editor_update.
func (e *editors) selected(owner string) (s *selection) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s = e.desk(owner).selection
	for _, k := range e.links {
		k.mu.Lock()
		if k.selection != nil && (s == nil || k.selection.Since.After(s.Since)) {
			s = k.selection
		}
		k.mu.Unlock()
	}
	return s
}

func folderOf(c *tool.Call) string {
	if list := c.Roots.List(); len(list) > 0 {
		return list[0].Path
	}
	return ""
}

// absolute returns a path of a caller, which has to be in one of its folders.
func absolute(c *tool.Call, path string) (string, error) {
	root, name, err := c.Roots.Resolve(path)
	if err != nil {
		return "", err
	}
	return filepath.Join(root.Name(), name), nil
}

// first returns the editor that fits the caller's folder best; nil if there is none.
func (e *editors) first(ctx context.Context, c *tool.Call) (*link, error) {
	links, _, err := e.findEditors(ctx, folderOf(c))
	if err != nil || len(links) == 0 {
		return nil, err
	}
	return links[0], nil
}

type editorOpenIn struct {
	Path string `json:"path" names:"path"`
	Text string `json:"text,omitempty" max:"1000" doc:"selects the first occurrence"`
}

type editorOpenOut struct {
	Opened bool   `json:"opened"`
	Path   string `json:"path"`
	Editor string `json:"editor"`
	Source string `json:"source"`
}

func (e *editors) openFile(ctx context.Context, c *tool.Call, in editorOpenIn) (out editorOpenOut, err error) {
	if err := e.refused(c); err != nil {
		return out, err
	}
	path, err := absolute(c, in.Path)
	if err != nil {
		return out, err
	}
	k, err := e.first(ctx, c)
	if err != nil {
		return out, err
	}
	if k == nil {
		return out, &tool.Refusal{
			Code: tool.CodeUnavailable, Message: "no editor is connected", Next: "ide_editor_state has the reasons.",
		}
	}
	ctx, cancel := context.WithTimeout(ctx, editorWait)
	defer cancel()
	args := map[string]any{"filePath": path, "preview": false, "makeFrontmost": true}
	if in.Text != "" {
		args["startText"], args["endText"] = in.Text, in.Text
	}
	_, err = k.callEditor(ctx, "openFile", args)
	return editorOpenOut{err == nil, path, k.lock.Editor, fromEditor}, err
}

type editorDiagnosticsIn struct {
	Path string `json:"path" names:"path"`
}

// editorProblem is an error or a warning. Lines and columns begin at 1.
type editorProblem struct {
	Line     int    `json:"line"`
	Column   int    `json:"column"`
	Severity string `json:"severity"`
	Message  string `json:"message"`
	From     string `json:"from,omitempty" doc:"the tool that reports it"`
}

type editorDiagnosticsOut struct {
	Path     string          `json:"path"`
	Problems []editorProblem `json:"problems"`
	Source   string          `json:"source" doc:"live: of the editor; local: of the language server"`
	Editor   string          `json:"editor,omitempty"`
}

func (e *editors) diagnosticsTool(
	ctx context.Context,
	c *tool.Call,
	in editorDiagnosticsIn,
) (editorDiagnosticsOut, error) {
	if err := e.refused(c); err != nil {
		return editorDiagnosticsOut{}, err
	}
	path, err := absolute(c, in.Path)
	if err != nil {
		return editorDiagnosticsOut{}, err
	}
	return e.diagnostics(ctx, c, path)
}

// diagnostics returns those of the connected editor, if it has the file open, or of the language server.
func (e *editors) diagnostics(ctx context.Context, c *tool.Call, path string) (out editorDiagnosticsOut, err error) {
	out = editorDiagnosticsOut{Path: path, Problems: []editorProblem{}, Source: fromHost}
	k, err := e.first(ctx, c)
	if err != nil {
		return out, err
	}
	if k != nil {
		var files []wireFile
		if err := k.callJSON(ctx, "getDiagnostics", map[string]string{"uri": uriOf(path)}, &files); err == nil {
			out.Source, out.Editor = fromEditor, k.lock.Editor
			for _, f := range files {
				for _, d := range f.Diagnostics {
					out.Problems = append(out.Problems, editorProblem{
						d.Range.Start.Line + 1, d.Range.Start.Character + 1, strings.ToLower(d.Severity), d.Message,
						d.Source,
					})
				}
			}
			return out, nil
		}
	}
	var list struct{ Text string }
	if err := e.m.callTool(ctx, c, "lsp_diagnostics", map[string]string{"path": path}, &list); err != nil {
		return out, err
	}
	for line := range strings.Lines(list.Text) {
		if m := diagnosticLine.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			out.Problems = append(out.Problems, editorProblem{number(m[1]), number(m[2]), m[3], m[4], "lsp"})
		}
	}
	return out, nil
}

type span struct {
	Path string `json:"path" names:"path"`
	From int    `json:"from" min:"1" doc:"line"`
	To   int    `json:"to,omitempty" min:"1" doc:"line; default: from"`
	Text string `json:"text,omitempty" max:"1000000"`
}

type unsavedIn struct {
	Path string  `json:"path" names:"path"`
	Text *string `json:"text,omitempty" doc:"none: the file was saved or closed"`
}

type editorUpdateIn struct {
	Selection *span      `json:"selection,omitempty"`
	Mention   *span      `json:"mention,omitempty"`
	Unsaved   *unsavedIn `json:"unsaved,omitempty"`
}

type editorUpdateOut struct {
	Agents int `json:"agents" doc:"that were told"`
}

func (e *editors) update(ctx context.Context, c *tool.Call, in editorUpdateIn) (out editorUpdateOut, err error) {
	if in.Unsaved != nil {
		path, err := absolute(c, in.Unsaved.Path)
		if err != nil {
			return out, err
		}
		if err := e.setBuffer(c.Caller.Owner, path, in.Unsaved.Text); err != nil {
			return out, err
		}
	}
	if s := in.Selection; s != nil {
		path, err := absolute(c, s.Path)
		if err != nil {
			return out, err
		}
		lines := strings.Split(s.Text, "\n")
		sel := &selection{
			Path: path, Text: s.Text, From: s.From, To: max(s.From, s.To), Since: time.Now().UTC(), Source: fromHost,
			column: [2]int{1, len([]rune(lines[len(lines)-1])) + 1},
		}
		e.mu.Lock()
		e.desk(c.Caller.Owner).selection = sel
		e.mu.Unlock()
		out.Agents = e.notify(ctx, c.Caller.Owner, "selection_changed", sel.wire())
	}
	if s := in.Mention; s != nil {
		path, err := absolute(c, s.Path)
		if err != nil {
			return out, err
		}
		out.Agents = e.notify(ctx, c.Caller.Owner, "at_mentioned", map[string]any{
			"filePath": path, "lineStart": s.From - 1, "lineEnd": max(s.From, s.To) - 1,
		})
	}
	return out, nil
}

func (e *editors) setBuffer(owner, path string, text *string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.desk(owner)
	switch {
	case text == nil:
		delete(d.buffers, path)
	case len(*text) > maxBuffer:
		return tool.Refuse(tool.CodeTooLarge, "the text has %d bytes, at most %d are kept", len(*text), maxBuffer)
	case len(d.buffers) >= maxBuffers && d.buffers[path].at.IsZero():
		return tool.Refuse(tool.CodeTooMany, "%d files have unsaved texts, as many as are kept", maxBuffers)
	default:
		d.buffers[path] = buffer{*text, time.Now()}
	}
	return nil
}

type diffIn struct {
	Path string `json:"path" names:"path"`
	Text string `json:"text" max:"4000000" doc:"the whole new text"`
	Runs string `json:"-" names:"code"`
}

func (e *editors) openDiff(ctx context.Context, c *tool.Call, in diffIn) (out diffOut, err error) {
	if err := e.refused(c); err != nil {
		return out, err
	}
	path, err := absolute(c, in.Path)
	if err != nil {
		return out, err
	}
	k, err := e.first(ctx, c)
	if err != nil {
		return out, err
	}
	d, err := e.propose(c.Caller.Owner, path, in.Text, "[gatehouse] "+filepath.Base(path), k)
	if err != nil {
		return out, err
	}
	late := time.NewTimer(editorWait)
	defer late.Stop()
	select {
	case <-d.done:
	case <-late.C:
	case <-ctx.Done():
		return out, context.Cause(ctx)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return d.out(true), nil
}

type decideIn struct {
	ID     string  `json:"id" min:"1" max:"200"`
	Accept bool    `json:"accept"`
	Text   *string `json:"text,omitempty" doc:"what is accepted instead of the proposed text"`
}

func (e *editors) decideTool(_ context.Context, c *tool.Call, in decideIn) (out diffOut, err error) {
	d, err := e.diffOf(c.Caller.Owner, in.ID)
	if err != nil {
		return out, err
	}
	final := d.text
	if in.Text != nil {
		final = *in.Text
	}
	if !e.decide(d, in.Accept, final, fromHost) {
		return out, tool.Refuse(tool.CodeExists, "the change %s was decided before", in.ID)
	}
	return d.out(true), nil
}

// wireFile has the diagnostics of a file as editors and agents exchange them.
type wireFile struct {
	URI         string           `json:"uri"`
	Diagnostics []wireDiagnostic `json:"diagnostics"`
}

type wireDiagnostic struct {
	Message  string          `json:"message"`
	Severity string          `json:"severity"`
	Range    wireRange       `json:"range"`
	Source   string          `json:"source,omitempty"`
	Code     json.RawMessage `json:"code,omitempty"`
}

package lsp

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"gatehouse/tool"
)

// editTool is the tool that changes are made with.
const editTool = "file_edit_all"

// changeOut is what a change of files did.
type changeOut struct {
	Diff   string `json:"diff,omitempty" text:"product"`
	Files  int    `json:"files"`
	Edits  int    `json:"edits"`
	DryRun bool   `json:"dry_run,omitempty"`
	Note   string `json:"note,omitempty"`
}

type renameIn struct {
	target
	NewName string `json:"new_name" min:"1" max:"1000"`
	DryRun  bool   `json:"dry_run,omitempty"`
}

func (m *service) renameTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "lsp_rename", Title: "Rename a symbol", Effects: tool.Writes | tool.Destroys,
		Description: "Renames the symbol at a position everywhere: in all files or in none. Returns a diff.",
		Help: targetHelp + `

- The change is made with file_edit_all, with your permissions: all files are changed or none, even if the host is killed
  meanwhile, and file_undo undoes it as one.`,
	}, func(ctx context.Context, c *tool.Call, in renameIn) (out changeOut, err error) {
		var edit workspaceEdit
		var encoding string
		err = m.query(ctx, c, in.Path, func(s *server, f *file) error {
			where, err := in.at(s, f)
			if err != nil {
				return err
			}
			edit, encoding = workspaceEdit{}, s.encoding
			return s.callServer(ctx, "textDocument/rename", map[string]any{
				"textDocument": where.Document, "position": where.Position, "newName": in.NewName,
			}, &edit)
		})
		if err != nil {
			return out, err
		}
		return m.apply(ctx, c, edit, encoding, in.DryRun)
	})
}

// rangeEdit is an edit as file_edit_all takes it.
type rangeEdit struct {
	Line      int    `json:"line"`
	Column    int    `json:"column"`
	EndLine   int    `json:"end_line"`
	EndColumn int    `json:"end_column"`
	NewText   string `json:"new_text"`
}

type editArgs struct {
	Paths   []string      `json:"paths"`
	Edits   [][]rangeEdit `json:"edits"`
	IfMatch []string      `json:"if_match"`
	DryRun  bool          `json:"dry_run"`
}

// byFile returns the edits of each file, and the files in order.
func (e workspaceEdit) byFile() (paths []string, edits map[string][]textEdit, err error) {
	edits = map[string][]textEdit{}
	add := func(uri string, more []textEdit) {
		path := pathOf(uri)
		if _, ok := edits[path]; !ok {
			paths = append(paths, path)
		}
		edits[path] = append(edits[path], more...)
	}
	for _, d := range e.DocumentChanges {
		switch d.Kind {
		case "":
			add(d.Document.URI, d.Edits)
		case "create":
			add(d.URI, nil)
		default:
			return nil, nil, &tool.Refusal{
				Code:    tool.CodeUnsupported,
				Message: "the language server wants to " + d.Kind + " a file; nothing was changed",
				Next:    "Use file_rename or file_delete.",
			}
		}
	}
	if len(e.DocumentChanges) == 0 {
		for uri, more := range e.Changes {
			add(uri, more)
		}
		slices.Sort(paths)
	}
	return paths, edits, nil
}

// apply makes the changes that a server proposes, through the caller's own view.
func (m *service) apply(
	ctx context.Context, c *tool.Call, e workspaceEdit, encoding string, dryRun bool,
) (out changeOut, err error) {
	args := editArgs{DryRun: dryRun}
	paths, edits, err := e.byFile()
	if err != nil {
		return out, err
	}
	r := m.reader(c)
	for _, path := range paths {
		if path == "" {
			return out, tool.Refuse(tool.CodeUnsupported, "the language server wants to change what is not a file")
		}
		f, err := r.openFile(path)
		no, ok := err.(*tool.Refusal)
		switch {
		case ok && no.Code == tool.CodeNotFound:
			f = &file{text: newText("")}
		case err != nil:
			return out, err
		}
		var list []rangeEdit
		for _, x := range edits[path] {
			list = append(list, rangeEdit{
				x.Range.Start.Line + 1, f.column(x.Range.Start, encoding), x.Range.End.Line + 1,
				f.column(x.Range.End, encoding),
				x.NewText,
			})
		}
		args.Paths, args.Edits = append(args.Paths, r.shown(path)), append(args.Edits, list)
		args.IfMatch = append(args.IfMatch, f.etag)
	}
	if len(args.Paths) == 0 {
		return out, &tool.Refusal{Code: tool.CodeUnchanged, Message: "the language server proposes no change"}
	}
	return m.callEdit(ctx, c, args)
}

func (m *service) callEdit(ctx context.Context, c *tool.Call, args editArgs) (out changeOut, err error) {
	if m.deps.Call == nil {
		return out, tool.Refuse(tool.CodeUnavailable, "files can be changed in a host alone")
	}
	b, err := json.Marshal(args)
	if err != nil {
		return out, err
	}
	res, err := m.deps.Call(ctx, c, editTool, b)
	if err != nil {
		return out, fmt.Errorf("%s, which makes the change: %w", editTool, err)
	}
	if res.IsError {
		var words []string
		for _, block := range res.Content {
			words = append(words, block.Text)
		}
		code, message, _ := strings.Cut(strings.Join(words, "\n"), ": ")
		message, next, _ := strings.Cut(message, "\n")
		return out, &tool.Refusal{Code: tool.Code(code), Message: message, Next: next}
	}
	raw, err := json.Marshal(res.Structured)
	if err != nil {
		return out, err
	}
	out.DryRun = args.DryRun
	return out, json.Unmarshal(raw, &out)
}

type actionIn struct {
	Path    string `json:"path" names:"path"`
	Line    int    `json:"line,omitempty" min:"0" doc:"from 1; without it, the whole file"`
	EndLine int    `json:"end_line,omitempty" min:"0"`
	Kind    string `json:"kind,omitempty" max:"100" doc:"such as quickfix, refactor or source.organizeImports"`
	Apply   string `json:"apply,omitempty" max:"1000" doc:"the title of the action to apply; without it, the actions are listed"`
	DryRun  bool   `json:"dry_run,omitempty"`
	Cursor  string `json:"cursor,omitempty"`
}

type actionOut struct {
	pageOut
	Changed *changeOut `json:"changed,omitempty"`
}

// Facts implements tool.Facter.
func (o actionOut) Facts() string {
	if o.Changed == nil {
		return o.pageOut.Facts()
	}
	return tool.Facts(fmt.Sprintf("files: %d", o.Changed.Files), fmt.Sprintf("edits: %d", o.Changed.Edits),
		o.Changed.Note)
}

func (m *service) actionTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "lsp_action", Title: "Apply a code action", Effects: tool.Writes | tool.Destroys,
		Description: "Lists the quick fixes and refactorings for some lines of a file, or applies one of them by its title.",
		Help: `Without apply it lists kind and title of each action. With apply it makes that change with file_edit_all: all
files or none, and file_undo undoes it as one.`,
	}, func(ctx context.Context, c *tool.Call, in actionIn) (out actionOut, err error) {
		var edit workspaceEdit
		var encoding string
		err = m.query(ctx, c, in.Path, func(s *server, f *file) error {
			encoding = s.encoding
			all, err := s.actions(ctx, f, in)
			if err != nil {
				return err
			}
			if in.Apply == "" {
				out.pageOut, err = page("actions", actionItems(all), in.Cursor)
				return err
			}
			i := slices.IndexFunc(all, func(a codeAction) bool { return a.Title == in.Apply })
			if i < 0 {
				return &tool.Refusal{
					Code: tool.CodeNotFound, Message: fmt.Sprintf("there is no action %q here", in.Apply),
					Next: "Call without apply to list the actions.",
				}
			}
			edit, err = s.proposal(ctx, all[i])
			return err
		})
		if err != nil || in.Apply == "" {
			return out, err
		}
		changed, err := m.apply(ctx, c, edit, encoding, in.DryRun)
		out.Changed, out.Text = &changed, changed.Diff
		return out, err
	})
}

func actionItems(all []codeAction) (items []item) {
	for i, a := range all {
		line := cutText(a.Kind + ": " + a.Title)
		if a.Disabled != nil {
			line += " (not possible: " + a.Disabled.Reason + ")"
		}
		items = append(items, item{fmt.Sprintf("%06d", i), func() (string, bool) { return line, false }})
	}
	return items
}

// actions returns the actions for some lines of a file, with those for their diagnostics.
func (s *server) actions(ctx context.Context, f *file, in actionIn) ([]codeAction, error) {
	from, to := in.Line, max(in.EndLine, in.Line)
	if from == 0 {
		from, to = 1, len(f.lines)
	}
	if from > len(f.lines) || to > len(f.lines) {
		return nil, tool.Refuse(tool.CodeInvalidArguments, "line is %d and end_line %d; expected 1 to %d", from, to,
			len(f.lines))
	}
	found, err := s.diagnostics(ctx, f)
	if err != nil {
		return nil, err
	}
	here := []diagnostic{}
	for _, d := range found {
		if d.Range.Start.Line < to && d.Range.End.Line >= from-1 {
			here = append(here, d)
		}
	}
	about := map[string]any{"diagnostics": here, "triggerKind": 1}
	if in.Kind != "" {
		about["only"] = []string{in.Kind}
	}
	var raw []json.RawMessage
	if err := s.callServer(ctx, "textDocument/codeAction", map[string]any{
		"textDocument": textDocument{URI: uriOf(f.path)}, "context": about,
		"range": span{position{from - 1, 0}, position{to - 1, unitsIn(f.line(to-1), len(f.line(to-1)), s.encoding)}},
	}, &raw); err != nil {
		return nil, err
	}
	var all []codeAction
	for _, one := range raw {
		a := codeAction{raw: one}
		if err := json.Unmarshal(one, &a); err != nil {
			return nil, fmt.Errorf("answer of the language server: %w", err)
		}
		all = append(all, a)
	}
	return all, nil
}

// proposal returns the changes of an action. An action that is a command is run, and the changes that the server then
// asks for are collected instead of applied.
func (s *server) proposal(ctx context.Context, a codeAction) (e workspaceEdit, err error) {
	if a.Disabled != nil {
		return e, tool.Refuse(tool.CodeUnavailable, "the action is not possible: %s", a.Disabled.Reason)
	}
	if a.Edit == nil && len(a.Command) == 0 {
		if err := s.callServer(ctx, "codeAction/resolve", a.raw, &a); err != nil {
			return e, err
		}
	}
	if a.Edit != nil {
		e = *a.Edit
	}
	if len(a.Command) == 0 || string(a.Command) == "null" {
		return e, nil
	}
	command := struct {
		Command   string          `json:"command"`
		Arguments json.RawMessage `json:"arguments,omitempty"`
	}{Arguments: a.Args}
	if a.Command[0] == '{' {
		err = json.Unmarshal(a.Command, &command)
	} else {
		err = json.Unmarshal(a.Command, &command.Command)
	}
	if err != nil {
		return e, fmt.Errorf("answer of the language server: %w", err)
	}
	s.editing.Lock()
	defer s.editing.Unlock()
	s.collecting.Store(true)
	defer s.collecting.Store(false)
	for len(s.edits) > 0 { // of an earlier command whose call has ended
		<-s.edits
	}
	if err := s.callServer(ctx, "workspace/executeCommand", command, nil); err != nil {
		return e, err
	}
	more := time.NewTimer(publishQuiet) // some servers ask for the change after the answer
	defer more.Stop()
	for {
		select {
		case x := <-s.edits:
			e.DocumentChanges = append(e.DocumentChanges, x.documentChanges()...)
		case <-more.C:
			if len(e.Changes) > 0 {
				e.DocumentChanges, e.Changes = append(
					workspaceEdit{Changes: e.Changes}.documentChanges(),
					e.DocumentChanges...), nil
			}
			return e, nil
		}
	}
}

// documentChanges returns all changes in the newer of the two forms.
func (e workspaceEdit) documentChanges() []documentChange {
	all := e.DocumentChanges
	if len(all) == 0 {
		for uri, edits := range e.Changes {
			all = append(all, documentChange{Document: textDocument{URI: uri}, Edits: edits})
		}
	}
	return all
}

package file

import (
	"context"
	"path/filepath"

	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

// unsavedIn returns the text of a file that an editor has not saved, and the editor; known is false if there is none.
func (m *files) unsavedIn(ctx context.Context, c *tool.Call, p roots.Place) (text *string, from string, known bool) {
	if m.unsaved == nil {
		return nil, "", false
	}
	return m.unsaved(ctx, c, filepath.Join(p.Folder(), p.Name))
}

// unsavedNote says that an editor has unsaved changes of a file; "" if none has.
func (m *files) unsavedNote(ctx context.Context, c *tool.Call, p roots.Place) string {
	text, from, known := m.unsavedIn(ctx, c, p)
	switch {
	case !known:
		return ""
	case text == nil:
		return "the file has changes that are not saved in the editor " + from + ", which does not tell them"
	}
	return "the file has changes that are not saved in an editor (" + from + "); read them with as=unsaved"
}

// readUnsaved returns the text of a file in an editor, which has to have changes.
func (m *files) readUnsaved(ctx context.Context, c *tool.Call, p roots.Place, in *readIn) (readOut, error) {
	text, from, known := m.unsavedIn(ctx, c, p)
	switch {
	case !known:
		return readOut{}, &tool.Refusal{
			Code: tool.CodeNotFound, Message: "no editor that this host knows has unsaved changes of " + p.Path,
			Next: "Read the file without as; ide_editor_state lists the editors.",
		}
	case text == nil:
		return readOut{}, &tool.Refusal{
			Code: tool.CodeUnsupported, Message: "the editor " + from + " does not tell the unsaved text of " + p.Path,
			Next: "Ask the person to save the file, or read the saved text without as.",
		}
	case len(*text) > in.MaxBytes:
		return readOut{}, tool.Refuse(tool.CodeTooLarge,
			"the unsaved text of %s has %d bytes; give max_bytes for it, at most 1048576", p.Path, len(*text))
	}
	return readOut{Content: *text, Path: in.Path, Size: int64(len(*text)), Note: "not saved (" + from + ")"}, nil
}

package file

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"gatehouse/internal/roots"
	"gatehouse/tool"
)

// editMost is the largest file that is edited, in bytes, before and after.
const editMost = 64 << 20

type editIn struct {
	Path       string `json:"path" doc:"file to edit" min:"1"`
	OldString  string `json:"old_string" doc:"text to replace, with enough around it to occur once" min:"1"`
	NewString  string `json:"new_string" doc:"what to put there"`
	ReplaceAll bool   `json:"replace_all,omitempty" default:"false" doc:"replace every occurrence"`
}

type editOut struct {
	Path         string `json:"path"`
	Success      bool   `json:"success"`
	Replacements int    `json:"replacements"`
	Line         int    `json:"line" doc:"of the first change"`
}

const editHelp = `Replaces a piece of text in a file.

- old_string must occur exactly once, or give replace_all. If it occurs more often, the answer names the lines; add a line of context.
- It is looked for as it is first. If it is not there, line endings are ignored: \n also finds \r\n.
- What is inserted gets the line endings of its surroundings. Everything else, with the byte order mark, keeps its bytes.
- If it is not found, the answer shows the nearest place and where it differs.
- The change is atomic; the file keeps its mode. Files over 64 MB and binary files are refused.`

func (m *files) editTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "file_edit",
		Description: "Replaces old_string in a file; it must occur exactly once unless replace_all is set. Line endings need not match.",
		Help:        editHelp,
		Effects:     tool.Writes | tool.Destroys,
	}, m.edit)
}

func (m *files) edit(ctx context.Context, c *tool.Call, in editIn) (editOut, error) {
	switch {
	case in.OldString == "":
		return editOut{}, &tool.Refusal{Code: "invalid_arguments", Message: "old_string is empty", Next: "Give the text to replace; file_write writes a whole file."}
	case in.OldString == in.NewString:
		return editOut{}, tool.Refuse("invalid_arguments", "old_string and new_string are the same: there is nothing to change")
	}
	p, err := findFile(c, in.Path)
	if err != nil {
		return editOut{}, err
	}
	if p, err = p.Followed(true); err != nil {
		return editOut{}, err
	}
	defer m.changes.lock(p)()
	if err := context.Cause(ctx); err != nil {
		return editOut{}, err
	}
	return editAt(p, in)
}

func editAt(p roots.Place, in editIn) (editOut, error) {
	f, was, err := p.Regular()
	if err != nil {
		return editOut{}, err
	}
	defer f.Close()
	content, err := readAll(f, was.Size(), editMost)
	switch {
	case errors.Is(err, errTooLarge):
		return editOut{}, tool.Refuse("too_large", "%s has %s bytes; files up to %s bytes can be edited", p.Path, commas(was.Size()), commas(editMost))
	case err != nil:
		return editOut{}, p.Refuse(err)
	}
	if kind := binaryKind(content[:min(len(content), sniffed)]); kind != "" {
		return editOut{}, tool.Refuse("binary", "%s is not text: %s", p.Path, kind)
	}
	found := find(content, in.OldString, in.NewString)
	if err := found.settle(p.Path, in); err != nil {
		return editOut{}, err
	}
	if found.size() > editMost {
		return editOut{}, tool.Refuse("too_large", "the result would have %s bytes; at most %s are written", commas(found.size()), commas(editMost))
	}
	if err := mayWrite(p); err != nil {
		return editOut{}, err
	}
	if err := save(p, was, found.apply()); err != nil {
		return editOut{}, err
	}
	return editOut{in.Path, true, len(found.spans), lineOf(content, found.spans[0].from)}, nil
}

// settle refuses an edit that is not one clear thing.
func (f *match) settle(path string, in editIn) error {
	switch {
	case len(f.spans) == 0:
		return &tool.Refusal{Code: "not_found", Message: "old_string is not in " + path + nearest(f.content, in.OldString), Next: "Read that part of the file and copy the text exactly."}
	case len(f.spans) > matchesMost:
		return tool.Refuse("too_large", "old_string occurs more than %s times in %s", commas(matchesMost), path)
	case len(f.spans) > 1 && !in.ReplaceAll:
		return &tool.Refusal{
			Code:    "ambiguous",
			Message: fmt.Sprintf("old_string occurs %d times in %s, on %s", len(f.spans), path, f.lines()),
			Next:    "Add the lines before or after it until it occurs once, or set replace_all.",
		}
	}
	return nil
}

// lines names the lines of the first ten matches.
func (f *match) lines() string {
	const most = 10
	var s []string
	line, at := 1, 0
	for _, sp := range f.spans[:min(len(f.spans), most)] {
		line += strings.Count(string(f.content[at:sp.start]), "\n")
		at = sp.start
		s = append(s, fmt.Sprint(line))
	}
	text := "lines " + strings.Join(s, ", ")
	if len(f.spans) > most {
		text += " and more"
	}
	return text
}

package process

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"

	"gatehouse/internal/exec/proc"
	"gatehouse/tool"
)

// maxInput is the number of bytes in one input.
const maxInput = 1 << 20

// keyNames has the names of keys, each followed by what terminals send for it.
var keyNames = []string{
	"Enter", "\r", "Tab", "\t", "Escape", "\x1b", "Backspace", "\x7f", "Delete", "\x1b[3~", "Insert", "\x1b[2~",
	"Space", " ",
	"Up", "\x1b[A", "Down", "\x1b[B", "Right", "\x1b[C", "Left", "\x1b[D", "Home", "\x1b[H", "End", "\x1b[F",
	"PageUp", "\x1b[5~", "PageDown", "\x1b[6~", "F1", "\x1bOP", "F2", "\x1bOQ", "F3", "\x1bOR", "F4", "\x1bOS", "F5",
	"\x1b[15~",
	"F6", "\x1b[17~", "F7", "\x1b[18~", "F8", "\x1b[19~", "F9", "\x1b[20~", "F10", "\x1b[21~", "F11", "\x1b[23~", "F12",
	"\x1b[24~",
}

// arrows are the keys that send other bytes in application cursor mode.
var arrows = []string{"Up", "Down", "Right", "Left", "Home", "End"}

type inputIn struct {
	ID    string   `json:"id" min:"1"`
	Input string   `json:"input,omitempty" doc:"typed unchanged; no newline is added"`
	Keys  []string `json:"keys,omitempty" doc:"pressed after the input: Enter, Tab, Escape, Up, F1, C-c (Ctrl), M-x (Alt)"`
	EOF   bool     `json:"eof,omitempty" doc:"then close the input"`
}

func (m *manager) inputTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "process_input", Title: "Type to a process", Effects: allEffects, Handle: "id",
		Description: "Types text and keys to a process, unchanged: end a line with \\n, or with the key Enter in a " +
			"terminal.",
		Help: "Keys: Enter, Tab, Escape, Backspace, Delete, Insert, Space, Up, Down, Left, Right, Home, End, " +
			"PageUp, PageDown, F1 to F12; C- before a character is Ctrl, M- before a key or character is Alt. A " +
			"terminal in line mode accepts at most 4095 bytes in one line. `eof` closes a pipe; in a terminal " +
			"it types Ctrl-D.\n\nIf the program does not read for 5 seconds, the call fails, and the error " +
			"says how many bytes were typed.",
	}, func(ctx context.Context, c *tool.Call, in inputIn) (actionOut, error) {
		if in.Input == "" && len(in.Keys) == 0 && !in.EOF {
			return actionOut{}, tool.Refuse(tool.CodeInvalidArguments, "nothing to type: give input, keys or eof")
		}
		r, err := m.findProcess(c, in.ID)
		if err != nil {
			return actionOut{}, err
		}
		text, err := r.encodeInput(in)
		if err != nil {
			return actionOut{}, err
		}
		if len(text) > maxInput {
			return actionOut{}, tool.Refuse(tool.CodeTooLarge, "the input has more than %d bytes; type it in parts",
				maxInput)
		}
		if len(text) > 0 {
			if n, err := r.child.Type(ctx, []byte(text)); err != nil {
				return actionOut{}, inputError(err, n)
			}
		}
		if in.EOF {
			if err := r.child.CloseInput(ctx); err != nil {
				return actionOut{}, inputError(err, 0)
			}
		}
		return actionOut{in.ID, true, ""}, nil
	})
}

func inputError(err error, n int) error {
	switch {
	case errors.Is(err, proc.ErrNoInput):
		return &tool.Refusal{
			Code:    tool.CodeClosed,
			Message: "the process does not read input: it has ended, or its input was closed",
			Next:    "process_output shows its status.",
		}
	case errors.Is(err, os.ErrDeadlineExceeded):
		r := tool.Refuse(tool.CodeTimeout, "the process does not read its input; %d bytes were typed", n)
		r.Next = "Read its output with process_output, and type the rest when it reads again."
		return r
	}
	return err
}

// encodeInput returns the bytes of an input and its keys.
func (r *record) encodeInput(in inputIn) (string, error) {
	r.log.mu.Lock()
	app := r.log.screen != nil && r.log.screen.AppKeys()
	r.log.mu.Unlock()
	var text strings.Builder
	text.WriteString(in.Input)
	for _, k := range in.Keys {
		s, ok := keySequence(k, app)
		if !ok {
			return "", &tool.Refusal{
				Code:    tool.CodeInvalidArguments,
				Message: "keys: unknown key " + k,
				Next: "Keys are Enter, Tab, Escape, Backspace, Up, PageDown, F1 and so on, C-c for Ctrl and M-x " +
					"for Alt; give text as input.",
			}
		}
		text.WriteString(s)
	}
	return text.String(), nil
}

// keySequence returns what a terminal sends for a key; app is application cursor
// mode.
func keySequence(name string, app bool) (string, bool) {
	if rest, ok := strings.CutPrefix(name, "M-"); ok {
		s, ok := keySequence(rest, app)
		return "\x1b" + s, ok
	}
	if rest, ok := strings.CutPrefix(name, "C-"); ok && len(rest) == 1 {
		switch c := strings.ToUpper(rest)[0]; {
		case c == '?':
			return "\x7f", true
		case c == ' ':
			return "\x00", true
		case c >= '@' && c <= '_':
			return string(c - '@'), true
		}
		return "", false
	}
	for i := 0; i < len(keyNames); i += 2 {
		if strings.EqualFold(keyNames[i], name) {
			if s := keyNames[i+1]; app && slices.Contains(arrows, keyNames[i]) {
				return "\x1bO" + s[2:], true
			} else {
				return s, true
			}
		}
	}
	return name, len([]rune(name)) == 1
}

type resizeIn struct {
	ID   string `json:"id" min:"1"`
	Cols int    `json:"cols" min:"1" max:"1000"`
	Rows int    `json:"rows" min:"1" max:"1000"`
}

func (m *manager) resizeTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "process_resize", Title: "Resize a terminal", Effects: tool.Writes | tool.Idempotent, Handle: "id",
		Description: "Changes the size of a process's terminal.",
	}, func(_ context.Context, c *tool.Call, in resizeIn) (actionOut, error) {
		r, err := m.findTerminal(c, in.ID)
		if err != nil {
			return actionOut{}, err
		}
		r.log.mu.Lock()
		r.log.screen.Resize(in.Cols, in.Rows)
		r.log.mu.Unlock()
		if err := r.child.Resize(proc.Size{Cols: in.Cols, Rows: in.Rows}); err != nil {
			return actionOut{}, inputError(proc.ErrNoInput, 0)
		}
		return actionOut{in.ID, true, ""}, nil
	})
}

func (m *manager) findTerminal(c *tool.Call, id string) (*record, error) {
	r, err := m.findProcess(c, id)
	if err == nil && !r.terminal {
		err = &tool.Refusal{
			Code:    tool.CodeUnsupported,
			Message: "the process has no terminal",
			Next:    "Start the program with terminal, or read its output with process_output.",
		}
	}
	return r, err
}

package system

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/exec/proc"
	"gatehouse/tool"
)

const (
	maxJournal = 4 << 20 // bytes of one page
	maxMessage = 8 << 10 // bytes of one message
)

type journalIn struct {
	Unit   string `json:"unit,omitempty" doc:"name with its suffix; default: all" max:"256"`
	Limit  int    `json:"limit,omitempty" default:"50" min:"1" max:"500"`
	Cursor string `json:"cursor,omitempty" max:"400"`
	Before bool   `json:"before,omitempty" doc:"the page in front of the cursor"`
	Boot   string `json:"boot,omitempty" doc:"0, -1 ... or the id of a start" max:"40"`
}

type journalEntry struct {
	Timestamp string `json:"timestamp"`
	Message   string `json:"message"`
	Unit      string `json:"unit,omitempty"`
	Priority  int    `json:"priority" doc:"0 emergency to 7 debug"`
	BootID    string `json:"bootId"`
}

type journalOut struct {
	Entries []journalEntry `json:"entries"`
	Start   string         `json:"startCursor,omitempty"`
	End     string         `json:"endCursor,omitempty"`
}

var (
	isCursor = regexp.MustCompile(`^[a-z]=[A-Za-z0-9=;]+$`)
	isBoot   = regexp.MustCompile(`^([0-9a-f]{32}|-?[0-9]{1,4})$`)
)

// readJournal returns a page of the journal. journald has no call for that: its own
// program reads the files, and writes JSON whose members are documented.
func (s *system) readJournal(ctx context.Context, _ *tool.Call, in journalIn) (out journalOut, err error) {
	args, err := journalArgs(in)
	if err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	printed, errs := &bounded{most: maxJournal}, &bounded{most: 4 << 10}
	p, err := proc.Start(ctx, proc.Spec{Path: "journalctl", Args: args, Stdout: printed, Stderr: errs, Whole: true})
	if errors.Is(err, exec.ErrNotFound) {
		return out, tool.Refuse(tool.CodeUnsupported, "this machine has no journalctl, which reads its journal")
	}
	if err != nil {
		return out, err
	}
	end, err := p.Wait()
	if err != nil {
		return out, err
	}
	if end.Code != 0 || end.Stopped != nil {
		return out, tool.Refuse(tool.CodeFailed, "journalctl failed: %s",
			displaytext.Cut(strings.TrimSpace(errs.String()), 500, ""))
	}
	if printed.cut {
		return out, &tool.Refusal{
			Code:    tool.CodeTooLarge,
			Message: fmt.Sprintf("these messages have more than %d MiB", maxJournal>>20),
			Next:    "Set a smaller limit.",
		}
	}
	skip := 0
	if in.Before && in.Cursor != "" {
		skip = 1 // the entry of the cursor
	}
	return parseJournal(printed.Bytes(), in.Before || in.Cursor == "", skip)
}

func journalArgs(in journalIn) ([]string, error) {
	args := []string{"--output=json", "--no-pager", "--quiet", "--all",
		"--output-fields=MESSAGE,_SYSTEMD_UNIT,UNIT,PRIORITY,_BOOT_ID"}
	if in.Unit != "" {
		if err := checkUnit(in.Unit); err != nil {
			return nil, err
		}
		args = append(args, "--unit="+in.Unit)
	}
	if in.Boot != "" {
		if !isBoot.MatchString(in.Boot) {
			return nil, invalid("boot", in.Boot, "0, -1 ... or the id of a start")
		}
		args = append(args, "--boot="+in.Boot)
	}
	lines := in.Limit
	switch {
	case in.Cursor == "":
		args = append(args, "--reverse")
	case !isCursor.MatchString(in.Cursor):
		return nil, invalid("cursor", in.Cursor, "a startCursor or endCursor of an earlier page")
	case in.Before:
		lines++ // the entry of the cursor comes first
		args = append(args, "--reverse", "--cursor="+in.Cursor)
	default:
		args = append(args, "--after-cursor="+in.Cursor)
		return append(args, "--lines=+"+strconv.Itoa(lines)), nil
	}
	return append(args, "--lines="+strconv.Itoa(lines)), nil
}

// parseJournal reads entries as journalctl prints them, newest first if reversed, without
// the first ones.
func parseJournal(printed []byte, reversed bool, skip int) (out journalOut, err error) {
	out.Entries = []journalEntry{}
	var cursors []string
	d := json.NewDecoder(bytes.NewReader(printed))
	for d.More() {
		var e struct {
			Cursor   string          `json:"__CURSOR"`
			At       string          `json:"__REALTIME_TIMESTAMP"`
			Message  json.RawMessage `json:"MESSAGE"`
			Unit     string          `json:"_SYSTEMD_UNIT"`
			Of       string          `json:"UNIT"` // of a message about a unit
			Priority string          `json:"PRIORITY"`
			Boot     string          `json:"_BOOT_ID"`
		}
		if err := d.Decode(&e); err != nil {
			return out, fmt.Errorf("read the journal: %w", err)
		}
		micro, _ := strconv.ParseInt(e.At, 10, 64) // 0 for an entry without time
		priority, err := strconv.Atoi(e.Priority)  // of an entry without priority:
		if err != nil || priority < 0 || priority > 7 {
			priority = 6
		}
		if e.Of != "" {
			e.Unit = e.Of
		}
		out.Entries = append(out.Entries, journalEntry{
			time.UnixMicro(micro).UTC().Format(time.RFC3339Nano), journalText(e.Message), e.Unit, priority, e.Boot,
		})
		cursors = append(cursors, e.Cursor)
	}
	skip = min(skip, len(cursors))
	out.Entries, cursors = out.Entries[skip:], cursors[skip:]
	if reversed {
		slices.Reverse(out.Entries)
		slices.Reverse(cursors)
	}
	if n := len(cursors); n > 0 {
		out.Start, out.End = cursors[0], cursors[n-1]
	}
	return out, nil
}

// journalText returns a message: a string, or the bytes of one that is not UTF-8.
func journalText(raw json.RawMessage) string {
	var text string
	var numbers []int
	if json.Unmarshal(raw, &text) != nil && json.Unmarshal(raw, &numbers) == nil {
		b := make([]byte, len(numbers))
		for i, n := range numbers {
			b[i] = byte(n)
		}
		text = strings.ToValidUTF8(string(b), "\ufffd")
	}
	return displaytext.Cut(text, maxMessage, " [...]")
}

// bounded keeps the beginning of what is written to it.
type bounded struct {
	bytes.Buffer
	most int
	cut  bool
}

func (b *bounded) Write(p []byte) (int, error) {
	room := max(0, b.most-b.Len())
	b.cut = b.cut || len(p) > room
	b.Buffer.Write(p[:min(len(p), room)])
	return len(p), nil
}

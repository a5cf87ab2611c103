package server

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gatehouse/tool"
)

const pageHelp = `- Without a cursor it gives the newest messages; with one, those after it, or with before those before it. The oldest of a page comes first.
- endCursor is where the next call goes on, startCursor, with before, where the one before ends. lost says how many messages after the cursor are not kept any more.
- follow waits that many seconds for the first new message.
- boot is the bootId of the start whose messages are wanted; left out, the present one.`

type pageIn struct {
	Limit  int    `json:"limit,omitempty" doc:"messages" default:"50" min:"1" max:"500"`
	Cursor string `json:"cursor,omitempty" doc:"startCursor or endCursor of an earlier answer" max:"100"`
	Before bool   `json:"before,omitempty" doc:"what came before the cursor"`
	Boot   string `json:"boot,omitempty" doc:"bootId of the start whose messages are wanted" max:"100"`
	Level  string `json:"level,omitempty" doc:"at least this one" enum:"debug,info,warn,error"`
	Follow int    `json:"follow,omitempty" doc:"seconds to wait when there is nothing new" min:"0" max:"35"`
}

type pageOut struct {
	Entries []logEntry `json:"entries"`
	Start   string     `json:"startCursor"`
	End     string     `json:"endCursor"`
	Lost    uint64     `json:"lost,omitempty"`
	Boots   []bootOut  `json:"boots,omitempty" doc:"without a cursor: starts whose messages can be read, the newest first"`
}

type bootOut struct {
	BootID  string `json:"bootId"`
	Started string `json:"started"`
	Present bool   `json:"present,omitempty"`
}

type logEntry struct {
	Timestamp  string          `json:"timestamp"`
	Level      string          `json:"level"`
	Message    string          `json:"message"`
	Attributes json.RawMessage `json:"attributes,omitempty" doc:"of the line, an object"`
	BootID     string          `json:"bootId"`
}

// journal is a log that can be paged through: the host's or the kernel's.
type journal interface {
	// read gives everything that is kept, in order, and wait, which returns
	// when there may be more or ctx is done.
	read(ctx context.Context) (boot string, all []entry, wait func(context.Context), err error)
}

func (s *server) logs(ctx context.Context, c *tool.Call, in pageIn) (pageOut, error) {
	if err := s.rules.Check(c, "read what it logs"); err != nil {
		return pageOut{}, err
	}
	if s.cfg.Journal == nil {
		return pageOut{}, &tool.Refusal{Code: "unsupported", Message: "this host does not keep what it says", Next: "Look where its standard error goes to."}
	}
	j, err := s.cfg.Journal.ofStart(&in)
	if err != nil {
		return pageOut{}, err
	}
	out, err := page(ctx, j, in)
	if err == nil && in.Cursor == "" {
		out.Boots, err = s.cfg.Journal.boots()
	}
	return out, err
}

// ofStart is the log of the start that boot or the cursor names: this one, or an
// earlier one that is kept on disk.
func (j *Journal) ofStart(in *pageIn) (journal, error) {
	boot := in.Boot
	if i := strings.LastIndexByte(in.Cursor, '.'); boot == "" && i > 0 {
		boot = in.Cursor[:i]
	}
	if boot == "" || boot == j.boot {
		return j, nil
	}
	all, err := starts(j.folder)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(s hostStart) bool { return s.boot == boot })
	if i < 0 {
		return j, nil // which refuses it
	}
	in.Follow = 0 // nothing more comes
	return &all[i], nil
}

// boots are the starts whose messages can be read, the newest first.
func (j *Journal) boots() ([]bootOut, error) {
	all, err := starts(j.folder)
	if err != nil {
		return nil, err
	}
	var boots []bootOut
	for _, s := range all {
		boots = append(boots, bootOut{s.boot, s.at.Format(time.RFC3339Nano), s.boot == j.boot})
	}
	return boots, nil
}

// read implements journal.
func (s *hostStart) read(context.Context) (string, []entry, func(context.Context), error) {
	all, err := s.entriesOf()
	return s.boot, all, func(ctx context.Context) { <-ctx.Done() }, err
}

// read implements journal.
func (j *Journal) read(context.Context) (string, []entry, func(context.Context), error) {
	boot, all, more := j.snapshot()
	return boot, all, func(ctx context.Context) {
		select {
		case <-more:
		case <-ctx.Done():
		}
	}, nil
}

// page reads one page of a log, and waits for it where it is asked to.
func page(ctx context.Context, j journal, in pageIn) (pageOut, error) {
	patience, cancel := context.WithTimeout(ctx, time.Duration(in.Follow)*time.Second)
	defer cancel()
	for first := true; ; first = false {
		boot, all, wait, err := j.read(ctx)
		if err != nil {
			return pageOut{}, err
		}
		if first && in.Cursor == "" && in.Follow > 0 { // from now on
			in.Cursor = cursor(boot, lastOf(all))
		}
		out, err := in.of(boot, all)
		if err != nil || len(out.Entries) > 0 || in.Before || patience.Err() != nil {
			return out, err
		}
		wait(patience)
	}
}

// of is the page that is asked for.
func (in *pageIn) of(boot string, all []entry) (out pageOut, err error) {
	if in.Boot != "" && in.Boot != boot {
		return out, &tool.Refusal{Code: "not_found", Message: fmt.Sprintf("there is nothing here of boot %q; the present one is %s", in.Boot, boot), Next: "Call it without boot and cursor."}
	}
	at, err := in.position(boot)
	if err != nil {
		return out, err
	}
	after := slices.IndexFunc(all, func(e entry) bool { return e.seq > at })
	if after < 0 {
		after = len(all)
	}
	chosen := all
	switch {
	case in.Cursor == "":
	case in.Before:
		upto := slices.IndexFunc(all, func(e entry) bool { return e.seq >= at })
		if upto < 0 {
			upto = len(all)
		}
		chosen = all[:upto]
	default:
		chosen = all[after:]
		if len(all) > 0 && all[0].seq > at+1 {
			out.Lost = all[0].seq - at - 1
		}
	}
	return in.fill(out, boot, chosen, max(at, lastOf(all)), in.Cursor == "" || in.Before), nil
}

// fill takes the newest of what was chosen, or the oldest. Where nothing is
// left the cursors stay where the reading ended.
func (in *pageIn) fill(out pageOut, boot string, chosen []entry, end uint64, newest bool) pageOut {
	fits := slices.DeleteFunc(slices.Clone(chosen), func(e entry) bool { return weight(e.level) < weight(in.Level) })
	more := len(fits) > in.Limit
	if more && newest {
		fits = fits[len(fits)-in.Limit:]
	} else if more {
		fits = fits[:in.Limit]
	}
	out.Entries = make([]logEntry, 0, len(fits))
	for _, e := range fits {
		out.Entries = append(out.Entries, logEntry{e.at.UTC().Format(time.RFC3339Nano), e.level, e.message, e.attrs, boot})
	}
	start := end
	if len(fits) > 0 {
		start = fits[0].seq
	}
	if more && !newest || in.Before && len(fits) > 0 {
		end = lastOf(fits)
	}
	out.Start, out.End = cursor(boot, start), cursor(boot, end)
	return out
}

func lastOf(all []entry) uint64 {
	if len(all) == 0 {
		return 0
	}
	return all[len(all)-1].seq
}

func cursor(boot string, seq uint64) string { return boot + "." + strconv.FormatUint(seq, 10) }

// position is the sequence number of the cursor, 0 without one.
func (in *pageIn) position(boot string) (uint64, error) {
	if in.Cursor == "" {
		if in.Before {
			return 0, tool.Refuse("invalid_arguments", "before needs a cursor")
		}
		return 0, nil
	}
	i := strings.LastIndexByte(in.Cursor, '.')
	seq, err := strconv.ParseUint(in.Cursor[i+1:], 10, 64)
	if i < 0 || err != nil {
		return 0, &tool.Refusal{Code: "invalid_arguments", Message: fmt.Sprintf("%q is no cursor", in.Cursor), Next: "Give startCursor or endCursor of an earlier answer."}
	}
	if in.Cursor[:i] != boot {
		return 0, &tool.Refusal{Code: "stale", Message: "the cursor is of an earlier start, whose messages are not here", Next: "Call it without a cursor."}
	}
	return seq, nil
}

var weights = map[string]int{"debug": -1, "info": 0, "warn": 1, "error": 2}

// weight orders levels; what is between two counts as the lower one.
func weight(level string) int {
	if level == "" {
		return weights["debug"]
	}
	name, _, _ := strings.Cut(strings.ToLower(level), "+")
	name, _, _ = strings.Cut(name, "-")
	return weights[name]
}

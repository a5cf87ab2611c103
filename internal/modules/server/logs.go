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

const pageHelp = `- Without a cursor it returns the newest messages; with a cursor, the messages after it or, with
before, before it. A page begins with its oldest message.
- Give endCursor as cursor for the next page, and startCursor with before for the previous page. lost is the number of
  messages after the cursor that are no longer kept.
- follow waits up to that many seconds for the first new message.
- boot is the bootId of a start of the host or machine; the default is the present one.`

type pageIn struct {
	Limit  int    `json:"limit,omitempty" doc:"maximum of messages" default:"50" min:"1" max:"500"`
	Cursor string `json:"cursor,omitempty" doc:"startCursor or endCursor of an earlier result" max:"100"`
	Before bool   `json:"before,omitempty" doc:"messages before the cursor"`
	Boot   string `json:"boot,omitempty" doc:"bootId of an earlier start" max:"100"`
	Level  string `json:"level,omitempty" doc:"lowest level" enum:"debug,info,warn,error"`
	Follow int    `json:"follow,omitempty" doc:"seconds to wait if there are no messages" min:"0" max:"35"`
}

type pageOut struct {
	Entries []logEntry `json:"entries"`
	Start   string     `json:"startCursor"`
	End     string     `json:"endCursor"`
	Lost    uint64     `json:"lost,omitempty"`
	Boots   []bootOut  `json:"boots,omitempty" doc:"without a cursor: starts with messages, newest first"`
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
	Attributes json.RawMessage `json:"attributes,omitempty" doc:"an object"`
	BootID     string          `json:"bootId"`
}

// journal is a log that can be read in pages: the host's or the kernel's.
type journal interface {
	// readAll returns all kept entries, in order, and wait, which returns when there
	// may be more or ctx is done.
	readAll(ctx context.Context) (boot string, all []entry, wait func(context.Context), err error)
}

func (s *server) logs(ctx context.Context, c *tool.Call, in pageIn) (pageOut, error) {
	if err := s.rules.Check(c, "read its log"); err != nil {
		return pageOut{}, err
	}
	if s.cfg.Journal == nil {
		return pageOut{}, &tool.Refusal{
			Code:    tool.CodeUnsupported,
			Message: "this host does not keep its log messages",
			Next:    "Read them where the standard error of the host goes.",
		}
	}
	j, err := s.cfg.Journal.logOf(&in)
	if err != nil {
		return pageOut{}, err
	}
	out, err := page(ctx, j, in)
	if err == nil && in.Cursor == "" {
		out.Boots, err = s.cfg.Journal.boots()
	}
	return out, err
}

// logOf returns the log of the start that boot or the cursor names: this one, or an
// earlier one on disk.
func (j *Journal) logOf(in *pageIn) (journal, error) {
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
		return j, nil // whose reader refuses the unknown boot
	}
	in.Follow = 0 // an earlier start has no new messages
	return &all[i], nil
}

// boots returns the starts whose messages can be read, newest first.
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

// readAll implements journal.
func (s *hostStart) readAll(context.Context) (string, []entry, func(context.Context), error) {
	all, err := s.readEntries()
	return s.boot, all, func(ctx context.Context) { <-ctx.Done() }, err
}

// readAll implements journal.
func (j *Journal) readAll(context.Context) (string, []entry, func(context.Context), error) {
	boot, all, more := j.snapshot()
	return boot, all, func(ctx context.Context) {
		select {
		case <-more:
		case <-ctx.Done():
		}
	}, nil
}

// page reads one page of a log, and waits for the first message if follow is set.
func page(ctx context.Context, j journal, in pageIn) (pageOut, error) {
	patience, cancel := context.WithTimeout(ctx, time.Duration(in.Follow)*time.Second)
	defer cancel()
	for first := true; ; first = false {
		boot, all, wait, err := j.readAll(ctx)
		if err != nil {
			return pageOut{}, err
		}
		if first && in.Cursor == "" && in.Follow > 0 { // wait for messages after now
			in.Cursor = cursor(boot, lastOf(all))
		}
		out, err := in.selectPage(boot, all)
		if err != nil || len(out.Entries) > 0 || in.Before || patience.Err() != nil {
			return out, err
		}
		wait(patience)
	}
}

// selectPage returns the requested page.
func (in *pageIn) selectPage(boot string, all []entry) (out pageOut, err error) {
	if in.Boot != "" && in.Boot != boot {
		return out, &tool.Refusal{Code: tool.CodeNotFound,
			Message: fmt.Sprintf("there are no messages of boot %q; the "+
				"present one is %s", in.Boot, boot), Next: "Call the tool without boot and cursor; boots lists the " +
				"starts with messages."}
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
	return in.setEntries(out, boot, chosen, max(at, lastOf(all)), in.Cursor == "" || in.Before), nil
}

// setEntries sets the newest of the chosen entries, or the oldest, up to the limit.
// If there are none, the cursors are the position at which reading ended.
func (in *pageIn) setEntries(out pageOut, boot string, chosen []entry, end uint64, newest bool) pageOut {
	fits := slices.DeleteFunc(
		slices.Clone(chosen), func(e entry) bool { return severity(e.level) < severity(in.Level) },
	)
	more := len(fits) > in.Limit
	if more && newest {
		fits = fits[len(fits)-in.Limit:]
	} else if more {
		fits = fits[:in.Limit]
	}
	out.Entries = make([]logEntry, 0, len(fits))
	for _, e := range fits {
		out.Entries = append(
			out.Entries, logEntry{e.at.UTC().Format(time.RFC3339Nano), e.level, e.message, e.attrs, boot},
		)
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

// position returns the sequence number of the cursor, or 0 without one.
func (in *pageIn) position(boot string) (uint64, error) {
	if in.Cursor == "" {
		if in.Before {
			return 0, tool.Refuse(tool.CodeInvalidArguments, "before requires a cursor")
		}
		return 0, nil
	}
	i := strings.LastIndexByte(in.Cursor, '.')
	seq, err := strconv.ParseUint(in.Cursor[i+1:], 10, 64)
	if i < 0 || err != nil {
		return 0, &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: fmt.Sprintf("%q is not a cursor", in.Cursor),
			Next:    "Give startCursor or endCursor of an earlier result.",
		}
	}
	if in.Cursor[:i] != boot {
		return 0, &tool.Refusal{
			Code:    tool.CodeStale,
			Message: "the cursor is from an earlier start, whose messages are not kept",
			Next:    "Call the tool without a cursor.",
		}
	}
	return seq, nil
}

var severities = map[string]int{"debug": -1, "info": 0, "warn": 1, "error": 2}

// severity orders levels. A level between two others counts as the lower one.
func severity(level string) int {
	if level == "" {
		return severities["debug"]
	}
	name, _, _ := strings.Cut(strings.ToLower(level), "+")
	name, _, _ = strings.Cut(name, "-")
	return severities[name]
}

package administration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/access/audit"
	"gatehouse/tool"
)

// Audit reads the ledger of a host. It is safe for concurrent use.
type Audit struct{ Ledger *audit.Ledger }

// These are the limits of a query and of a part of an export.
const (
	defaultLines = 50
	maxLines     = 1000
	exportBytes  = 256 << 10
)

// AuditQuery selects lines of the ledger; an empty field matches all.
type AuditQuery struct {
	Since     string `json:"since,omitempty" doc:"only lines since then: a span such as 90m or 7d, or a time such as 2026-01-31T12:00:00Z"`
	Until     string `json:"until,omitempty" doc:"only lines before then, written as for since"`
	Principal string `json:"principal,omitempty" doc:"only what this principal did"`
	Tool      string `json:"tool,omitempty" doc:"only calls of this tool, by its own name"`
	Outcome   string `json:"outcome,omitempty" doc:"ok, error, refused, denied, busy, asked, cancelled, timeout, ..."`
	Level     string `json:"level,omitempty" doc:"only this level" enum:"info,security"`
	Kind      string `json:"kind,omitempty" doc:"call, approval, session.created, auth.login, ..."`
	Context   string `json:"context,omitempty" doc:"only what was done in this context"`
	Session   string `json:"session,omitempty" doc:"only what was done in this session: its id, or the hash that lines have"`
	Call      string `json:"call,omitempty" doc:"only the lines of this call"`
	After     int64  `json:"after,omitempty" doc:"only lines with a higher number, the oldest of them first; last is how many" min:"0"`
	Before    int64  `json:"before,omitempty" doc:"only lines with a lower number, for the page before" min:"1"`
	Last      int    `json:"last,omitempty" doc:"at most so many, the newest" default:"50" min:"1" max:"1000"`
}

// Filter returns the filter of a query. The error names the field.
func (q AuditQuery) Filter(now time.Time) (f audit.Filter, err error) {
	f = audit.Filter{
		Principal: q.Principal, Tool: q.Tool, Outcome: q.Outcome, Kind: q.Kind, Context: q.Context, Call: q.Call,
		After: q.After, Before: q.Before, Last: q.Last, Level: audit.Level(q.Level),
	}
	if f.Since, err = moment("since", q.Since, now); err != nil {
		return f, err
	}
	if f.Until, err = moment("until", q.Until, now); err != nil {
		return f, err
	}
	switch f.Level {
	case "", audit.Info, audit.Security:
	default:
		return f, &Invalid{fmt.Errorf("level: %q is neither info nor security", q.Level)}
	}
	if f.Last < 0 {
		return f, &Invalid{fmt.Errorf("last: %d is not a number of lines", f.Last)}
	}
	if f.Last == 0 && q.Since == "" {
		f.Last = defaultLines
	}
	if f.Session = q.Session; q.Session != "" && len(q.Session) != len(audit.SessionHash("")) {
		f.Session = audit.SessionHash(q.Session)
	}
	return f, nil
}

// moment parses a span before now, or a time.
func moment(field, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, nil
		}
	}
	d, err := time.ParseDuration(text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		var n int
		n, err = strconv.Atoi(days)
		d = time.Duration(min(n, 100_000)) * 24 * time.Hour
	}
	if err != nil || d < 0 {
		return time.Time{}, &Invalid{fmt.Errorf(
			"%s: %q is not a time; expected a span such as 90m or 7d, or a time such as 2026-01-31T12:00:00Z",
			field,
			text,
		)}
	}
	return now.Add(-d), nil
}

// AuditLines are lines of the ledger.
type AuditLines struct {
	Lines []audit.Line `json:"lines" doc:"oldest first; secrets in arguments are masked"`
	More  bool         `json:"more,omitempty" doc:"more lines match: repeat with before or after"`
}

// Query returns the newest lines that a query selects, at most maxLines.
func (a Audit) Query(ctx context.Context, q AuditQuery, now time.Time) (out AuditLines, err error) {
	if a.Ledger == nil {
		return out, errAbsent
	}
	f, err := q.Filter(now)
	if err != nil {
		return out, err
	}
	if f.Last == 0 || f.Last > maxLines {
		f.Last = maxLines
	}
	if err := a.Ledger.Sync(ctx); err != nil && !errors.Is(err, audit.ErrFailing) {
		return out, err
	}
	wanted := f.Last
	if f.Last++; q.After > 0 {
		f.Last = 0 // from the oldest
	}
	for line, err := range a.Ledger.Query(ctx, f) {
		if err != nil {
			return out, err
		}
		if q.After > 0 && len(out.Lines) == wanted {
			out.More = true
			break
		}
		out.Lines = append(out.Lines, line)
	}
	if len(out.Lines) > wanted {
		out.Lines, out.More = out.Lines[len(out.Lines)-wanted:], true
	}
	return out, nil
}

// Verify checks the whole ledger.
func (a Audit) Verify(ctx context.Context) (audit.Report, error) {
	if a.Ledger == nil {
		return audit.Report{}, errAbsent
	}
	return a.Ledger.Verify(ctx)
}

type exportIn struct {
	After int64 `json:"after,omitempty" doc:"only lines with a higher number: that of last, to continue" min:"0"`
	Bytes int   `json:"bytes,omitempty" doc:"about how much at once" default:"262144" min:"1024" max:"4194304"`
}

// Exported is a part of the ledger, as it is stored.
type Exported struct {
	Text  string `json:"text" text:"product" doc:"one JSON object per line, each with the SHA-256 of the line before"`
	First int64  `json:"first,omitempty" text:"facts" doc:"number of the first line"`
	Last  int64  `json:"last,omitempty" text:"facts" doc:"number of the last line"`
	More  bool   `json:"more,omitempty" text:"facts" doc:"lines follow: repeat with after"`
}

// Export returns the lines with a number above after, whole lines of about so many bytes.
func (a Audit) Export(ctx context.Context, after int64, size int) (out Exported, err error) {
	if a.Ledger == nil {
		return out, errAbsent
	}
	if err := a.Ledger.Sync(ctx); err != nil && !errors.Is(err, audit.ErrFailing) {
		return out, err
	}
	if size <= 0 {
		size = exportBytes
	}
	var text bytes.Buffer
	for line, err := range a.Ledger.Query(ctx, audit.Filter{After: after}) {
		if err != nil {
			return out, err
		}
		if text.Len() > 0 && text.Len()+len(line.Raw) >= size {
			out.More = true
			break
		}
		if out.First == 0 {
			out.First = line.Seq
		}
		out.Last = line.Seq
		text.Write(line.Raw)
		text.WriteByte('\n')
	}
	out.Text = text.String()
	return out, nil
}

const auditTimeout = 10 * time.Minute

func auditTools(c Config) []tool.Tool {
	a := Audit{c.Ledger}
	return []tool.Tool{
		operation(c, "read the ledger", tool.Def{
			Name: "audit_query", Title: "Query the ledger", Effects: tool.Reads,
			Description: "Returns lines of the ledger: calls, logins, sessions, refusals, approvals and changes of " +
				"settings.",
		}, func(ctx context.Context, _ *tool.Call, in AuditQuery) (AuditLines, error) {
			return a.Query(ctx, in, time.Now())
		}),
		operation(c, "verify the ledger", tool.Def{
			Name: "audit_verify", Title: "Verify the ledger", Effects: tool.Reads, Timeout: auditTimeout,
			Description: "Finds lines of the ledger that were altered, removed, moved, or cut off at the end.",
			Help: "hash covers every line up to the last. If it is kept elsewhere, it shows later whether the whole " +
				"ledger was written anew.",
		}, func(ctx context.Context, _ *tool.Call, _ struct{}) (audit.Report, error) { return a.Verify(ctx) }),
		operation(c, "export the ledger", tool.Def{
			Name: "audit_export", Title: "Export the ledger", Effects: tool.Reads, Timeout: auditTimeout, Budget: -1,
			Description: "Returns lines of the ledger as they are stored, from the oldest, a part at a time.",
			Help: "The parts joined are what gatehouse audit export writes, and gatehouse audit verify " +
				"--file checks them.",
		}, func(ctx context.Context, _ *tool.Call, in exportIn) (Exported, error) {
			return a.Export(ctx, in.After, in.Bytes)
		}),
	}
}

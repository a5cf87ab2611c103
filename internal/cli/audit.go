package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"gatehouse/internal/access/audit"
	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/config"
)

// errNotWhole ends a command that has said what is wrong with the ledger.
var errNotWhole = errors.New("the ledger is not what was written")

func auditing(w Environment) *cobra.Command {
	var q auditQuery
	c := &cobra.Command{
		Use:   "audit",
		Short: "Show what was done on this host, by whom",
		Long: `Show what was done on this host, by whom: calls, logins, sessions, refusals,
approvals and changes of settings, the oldest first. Secrets among the
arguments are masked. Without flags, the last 50 lines.`,
		Example: `  gatehouse audit --since 2h --principal alice
  gatehouse audit --level security --outcome denied --json
  gatehouse audit --follow
  gatehouse audit verify`,
		Args: knownCommand,
		RunE: func(c *cobra.Command, _ []string) error {
			f, err := q.filter(time.Now())
			if err != nil {
				return err
			}
			return withLedger(
				w,
				func(l *audit.Ledger) error { return showLines(c.Context(), w, l, f, q.follow, q.json) },
			)
		},
	}
	q.flags(c)
	c.AddCommand(auditVerify(w), auditExport(w))
	return c
}

// auditQuery is what the flags ask for.
type auditQuery struct {
	since, until, level, session string
	f                            audit.Filter
	follow, json                 bool
}

func (a *auditQuery) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(
		&a.since,
		"since",
		"",
		"only lines since then: a span such as 90m or 7d, or a time such as 2026-01-31T12:00:00Z",
	)
	f.StringVar(&a.until, "until", "", "only lines before then, written as for --since")
	f.StringVar(&a.f.Principal, "principal", "", "only what this principal did")
	f.StringVar(&a.f.Tool, "tool", "", "only calls of this tool, by its own name")
	f.StringVar(
		&a.f.Outcome,
		"outcome",
		"",
		"only this outcome: ok, error, refused, denied, busy, asked, cancelled, timeout, ...",
	)
	f.StringVar(&a.level, "level", "", "only this level: info or security")
	f.StringVar(&a.f.Kind, "kind", "", "only this kind: call, approval, session.created, auth.login, ...")
	f.StringVar(&a.f.Context, "context", "", "only what was done in this context")
	f.StringVar(&a.session, "session", "", "only what was done in this session: its id, or the hash that lines show")
	f.StringVar(&a.f.Call, "call", "", "only the lines of this call")
	f.IntVarP(&a.f.Last, "last", "n", 0, "only the newest so many (default 50, all with --since)")
	f.BoolVarP(&a.follow, "follow", "f", false, "go on with what is done from now on")
	f.BoolVar(&a.json, "json", false, "print the lines as they are kept, one JSON object each")
}

func (a *auditQuery) filter(now time.Time) (f audit.Filter, err error) {
	f = a.f
	if f.Since, err = moment("--since", a.since, now); err != nil {
		return f, err
	}
	if f.Until, err = moment("--until", a.until, now); err != nil {
		return f, err
	}
	switch f.Level = audit.Level(a.level); f.Level {
	case "", audit.Info, audit.Security:
	default:
		return f, usagef("--level: %q is neither info nor security", a.level)
	}
	if f.Last < 0 {
		return f, usagef("--last: %d is no number of lines", f.Last)
	}
	if f.Last == 0 && a.since == "" {
		f.Last = 50
	}
	if f.Session = a.session; len(a.session) != len(audit.SessionHash("")) {
		f.Session = ""
		if a.session != "" {
			f.Session = audit.SessionHash(a.session)
		}
	}
	return f, nil
}

// moment reads a span of time before now, or a time.
func moment(flag, text string, now time.Time) (time.Time, error) {
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
		return time.Time{}, usagef(
			"%s: %q is no time; expected a span such as 90m or 7d, or a time such as 2026-01-31T12:00:00Z",
			flag,
			text,
		)
	}
	return now.Add(-d), nil
}

// withLedger runs f with the ledger of the hosts on this machine open. It is
// only read.
func withLedger(w Environment, f func(*audit.Ledger) error) error {
	cfg, err := config.FromEnv(w.Getenv)
	if err != nil {
		return &usageError{err}
	}
	path := filepath.Join(cfg.Folders.Data, audit.FileName)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(path + ".head"); err != nil {
			fmt.Fprintf(w.Err, "[gatehouse] There is no ledger yet; a host keeps it in %s\n", path)
		}
	}
	l := audit.Open(path, audit.Options{})
	return errors.Join(f(l), l.Close(context.Background()))
}

func showLines(ctx context.Context, w Environment, l *audit.Ledger, f audit.Filter, follow, asJSON bool) error {
	lines := l.Query(ctx, f)
	if follow {
		lines = l.Follow(ctx, f)
	}
	if asJSON {
		for line, err := range lines {
			if err != nil {
				return err
			}
			if _, err := w.Out.Write(append(line.Raw, '\n')); err != nil {
				return err
			}
		}
		return nil
	}
	return printLines(w.Out, lines, follow)
}

const lineHeader = "TIME\tLEVEL\tPRINCIPAL\tCONTEXT\tWHAT\tOUTCOME\tMS\tARGUMENTS"

// printLines prints a table; one that is followed has columns of fixed width,
// because the lines to come are not known.
func printLines(out io.Writer, lines iter.Seq2[audit.Line, error], follow bool) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if follow {
		t = tabwriter.NewWriter(out, 12, 0, 2, ' ', 0)
	}
	none := true
	for line, err := range lines {
		if err != nil {
			return errors.Join(t.Flush(), err)
		}
		if none {
			fmt.Fprintln(t, lineHeader)
			none = false
		}
		fmt.Fprintln(t, row(line))
		if follow {
			if err := t.Flush(); err != nil {
				return err
			}
		}
	}
	return t.Flush()
}

// row is one line for people.
func row(l audit.Line) string {
	what := l.Kind
	if l.Tool != "" {
		what = l.Tool
		if l.Kind != "call" {
			what = l.Kind + " " + l.Tool
		}
	}
	ms, rest := "-", string(l.Args)
	if l.Millis > 0 {
		ms = strconv.FormatFloat(l.Millis, 'f', 1, 64)
	}
	if l.Reason != "" {
		rest = strings.TrimSpace(rest + " (" + l.Reason + ")")
	}
	cells := []string{
		l.At.Local().Format("2006-01-02 15:04:05.000"),
		string(l.Level),
		l.Principal,
		l.Context,
		what,
		l.Outcome,
		ms,
		shorten(rest),
	}
	for i, c := range cells {
		cells[i] = strings.NewReplacer("\n", " ", "\t", " ").Replace(orDash(c))
	}
	return strings.Join(cells, "\t")
}

func shorten(s string) string {
	return displaytext.Cut(s, 120, "…")
}

func auditVerify(w Environment) *cobra.Command {
	var asJSON bool
	var file string
	c := &cobra.Command{
		Use:   "verify",
		Short: "Find lines that were altered, removed or moved",
		Long: `Find lines that were altered, removed, moved, or cut off at the end, and say
which. The exit code is 1 when there are any. The hash it prints stands for
every line up to the last: written down elsewhere, it shows later that
nobody wrote the whole ledger anew.`,
		Example: `  gatehouse audit verify
  gatehouse audit verify --file audit-1-20000.jsonl`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := verifyFile(c.Context(), w, file)
			if err != nil {
				return err
			}
			if asJSON {
				err = showJSON(w.Out, r)
			} else {
				err = printReport(w.Out, r)
			}
			if err == nil && !r.OK {
				err = errNotWhole
			}
			return err
		},
	}
	c.Flags().StringVar(&file, "file", "", "verify exported or archived lines instead")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func verifyFile(ctx context.Context, w Environment, file string) (r audit.Report, err error) {
	if file == "" {
		err = withLedger(w, func(l *audit.Ledger) error {
			r, err = l.Verify(ctx)
			return err
		})
		return r, err
	}
	in, err := os.Open(file)
	if err != nil {
		return r, err
	}
	defer in.Close()
	return audit.VerifyLines(ctx, in)
}

func printReport(out io.Writer, r audit.Report) error {
	if r.OK {
		fmt.Fprintf(out, "true: %d lines, none altered or missing\n", r.Lines)
	} else {
		fmt.Fprintf(out, "false: %d lines\n", r.Lines)
	}
	for _, p := range r.Problems {
		fmt.Fprintf(out, "  %s: %s\n", p.Kind, printable(p.Message))
	}
	if r.Lines > 0 {
		fmt.Fprintf(
			out,
			"lines %d to %d, the last of %s\nhash  %s\n",
			r.First,
			r.Last,
			r.Until.Local().Format(time.RFC3339),
			r.Hash,
		)
	}
	if r.Removed > 0 && r.OK {
		fmt.Fprintf(out, "lines 1 to %d were removed for their age or number, as the ledger itself says\n", r.Removed)
	}
	return nil
}

func auditExport(w Environment) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "export",
		Short: "Write all lines as JSON, one object each",
		Long: `Write all lines as JSON, one object each, on standard output or to a file that
only you can read. Each holds the SHA-256 of the one before, without its
newline, so that they can be verified anywhere.`,
		Example: "  gatehouse audit export -o audit.jsonl",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return withLedger(w, func(l *audit.Ledger) error {
				if file == "" {
					return l.Export(c.Context(), w.Out)
				}
				out, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
				if err != nil {
					return err
				}
				return errors.Join(l.Export(c.Context(), out), out.Close())
			})
		},
	}
	c.Flags().StringVarP(&file, "output", "o", "", "file to write to; it must not exist")
	return c
}

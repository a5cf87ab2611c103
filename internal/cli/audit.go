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
	"gatehouse/internal/modules/administration"
)

// errNotWhole ends a command that has printed what is wrong with the ledger.
var errNotWhole = errors.New("the ledger was altered")

func auditing(w Environment) *cobra.Command {
	var q auditQuery
	c := &cobra.Command{
		Use:   "audit",
		Short: "Show what was done on this host, and by which principal",
		Long: `Show what was done on this host, and by which principal: calls, logins,
sessions, refusals, approvals and changes of settings, the oldest first. Secrets
in arguments are masked. Without flags, the last 50 entries.`,
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
			if q.cluster {
				return showLedgers(c.Context(), w, f, q.follow, q.json)
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

// auditQuery is the query that the flags describe.
type auditQuery struct {
	administration.AuditQuery
	follow, json, cluster bool
}

func (a *auditQuery) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(
		&a.Since,
		"since",
		"",
		"only lines since then: a span such as 90m or 7d, or a time such as 2026-01-31T12:00:00Z",
	)
	f.StringVar(&a.Until, "until", "", "only lines before then, written as for --since")
	f.StringVar(&a.Principal, "principal", "", "only what this principal did")
	f.StringVar(&a.Tool, "tool", "", "only calls of this tool, by its own name")
	f.StringVar(
		&a.Outcome,
		"outcome",
		"",
		"only this outcome: ok, error, refused, denied, busy, asked, cancelled, timeout, ...",
	)
	f.StringVar(&a.Level, "level", "", "only this level: info or security")
	f.StringVar(&a.Kind, "kind", "", "only this kind: call, approval, session.created, auth.login, ...")
	f.StringVar(&a.Context, "context", "", "only what was done in this context")
	f.StringVar(&a.Session, "session", "",
		"only what was done in this session: its id, or the hash that the ledger shows")
	f.StringVar(&a.Call, "call", "", "only the lines of this call")
	f.IntVarP(&a.Last, "last", "n", 0, "only this many of the newest (default 50, all with --since)")
	f.BoolVarP(&a.follow, "follow", "f", false, "continue with new entries until interrupted")
	f.BoolVar(&a.json, "json", false, "print the stored entries, one JSON object per line")
	f.BoolVar(&a.cluster, "cluster", false, "the lines of all nodes of the cluster, in the order of their times")
}

// filter returns the filter that the flags describe.
func (a *auditQuery) filter(now time.Time) (audit.Filter, error) {
	f, err := a.Filter(now)
	if invalid, ok := errors.AsType[*administration.Invalid](err); ok {
		return f, usagef("--%w", invalid.Err)
	}
	return f, err
}

// withLedger opens the ledger of the hosts on this machine for reading and runs f with it.
func withLedger(w Environment, f func(*audit.Ledger) error) error {
	cfg, err := config.FromEnv(w.Getenv)
	if err != nil {
		return &usageError{err}
	}
	path := filepath.Join(cfg.Folders.Data, audit.FileName)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(path + ".head"); err != nil {
			fmt.Fprintf(w.Err, "[gatehouse] There is no ledger yet; a host creates it at %s\n", path)
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
	return printLines(w.Out, lines, follow, lineHeader, row)
}

const lineHeader = "TIME\tLEVEL\tPRINCIPAL\tCONTEXT\tWHAT\tOUTCOME\tMS\tARGUMENTS"

// printLines prints a table. With follow its columns have a fixed width, because later lines are not known yet.
func printLines(
	out io.Writer, lines iter.Seq2[audit.Line, error], follow bool, header string, row func(audit.Line) string,
) error {
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
			fmt.Fprintln(t, header)
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

// row formats one entry for a user.
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
	var asJSON, nodes bool
	var file string
	c := &cobra.Command{
		Use:   "verify",
		Short: "Find lines that were altered, removed or moved",
		Long: `Find entries that were altered, removed, moved, or cut off at the end, and print
which. The exit code is 1 if there are any. The printed hash covers every entry
up to the last: if you store it elsewhere, it shows later whether the whole
ledger was written anew. In a cluster the other nodes have such hashes: with
--cluster every node verifies its ledger by them.`,
		Example: `  gatehouse audit verify
  gatehouse audit verify --cluster
  gatehouse audit verify --file audit-1-20000.jsonl`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if nodes {
				return verifyLedgers(c.Context(), w, asJSON)
			}
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
	c.Flags().BoolVar(&nodes, "cluster", false, "verify the ledgers of all nodes of the cluster")
	c.MarkFlagsMutuallyExclusive("file", "cluster")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func verifyFile(ctx context.Context, w Environment, file string) (r audit.Report, err error) {
	if file == "" {
		err = withLedger(w, func(l *audit.Ledger) error {
			r, err = administration.Audit{Ledger: l}.Verify(ctx)
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
		fmt.Fprintf(out, "lines 1 to %d were removed for their age or number, as the ledger records\n", r.Removed)
	}
	return nil
}

func auditExport(w Environment) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "export",
		Short: "Write all lines as JSON, one object each",
		Long: `Write all entries as JSON, one object per line, to standard output or to a file
that only you can read. Each contains the SHA-256 of the entry before it, without
its newline, so that the entries can be verified on any machine.`,
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

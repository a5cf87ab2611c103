package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"gatehouse/internal/access/audit"
	"gatehouse/internal/app"
)

// showLedgers prints the lines of all nodes, in the order of their times, which are by the clock of each node.
func showLedgers(ctx context.Context, w Environment, f audit.Filter, follow, asJSON bool) error {
	if follow {
		return usagef("--follow shows the lines of this machine's node alone: leave out --cluster")
	}
	l, err := readSettings(w)
	if err != nil {
		return err
	}
	all, err := app.LedgersLines(ctx, l.Folders, f)
	if err != nil {
		return err
	}
	var lines []audit.Line
	var failed []error
	for _, a := range all {
		if a.Err != nil {
			failed = append(failed, fmt.Errorf("without the lines of node %s: %w", a.Node.ID, a.Err))
		}
		if a.Value.Cut {
			fmt.Fprintf(w.Err, "[gatehouse] Node %s has older lines that match; ask for a shorter time.\n", a.Node.ID)
		}
		for _, raw := range a.Value.Lines {
			line, err := audit.ParseLine(raw)
			if err != nil {
				return fmt.Errorf("node %s: %w", a.Node.ID, err)
			}
			line.Node = a.Node.ID
			lines = append(lines, line)
		}
	}
	slices.SortStableFunc(lines, func(a, b audit.Line) int { return a.At.Compare(b.At) })
	if f.Last > 0 && len(lines) > f.Last {
		lines = lines[len(lines)-f.Last:]
	}
	if asJSON {
		for _, line := range lines {
			if _, err := fmt.Fprintf(w.Out, "{\"cluster_node\":%q,\"line\":%s}\n", line.Node, line.Raw); err != nil {
				return err
			}
		}
		return errors.Join(failed...)
	}
	each := func(yield func(audit.Line, error) bool) {
		for _, line := range lines {
			if !yield(line, nil) {
				return
			}
		}
	}
	err = printLines(w.Out, each, false, "NODE\t"+lineHeader, func(l audit.Line) string { return l.Node + "\t" + row(l) })
	return errors.Join(append(failed, err)...)
}

// verifyLedgers lets all nodes verify their ledgers. A node that does not answer is a failure.
func verifyLedgers(ctx context.Context, w Environment, asJSON bool) error {
	l, err := readSettings(w)
	if err != nil {
		return err
	}
	all, err := app.VerifyLedgers(ctx, l.Folders)
	if err != nil {
		return err
	}
	reports := map[string]audit.Report{}
	var failed []error
	altered := false
	for _, a := range all {
		if a.Err != nil {
			failed = append(failed, fmt.Errorf("the ledger of node %s was not verified: %w", a.Node.ID, a.Err))
			continue
		}
		reports[a.Node.ID] = a.Value
		altered = altered || !a.Value.OK
		if asJSON {
			continue
		}
		fmt.Fprintf(w.Out, "node %s (%s)\n", a.Node.ID, a.Node.Host)
		if err := printReport(w.Out, a.Value); err != nil {
			return err
		}
	}
	if asJSON {
		if err := showJSON(w.Out, reports); err != nil {
			return err
		}
	}
	if altered {
		if err := errors.Join(failed...); err != nil {
			fmt.Fprintf(w.Err, "[gatehouse] %v\n", err)
		}
		return errNotWhole
	}
	return errors.Join(failed...)
}

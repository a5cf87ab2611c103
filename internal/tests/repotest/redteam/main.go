// Command redteam runs every attack of the tree on a promise of
// docs/security.md, and writes docs/security-tests.md.
//
// It runs anywhere below the top of the tree. Names of promises as arguments
// run those alone, and write nothing.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"gatehouse/internal/tests/repotest/attacks"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "redteam:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only []string) error {
	top, err := findTop()
	if err != nil {
		return err
	}
	security, err := os.ReadFile(filepath.Join(top, "docs", "security.md"))
	if err != nil {
		return err
	}
	all, err := attacks.Find(top)
	if err != nil {
		return err
	}
	promises := attacks.Promises(string(security))
	if len(only) > 0 {
		for _, p := range only {
			if !slices.Contains(promises, p) {
				return fmt.Errorf("docs/security.md promises no %q; it promises %s", p, strings.Join(promises, "; "))
			}
		}
		all = slices.DeleteFunc(all, func(a attacks.Attack) bool { return !slices.Contains(only, a.Promise) })
	}
	verdicts, err := attacks.Run(ctx, top, all, os.Stderr)
	if err != nil {
		return err
	}
	if len(only) == 0 {
		table := attacks.Table(promises, all, verdicts)
		if err := os.WriteFile(filepath.Join(top, "docs", "security-tests.md"), table, 0o644); err != nil {
			return err
		}
	}
	return summary(all, verdicts)
}

// summary tells how many attacks held, and fails if one did not.
func summary(all []attacks.Attack, verdicts map[string]string) error {
	held, skipped, broken := 0, 0, 0
	for _, a := range all {
		switch v := verdicts[a.Name()]; {
		case v == attacks.Held:
			held++
		case strings.HasPrefix(v, attacks.NotRun):
			skipped++
			fmt.Fprintf(os.Stderr, "%s: %s\n", a.Name(), v)
		default:
			broken++
			fmt.Fprintf(os.Stderr, "BROKEN: %s: %s (%s)\n", a.Promise, a.Tries, a.Name())
		}
	}
	fmt.Fprintf(os.Stderr, "%d attacks: %d held, %d not run, %d broken\n", len(all), held, skipped, broken)
	if broken > 0 {
		return fmt.Errorf("%d attacks succeeded", broken)
	}
	return nil
}

// findTop is the nearest folder above that holds go.mod.
func findTop() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("no go.mod above %s", dir)
		}
		dir = up
	}
}

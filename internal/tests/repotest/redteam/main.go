// Command redteam runs every attack of the tree on a promise of
// docs/security.md, and writes docs/security-tests.md.
//
// It runs anywhere below the top of the tree. Names of promises, or of folders such
// as internal/exec/supervisor, as arguments run their attacks alone; the other
// verdicts stay as they are in the document.
package main

import (
	"context"
	"fmt"
	"maps"
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
	all, err := attacks.ListAttacks(top)
	if err != nil {
		return err
	}
	promises := attacks.Promises(string(security))
	if len(only) > 0 {
		for _, name := range only {
			if !slices.Contains(promises, name) &&
				!slices.ContainsFunc(all, func(a attacks.Attack) bool { return a.Package == name }) {
				return fmt.Errorf(
					"%q is no folder with attacks, and docs/security.md does not promise it; it promises %s",
					name,
					strings.Join(promises, "; "),
				)
			}
		}
	}
	document := filepath.Join(top, "docs", "security-tests.md")
	verdicts := map[string]string{}
	chosen := all
	if len(only) > 0 {
		before, err := os.ReadFile(document)
		if err != nil {
			return err
		}
		verdicts = attacks.Verdicts(string(before))
		chosen = slices.DeleteFunc(slices.Clone(all), func(a attacks.Attack) bool {
			return !slices.Contains(only, a.Promise) && !slices.Contains(only, a.Package)
		})
	}
	now, err := attacks.Run(ctx, top, chosen, os.Stderr)
	if err != nil {
		return err
	}
	maps.Copy(verdicts, now)
	if err := os.WriteFile(document, attacks.Table(promises, all, verdicts), 0o644); err != nil {
		return err
	}
	return summary(chosen, verdicts)
}

// summary prints how many attacks were repelled, and returns an error if one was not.
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

// findTop returns the nearest folder above that contains go.mod.
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

package cli

import (
	"errors"
	"iter"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagMistake turns an error of the flag parser into a usage error, with a
// guess at what an unknown flag was meant to be.
func flagMistake(c *cobra.Command, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		name := unknown.GetSpecifiedName()
		if near := nearest(name, flagNames(c)); near != "" && len(name) > 1 {
			return usagef("unknown flag --%s; did you mean --%s?", name, near)
		}
	}
	return &usageError{err}
}

func flagNames(c *cobra.Command) iter.Seq[string] {
	return func(yield func(string) bool) {
		more := true
		c.Flags().VisitAll(func(f *pflag.Flag) { more = more && !f.Hidden && yield(f.Name) })
	}
}

// nearest returns the candidate that a mistyped word most likely meant: one that begins with it, or the one with
// the fewest differing letters, at most a third of them. It returns "" if none is near.
func nearest(word string, candidates iter.Seq[string]) string {
	best, least := "", len(word)/3+2
	for c := range candidates {
		d := distance(word, c)
		if len(word) >= 3 && strings.HasPrefix(c, word) {
			d = 0
		}
		if d < least {
			best, least = c, d
		}
	}
	return best
}

// distance returns the number of letters to insert, remove or replace between two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

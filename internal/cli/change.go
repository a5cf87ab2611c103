package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"gatehouse/internal/cli/clientconfig"
	"gatehouse/internal/config"
)

// newTable aligns columns that are separated by tabs.
func newTable(to io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(to, 0, 0, 2, ' ', 0) }

// changeFlags are the flags of commands that change files of clients.
type changeFlags struct {
	yes    bool
	dryRun bool
}

func (f *changeFlags) register(set *pflag.FlagSet) {
	set.BoolVarP(&f.yes, "yes", "y", false, "agree to every change beforehand")
	set.BoolVar(&f.dryRun, "dry-run", false, "show the changes and make none")
}

// changer shows changes of clients' files, asks, and makes them.
type changer struct {
	w           Environment
	machine     clientconfig.Machine
	connections clientconfig.Store
	flags       changeFlags
	answers     *bufio.Reader // nil if standard input is no terminal
}

func (f changeFlags) changer(w Environment, l *config.Loaded) (changer, error) {
	here, err := os.Getwd()
	if err != nil {
		return changer{}, fmt.Errorf("find the current folder: %w", err)
	}
	m, err := clientconfig.This(w.Getenv, here)
	if err != nil {
		return changer{}, fmt.Errorf("find the home folder: %w", err)
	}
	k := changer{w: w, machine: m, connections: clientconfig.Store{Dir: clientsFolder(l)}, flags: f}
	if isTerminal(w.In) {
		k.answers = bufio.NewReader(w.In)
	}
	return k, nil
}

func (k *changer) say(format string, args ...any) {
	fmt.Fprintf(k.w.Err, "[gatehouse] "+format+"\n", args...)
}

// outcome is what became of a change.
type outcome int

const (
	nothing outcome = iota // there was nothing to change
	skipped                // it was only shown, or the answer was no
	done
)

// askYesNo asks a question that is answered with yes or no.
func (k *changer) askYesNo(question string) (bool, error) {
	switch {
	case k.flags.yes:
		return true, nil
	case k.answers == nil:
		return false, usagef(
			"standard input is not a terminal, so you cannot be asked: --yes agrees, --dry-run only shows changes",
		)
	}
	fmt.Fprintf(k.w.Err, "[gatehouse] %s [y/N] ", question)
	line, err := k.answers.ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	answer := strings.ToLower(strings.TrimSpace(line))
	return answer == "y" || answer == "yes", nil
}

// maxTries is how often a change is worked out again because a client has changed
// its file meanwhile.
const maxTries = 5

// applyChange shows a change, asks, and makes it.
func (k *changer) applyChange(plan func() (*clientconfig.Change, error)) (outcome, error) {
	for try := 1; ; try++ {
		ch, err := plan()
		if err != nil {
			return nothing, err
		}
		if !ch.Changes() {
			return nothing, nil
		}
		if try == 1 {
			fmt.Fprintln(k.w.Out, ch.Diff())
			if k.flags.dryRun {
				return skipped, nil
			}
			if yes, err := k.askYesNo("Change " + ch.File + "?"); err != nil || !yes {
				return skipped, err
			}
		}
		backup, err := k.connections.Apply(ch)
		if errors.Is(err, clientconfig.ErrModified) && try < maxTries {
			continue
		}
		if err == nil && backup != "" {
			k.say("Backup: %s", backup)
		}
		return done, err
	}
}

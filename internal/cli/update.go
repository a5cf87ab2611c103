package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/maintenance/update"
)

func updating(w Environment) *cobra.Command {
	var program string
	c := &cobra.Command{
		Use:   "update",
		Short: "Replace this program by a newer release, or restore the previous one",
		Long: `Replace this program by a newer release, or restore the previous one. Releases
come from the folder or URL that update.source names in the settings, and must
be signed with update.key, a minisign public key. The replaced program is kept
beside the new one. Running hosts keep using the old program until they restart.`,
		Example: `  gatehouse update check
  gatehouse update apply
  gatehouse update rollback`,
		Args: knownCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },

		SuggestionsMinimumDistance: 2,
	}
	c.PersistentFlags().StringVar(&program, "program", "", "`file` to replace (default: this program)")
	sub := func(use, short string, run func(Environment, *cobra.Command, *update.Updater) error) {
		c.AddCommand(&cobra.Command{
			Use:     use,
			Short:   short,
			Example: "  gatehouse update " + use,
			Args:    noArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				u, err := updater(w, program)
				if err != nil {
					return err
				}
				if err = run(w, c, u); errors.Is(err, update.ErrNoSource) {
					err = usagef("%v: set update.source and update.key in gatehouse.yaml", err)
				}
				return err
			},
		})
	}
	sub("check", "Report whether there is a newer release", checkUpdate)
	sub("apply", "Replace the program by the newest release", applyUpdate)
	sub("rollback", "Restore the previous program", rollBackUpdate)
	return c
}

// checkUpdate reports whether there is a newer release.
func checkUpdate(w Environment, c *cobra.Command, u *update.Updater) error {
	r, newer, err := u.Check(c.Context())
	if err != nil {
		return err
	}
	if !newer {
		fmt.Fprintf(w.Err, "[gatehouse] This is %s; there is no newer release\n", app.Version)
		return nil
	}
	fmt.Fprintln(w.Out, r.Version)
	fmt.Fprintf(w.Err, "[gatehouse] This is %s; gatehouse update apply replaces it\n", app.Version)
	if r.Notes != "" {
		fmt.Fprintln(w.Err, printable(r.Notes))
	}
	return nil
}

// applyUpdate replaces the program by the newest release.
func applyUpdate(w Environment, c *cobra.Command, u *update.Updater) error {
	last := ""
	r, err := u.Apply(c.Context(), func(phase string, _, _ int64) {
		if phase != last {
			last = phase
			fmt.Fprintf(w.Err, "[gatehouse] %s ...\n", phase)
		}
	})
	if errors.Is(err, update.ErrNone) {
		fmt.Fprintf(w.Err, "[gatehouse] This is %s; there is no newer release\n", app.Version)
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(
		w.Err,
		"[gatehouse] Replaced %s by %s; running hosts use it after a restart\n",
		app.Version,
		r.Version,
	)
	return writeDown(w, changed{"config.updated", named(r.Version)})
}

// rollBackUpdate restores the previous program.
func rollBackUpdate(w Environment, c *cobra.Command, u *update.Updater) error {
	version, err := u.Rollback(c.Context())
	if err != nil {
		return err
	}
	fmt.Fprintf(w.Err, "[gatehouse] Restored %s; running hosts use it after a restart\n", version)
	return writeDown(w, changed{"config.rolled_back", named(version)})
}

func updater(w Environment, program string) (*update.Updater, error) {
	l, err := config.Load(w.Getenv, "")
	if err != nil {
		return nil, &usageError{err}
	}
	if err := l.Validate(); err != nil {
		return nil, &usageError{err}
	}
	return app.NewUpdater(l.Update, program)
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gatehouse/internal/app"
	"gatehouse/internal/maintenance/backup"
)

// ending limits how long the command waits for its mount to end.
const ending = 10 * time.Second

func backupMount(w Environment) *cobra.Command {
	var keys keyFlags
	var name string
	var idle time.Duration
	c := &cobra.Command{
		Use:   "mount [TARGET]",
		Short: "Mount a backup as a read-only folder",
		Long: `Mount a backup as a read-only folder below the data folder, and print its path.
Files are decrypted when they are read; nothing is unpacked. The command serves
the folder until it is interrupted, until gatehouse backup unmount, or until no
process has used the folder for the time of --idle. Only processes of this user
can enter it. It needs Linux with FUSE; gatehouse doctor tells what is missing.`,
		Example: `  gatehouse backup mount &
  gatehouse backup unmount`,
		Args: oneTarget,
		RunE: func(c *cobra.Command, args []string) error {
			if err := backup.CanMount(); err != nil {
				return fmt.Errorf("backups cannot be mounted: %w", err)
			}
			v, k, err := keys.openBackups(w)
			if err != nil {
				return err
			}
			backup.CleanMounts(app.BackedUp(v.cfg), slog.New(slog.DiscardHandler))
			m, err := v.backups.Mount(c.Context(), backup.MountRequest{
				Target: firstArgument(args), Backup: name, Key: k, Owner: "command line", Idle: idle,
			})
			if err != nil {
				return asMistake(err)
			}
			fmt.Fprintln(w.Out, m.Path)
			fmt.Fprintf(w.Err, "[gatehouse] Mounted %s with %d files, %d bytes. Ctrl-C unmounts it\n", m.Backup,
				m.Files, m.Bytes)
			if v.backups.WaitMount(c.Context(), m.ID) == nil {
				fmt.Fprintf(w.Err, "[gatehouse] %s is unmounted\n", m.Backup)
			}
			end, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), ending)
			defer cancel()
			return v.backups.Close(end)
		},
	}
	keys.register(c.Flags())
	c.Flags().
		StringVar(&keys.identity, "identity", "",
			"`file` with the private key of age, for what was encrypted to its public one")
	c.Flags().StringVar(&name, "backup", "", "`name` of the backup (default: the newest)")
	c.Flags().DurationVar(&idle, "idle", backup.IdleMount, "unmount after this time without use")
	return c
}

func backupUnmount(w Environment) *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use:   "unmount [MOUNT]",
		Short: "Unmount a backup",
		Long: `Unmount a backup. MOUNT is the id or path that gatehouse backup list shows; it may
be left out if there is only one mount. Mounts of running hosts are unmounted
too.`,
		Example: `  gatehouse backup unmount`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("%s accepts one mount, got %q as well", c.CommandPath(), args[1])
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			v, err := openVault(w)
			if err != nil {
				return err
			}
			which := firstArgument(args)
			if which == "" {
				all := backup.Mounts(app.BackedUp(v.cfg))
				if len(all) != 1 {
					return usagef("%s", severalMounts(all))
				}
				which = all[0].ID
			}
			m, err := v.backups.Unmount(which, force)
			switch {
			case errors.Is(err, backup.ErrMountUsed):
				return fmt.Errorf("%w; close it, or use --force", err)
			case errors.Is(err, backup.ErrNoMount):
				return usagef("%v; gatehouse backup list shows the mounts", err)
			case err != nil:
				return err
			}
			fmt.Fprintf(w.Err, "[gatehouse] %s is unmounted\n", m.Backup)
			return nil
		},
	}
	c.Flags().BoolVar(&force, "force", false, "unmount also while it is used; the processes that use it get errors")
	return c
}

func severalMounts(all []backup.Mounted) string {
	if len(all) == 0 {
		return "no backup is mounted"
	}
	var paths []string
	for _, m := range all {
		paths = append(paths, m.Path)
	}
	return fmt.Sprintf("%d backups are mounted; name one of %s", len(all), strings.Join(paths, ", "))
}

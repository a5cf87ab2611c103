package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"gatehouse/internal/app"
)

func clusterBackup(w Environment) *cobra.Command {
	var keys keyFlags
	c := &cobra.Command{
		Use:   "backup FILE",
		Short: "Write what all nodes have in common to an encrypted file",
		Long: `Write what all nodes have in common to a new file: users, tokens, contexts,
approvals, secrets, notifications, records of packages and the heads of ledgers. The
file is encrypted with a password: the secret BACKUP_PASSWORD, the one --secret names,
or the text on standard input with --ask. What each node has for itself, such as its
ledger, jobs and sandboxes, is in the backup of a host (gatehouse backup create).`,
		Example: `  gatehouse cluster backup /mnt/disk/work.cluster
  gatehouse cluster backup /mnt/disk/work.cluster --ask`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			v, key, err := keys.openBackups(w)
			if err != nil {
				return err
			}
			made, err := app.BackupCluster(c.Context(), v.cfg.Folders, args[0], key)
			if err != nil {
				return asMistake(err)
			}
			fmt.Fprintf(w.Out, "%s has cluster %s.\n", args[0], made.Cluster)
			if !made.Moment {
				fmt.Fprintln(w.Out, "The cluster changed all the time: each part is whole, and they are some moments apart.")
			}
			return nil
		},
	}
	keys.register(c.Flags())
	return c
}

func clusterRestore(w Environment) *cobra.Command {
	var keys keyFlags
	c := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make a fresh cluster have what a backup has",
		Long: `Make a fresh cluster have what a file of gatehouse cluster backup has. Start three
nodes with new data folders first. A cluster that has users, contexts or approvals is
refused. Afterwards restart each node, so that it reads everything again.`,
		Example: `  gatehouse cluster restore /mnt/disk/work.cluster --ask`,
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			v, key, err := keys.openBackups(w)
			if err != nil {
				return err
			}
			was, err := app.RestoreCluster(c.Context(), v.cfg.Folders, args[0], key)
			if err != nil {
				return asMistake(err)
			}
			fmt.Fprintf(w.Out, "This cluster has what cluster %s had at %s. Restart each node now.\n", was.Cluster,
				was.Created.Format(time.RFC3339))
			return nil
		},
	}
	keys.register(c.Flags())
	return c
}

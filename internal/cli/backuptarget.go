package cli

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"gatehouse/internal/maintenance/backup"
)

func backupTarget(w Environment) *cobra.Command {
	c := &cobra.Command{
		Use:   "target",
		Short: "Create and remove targets of backups",
		Example: `  gatehouse backup target set disk --path /mnt/disk --keep 7
  gatehouse backup target remove disk`,
		Args: knownCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(backupTargetSet(w), backupTargetRemove(w))
	return c
}

func backupTargetSet(w Environment) *cobra.Command {
	var t backup.Target
	c := &cobra.Command{
		Use:   "set NAME",
		Short: "Create a target, or replace the one with its name, after testing it",
		Example: `  gatehouse backup target set disk --path /mnt/disk --keep 7
  gatehouse backup target set cloud --kind s3 --endpoint https://s3.example.com --bucket backups --access-key KEY --secret S3_KEY
  gatehouse backup target set nas --kind smb --host nas --share backups --user backup --secret NAS`,
		Args: exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			v, err := openVault(w)
			if err != nil {
				return err
			}
			t.Name = args[0]
			if t.Kind == backup.Directory && t.Path != "" {
				if t.Path, err = filepath.Abs(t.Path); err != nil {
					return err
				}
			}
			if err := v.backups.SetTarget(c.Context(), t); err != nil {
				return asMistake(err)
			}
			fmt.Fprintf(w.Err, "[gatehouse] Created target %s\n", t.Name)
			return writeDown(w, changed{"config.backup_target_set", named(t.Name)})
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&t.Kind, "kind", backup.Directory, "directory, s3 or smb")
	f.StringVar(&t.Path, "path", "", "the folder; in a bucket or share, below it")
	f.IntVar(&t.Keep, "keep", 0, "how many backups of this host are kept; 0 keeps all")
	f.StringVar(&t.Endpoint, "endpoint", "", "of s3: https://host or https://host:port")
	f.StringVar(&t.Bucket, "bucket", "", "of s3")
	f.StringVar(&t.Region, "region", "", "of s3 (default: us-east-1)")
	f.StringVar(&t.AccessKey, "access-key", "", "of s3")
	f.StringVar(&t.Host, "host", "", "of smb: a name or address, with :port unless it is 445")
	f.StringVar(&t.Share, "share", "", "of smb")
	f.StringVar(&t.User, "user", "", "of smb; DOMAIN\\user names a domain (default: a guest)")
	f.StringVar(&t.Secret, "secret", "", "`name` of the secret that holds the password, or the secret key of s3")
	return c
}

func backupTargetRemove(w Environment) *cobra.Command {
	return &cobra.Command{
		Use:     "remove NAME",
		Short:   "Remove a target; its backups stay",
		Example: `  gatehouse backup target remove disk`,
		Args:    exactly("NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			v, err := openVault(w)
			if err != nil {
				return err
			}
			if err := v.backups.RemoveTarget(args[0]); err != nil {
				return asMistake(err)
			}
			fmt.Fprintf(w.Err, "[gatehouse] Removed target %s\n", args[0])
			return writeDown(w, changed{"config.backup_target_removed", named(args[0])})
		},
	}
}

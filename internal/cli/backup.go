package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/maintenance/backup"
)

func backups(w Environment) *cobra.Command {
	c := &cobra.Command{
		Use:   "backup",
		Short: "Back up all data of a host, encrypted, and restore it",
		Long: `Back up all data of this user's hosts: state, contexts, users and tokens, secrets
with their key, the ledger, jobs, settings and the data of packages. A backup is
one encrypted file in a folder, an S3-compatible service or a share. Hosts may
keep running meanwhile.

TARGET is the name of a target, or an absolute folder; it may be left out if
there is only one target. The password is the secret BACKUP_PASSWORD, the one
--secret names, or the text on standard input with --ask. Without the password
a backup cannot be read: store the password elsewhere as well.`,
		Example: `  gatehouse backup target set disk --path /mnt/disk --keep 7
  gatehouse secret set BACKUP_PASSWORD
  gatehouse backup create
  gatehouse backup restore /mnt/disk --ask      # on another machine`,
		Args: knownCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },

		SuggestionsMinimumDistance: 2,
	}
	c.AddCommand(
		backupCreate(w),
		backupList(w),
		backupInfo(w),
		backupRead(w),
		backupMount(w),
		backupUnmount(w),
		backupRestore(w),
		backupCancel(w),
		backupTarget(w),
	)
	return c
}

// backupSetup holds what the commands of backups share.
type backupSetup struct {
	w       Environment
	cfg     config.Config
	backups *backup.Manager
}

func openVault(w Environment) (*backupSetup, error) {
	l, err := config.Load(w.Getenv, "")
	if err != nil {
		return nil, &usageError{err}
	}
	v := &backupSetup{w: w, cfg: l.Config}
	v.backups = app.NewKeeper(v.cfg, backup.Options{
		Host: func(ctx context.Context) (backup.Host, error) { return app.HostOf(ctx, v.cfg.Folders) },
		Packages: func(ctx context.Context) (map[string]json.RawMessage, error) {
			return app.PackagesOf(ctx, v.cfg.Folders)
		},
	})
	return v, nil
}

// keyFlags select the key that encrypts a backup.
type keyFlags struct {
	ask        bool
	secret     string
	identity   string
	recipients []string
}

func (f *keyFlags) register(set *pflag.FlagSet) {
	set.BoolVar(&f.ask, "ask", false, "read the password from standard input, or ask for it at a terminal")
	set.StringVar(
		&f.secret,
		"secret",
		"",
		"`name` of the secret that holds the password (default: "+backup.DefaultSecret+")",
	)
}

// openBackups opens the vault and determines the key.
func (f *keyFlags) openBackups(w Environment) (*backupSetup, backup.Key, error) {
	v, err := openVault(w)
	if err != nil {
		return nil, backup.Key{}, err
	}
	k, err := f.key(v)
	return v, k, err
}

func (f *keyFlags) key(v *backupSetup) (k backup.Key, err error) {
	switch {
	case len(f.recipients) > 0:
		k.Recipients = f.recipients
		return k, nil
	case f.identity != "":
		file, err := os.Open(f.identity)
		if err != nil {
			return k, &usageError{err}
		}
		defer file.Close()
		b, err := io.ReadAll(io.LimitReader(file, 64<<10))
		k.Identity = secret.New(string(b))
		return k, err
	case f.ask && f.secret != "":
		return k, usagef("--ask and --secret exclude each other")
	case f.ask:
		k.Password, err = readSecret(v.w, "the password of the backup")
		return k, err
	}
	name := f.secret
	if name == "" {
		name = backup.DefaultSecret
	}
	if k.Password, err = secret.In(v.cfg.Folders.Config, v.cfg.Secrets.KeyFile).Get(name); errors.Is(
		err,
		secret.ErrNotFound,
	) {
		return k, usagef("there is no password: store one with gatehouse secret set %s, or use --ask", name)
	}
	return k, err
}

// oneTarget checks the arguments of a command that accepts at most one target.
func oneTarget(c *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usagef("%s accepts one target, got %q as well", c.CommandPath(), args[1])
	}
	return nil
}

func firstArgument(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// asMistake turns an error that the command line caused into a usage error.
func asMistake(err error) error {
	if _, wrong := errors.AsType[*backup.Invalid](err); wrong {
		return &usageError{err}
	}
	switch {
	case errors.Is(err, backup.ErrNoTarget):
		return usagef("%v; gatehouse backup list lists the targets, gatehouse backup target set creates one", err)
	case errors.Is(err, backup.ErrNoBackup):
		return fmt.Errorf("%w; gatehouse backup list TARGET lists the backups", err)
	}
	return err
}

// progress returns a function that prints each phase when it starts.
func (b *backupSetup) progress() backup.Progress {
	last := ""
	return func(phase string, _, _ int64) {
		if phase != last {
			last = phase
			fmt.Fprintf(b.w.Err, "[gatehouse] %s ...\n", phase)
		}
	}
}

func backupCreate(w Environment) *cobra.Command {
	var keys keyFlags
	var packages []string
	c := &cobra.Command{
		Use:   "create [TARGET]",
		Short: "Create a backup",
		Example: `  gatehouse backup create
  gatehouse backup create /mnt/disk --ask < password`,
		Args: oneTarget,
		RunE: func(c *cobra.Command, args []string) error {
			v, k, err := keys.openBackups(w)
			if err != nil {
				return err
			}
			hold, err := v.backups.Reserve()
			if err != nil {
				return err
			}
			defer hold.Release()
			made, err := hold.Create(c.Context(), firstArgument(args), packages, k, v.progress())
			if err != nil {
				return asMistake(err)
			}
			fmt.Fprintln(w.Out, made.Name)
			fmt.Fprintf(w.Err, "[gatehouse] Created a backup of %d files, %d bytes\n", len(made.Manifest.Files),
				made.Size)
			for _, old := range made.Removed {
				fmt.Fprintf(w.Err, "[gatehouse] Removed %s\n", old)
			}
			if made.Left != nil {
				fmt.Fprintf(w.Err, "[gatehouse] Older backups could not be removed: %v\n", made.Left)
			}
			return writeDown(w, changed{"config.backed_up", named(made.Name)})
		},
	}
	keys.register(c.Flags())
	c.Flags().StringSliceVar(&packages, "package", nil, "back up the package with this `id` alone; can be repeated")
	c.Flags().
		StringSliceVar(&keys.recipients, "recipient", nil,
			"public `key` of age to encrypt to, instead of a password; can be repeated")
	return c
}

func backupList(w Environment) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "list [TARGET]",
		Short: "List the targets, or the backups in one of them",
		Example: `  gatehouse backup list
  gatehouse backup list /mnt/disk`,
		Args: oneTarget,
		RunE: func(c *cobra.Command, args []string) error {
			v, err := openVault(w)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				return v.listTargets(asJSON)
			}
			all, err := v.backups.List(c.Context(), args[0])
			if err != nil {
				return asMistake(err)
			}
			if asJSON {
				return showJSON(w.Out, map[string]any{"backups": entries(all)})
			}
			t := tabwriter.NewWriter(w.Out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "BACKUP\tCREATED\tBYTES\tOF")
			for _, e := range entries(all) {
				fmt.Fprintf(t, "%s\t%s\t%d\t%s\n", e.Name, e.Created.Local().Format("2006-01-02 15:04"), e.Size, e.Of)
			}
			return t.Flush()
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// backupEntry is a backup in the output of the commands.
type backupEntry struct {
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	Size    int64     `json:"size"`
	Of      string    `json:"of"` // this host or another
}

func entries(all []backup.Entry) []backupEntry {
	out := []backupEntry{}
	for _, e := range all {
		of := "another host"
		if e.Own {
			of = "this host"
		}
		out = append(out, backupEntry{e.Name, e.Created, e.Size, of})
	}
	return out
}

func (b *backupSetup) listTargets(asJSON bool) error {
	all, err := b.backups.Targets()
	if err != nil {
		return err
	}
	if asJSON {
		return showJSON(b.w.Out, map[string]any{
			"targets": orEmpty(all), "mounts": orEmpty(backup.Mounts(app.BackedUp(b.cfg))),
		})
	}
	for _, m := range backup.Mounts(app.BackedUp(b.cfg)) {
		fmt.Fprintf(b.w.Err, "[gatehouse] %s is mounted at %s\n", m.Backup, m.Path)
	}
	if waiting, err := backup.Waiting(app.BackedUp(b.cfg)); err == nil && waiting != nil {
		fmt.Fprintf(b.w.Err, "[gatehouse] %s will be restored when a host starts while no other runs\n", waiting.Backup)
	}
	if len(all) == 0 {
		fmt.Fprintln(b.w.Err, "[gatehouse] There are no targets; create one with gatehouse backup target set NAME")
		return nil
	}
	t := tabwriter.NewWriter(b.w.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "TARGET\tKIND\tKEEPS\tWHERE")
	for _, one := range all {
		keeps := "all"
		if one.Keep > 0 {
			keeps = fmt.Sprint(one.Keep)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", one.Name, one.Kind, keeps, printable(whereIs(one)))
	}
	return t.Flush()
}

func whereIs(t backup.Target) string {
	switch t.Kind {
	case backup.S3:
		return t.Endpoint + "/" + t.Bucket + "/" + t.Path
	case backup.SMB:
		return "//" + t.Host + "/" + t.Share + "/" + t.Path
	}
	return t.Path
}

func backupInfo(w Environment) *cobra.Command {
	var keys keyFlags
	var name string
	var asJSON bool
	c := &cobra.Command{
		Use:   "info [TARGET]",
		Short: "Describe the contents of a backup without restoring it",
		Example: `  gatehouse backup info
  gatehouse backup info /mnt/disk --ask < password`,
		Args: oneTarget,
		RunE: func(c *cobra.Command, args []string) error {
			v, k, err := keys.openBackups(w)
			if err != nil {
				return err
			}
			e, m, err := v.backups.Info(c.Context(), firstArgument(args), name, k)
			if err != nil {
				return asMistake(err)
			}
			if asJSON {
				return showJSON(w.Out, map[string]any{"backup": e.Name, "size": e.Size, "manifest": m})
			}
			fmt.Fprintf(
				w.Out,
				"%s\ncreated %s by %s (%s), version %s\n%d files, %d bytes, packed into %d\n\n",
				e.Name,
				m.Created.Local().Format("2006-01-02 15:04"),
				orDash(m.Host.Name),
				m.Host.ID,
				m.Version,
				len(m.Files),
				m.Bytes(),
				e.Size,
			)
			t := tabwriter.NewWriter(w.Out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "FILE\tBYTES\tMODIFIED")
			for _, f := range m.Files {
				fmt.Fprintf(
					t,
					"%s/%s\t%d\t%s\n",
					f.Folder,
					printable(f.Path),
					f.Size,
					f.Modified.Local().Format("2006-01-02 15:04"),
				)
			}
			return t.Flush()
		},
	}
	keys.register(c.Flags())
	c.Flags().
		StringVar(&keys.identity, "identity", "",
			"`file` with the private key of age, for what was encrypted to its public one")
	c.Flags().StringVar(&name, "backup", "", "`name` of the backup (default: the newest)")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func backupRead(w Environment) *cobra.Command {
	var keys keyFlags
	var name string
	c := &cobra.Command{
		Use:   "read PATH [TARGET]",
		Short: "Write one file of a backup to standard output, or list a folder of it",
		Long: `Write one file of a backup to standard output, or list a folder of it, without
restoring anything. PATH begins with data, config, state or key, as backup info
shows it; / is the top. A backup is one encrypted stream: the command reads it
from its beginning up to the file. To read many files, mount it.`,
		Example: `  gatehouse backup read /
  gatehouse backup read config/gatehouse.yaml > gatehouse.yaml`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("%s requires a path; / lists the top", c.CommandPath())
			}
			return oneTarget(c, args[1:])
		},
		RunE: func(c *cobra.Command, args []string) error {
			v, k, err := keys.openBackups(w)
			if err != nil {
				return err
			}
			target, path := firstArgument(args[1:]), strings.Trim(args[0], "/")
			e, m, err := v.backups.Info(c.Context(), target, name, k)
			if err != nil {
				return asMistake(err)
			}
			if list := m.Folder(path); path == "" || len(list) > 0 {
				slices.SortFunc(list, func(a, b backup.Below) int { return strings.Compare(a.Name, b.Name) })
				t := tabwriter.NewWriter(w.Out, 0, 0, 2, ' ', 0)
				for _, b := range list {
					fmt.Fprintf(t, "%s\t%d\n", printable(b.Name), b.Size)
				}
				return t.Flush()
			}
			err = v.backups.ReadFile(
				c.Context(),
				target,
				e.Name,
				path,
				k,
				func(_ backup.Entry, _ backup.File, content io.Reader) error {
					_, err := io.Copy(w.Out, content)
					return err
				},
			)
			if errors.Is(err, backup.ErrNoFile) {
				return usagef("%v; gatehouse backup read / lists its top", err)
			}
			return asMistake(err)
		},
	}
	keys.register(c.Flags())
	c.Flags().
		StringVar(&keys.identity, "identity", "",
			"`file` with the private key of age, for what was encrypted to its public one")
	c.Flags().StringVar(&name, "backup", "", "`name` of the backup (default: the newest)")
	return c
}

func backupRestore(w Environment) *cobra.Command {
	var keys keyFlags
	var name string
	var packages []string
	c := &cobra.Command{
		Use:   "restore [TARGET]",
		Short: "Restore a backup",
		Long: `Restore a backup. It replaces all data of this user's hosts; each folder keeps its
previous content in .before-restore until the next restore. While a host is
running the restore waits, and takes effect when a host starts while no other
runs. With --package only those packages are restored, and everything else stays
unchanged; a running host restores them within seconds.`,
		Example: `  gatehouse backup restore
  gatehouse backup restore /mnt/disk --ask < password
  gatehouse backup restore --package memory`,
		Args: oneTarget,
		RunE: func(c *cobra.Command, args []string) error {
			v, k, err := keys.openBackups(w)
			if err != nil {
				return err
			}
			hold, err := v.backups.Reserve()
			if err != nil {
				return err
			}
			defer hold.Release()
			e, m, err := hold.Restore(c.Context(), firstArgument(args), name, packages, k, v.progress())
			if err != nil {
				return asMistake(err)
			}
			done, leave, err := backup.Enter(app.BackedUp(v.cfg), slog.New(slog.DiscardHandler))
			if err != nil {
				return err
			}
			leave()
			if done == nil {
				next := "Stop all hosts and start one"
				if len(packages) > 0 || m.OfPackages() {
					next = "The host that runs the packages restores them within seconds"
				}
				fmt.Fprintf(w.Err, "[gatehouse] %s is unpacked and waits because a host is running. %s\n", e.Name, next)
				return writeDown(w, changed{"config.restore_staged", named(e.Name)})
			}
			fmt.Fprintf(
				w.Err,
				"[gatehouse] Restored %s with %d files; the previous content is in .before-restore\n",
				e.Name,
				done.Files,
			)
			return writeDown(w, changed{"config.restored", named(e.Name)})
		},
	}
	keys.register(c.Flags())
	c.Flags().
		StringVar(&keys.identity, "identity", "",
			"`file` with the private key of age, for what was encrypted to its public one")
	c.Flags().StringVar(&name, "backup", "", "`name` of the backup (default: the newest)")
	c.Flags().StringSliceVar(&packages, "package", nil, "restore only the package with this `id`; can be repeated")
	return c
}

func backupCancel(w Environment) *cobra.Command {
	return &cobra.Command{
		Use:     "cancel",
		Short:   "Cancel a restore that waits",
		Example: `  gatehouse backup cancel`,
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			v, err := openVault(w)
			if err != nil {
				return err
			}
			waiting, err := backup.Waiting(app.BackedUp(v.cfg))
			if err != nil {
				return err
			}
			if waiting == nil {
				fmt.Fprintln(w.Err, "[gatehouse] No restore waits")
				return nil
			}
			if err := backup.Cancel(app.BackedUp(v.cfg)); err != nil {
				return err
			}
			fmt.Fprintf(w.Err, "[gatehouse] The restore of %s is cancelled\n", waiting.Backup)
			return writeDown(w, changed{"config.restore_cancelled", named(waiting.Backup)})
		},
	}
}

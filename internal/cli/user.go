package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/files/sqlfile"
	"gatehouse/internal/modules/administration"
)

// openUsers opens the file of users that hosts on this machine read. Running hosts apply changes within a second.
func openUsers(w Environment, onEvent func(identity.Event)) (*identity.Service, error) {
	cfg, err := config.FromEnv(w.Getenv)
	if err != nil {
		return nil, &usageError{err}
	}
	o := identity.Options{
		OnEvent: onEvent, Known: app.KnownUsers(cfg.Folders), Log: logger(w.Err, cfg, new(slog.LevelVar)),
	}
	if _, err := os.Stat(app.ClusterFolder(cfg.Folders.Data)); err == nil { // this machine is, or was, a node
		o.Replicate = func(file *sqlfile.File, applied func() error) error {
			_, err := app.Replicated(context.Background(), cfg.Folders, "identity", file, applied)
			return err // the connection ends with this process
		}
	}
	return identity.Open(identityFile(cfg.Folders), o)
}

// identityFile returns the path of the file in which a host stores its users.
func identityFile(f config.Folders) string { return filepath.Join(f.Data, "identity.db") }

// withUsers opens the file of users, runs f with it, and records in the ledger what f changes.
func withUsers(w Environment, f func(*identity.Service) error) error {
	var saw auditTrail
	s, err := openUsers(w, saw.record)
	if err != nil {
		return err
	}
	return errors.Join(f(s), s.Close(), writeDown(w, saw.seen...))
}

func user(w Environment) *cobra.Command {
	c := &cobra.Command{
		Use:   "user",
		Short: "Add and remove the users of this host",
		Long: `Add and remove the users of this host, which are people or programs.

Once there has been a user, callers on this machine need credentials as well:
the local token that the host prints, a token of a user, or a login.
Running hosts apply every change within a second.`,
		Example: `  gatehouse user add alice --role admin
  gatehouse user list
  gatehouse user remove alice`,
		Args: knownCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },

		SuggestionsMinimumDistance: 2,
	}
	c.AddCommand(userAdd(w), userList(w), userRemove(w), userPassword(w), userRoles(w), userLink(w), userUnlink(w))
	return c
}

// exactly requires as many arguments as there are names.
func exactly(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != len(names) {
			return usagef("%s requires %s, got %d arguments", c.CommandPath(), strings.Join(names, " "), len(args))
		}
		return nil
	}
}

func userAdd(w Environment) *cobra.Command {
	var roles []string
	var stdin, none bool
	c := &cobra.Command{
		Use: "add NAME", Aliases: []string{"create"},
		Short: "Add a user",
		Long: `Add a user. Without a flag, a strong password is generated and printed once, on
standard output. A user without a password authenticates by tokens, certificates
or an OAuth provider.`,
		Example: `  gatehouse user add alice --role admin
  gatehouse user add bob --role reader,writer --password-stdin < password
  gatehouse user add ci --no-password`,
		Args: exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			if stdin && none {
				return usagef("--password-stdin and --no-password exclude each other")
			}
			return withUsers(w, func(s *identity.Service) error {
				password, err := readPassword(w, stdin)
				if err != nil {
					return err
				}
				made, err := administration.Users{Service: s}.Add(c.Context(), administration.NewUser{
					Name: args[0], Roles: roles, Password: password, NoPassword: none,
				})
				if err != nil {
					return err
				}
				fmt.Fprintf(w.Err, "[gatehouse] Added user %s\n", args[0])
				return showMade(w, made)
			})
		},
	}
	c.Flags().StringSliceVar(&roles, "role", nil, "roles, comma-separated; admin may administer this host")
	passwordFlag(c, &stdin)
	c.Flags().BoolVar(&none, "no-password", false, "add the user without a password")
	return c
}

func passwordFlag(c *cobra.Command, stdin *bool) {
	c.Flags().BoolVar(stdin, "password-stdin", false, "read the password from the first line of standard input")
}

// readPassword reads a password, or returns "" so that one is generated.
func readPassword(w Environment, stdin bool) (string, error) {
	if !stdin {
		return "", nil
	}
	line, err := bufio.NewReader(io.LimitReader(w.In, 4096)).ReadString('\n')
	if err != nil && err != io.EOF {
		return "", fmt.Errorf("read the password: %w", err)
	}
	line = strings.TrimRight(line, "\r\n")
	if line == "" {
		return "", usagef("--password-stdin: there is no password on standard input")
	}
	return line, nil
}

// showMade prints the password that was generated for a user.
func showMade(w Environment, made administration.Made) error {
	if made.Password == "" {
		return nil
	}
	fmt.Fprintln(w.Err, "[gatehouse] Its password, which is not shown again:")
	_, err := fmt.Fprintln(w.Out, made.Password)
	return err
}

func userList(w Environment) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:     "list",
		Short:   "List the users",
		Example: "  gatehouse user list",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return withUsers(w, func(s *identity.Service) error {
				all, err := administration.Users{Service: s}.List(c.Context())
				if err != nil {
					return err
				}
				if asJSON {
					return showJSON(w.Out,
						administration.UserList{Users: orEmpty(all.Users), Links: orEmpty(all.Links)})
				}
				return printUsers(w, all.Users, all.Links)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func printUsers(w Environment, users []identity.User, links []identity.Link) error {
	if len(users) == 0 {
		fmt.Fprintln(w.Err, "[gatehouse] There are no users; add one with gatehouse user add NAME")
		return nil
	}
	t := tabwriter.NewWriter(w.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tROLES\tPASSWORD\tTOKENS\tSINCE\tALSO KNOWN AS")
	for _, u := range users {
		password := "no"
		if u.Password {
			password = "yes"
		}
		var also []string
		for _, l := range links {
			if l.User == u.Name {
				also = append(also, l.Kind+" "+printable(l.Subject))
			}
		}
		fmt.Fprintf(
			t,
			"%s\t%s\t%s\t%d\t%s\t%s\n",
			u.Name,
			dash(u.Roles),
			password,
			u.Tokens,
			u.Created.Format(time.DateOnly),
			dash(also),
		)
	}
	return t.Flush()
}

func userRemove(w Environment) *cobra.Command {
	to := ""
	c := &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a user with its tokens and logins",
		Long: `Remove a user with its tokens and logins, and end what belongs to it.

Running hosts end the user's sessions within a second, and then its processes,
terminals, port forwards, sandboxes, snapshots and jobs. They remove its kept output
and the data of file_undo. The command waits for the hosts and lists what they
ended; a host that is not running ends processes and jobs that outlived it when it
starts again.

With --to OTHER the running processes and terminals, port forwards, sandboxes, snapshots,
kept output and the records of ended jobs go to that user, in the contexts that OTHER may
use. Unfinished jobs end nevertheless, because they act with the permissions of the
removed user, and so do processes that end with a session and the data of file_undo.
The command lists what was handed over and what was ended. Files, contexts and packages
belong to the host and stay.

A later user of that name inherits nothing. A user of the operating system of that name
is the same owner: what it started through this host is ended, too. The host stays
closed to callers without credentials even if no user is left.`,
		Example: `  gatehouse user remove alice
  gatehouse user remove alice --to bob`,
		Args: exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			err := withUsers(w, func(s *identity.Service) error { // recorded in the ledger before the wait
				err := administration.Users{Service: s}.Remove(c.Context(), args[0], to)
				if errors.Is(err, identity.ErrNoHeir) {
					return fmt.Errorf("--to %s: %w; nothing was changed (gatehouse user list shows the users)",
						to, identity.ErrNoHeir)
				}
				if err != nil {
					return err
				}
				fmt.Fprintf(w.Err, "[gatehouse] Removed user %s\n", args[0])
				return nil
			})
			if err != nil {
				return err
			}
			return withUsers(w, func(s *identity.Service) error {
				e, err := s.AwaitEndings(c.Context(), args[0])
				if err != nil {
					return fmt.Errorf(
						"user %s is removed, but it is not known what the hosts that run ended: %w",
						args[0],
						err,
					)
				}
				showEndings(w.Err, args[0], to, e)
				return nil
			})
		},
	}
	c.Flags().StringVar(&to, "to", "", "`user` that receives what can be handed over")
	return c
}

// showEndings prints what running hosts have handed over to an heir, if there is one, and what they ended of a
// removed user.
func showEndings(to io.Writer, name, heir string, e identity.Endings) {
	for _, line := range e.Handed {
		fmt.Fprintf(to, "[gatehouse] Handed over to %s: %s\n", heir, printable(line))
	}
	for _, line := range e.Ended {
		fmt.Fprintf(to, "[gatehouse] Ended %s\n", printable(line))
	}
	switch {
	case e.Hosts == 0:
		fmt.Fprintf(
			to,
			"[gatehouse] No host of this data folder runs; the next one that starts ends%s what %s left running\n",
			orHandsOver(heir),
			name,
		)
	case e.Silent > 0:
		fmt.Fprintf(
			to,
			"[gatehouse] %d of %d hosts are still ending what belonged to %s; gatehouse audit shows the rest\n",
			e.Silent,
			e.Hosts,
			name,
		)
	case len(e.Ended)+len(e.Handed) == 0:
		fmt.Fprintf(to, "[gatehouse] Nothing of %s was running\n", name)
	}
}

func orHandsOver(heir string) string {
	if heir == "" {
		return ""
	}
	return ", or hands over to " + heir + ","
}

func userPassword(w Environment) *cobra.Command {
	var stdin bool
	c := &cobra.Command{
		Use:   "password NAME",
		Short: "Give a user a new password",
		Long: `Give a user a new password. Without --password-stdin a strong one is generated and
printed once, on standard output. The user's logins end; tokens stay valid.`,
		Example: `  gatehouse user password alice
  gatehouse user password alice --password-stdin < password`,
		Args: exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			return withUsers(w, func(s *identity.Service) error {
				password, err := readPassword(w, stdin)
				if err != nil {
					return err
				}
				made, err := administration.Users{Service: s}.SetPassword(c.Context(), args[0], password)
				if err != nil {
					return err
				}
				fmt.Fprintf(w.Err, "[gatehouse] User %s has a new password\n", args[0])
				return showMade(w, made)
			})
		},
	}
	passwordFlag(c, &stdin)
	return c
}

func userRoles(w Environment) *cobra.Command {
	return &cobra.Command{
		Use:   "roles NAME [ROLE,...]",
		Short: "Set a user's roles",
		Long: `Set a user's roles to these and no others; without any, the user has none. The
user's sessions end; new ones have the new roles.`,
		Example: `  gatehouse user roles alice admin,writer
  gatehouse user roles alice`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("%s requires NAME and roles", c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			var roles []string
			for _, a := range args[1:] {
				roles = append(roles, strings.FieldsFunc(a, func(r rune) bool { return r == ',' })...)
			}
			return withUsers(w, func(s *identity.Service) error {
				if _, err := (administration.Users{Service: s}).SetRoles(c.Context(), args[0], roles); err != nil {
					return err
				}
				fmt.Fprintf(w.Err, "[gatehouse] Roles of user %s: %s\n", args[0], dash(roles))
				return nil
			})
		},
	}
}

func userLink(w Environment) *cobra.Command {
	return &cobra.Command{
		Use:   "link NAME certificate|oauth SUBJECT",
		Short: "Link a certificate or an OAuth subject to a user",
		Long: `Link a client certificate or a subject of the OAuth provider to a user, so that
it authenticates that user. A certificate is named by sha256:HEX, uri:URI,
email:ADDRESS, dns:NAME or cn:NAME; the most exact link decides. Without a link, a
certificate authenticates the user whose name is its common name or one of its
DNS names.`,
		Example: `  gatehouse user link alice certificate email:alice@example.com
  gatehouse user link alice oauth 248289761001`,
		Args: exactly("NAME", "certificate|oauth", "SUBJECT"),
		RunE: func(c *cobra.Command, args []string) error {
			return withUsers(
				w,
				func(s *identity.Service) error { return s.Link(c.Context(), args[1], args[2], args[0]) },
			)
		},
	}
}

func userUnlink(w Environment) *cobra.Command {
	return &cobra.Command{
		Use:     "unlink certificate|oauth SUBJECT",
		Short:   "Remove a link",
		Example: "  gatehouse user unlink certificate email:alice@example.com",
		Args:    exactly("certificate|oauth", "SUBJECT"),
		RunE: func(c *cobra.Command, args []string) error {
			return withUsers(w, func(s *identity.Service) error { return s.Unlink(c.Context(), args[0], args[1]) })
		},
	}
}

// dash returns "-" for an empty list.
func dash(list []string) string {
	if len(list) == 0 {
		return "-"
	}
	return strings.Join(list, ",")
}

// orEmpty returns an empty list for nil, because JSON would show null.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func showJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

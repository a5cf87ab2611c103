package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/app"
	"gatehouse/internal/modules/administration"
)

func secrets(w Environment) *cobra.Command {
	c := &cobra.Command{
		Use:   "secret",
		Short: "Store secrets for programs that run in contexts",
		Long: `Store secrets for programs that run in contexts. They are encrypted in the config
folder, in secrets.age; the key is in secrets.key beside it, or in the file
that GATEHOUSE_SECRET_KEY_FILE names. A context refers to a secret by its name, as
${secret:NAME} in its env. No command prints the value of a secret.`,
		Example: `  gatehouse secret set GITHUB_TOKEN < token
  gatehouse secret list
  gatehouse secret remove GITHUB_TOKEN
  gatehouse secret rotate`,
		Args: knownCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(secretSet(w), secretList(w), secretRemove(w), secretRotate(w))
	return c
}

// secretStore opens the secret store of this user. A mistake in the settings matters only if they might name
// another key than the default; the stored secrets then cannot be decrypted, and the store reports that.
func secretStore(w Environment) (*secret.Store, error) {
	l, err := readSettings(w)
	if err != nil {
		return nil, err
	}
	return app.SecretStore(l.Folders, l.Secrets.KeyFile), nil
}

func secretSet(w Environment) *cobra.Command {
	return &cobra.Command{
		Use:   "set NAME",
		Short: "Store the value on standard input under a name",
		Long: `Store the value on standard input under a name, without the line break at its
end. A secret of that name is replaced. At a terminal the command asks for the
value and does not echo it.`,
		Example: `  gatehouse secret set GITHUB_TOKEN < token
  pass show work/mail | gatehouse secret set MAIL`,
		Args: oneName,
		RunE: func(c *cobra.Command, args []string) error {
			s, err := secretStore(w)
			if err != nil {
				return err
			}
			if err := secret.CheckName(args[0]); err != nil {
				return &usageError{err}
			}
			value, err := readSecret(w, args[0])
			if err != nil {
				return err
			}
			if err := (administration.Secrets{Store: s}).Set(args[0], value); err != nil {
				return err
			}
			fmt.Fprintf(w.Err, "[gatehouse] Stored secret %s\n", args[0])
			return writeDown(w, changed{"secret.set", named(args[0])})
		},
	}
}

func oneName(c *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("%s requires the name of one secret", c.CommandPath())
	}
	return nil
}

// readSecret reads a value from a pipe, or asks for it.
func readSecret(w Environment, name string) (secret.Text, error) {
	if f, ok := w.In.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		fmt.Fprintf(w.Err, "Value of %s, not shown: ", name)
		b, err := term.ReadPassword(int(f.Fd()))
		fmt.Fprintln(w.Err)
		return secret.New(string(b)), err
	}
	b, err := io.ReadAll(io.LimitReader(w.In, secret.MaxValue+3))
	if err != nil {
		return secret.Text{}, fmt.Errorf("read the value: %w", err)
	}
	value := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	if value == "" {
		return secret.Text{}, usagef("there is no value on standard input")
	}
	return secret.New(value), nil
}

func secretList(w Environment) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:     "list",
		Short:   "List the secrets by name, without their values",
		Example: `  gatehouse secret list`,
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := secretStore(w)
			if err != nil {
				return err
			}
			list, err := administration.Secrets{Store: s}.List()
			all := list.Secrets
			switch {
			case err != nil:
				return err
			case asJSON:
				return showJSON(w.Out, administration.SecretList{Secrets: orEmpty(all)})
			case len(all) == 0:
				fmt.Fprintln(w.Err, "[gatehouse] There are no secrets")
				return nil
			}
			t := tabwriter.NewWriter(w.Out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "NAME\tSET")
			for _, e := range all {
				fmt.Fprintf(t, "%s\t%s\n", e.Name, e.Set.Local().Format("2006-01-02 15:04"))
			}
			return t.Flush()
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func secretRemove(w Environment) *cobra.Command {
	return &cobra.Command{
		Use:     "remove NAME",
		Short:   "Remove a secret",
		Example: `  gatehouse secret remove GITHUB_TOKEN`,
		Args:    oneName,
		RunE: func(c *cobra.Command, args []string) error {
			s, err := secretStore(w)
			if err != nil {
				return err
			}
			if err := (administration.Secrets{Store: s}).Remove(args[0]); errors.Is(err, secret.ErrNotFound) {
				return fmt.Errorf("%w; gatehouse secret list lists the secrets", err)
			} else if err != nil {
				return err
			}
			fmt.Fprintf(w.Err, "[gatehouse] Removed secret %s\n", args[0])
			return writeDown(w, changed{"secret.removed", named(args[0])})
		},
	}
}

func secretRotate(w Environment) *cobra.Command {
	return &cobra.Command{
		Use:   "rotate",
		Short: "Encrypt the secrets with a new key",
		Long: `Make a new key, and encrypt the secrets and the logins of packages with it. The
file of the key keeps the seven keys before it, which only decrypt, so that running
hosts, backups and what others have encrypted to the earlier public key stay readable.
In a cluster all nodes get the key, and nodes make a new one every 90 days.`,
		Example: `  gatehouse secret rotate`,
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			l, err := readSettings(w)
			if err != nil {
				return err
			}
			if err := app.RotateSecrets(l.Folders, l.Secrets.KeyFile); err != nil {
				return err
			}
			fmt.Fprintln(w.Err, "[gatehouse] The secrets are encrypted with a new key")
			return writeDown(w, changed{"secret.rotated", named("")})
		},
	}
}

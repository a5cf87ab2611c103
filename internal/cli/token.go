package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/modules/administration"
)

func token(w Environment) *cobra.Command {
	c := &cobra.Command{
		Use:   "token",
		Short: "Create and revoke tokens, for programs that act for a user",
		Long: `Create and revoke tokens, for programs that act for a user. They are sent as
"Authorization: Bearer" or "X-API-Key"; on TCP in _meta, as gatehouse/token.
Running hosts apply every change within a second.`,
		Example: `  gatehouse token create --user alice --name laptop
  gatehouse token list`,
		Args: knownCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },

		SuggestionsMinimumDistance: 2,
	}
	c.AddCommand(tokenCreate(w), tokenList(w), tokenRevoke(w))
	return c
}

func tokenCreate(w Environment) *cobra.Command {
	var t administration.NewToken
	var anyway bool
	c := &cobra.Command{
		Use:   "create",
		Short: "Create a token and print it once",
		Long: `Create a token and print it once, on standard output. Without --user it belongs to
the only user. A token can be bound to a context, and restricted to a part of its
user's permissions: * or read, or tools:, resources: and prompts: with a pattern.`,
		Example: `  gatehouse token create --user alice --name laptop
  gatehouse token create --user ci --context build --scope read,tools:file_* --expires 30d`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			known := func(name string) error { return knownContext(w, name, anyway) }
			return withUsers(w, func(s *identity.Service) error {
				return createToken(c.Context(), w, administration.Tokens{Service: s, CheckContext: known}, t)
			})
		},
	}
	c.Flags().StringVar(&t.User, "user", "", "the user the token belongs to")
	c.Flags().StringVar(&t.Context, "context", "", "named view the token is bound to")
	c.Flags().
		BoolVar(&anyway, "any-context", false,
			"create it even if no such context is known here, because a host with other settings has it")
	c.Flags().
		StringSliceVar(&t.Scopes, "scope", nil,
			"what the token permits, comma-separated; metrics is for /metrics alone (default: "+
				"all permissions of its user)")
	c.Flags().
		StringVar(&t.Expires, "expires", administration.TokenExpiry,
			"how long it is valid, such as 12h, 30d, 8w or never")
	c.Flags().
		BoolVar(&t.Unattended, "unattended", false,
			"for a program that no person is beside: what it changes waits for a review (stage.unattended)")
	c.Flags().StringVar(&t.Name, "name", "", "a name to recognize it by")
	return c
}

// knownContext refuses a context that no host with these settings has, because a token that is bound to it would
// permit nothing. The contexts of a host depend on its modules, so each module counts as one that has its own
// context.
func knownContext(w Environment, name string, anyway bool) error {
	if name == "" || anyway {
		return nil
	}
	l, err := config.Load(w.Getenv, "")
	var names []string
	if err == nil {
		names, err = app.ContextNames(l.Config)
	}
	if err != nil {
		fmt.Fprintf(w.Err, "[gatehouse] Cannot check whether there is a context %s: %v\n", name, err)
		return nil
	}
	if slices.Contains(names, name) || len(l.Contexts) == 0 && app.ReservedContext(name) {
		return nil
	}
	return fmt.Errorf("there is no context %q; expected one of %s. Create one with gatehouse context create %s, "+
		"or use --any-context if a host with other settings has it", name, strings.Join(names, ", "), name)
}

func createToken(ctx context.Context, w Environment, all administration.Tokens, t administration.NewToken) error {
	made, err := all.Create(ctx, t, time.Now())
	if invalid, ok := errors.AsType[*administration.Invalid](err); ok {
		return usagef("--%s", strings.Replace(invalid.Error(), "scopes: ", "scope: ", 1))
	}
	if err != nil {
		return err
	}
	until := "never expires"
	if !made.Token.Until.IsZero() {
		until = "expires " + made.Token.Until.Format(time.RFC3339)
	}
	fmt.Fprintf(w.Err, "[gatehouse] Token %s of user %s, %s. It is not shown again:\n", made.Token.ID, made.Token.User,
		until)
	_, err = fmt.Fprintln(w.Out, made.Secret)
	return err
}

func tokenList(w Environment) *cobra.Command {
	var user string
	var asJSON bool
	c := &cobra.Command{
		Use:     "list",
		Short:   "List the tokens, without their secrets",
		Example: "  gatehouse token list --user alice",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return withUsers(w, func(s *identity.Service) error {
				all, err := administration.Tokens{Service: s}.List(c.Context(), user)
				if err != nil {
					return err
				}
				if asJSON {
					return showJSON(w.Out, administration.TokenList{Tokens: orEmpty(all.Tokens)})
				}
				return printTokens(w, all.Tokens)
			})
		},
	}
	c.Flags().StringVar(&user, "user", "", "only those of this user")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func printTokens(w Environment, all []identity.Token) error {
	if len(all) == 0 {
		fmt.Fprintln(w.Err, "[gatehouse] There are no tokens")
		return nil
	}
	t := tabwriter.NewWriter(w.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tUSER\tNAME\tCONTEXT\tSCOPES\tEXPIRES\tLAST USED")
	for _, k := range all {
		fmt.Fprintf(
			t,
			"%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			k.ID,
			k.User,
			orDash(k.Name),
			orDash(k.Context),
			dash(k.Scopes),
			day(k.Until),
			day(k.Used),
		)
	}
	return t.Flush()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return printable(s)
}

func day(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.Format("2006-01-02 15:04")
}

func tokenRevoke(w Environment) *cobra.Command {
	return &cobra.Command{
		Use:     "revoke ID...",
		Short:   "Revoke tokens and end what was opened with them",
		Example: "  gatehouse token revoke t_abcdefghijklmnop",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("%s requires the ID of a token, as gatehouse token list shows it", c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			return withUsers(w, func(s *identity.Service) error {
				for _, id := range args {
					if err := (administration.Tokens{Service: s}).Revoke(c.Context(), id); err != nil {
						return err
					}
					fmt.Fprintf(w.Err, "[gatehouse] Revoked token %s\n", id)
				}
				return nil
			})
		},
	}
}

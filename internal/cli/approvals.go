package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	osuser "os/user"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"gatehouse/internal/access/approvals"
	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/files/sqlfile"
)

func approving(w Environment) *cobra.Command {
	var all, asJSON bool
	c := &cobra.Command{
		Use:   "approvals",
		Short: "Approve or deny calls that wait for an operator",
		Long: `Approve or deny calls that wait for an operator, because a rule says
"then: ask-operator". Without a command, list the calls that wait. The hosts of
this user on this machine receive a decision within a second. An approval holds
for that one call with those arguments, unless the rule has it remembered.`,
		Example: `  gatehouse approvals
  gatehouse approvals show ap_5KQ7
  gatehouse approvals approve ap_5KQ7
  gatehouse approvals deny ap_5KQ7 ap_M2XN`,
		Args: knownCommand,
		RunE: func(c *cobra.Command, _ []string) error {
			return withApprovals(w, func(b *approvals.Store) error { return listApprovals(w, b, all, asJSON) })
		},

		SuggestionsMinimumDistance: 2,
	}
	c.Flags().BoolVar(&all, "all", false, "list decided requests of the last day as well")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.AddCommand(approvalShow(w), decide(w, "approve", true), decide(w, "deny", false), passphrase(w))
	return c
}

// withApprovals opens the approvals of this user's hosts and runs f with them.
func withApprovals(w Environment, f func(*approvals.Store) error) error {
	cfg, err := config.FromEnv(w.Getenv)
	if err != nil {
		return &usageError{err}
	}
	b := approvals.Open(app.ApprovalsFile(cfg.Folders), approvals.Options{})
	if _, err := os.Stat(app.ClusterFolder(cfg.Folders.Data)); err == nil { // this machine is, or was, a node
		if err := b.Replicate(func(file *sqlfile.File) error {
			_, err := app.Replicated(context.Background(), cfg.Folders, "approvals", file, nil)
			return err // the connection ends with this process
		}); err != nil {
			return errors.Join(err, b.Close())
		}
	}
	return errors.Join(f(b), b.Close())
}

// passphrase sets the passphrase that every approval requires.
func passphrase(w Environment) *cobra.Command {
	return &cobra.Command{
		Use:   "passphrase",
		Short: "Set the passphrase that every approval requires",
		Long: `Set the passphrase that every approval requires if the settings contain
"approvals: {proof: passphrase}". It is read from the terminal and never stored:
the key that signs an approval is derived from it and from a file in the config
folder. Hosts read that file when they start. To change the passphrase, enter the
current one; if it is lost, remove the file.`,
		Example: "  gatehouse approvals passphrase",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			cfg, err := config.FromEnv(w.Getenv)
			if err != nil {
				return &usageError{err}
			}
			tty, err := openTerminal()
			if err != nil {
				return err
			}
			defer tty.Close()
			file := app.ProofFile(cfg.Folders)
			was, err := approvals.LoadProof(file)
			if err != nil && !errors.Is(err, approvals.ErrNoProof) {
				return err
			}
			if was != nil {
				present, err := readPassphrase(w, tty, "Present passphrase: ")
				if err == nil && !was.Knows(present) {
					err = approvals.ErrPassphrase
				}
				if err != nil {
					return err
				}
			}
			first, err := readPassphrase(w, tty, "New passphrase for approvals: ")
			if err != nil {
				return err
			}
			second, err := readPassphrase(w, tty, "Again: ")
			if err != nil {
				return err
			}
			if !bytes.Equal(first, second) {
				return errors.New("the two passphrases differ; run the command again")
			}
			p, err := approvals.NewProof(first)
			if err == nil {
				err = os.MkdirAll(filepath.Dir(file), 0o700)
			}
			if err == nil {
				err = p.Save(file)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(
				w.Err,
				"[gatehouse] Every approval requires it if approvals.proof is passphrase in the settings; "+
					"the key file is %s\n",
				file,
			)
			return writeDown(w, changed{"approval.passphrase", struct {
				By string `json:"by"`
			}{operator()}})
		},
	}
}

// confirmApproval approves one request, with the passphrase if one is set. A host that requires none accepts the
// approval as well.
func confirmApproval(
	w Environment,
	b *approvals.Store,
	r approvals.Request,
	pass *[]byte,
) (approvals.Request, string, error) {
	cfg, err := config.FromEnv(w.Getenv)
	if err != nil {
		return r, "", err
	}
	if cfg.Approvals.Proof == "passkey" {
		return r, "", errors.New("approvals need a passkey: decide on the page of the host, which gatehouse ui opens")
	}
	proof, err := approvals.LoadProof(app.ProofFile(cfg.Folders))
	if errors.Is(err, approvals.ErrNoProof) {
		r, err = b.Decide(r.ID, true, operator())
		return r, "same account", err
	}
	if err != nil {
		return r, "", err
	}
	if *pass == nil {
		tty, err := openTerminal()
		if err != nil {
			return r, "", err
		}
		defer tty.Close()
		fmt.Fprintf(
			w.Err,
			"[gatehouse] %s, for %s: %s\n",
			displaytext.Line(r.Tool),
			displaytext.Line(r.Owner),
			displaytext.Line(r.Rule),
		)
		fmt.Fprintf(w.Err, "%s\n", displaytext.Text(string(r.Args)))
		if *pass, err = readPassphrase(w, tty, "Passphrase for approvals: "); err != nil {
			return r, "", err
		}
	}
	signature, err := proof.Sign(*pass, r)
	if err != nil {
		return r, "", err
	}
	r, err = b.DecideProven(r.ID, operator(), signature)
	return r, "passphrase", err
}

func listApprovals(w Environment, b *approvals.Store, all, asJSON bool) error {
	list, err := b.Pending(all)
	if err != nil {
		return err
	}
	if asJSON {
		return showJSON(w.Out, map[string]any{"approvals": orEmpty(list)})
	}
	if len(list) == 0 {
		fmt.Fprintln(w.Err, "[gatehouse] No call waits for an operator")
		return nil
	}
	t := tabwriter.NewWriter(w.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tSTATE\tWHO\tTOOL\tLEFT\tARGUMENTS")
	for _, r := range list {
		left := "-"
		if r.State == approvals.Pending {
			left = time.Until(r.Until).Round(time.Second).String()
		}
		fmt.Fprintf(
			t,
			"%s\t%s\t%s\t%s\t%s\t%s\n",
			r.ID,
			r.State,
			printable(r.Owner),
			printable(r.Tool),
			left,
			printable(shorten(string(r.Args))),
		)
	}
	return t.Flush()
}

func approvalShow(w Environment) *cobra.Command {
	return &cobra.Command{
		Use:     "show ID",
		Short:   "Show one request with all its arguments",
		Example: "  gatehouse approvals show ap_5KQ7",
		Args:    exactly("ID"),
		RunE: func(c *cobra.Command, args []string) error {
			return withApprovals(w, func(b *approvals.Store) error {
				r, err := findApproval(b, args[0])
				if err != nil {
					return err
				}
				return showJSON(w.Out, r)
			})
		},
	}
}

func decide(w Environment, word string, yes bool) *cobra.Command {
	done := map[bool]string{true: "Approved", false: "Denied"}[yes]
	return &cobra.Command{
		Use:     word + " ID...",
		Short:   map[bool]string{true: "Let calls run", false: "Refuse calls"}[yes],
		Example: "  gatehouse approvals " + word + " ap_5KQ7",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef(
					"%s requires an ID, as gatehouse approvals shows it; its beginning is enough",
					c.CommandPath(),
				)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			return withApprovals(w, func(b *approvals.Store) error {
				var pass []byte
				for _, id := range args {
					r, err := findApproval(b, id)
					how := "same account"
					switch {
					case err != nil:
					case yes:
						r, how, err = confirmApproval(w, b, r, &pass)
					default:
						r, err = b.Decide(r.ID, false, operator())
					}
					if err != nil {
						return fmt.Errorf("approval %s: %w", id, err)
					}
					fmt.Fprintf(w.Err, "[gatehouse] %s %s for %s\n", done, printable(r.Tool), printable(r.Owner))
					if err := writeDown(w,
						changed{"approval." + strings.ToLower(done),
							decision{r.ID, r.Tool, r.Owner, operator(), how}}); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

// decision is the data that the ledger records of an approval or denial.
type decision struct {
	ID   string `json:"id"`
	Tool string `json:"tool"`
	For  string `json:"for"`
	By   string `json:"by"`
	// Proof is how the operator was identified: by the passphrase, or only because the command ran as the host's
	// user, which any program of that user can do.
	Proof string `json:"proof"`
}

// findApproval returns the one request whose id has this prefix, preferring requests that wait.
func findApproval(b *approvals.Store, id string) (approvals.Request, error) {
	list, err := b.Pending(true)
	if err != nil {
		return approvals.Request{}, err
	}
	var waiting, all []approvals.Request
	for _, r := range list {
		switch {
		case r.ID == id:
			return r, nil
		case !strings.HasPrefix(r.ID, id):
		case r.State == approvals.Pending:
			waiting = append(waiting, r)
			fallthrough
		default:
			all = append(all, r)
		}
	}
	switch {
	case len(waiting) == 1:
		return waiting[0], nil
	case len(all) == 1:
		return all[0], nil
	case len(all) > 1:
		return approvals.Request{}, fmt.Errorf("%d requests have an ID that begins so; give more of the ID", len(all))
	}
	return approvals.Request{}, fmt.Errorf(
		"%w: gatehouse approvals --all lists those of the last day",
		approvals.ErrNotFound,
	)
}

// operator returns the name of the operator at a command line.
func operator() string {
	if u, err := osuser.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

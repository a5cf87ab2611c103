package cli

import (
	"errors"
	"fmt"
	"os"
	osuser "os/user"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"gatehouse/internal/app"
	"gatehouse/internal/approvals"
	"gatehouse/internal/config"
)

func approving(w World) *cobra.Command {
	var all, asJSON bool
	c := &cobra.Command{
		Use:   "approvals",
		Short: "Say yes or no to calls that wait for an operator",
		Long: `Say yes or no to calls that wait for an operator, because a rule says
"then: ask-operator". Without a command, list what waits. The hosts of this user on
this machine hear of a decision within a second. A yes is for that one call,
with those arguments, unless the rule lets it hold for a while.`,
		Example: `  gatehouse approvals
  gatehouse approvals show ap_5KQ7
  gatehouse approvals approve ap_5KQ7
  gatehouse approvals deny ap_5KQ7 ap_M2XN`,
		Args: knownCommand,
		RunE: func(c *cobra.Command, _ []string) error {
			return withApprovals(w, func(b *approvals.Book) error { return listApprovals(w, b, all, asJSON) })
		},

		SuggestionsMinimumDistance: 2,
	}
	c.Flags().BoolVar(&all, "all", false, "those of the last day that were decided too")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.AddCommand(approvalShow(w), decide(w, "approve", true), decide(w, "deny", false))
	return c
}

// withApprovals runs f with the approvals of the hosts of this user open.
func withApprovals(w World, f func(*approvals.Book) error) error {
	cfg, err := config.FromEnv(w.Getenv)
	if err != nil {
		return &usageError{err}
	}
	b := approvals.Open(app.ApprovalsFile(cfg.Folders), approvals.Options{})
	return errors.Join(f(b), b.Close())
}

func listApprovals(w World, b *approvals.Book, all, asJSON bool) error {
	list, err := b.Pending(all)
	if err != nil {
		return err
	}
	if asJSON {
		return showJSON(w.Out, map[string]any{"approvals": orEmpty(list)})
	}
	if len(list) == 0 {
		fmt.Fprintln(w.Err, "[gatehouse] Nothing waits for an operator")
		return nil
	}
	t := tabwriter.NewWriter(w.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tSTATE\tWHO\tTOOL\tLEFT\tARGUMENTS")
	for _, r := range list {
		left := "-"
		if r.State == approvals.Pending {
			left = time.Until(r.Until).Round(time.Second).String()
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", r.ID, r.State, printable(r.Owner), printable(r.Tool), left, printable(shorten(string(r.Args))))
	}
	return t.Flush()
}

func approvalShow(w World) *cobra.Command {
	return &cobra.Command{
		Use:     "show ID",
		Short:   "Show one request with all its arguments",
		Example: "  gatehouse approvals show ap_5KQ7",
		Args:    exactly("ID"),
		RunE: func(c *cobra.Command, args []string) error {
			return withApprovals(w, func(b *approvals.Book) error {
				r, err := findApproval(b, args[0])
				if err != nil {
					return err
				}
				return showJSON(w.Out, r)
			})
		},
	}
}

func decide(w World, word string, yes bool) *cobra.Command {
	done := map[bool]string{true: "Approved", false: "Denied"}[yes]
	return &cobra.Command{
		Use:     word + " ID...",
		Short:   map[bool]string{true: "Let calls run", false: "Refuse calls"}[yes],
		Example: "  gatehouse approvals " + word + " ap_5KQ7",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("%s wants an ID, as gatehouse approvals shows it; its beginning is enough", c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			return withApprovals(w, func(b *approvals.Book) error {
				for _, id := range args {
					r, err := findApproval(b, id)
					if err == nil {
						r, err = b.Decide(r.ID, yes, operator())
					}
					if err != nil {
						return fmt.Errorf("approval %s: %w", id, err)
					}
					fmt.Fprintf(w.Err, "[gatehouse] %s %s for %s\n", done, printable(r.Tool), printable(r.Owner))
					if err := writeDown(w, changed{"approval." + strings.ToLower(done), decision{r.ID, r.Tool, r.Owner, operator()}}); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

// decision is what the ledger keeps of a yes or no.
type decision struct {
	ID   string `json:"id"`
	Tool string `json:"tool"`
	For  string `json:"for"`
	By   string `json:"by"`
}

// findApproval finds the one request whose id begins so, first among those
// that wait.
func findApproval(b *approvals.Book, id string) (approvals.Request, error) {
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
		return approvals.Request{}, fmt.Errorf("%d requests begin so; give more of the ID", len(all))
	}
	return approvals.Request{}, fmt.Errorf("%w: gatehouse approvals --all lists those of the last day", approvals.ErrNotFound)
}

// operator is who decides at a command line.
func operator() string {
	if u, err := osuser.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

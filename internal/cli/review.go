package cli

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"gatehouse/internal/access/audit"
	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/files/stage"
	"gatehouse/internal/modules/administration"
)

func reviewing(w Environment) *cobra.Command {
	var all, asJSON, brief bool
	c := &cobra.Command{
		Use:   "review [TASK]",
		Short: "Review what staged calls have changed, and accept or refuse it",
		Long: `Review what staged calls have changed, and accept or refuse it. Calls are
staged if a rule says "then: stage", or their context "stage: true": they run in
a view of the folders that has their changes, and the folders stay as they are.
Without a task, list those that wait; with one, show its files as a diff with
modes and links, and what it ran. The beginning of an ID is enough.`,
		Example: `  gatehouse review
  gatehouse review st_5kq7
  gatehouse review accept st_5kq7 src/main.go docs
  gatehouse review refuse st_5kq7
  gatehouse undo --task st_5kq7`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 1 && !strings.HasPrefix(args[0], "st_") {
				return knownCommand(c, args)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			return withReviews(w, func(r administration.Reviews) error {
				if len(args) == 0 {
					return listTasks(w, r, all, asJSON)
				}
				most := mostShown
				if asJSON {
					most = 0
				}
				shown, err := r.Show(c.Context(), args[0], most)
				if err != nil {
					return err
				}
				if asJSON {
					return showJSON(w.Out, shown)
				}
				return showReview(w, shown, brief)
			})
		},
		SuggestionsMinimumDistance: 2,
	}
	c.Flags().BoolVar(&all, "all", false, "list tasks that were accepted, refused or expired as well")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&brief, "brief", false, "show no diffs")
	c.AddCommand(reviewAccept(w), reviewRefuse(w))
	return c
}

// withReviews opens the tasks and the ledger of this user's hosts and runs f with them.
func withReviews(w Environment, f func(administration.Reviews) error) error {
	cfg, err := config.FromEnv(w.Getenv)
	if err != nil {
		return &usageError{err}
	}
	r := administration.Reviews{Tasks: stage.New(stage.Options{Dir: app.StageFolder(cfg.Folders)})}
	return withLedger(w, func(l *audit.Ledger) error {
		r.Ledger = l
		return f(r)
	})
}

func listTasks(w Environment, r administration.Reviews, all, asJSON bool) error {
	list, err := r.List(all)
	if err != nil {
		return err
	}
	if asJSON {
		return showJSON(w.Out, map[string]any{"tasks": orEmpty(list.Tasks)})
	}
	if len(list.Tasks) == 0 {
		fmt.Fprintln(w.Err, "[gatehouse] No task waits for a review")
		return nil
	}
	t := tabwriter.NewWriter(w.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tSTATE\tWHO\tCLIENT\tLAST CALL\tEXPIRES IN\tFOLDERS")
	for _, x := range list.Tasks {
		var folders []string
		for _, l := range x.Layers {
			folders = append(folders, l.Lower)
		}
		left := "-"
		if x.State == stage.Open {
			left = time.Until(x.Expires).Round(time.Hour).String()
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", x.ID, x.State, printable(x.Principal+"/"+x.Context),
			printable(x.Client), x.Used.Format(time.DateTime), left, printable(strings.Join(folders, ", ")))
	}
	return t.Flush()
}

// mostShown is how many changes are printed, unless as JSON.
const mostShown = 10_000

// showReview prints what a task did.
func showReview(w Environment, r administration.Review, brief bool) error {
	fmt.Fprintf(w.Out, "task %s of %s, %s, changes %s\n", r.Task.ID, printable(r.Task.Principal+"/"+r.Task.Context),
		r.Task.State, r.ETag)
	for i, c := range r.Changes {
		if c.Group != "" {
			if i == 0 || r.Changes[i-1].Group != c.Group {
				fmt.Fprintf(w.Out, "%-8s %s  (%s)\n", c.Kind, printable(c.Group), objects(r.Changes[i:], c.Group))
			}
			continue
		}
		fmt.Fprintf(w.Out, "%-8s %s", c.Kind, printable(c.Path))
		if c.Modes != "" {
			fmt.Fprintf(w.Out, "  (%s)", printable(c.Modes))
		}
		if c.Linked != "" {
			fmt.Fprintf(w.Out, "  (the same file as %s)", printable(c.Linked))
		}
		if c.Conflict != "" {
			fmt.Fprintf(w.Out, "  CONFLICT: %s", printable(c.Conflict))
		}
		fmt.Fprintln(w.Out)
		if c.Diff != "" && !brief {
			for line := range strings.SplitSeq(c.Diff, "\n") {
				fmt.Fprintln(w.Out, "    "+displaytext.Text(line))
			}
		}
	}
	if r.Omitted > 0 {
		fmt.Fprintf(w.Out, "and %d more changes; --json lists them\n", r.Omitted)
	}
	for _, group := range []struct {
		word string
		all  []administration.Did
	}{{"program", r.Programs}, {"host", r.Hosts}, {"secret", r.Secrets}, {"package", r.Packages}} {
		for _, d := range group.all {
			note := ""
			if d.Direct {
				note += "  (not staged)"
			}
			if d.Denied {
				note += "  (refused)"
			}
			fmt.Fprintf(w.Out, "%-8s %s%s\n", group.word, printable(shorten(d.Name)), note)
		}
	}
	if r.Note != "" {
		fmt.Fprintf(w.Out, "note: %s\n", printable(r.Note))
	}
	for _, c := range r.Calls {
		fmt.Fprintf(w.Out, "ran      %s  %s %s  %s\n", c.At.Local().Format(time.TimeOnly), printable(c.Kind+" "+c.Tool),
			printable(shorten(string(c.Args))), printable(c.Outcome))
	}
	for _, a := range r.Accepted {
		showOutcome(w, "accepted", a)
	}
	for _, a := range r.Undone {
		showOutcome(w, "undone", a)
	}
	return nil
}

// objects counts the changes at the start of a list that git made together.
func objects(of []administration.Shown, group string) string {
	n := slices.IndexFunc(of, func(c administration.Shown) bool { return c.Group != group })
	if n < 0 {
		n = len(of)
	}
	return fmt.Sprintf("%d files and folders of git objects; --json lists them", n)
}

func showOutcome(w Environment, word string, r stage.Result) {
	fmt.Fprintf(w.Out, "%s %d names by %s at %s\n", word, len(r.Done), printable(r.By), r.At.Local().Format(time.DateTime))
	if r.Note != "" {
		fmt.Fprintf(w.Out, "  note: %s\n", printable(r.Note))
	}
	for _, b := range r.Conflict {
		fmt.Fprintf(w.Out, "  CONFLICT %s: %s\n", printable(b.Path), printable(b.Why))
	}
}

// reviewDecision is the data that the ledger records of a decision.
type reviewDecision struct {
	Task      string `json:"task"`
	By        string `json:"by"`
	Files     int    `json:"files"`
	Conflicts int    `json:"conflicts"`
}

func reviewAccept(w Environment) *cobra.Command {
	var etag, branch string
	var commit bool
	c := &cobra.Command{
		Use:   "accept TASK [PATH...]",
		Short: "Copy changes of a task to the folders",
		Long: `Copy changes of a task to the folders: all, or those at or below the paths,
which start in the first folder of the task unless they are absolute. Files that
were changed in the folder after the task had changed them are left alone and
shown as conflicts. With --branch, the folders stay as they are, and the changes
become a commit on a new branch of the git repository that a folder is. With
--commit, what is accepted, and nothing else, also becomes a commit on its
present branch.`,
		Example: `  gatehouse review accept st_5kq7
  gatehouse review accept st_5kq7 src/main.go docs
  gatehouse review accept st_5kq7 --branch agent/fix
  gatehouse review accept st_5kq7 --commit`,
		Args: atLeast(1, "TASK"),
		RunE: func(c *cobra.Command, args []string) error {
			return withReviews(w, func(r administration.Reviews) error {
				t, err := r.Tasks.Find(args[0])
				if err != nil {
					return err
				}
				choice := stage.Choice{Paths: args[1:], ETag: etag, By: operator()}
				var res stage.Result
				switch {
				case branch != "" && commit:
					return usagef("--branch and --commit exclude each other: a new branch, or the present one")
				case commit:
					res, err = r.Tasks.AcceptCommit(c.Context(), t.ID, choice)
				case branch != "":
					res, err = r.Tasks.AcceptBranch(c.Context(), t.ID, branch, choice)
				default:
					res, err = r.Tasks.Accept(t.ID, choice)
				}
				if err != nil {
					return err
				}
				showOutcome(w, "accepted", res)
				return writeDown(w, changed{"task.accepted", reviewDecision{t.ID, operator(), len(res.Done), len(res.Conflict)}})
			})
		},
	}
	c.Flags().StringVar(&etag, "etag", "", "accept only if the changes are still those that were shown with this tag")
	c.Flags().BoolVar(&commit, "commit", false, "also commit them to the present branch of the git repository")
	c.Flags().StringVar(&branch, "branch", "", "commit the changes to a new branch of this name instead")
	return c
}

func atLeast(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < n {
			return usagef("%s requires %s, as gatehouse review shows it; its beginning is enough", c.CommandPath(), what)
		}
		return nil
	}
}

func reviewRefuse(w Environment) *cobra.Command {
	return &cobra.Command{
		Use:     "refuse TASK...",
		Short:   "Drop what tasks have changed",
		Example: "  gatehouse review refuse st_5kq7",
		Args:    atLeast(1, "TASK"),
		RunE: func(_ *cobra.Command, args []string) error {
			return withReviews(w, func(r administration.Reviews) error {
				for _, id := range args {
					t, err := r.Tasks.Find(id)
					if err == nil {
						err = r.Tasks.Refuse(t.ID, operator())
					}
					if err != nil {
						return err
					}
					fmt.Fprintf(w.Err, "[gatehouse] Refused %s\n", t.ID)
					if err := writeDown(w, changed{"task.refused", reviewDecision{Task: t.ID, By: operator()}}); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

func undoing(w Environment) *cobra.Command {
	var task string
	c := &cobra.Command{
		Use:   "undo --task TASK",
		Short: "Take back what was accepted of a task",
		Long: `Take back what was accepted of a task. Files that were changed after they
were accepted are left alone and shown as conflicts.`,
		Example: "  gatehouse undo --task st_5kq7",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if task == "" {
				return usagef("%s requires --task, an ID that gatehouse review --all shows", c.CommandPath())
			}
			return withReviews(w, func(r administration.Reviews) error {
				t, err := r.Tasks.Find(task)
				if err != nil {
					return err
				}
				res, err := r.Tasks.Undo(t.ID, operator())
				if err != nil {
					return err
				}
				showOutcome(w, "undone", res)
				return writeDown(w, changed{"task.undone", reviewDecision{t.ID, operator(), len(res.Done), len(res.Conflict)}})
			})
		},
	}
	c.Flags().StringVar(&task, "task", "", "the task, or the beginning of its ID")
	return c
}

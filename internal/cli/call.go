package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"gatehouse/internal/mcp/client"
)

func call(w Environment) *cobra.Command {
	var t target
	var text string
	var full, noWait bool
	var operatorWait time.Duration
	c := &cobra.Command{
		Use:   "call TOOL [key=value...]",
		Short: "Call one tool",
		Long: `Call one tool and print its result: its text unchanged, or its structured
content as JSON. Without --url, --unix or --daemon the tool runs in this process,
in the folders named with -d; a tool of a package runs in the daemon if there is
one.

Arguments are key=value, converted by the tool's schema; the key of a list can be
repeated. --json gives all of them as one object; "-" reads it from standard
input. "gatehouse tools TOOL" describes a tool's arguments.

If the call continues as a job, the command waits for its end and prints its
progress to standard error. With --no-wait it prints the job's id, for
"gatehouse call job_wait". An interrupt ends the waiting; job_cancel ends the job.

A call that a rule has an operator approve waits for the decision, until the host
ends the request after an hour, or for the time of --wait. The command prints how
to decide. Then, and on an interrupt before the decision, the call is withdrawn.

Exit codes: 0 the tool succeeded, 1 the tool failed, 2 the command line is wrong,
3 no server could be reached.`,
		Example: `  gatehouse call file_read path=README.md
  gatehouse call dir_list path=. -d ~/projects
  gatehouse call file_edit --json '{"path":"a.txt","old_string":"x","new_string":"y"}'
  gatehouse call --url http://127.0.0.1:3000/mcp lang_list`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef(`which tool? "gatehouse tools" lists the tools`)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if operatorWait < 0 {
				return usagef("--wait must not be negative; 0 waits as long as the host does")
			}
			if noWait && !t.running() {
				return usagef("--no-wait needs a server that keeps running: --url, --unix or --daemon")
			}
			cl, entry, end, err := t.connectTool(c, w, args[0])
			if err != nil {
				return err
			}
			defer end()
			f := &follower{stderr: w.Err, client: cl, stays: t.running(), operator: operatorWait}
			r, err := callTool(c.Context(), w, cl, entry, args[1:], text)
			if err == nil && !noWait {
				r, err = f.follow(c.Context(), r)
			}
			if err != nil {
				return err
			}
			return printResult(w, r, full)
		},
	}
	c.Flags().SortFlags = false
	c.Flags().StringVar(&text, "json", "", "all arguments as one JSON `object`, - reads it from standard input")
	c.Flags().BoolVar(&full, "full", false, "print the whole result as JSON")
	c.Flags().BoolVar(&noWait, "no-wait", false, "print the job's id if the tool starts a job")
	c.Flags().DurationVar(&operatorWait, "wait", 0, "how long to wait for an operator's decision "+
		"(default 1h, after which the host ends the request)")
	t.register(c.Flags())
	c.ValidArgsFunction = t.toolNames(w)
	completeContext(c, w)
	completeModules(c)
	return c
}

// callTool converts the arguments by the schema of a tool, and calls it.
func callTool(
	ctx context.Context,
	w Environment,
	cl *client.Client,
	entry client.Tool,
	words []string,
	text string,
) (*client.Result, error) {
	args, err := arguments(entry.Input, words, text, w.In)
	if err != nil {
		return nil, err
	}
	r, err := cl.Call(ctx, entry, args)
	if err != nil {
		return nil, broken(err)
	}
	return r, nil
}

// printResult prints a result: all of it with full, else the part that a user needs.
func printResult(w Environment, r *client.Result, full bool) (err error) {
	switch {
	case full:
		err = printJSON(w.Out, r.Raw)
	case r.IsError:
		for _, c := range r.Content {
			printLine(w.Err, printable(c.Text))
		}
	default:
		err = showResult(w.Out, w.Err, r)
	}
	if err == nil && r.IsError {
		err = errToolFailed
	}
	return err
}

// broken distinguishes an error that the server returned, and an interrupt, from a lost connection, which counts
// as an unreachable server.
func broken(err error) error {
	_, refused := errors.AsType[*client.RPCError](err)
	if refused || errors.Is(err, context.Canceled) {
		return err
	}
	return &client.ConnectError{To: "the server", Err: fmt.Errorf("no answer: %w", err)}
}

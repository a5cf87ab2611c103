package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"gatehouse/internal/mcp/client"
)

func call(w Environment) *cobra.Command {
	var t target
	var text string
	var full, noWait bool
	c := &cobra.Command{
		Use:   "call TOOL [key=value...]",
		Short: "Call one tool",
		Long: `Call one tool and print what it gives back: its text as it is, or its
structure as JSON. Without --url, --unix or --daemon the tool runs right here, in the
folders named with -d.

Arguments are key=value, read by the tool's own schema; the key of a list can
be repeated. --json gives all of them as one object, "-" reads it from
standard input. "gatehouse tools TOOL" says what a tool takes.

What goes on as a job is followed to its end, and how far it is goes to standard
error. With --no-wait the job's name is the answer; "gatehouse call job_wait"
takes it. Interrupting ends the waiting, and job_cancel the job.

Exit codes: 0 the tool did it, 1 the tool failed, 2 the command line is wrong,
3 no server could be reached.`,
		Example: `  gatehouse call file_read path=README.md
  gatehouse call dir_list path=. -d ~/projects
  gatehouse call file_edit --json '{"path":"a.txt","old_string":"x","new_string":"y"}'
  gatehouse call --url http://127.0.0.1:3000/mcp lang_list`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef(`which tool? "gatehouse tools" lists what there is`)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if noWait && !t.running() {
				return usagef("--no-wait needs a server that goes on: --url, --unix or --daemon")
			}
			cl, end, err := t.connectTarget(c, w)
			if err != nil {
				return err
			}
			defer end()
			f := &follower{stderr: w.Err, client: cl, stays: t.running()}
			r, err := callTool(c.Context(), w, &t, cl, args[0], args[1:], text)
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
	c.Flags().BoolVar(&noWait, "no-wait", false, "answer with the job, where the tool starts one")
	t.register(c.Flags())
	c.ValidArgsFunction = t.toolNames(w)
	completeContext(c, w)
	return c
}

// callTool finds the tool, so that its schema can read the arguments, and
// calls it.
func callTool(
	ctx context.Context,
	w Environment,
	t *target,
	cl *client.Client,
	name string,
	words []string,
	text string,
) (*client.Result, error) {
	all, err := cl.Tools(ctx)
	if err != nil {
		return nil, broken(err)
	}
	entry, err := t.findTool(ctx, w, all, name)
	if err != nil {
		return nil, err
	}
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

// printResult prints a result: whole, or what people want of it.
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

// broken distinguishes a server's refusal, and giving up, from a connection that
// broke: the latter counts as no server.
func broken(err error) error {
	_, refused := errors.AsType[*client.RPCError](err)
	if refused || errors.Is(err, context.Canceled) {
		return err
	}
	return &client.ConnectError{To: "the server", Err: fmt.Errorf("no answer: %w", err)}
}

package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"gatehouse/internal/cli/client"
)

func call(w World) *cobra.Command {
	var t target
	var text string
	var full bool
	c := &cobra.Command{
		Use:   "call TOOL [key=value...]",
		Short: "Call one tool",
		Long: `Call one tool and print what it gives back: its text as it is, or its
structure as JSON. Without --url, --unix or --daemon the tool runs right here, in the
folders named with -d.

Arguments are key=value, read by the tool's own schema; the key of a list can
be repeated. --json gives all of them as one object, "-" reads it from
standard input. "gatehouse tools TOOL" says what a tool takes.

Exit codes: 0 the tool did it, 1 the tool failed, 2 the command line is wrong,
3 nobody could be reached.`,
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
			cl, end, err := t.connect(c, w)
			if err != nil {
				return err
			}
			defer end()
			return callTool(c.Context(), w, cl, args[0], args[1:], text, full)
		},
	}
	c.Flags().SortFlags = false
	c.Flags().StringVar(&text, "json", "", "all arguments as one JSON `object`, - reads it from standard input")
	c.Flags().BoolVar(&full, "full", false, "print the whole result as JSON")
	t.add(c.Flags())
	return c
}

// callTool finds the tool, so that its schema can read the arguments, calls
// it and prints the result.
func callTool(ctx context.Context, w World, cl *client.Client, name string, words []string, text string, full bool) error {
	all, err := cl.Tools(ctx)
	if err != nil {
		return broken(err)
	}
	t, err := find(all, name)
	if err != nil {
		return err
	}
	args, err := arguments(t.Input, words, text, w.In)
	if err != nil {
		return err
	}
	r, err := cl.Call(ctx, t, args)
	switch {
	case err != nil:
		return broken(err)
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

// broken tells a server's refusal, and giving up, from a connection that
// broke: the latter counts as nobody there.
func broken(err error) error {
	_, refused := errors.AsType[*client.RPCError](err)
	if refused || errors.Is(err, context.Canceled) {
		return err
	}
	return &client.ConnectError{To: "the server", Err: fmt.Errorf("no answer: %w", err)}
}

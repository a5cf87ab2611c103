package cli

import (
	"bytes"
	"encoding/json"

	"github.com/spf13/cobra"

	"gatehouse/internal/mcp/client"
)

func toolsCommand(w Environment) *cobra.Command {
	t := target{lists: true}
	var asJSON bool
	c := &cobra.Command{
		Use:   "tools [TOOL]",
		Short: "List the tools, or describe one",
		Long: `List the tools with the effect of each (reads, writes or destroys), or describe
one: its arguments, which of them are required, and an example.`,
		Example: `  gatehouse tools
  gatehouse tools file_read
  gatehouse tools --json
  gatehouse tools --url http://127.0.0.1:3000/mcp`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("expected at most one tool to describe, got %d", len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			all, err := t.fetchTools(c, w, args)
			if err != nil {
				return err
			}
			switch {
			case asJSON:
				return printEntries(w, all)
			case len(args) == 1:
				return describeTool(w.Out, all[0], sameTarget(c, &t))
			}
			return listTools(w.Out, all)
		},
	}
	c.Flags().SortFlags = false
	c.Flags().BoolVar(&asJSON, "json", false, "print the entries as the protocol lists them")
	t.register(c.Flags())
	c.ValidArgsFunction = t.toolNames(w)
	completeContext(c, w)
	completeModules(c)
	return c
}

// fetchTools returns the tools of a server, or the one with a name.
func (t *target) fetchTools(c *cobra.Command, w Environment, names []string) ([]client.Tool, error) {
	if len(names) == 1 {
		_, one, end, err := t.connectTool(c, w, names[0])
		if err != nil {
			return nil, err
		}
		end()
		return []client.Tool{one}, nil
	}
	return t.allTools(c, w)
}

// printEntries prints the list unchanged, as one JSON array.
func printEntries(w Environment, all []client.Tool) error {
	entries := make([]json.RawMessage, len(all))
	for i, t := range all {
		entries[i] = t.Raw
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(entries); err != nil {
		return err
	}
	return printJSON(w.Out, bytes.TrimSpace(b.Bytes()))
}

package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"gatehouse/internal/config"
	"gatehouse/internal/exec/acp"
	"gatehouse/internal/exec/proc"
)

func acpCommand(w Environment) *cobra.Command {
	var agent string
	c := &cobra.Command{
		Use:   "acp [--agent NAME | -- COMMAND [ARG...]]",
		Short: "Serve an agent to an editor, with this host as its MCP server",
		Long: `Serve an agent to an editor that speaks the Agent Client Protocol, such as Zed, on
standard input and output: the editor starts this command as its agent. It starts an
agent of modules.ide.agents, or COMMAND, and relays every message between both. The
agent is given this host as one more MCP server, with the folder of the session
(modules.ide.server names another one). Permissions are asked of the editor's user, and
files that are not saved are read through the editor, as without this command.`,
		Example: `  gatehouse acp
  gatehouse acp --agent claude
  gatehouse acp -- npx -y @zed-industries/claude-code-acp`,
		RunE: func(c *cobra.Command, args []string) error {
			l, err := config.Load(w.Getenv, "")
			if err != nil {
				return &usageError{err}
			}
			settings := l.Modules.IDE
			if len(args) > 0 && agent != "" {
				return usagef("--agent and a command exclude each other")
			}
			in, ok := w.In.(io.ReadCloser)
			if !ok {
				in = io.NopCloser(w.In)
			}
			if len(args) == 0 {
				if args, err = settings.AgentCommand(agent); err != nil {
					return acp.Refuse(in, w.Out, fmt.Errorf("%w; set modules.ide.agents, or give its command after --", err))
				}
			}
			return acp.Relay(c.Context(), acp.Options{
				Agent: args, In: in, Out: w.Out, Err: w.Err, Env: proc.BaseEnv(), Server: settings.ServerFor,
			})
		},
	}
	c.Flags().StringVar(&agent, "agent", "", "the agent of modules.ide.agents (default: the first)")
	return c
}

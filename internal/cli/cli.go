package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"gatehouse/internal/mcp/client"
)

// These are the exit codes.
const (
	exitOK          = 0
	exitFailed      = 1 // the tool, or the host, failed
	exitUsage       = 2 // the command line or a setting is wrong
	exitConnect     = 3 // no server answered
	exitInterrupted = 130
)

// Environment holds everything outside the process that a command uses.
type Environment struct {
	In       io.Reader
	Out, Err io.Writer
	Getenv   func(string) string
}

// usageError is a mistake on the command line, as opposed to a failure.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// errToolFailed ends a command whose tool has already said what went wrong.
var errToolFailed = errors.New("the tool failed")

// Run runs one command line and returns its exit code. It prints the error.
func Run(ctx context.Context, args []string, w Environment) int {
	root := Root(w)
	root.SetArgs(args)
	ran, err := root.ExecuteContextC(ctx)
	return exitCode(ctx, w.Err, ran, err)
}

func exitCode(ctx context.Context, stderr io.Writer, ran *cobra.Command, err error) int {
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errToolFailed), errors.Is(err, errNotWhole):
		return exitFailed
	case ctx.Err() != nil && (errors.Is(err, context.Cause(ctx)) || errors.Is(err, context.Canceled)):
		fmt.Fprintln(stderr, "gatehouse: interrupted")
		return exitInterrupted
	}
	fmt.Fprintln(stderr, "gatehouse:", strings.ReplaceAll(err.Error(), "\n", "\ngatehouse: "))
	if _, ok := errors.AsType[*usageError](err); ok {
		fmt.Fprintf(stderr, "Run \"%s --help\" for how to use it.\n", ran.CommandPath())
		return exitUsage
	}
	if _, ok := errors.AsType[*client.ConnectError](err); ok {
		return exitConnect
	}
	return exitFailed
}

// Root is the command line as a whole. It sets no template of cobra's, because
// package text/template finds methods by name, and a program that does so is
// linked with every exported method of its types: 5 MB of them.
func Root(w Environment) *cobra.Command {
	printVersion := false
	root := &cobra.Command{
		Use:   "gatehouse",
		Short: "Gives AI agents their tools over the Model Context Protocol",
		Long: `Gatehouse gives MCP clients tools for files, commands, sandboxes and other MCP
servers. It serves the folders that you name over standard input and output,
HTTP, TCP or a Unix socket.`,
		Example: `  gatehouse setup                          # connects the MCP clients of this machine
  gatehouse serve -d ~/projects            # stdio, for MCP clients
  gatehouse serve --http                   # http://127.0.0.1:3000/mcp
  gatehouse tools                          # lists the tools
  gatehouse call file_read path=README.md  # calls a tool`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          knownCommand,
		RunE: func(c *cobra.Command, _ []string) error {
			if printVersion {
				_, err := fmt.Fprint(c.OutOrStdout(), versionText())
				return err
			}
			if firstStart(w) {
				return runSetup(w)
			}
			return c.Help()
		},

		SuggestionsMinimumDistance: 2,
	}
	root.SetIn(w.In)
	root.SetOut(w.Out)
	root.SetErr(w.Err)
	root.SetFlagErrorFunc(flagMistake)
	root.Flags().BoolVarP(&printVersion, "version", "v", false, "version for gatehouse")
	root.AddCommand(
		serveCommand(w),
		runCommand(w),
		daemonCommand(w),
		stdioCommand(w),
		acpCommand(w),
		connectCommand(w),
		setupCommand(w),
		importCommand(w),
		call(w),
		toolsCommand(w),
		packageCommand(w),
		packageSearch(w),
		packagePick(w),
		version(),
		uiCommand(w),
		doctor(w),
		pageBrowser(w),
		user(w),
		token(w),
		contextCommand(w),
		secrets(w), clusterCommand(w),
		backups(w),
		updating(w),
		auditing(w),
		approving(w),
		reviewing(w),
		undoing(w),
		configCommand(w),
		shellCommand(w),
	)
	return root
}

// knownCommand refuses the words that are no command, and guesses.
func knownCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		return usagef("unknown command %q; did you mean %s?", args[0], strings.Join(near, " or "))
	}
	return usagef("unknown command %q", args[0])
}

// noArgs is for commands that take flags only.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s takes no arguments, got %q", c.Name(), args[0])
	}
	return nil
}

package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"gatehouse/internal/mcp/client"
	"gatehouse/internal/packages"
)

func packageWhy(w Environment) *cobra.Command {
	var p packageFlags
	c := &cobra.Command{
		Use:   "why NAME [TOOL]",
		Short: "Say where a package comes from, who agreed to it, and why its tools are offered or not",
		Example: `  gatehouse package why memory
  gatehouse package why memory memory_read_graph`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usagef("%s requires NAME, and at most one TOOL", c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			in := map[string]any{"id": args[0]}
			if len(args) > 1 {
				in["tool"] = args[1]
			}
			type why struct {
				ID, Source, Version, Digest, Installed, By, Previous string
				Declared                                             string `json:"declared_by"`
				May                                                  []string
				Tools                                                []struct {
					Kind, Name, State, Reason,
					By, At string
				}
			}
			return callOnce(&p, c, w, "package_why", in, func(out why) error {
				t := tabwriter.NewWriter(w.Out, 0, 0, 2, ' ', 0)
				row := func(name, value string) {
					if value != "" {
						fmt.Fprintf(t, "%s\t%s\n", name, printable(value))
					}
				}
				row("from", strings.TrimSpace(out.Source+" "+out.Version))
				row("digest", out.Digest)
				row("installed", strings.TrimSpace(out.Installed+" by "+out.By))
				row("declared by", out.Declared)
				row("previous", out.Previous)
				for _, may := range out.May {
					row("may", may)
				}
				for _, one := range out.Tools {
					by := ""
					if one.By != "" {
						by = " (" + one.By + ", " + one.At + ")"
					}
					row(one.Name, one.State+": "+one.Reason+by)
				}
				return t.Flush()
			})
		},
	}
	p.registerFlags(c.Flags())
	c.ValidArgsFunction = p.packageNames(w)
	return c
}

func packageStats(w Environment) *cobra.Command {
	var p packageFlags
	c := &cobra.Command{
		Use:     "stats [NAME]",
		Short:   "Show what packages use and how they serve",
		Example: "  gatehouse package stats memory",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("%s takes at most one NAME", c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			in := map[string]any{}
			if len(args) > 0 {
				in["id"] = args[0]
			}
			type stat struct {
				ID, Status  string
				Confinement string
				Processes   int
				Memory      int64   `json:"memory_bytes"`
				CPU         float64 `json:"cpu_seconds"`
				Health      packages.Health
			}
			return callOnce(&p, c, w, "package_stats", in, func(out struct{ Packages []stat }) error {
				t := tabwriter.NewWriter(w.Out, 0, 0, 2, ' ', 0)
				fmt.Fprintln(t, "NAME\tSTATUS\tCONFINEMENT\tCALLS\tERRORS\tP50 MS\tP99 MS\tMEMORY MB\tCPU S\tPROCESSES\tRESTARTS")
				for _, s := range out.Packages {
					var errors uint64
					for _, n := range s.Health.Errors {
						errors += n
					}
					fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%v\t%v\t%.1f\t%.2f\t%d\t%d\n", s.ID, s.Status,
						orDash(s.Confinement), s.Health.Calls,
						errors, s.Health.P50, s.Health.P99, float64(s.Memory)/1e6, s.CPU, s.Processes,
						s.Health.Restarts)
				}
				return t.Flush()
			})
		},
	}
	p.registerFlags(c.Flags())
	c.ValidArgsFunction = p.packageNames(w)
	return c
}

func packageShell(w Environment) *cobra.Command {
	var p packageFlags
	limit := 30 * time.Second
	c := &cobra.Command{
		Use:   "shell NAME [COMMAND...]",
		Short: "Run commands as a package's server is run",
		Long: `Run a command with sh as the server of a package is run: in its data folder, with
its variables and secrets, which are masked in the output, and with its access to
files, processes and the network. Without COMMAND, each line of standard input is
run as a command of its own.`,
		Example: `  gatehouse package shell memory ls -la
  gatehouse package shell memory 'env | sort'`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("%s requires NAME", c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			a, err := p.connect(c, w)
			if err != nil {
				return err
			}
			defer a.close()
			if len(args) > 1 {
				return a.shell(c, w, args[0], strings.Join(args[1:], " "), limit)
			}
			lines := bufio.NewScanner(w.In)
			lines.Buffer(nil, 64<<10)
			in, isFile := w.In.(*os.File)
			prompt := isFile && term.IsTerminal(int(in.Fd()))
			for {
				if prompt {
					fmt.Fprintf(w.Err, "%s$ ", args[0])
				}
				if !lines.Scan() {
					return lines.Err()
				}
				if line := strings.TrimSpace(lines.Text()); line == "exit" {
					return nil
				} else if line != "" {
					if err := a.shell(c, w, args[0], line, limit); err != nil && !prompt {
						return err
					}
				}
			}
		},
	}
	p.registerFlags(c.Flags())
	c.Flags().SetInterspersed(false)
	c.Flags().DurationVar(&limit, "timeout", limit, "time for one command, at most 5m")
	c.ValidArgsFunction = p.packageNames(w)
	return c
}

// shell runs one command and prints its output.
func (a *admin) shell(c *cobra.Command, w Environment, id, command string, limit time.Duration) error {
	raw, err := json.Marshal(map[string]any{"id": id, "command": command, "timeout": int(limit.Seconds())})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(a.tools, func(t client.Tool) bool { return t.Name == "package_shell" })
	if i < 0 {
		return errors.New("this host has no package_shell: it is older than this gatehouse")
	}
	r, err := a.client.Call(c.Context(), a.tools[i], raw)
	if err != nil {
		return broken(err)
	}
	for _, block := range r.Content {
		text := strings.TrimSuffix(block.Text, "\n[exit code: 0]")
		if err := printLine(w.Out, printable(text)); err != nil {
			return err
		}
	}
	if r.IsError {
		return errToolFailed
	}
	return nil
}

package cli

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"gatehouse/internal/app"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/server/daemon"
)

func version() *cobra.Command {
	asJSON := false
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long:  "Print the version, what it was built from, and the protocol revisions it supports.",
		Example: `  gatehouse version
  gatehouse version --json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !asJSON {
				_, err := fmt.Fprint(c.OutOrStdout(), versionText())
				return err
			}
			return showJSON(c.OutOrStdout(), struct {
				Version  string   `json:"version"`
				Built    []string `json:"built"`
				Protocol []string `json:"protocol"`
			}{app.Version, built(), mcpversion.Names()})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// versionText returns the version in two lines.
func versionText() string {
	return fmt.Sprintf(
		"gatehouse %s (%s)\nprotocol %s\n",
		app.Version,
		strings.Join(built(), ", "),
		strings.Join(mcpversion.Names(), ", "),
	)
}

// built returns what this program was built from, as far as that is recorded.
func built() []string {
	facts := []string{runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
	if commit, changed := daemon.Commit(); commit != "" {
		text := "commit " + commit[:min(12, len(commit))]
		if changed {
			text += " with changes"
		}
		facts = append([]string{text}, facts...)
	}
	return facts
}

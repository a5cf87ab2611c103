package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"gatehouse/internal/app"
	"gatehouse/internal/mcp/mcpversion"
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
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return facts
	}
	commit, changed := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = " with changes"
		}
	}
	if commit != "" {
		facts = append([]string{"commit " + commit + changed}, facts...)
	}
	return facts
}

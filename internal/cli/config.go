package cli

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/notifier"
	"gatehouse/internal/modules/administration"
)

func configCommand(w Environment) *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Check and show the settings",
		Long: `Check and show the settings. They come from gatehouse.yaml in the config
folder (or the file --config or GATEHOUSE_CONFIG names), from the environment,
and from flags; later sources override earlier ones. docs/settings.md lists them
all. A server reads them again on SIGHUP.`,
		Example: `  gatehouse config check
  gatehouse config show
  gatehouse config set log.level debug`,
		Args: knownCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(configCheck(w), configShow(w), configSet(w), configSchema(w))
	return c
}

func configCheck(w Environment) *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check the settings for mistakes",
		Long: `Check the settings for mistakes. Each is printed with file, line and column, and
with what was expected; the exit code is then 1. Files that the settings name,
such as certificates and folders, are not opened. The command warns of rules that
compare paths or commands as text, because other spellings evade them.`,
		Example: `  gatehouse config check
  gatehouse config check ./gatehouse.yaml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			file := ""
			if len(args) == 1 {
				file = args[0]
			}
			l, err := config.Load(w.Getenv, file)
			if err == nil {
				err = checked(l)
			}
			if err == nil {
				noteText(w, app.RuleWarnings(c.Context(), l.Config, nil))
			}
			switch {
			case err != nil:
				return err
			case l.File == "":
				fmt.Fprintf(w.Out, "no file, and the environment is valid\n")
			default:
				fmt.Fprintf(w.Out, "%s: understood\n", l.File)
			}
			return nil
		},
	}
}

// noteText prints warnings about rules that compare text.
func noteText(w Environment, warnings []string) {
	for _, s := range warnings {
		fmt.Fprintf(w.Err, "[gatehouse] Warning: %s\n", s)
	}
}

// checked returns every error in the settings.
func checked(l *config.Loaded) error {
	if err := l.Validate(); err != nil {
		return err
	}
	return l.Explain(app.CheckSettings(l.Config))
}

func configShow(w Environment) *cobra.Command {
	var host hostFlags
	c := &cobra.Command{
		Use:   "show",
		Short: "Show the settings in force and where each comes from",
		Long: `Show the settings in force, in the form of a file, and where each comes from.
Secrets are left out.`,
		Example: "  gatehouse config show --read-only",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := host.config(w.Getenv)
			if err != nil {
				return err
			}
			if err := l.Validate(); err != nil {
				return err
			}
			return l.Show(w.Out)
		},
	}
	host.register(c.Flags())
	return c
}

func configSet(w Environment) *cobra.Command {
	var unset bool
	c := &cobra.Command{
		Use:   "set SETTING [VALUE]",
		Short: "Change one setting in the file",
		Long: `Change one setting in the file, which is created if there is none. VALUE is JSON, or
text. Comments and the order of the file stay. If the settings would be invalid,
nothing changes. A running host applies the change when it reads its settings again,
on SIGHUP.`,
		Example: `  gatehouse config set log.level debug
  gatehouse config set rules '[{"names": ["file_delete"], "then": "ask-operator"}]'
  gatehouse config set log.level --unset`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			if unset != (len(args) == 1) {
				return usagef("%s requires SETTING and VALUE, or SETTING and --unset", c.CommandPath())
			}
			var value json.RawMessage
			if !unset {
				value = jsonValue(args[1])
			}
			e := settingsEditor{
				getenv: w.Getenv,
				load:   func() (*config.Loaded, error) { return config.Load(w.Getenv, "") },
			}
			changed, err := e.Set(c.Context(), args[0], value)
			if invalid, ok := errors.AsType[*administration.Invalid](err); ok {
				return &usageError{invalid.Err}
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(w.Err, "[gatehouse] %s: %s, before %s\n", args[0], orDash(string(changed.After)),
				orDash(string(changed.Before)))
			return writeDown(w, changedSettings(args[0]))
		},
	}
	c.Flags().BoolVar(&unset, "unset", false, "remove the setting from the file")
	return c
}

// jsonValue returns a word of a command line as JSON: as it is if it is JSON, and otherwise as text.
func jsonValue(word string) json.RawMessage {
	if json.Valid([]byte(word)) {
		return json.RawMessage(word)
	}
	return jsonText(word)
}

// changedSettings is the event of a change of the settings file by a command.
func changedSettings(path string) changed {
	return changed{string(notifier.ConfigChanged), notifier.ChangedSettings{Restart: []string{path}}}
}

func configSchema(w Environment) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the file",
		Long: `Print the JSON Schema of the file, for editors that check it while you type. Many
editors use it if the first line is
  # yaml-language-server: $schema=gatehouse.schema.json`,
		Example: "  gatehouse config schema > gatehouse.schema.json",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := w.Out.Write(config.Schema())
			return err
		},
	}
}

package cli

import (
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gatehouse/internal/config"
)

const shellModule = "shell"

// shellFlags are the flags of serve for the module that runs command lines.
type shellFlags struct {
	timeout    int
	allow      []string
	deny       []string
	shell      string
	workingDir string
	noStderr   bool
}

func (f *shellFlags) register(set *pflag.FlagSet) {
	set.IntVarP(&f.timeout, "timeout", "t", 30, "seconds a command may run, up to 3600; needs the module shell")
	set.StringSliceVar(
		&f.allow,
		"allow",
		nil,
		"commands that may run: names or patterns such as git* or 'git log*', comma-separated; needs the module shell",
	)
	set.StringSliceVar(&f.deny, "deny", nil, "commands that may not run, the same way; needs the module shell")
	set.StringVarP(&f.shell, "shell", "s", "/bin/sh", "`program` that runs command lines; needs the module shell")
	set.StringVarP(
		&f.workingDir,
		"working-dir",
		"w",
		"",
		"`folder` commands run in, inside the allowed ones (default: the first of them); needs the module shell",
	)
	set.BoolVar(
		&f.noStderr,
		"no-stderr",
		false,
		"discard what commands print to standard error; needs the module shell",
	)
}

// applyShell writes the given flags into the settings.
func (f *shellFlags) applyShell(c *cobra.Command, l *config.Loaded) error {
	s := &l.Modules.Shell
	all := []flagged{
		{"timeout", "modules.shell.timeout", func() { s.Timeout = time.Duration(f.timeout) * time.Second }},
		{"allow", "modules.shell.allow", func() { s.Allow = f.allow }},
		{"deny", "modules.shell.deny", func() { s.Deny = f.deny }},
		{"shell", "modules.shell.shell", func() { s.Shell = f.shell }},
		{"working-dir", "modules.shell.working_dir", func() { s.WorkingDir = f.workingDir }},
		{"no-stderr", "modules.shell.no_stderr", func() { s.NoStderr = f.noStderr }},
	}
	for _, one := range all {
		if c.Flags().Changed(one.flag) && !hasShell(l.Config) {
			return usagef("--%s needs the module shell: gatehouse serve shell", one.flag)
		}
	}
	if c.Flags().Changed("timeout") && f.timeout == 0 { // in a file, 0 means the default
		return &usageError{config.NoTimeout(0)}
	}
	flags{c.Flags(), l}.applyAll(all)
	return nil
}

// hasShell reports whether a host with these settings runs command lines.
func hasShell(c config.Config) bool {
	return c.View.Context == shellModule || slices.Contains(c.View.Modules, shellModule) ||
		slices.ContainsFunc(c.Contexts, func(x config.Context) bool { return slices.Contains(x.Modules, shellModule) })
}

package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"gatehouse/internal/modules/webview"
	"gatehouse/internal/modules/webview/chromium"
)

// checkBrowser says whether this machine has a browser for the module webview, and whether that runs in a sandbox.
func checkBrowser(ctx context.Context, s webview.Settings) finding {
	program, err := chromium.FindProgram(s.Program)
	if err != nil {
		if s.Program != "" {
			return ok("browser: %s cannot be run: %v", s.Program, err).but("warn", "correct modules.webview.program")
		}
		return ok("browser: %v; without one no page can be opened (module webview)", err).
			but("warn", "gatehouse browser install")
	}
	if s.Confinement == "off" {
		return ok("browser: %s, not in a sandbox of this host, because modules.webview.confinement is off", program).
			but("warn", "remove modules.webview.confinement")
	}
	why := webview.CanConfine(ctx)
	if why == nil {
		return ok("browser: %s, in a sandbox of this host", program)
	}
	if s.Confinement == "required" || chromium.NeedsNoSandbox() {
		return ok("browser: %s does not start, because no sandbox of this host can be made for it: %v", program, why).
			but("warn", "run the host as another user, or set modules.webview.confinement to off")
	}
	return ok("browser: %s, in Chromium's own sandbox alone: %v", program, why).
		but("warn", "apply the fixes of the driver namespaces")
}

func pageBrowser(w Environment) *cobra.Command {
	c := &cobra.Command{
		Use:     "browser",
		Short:   "Find or install the browser of the module webview",
		Example: "  gatehouse browser install --print",
		Args:    noArgs,
	}
	c.AddCommand(browserInstall(w))
	return c
}

// headlessShell is Chromium without windows, which starts in a third of the time. Debian has it, Ubuntu does not.
const headlessShell = "chromium-headless-shell"

// installers are package managers with the command by which each installs a browser, without questions.
var installers = []struct {
	program string
	root    bool
	known   []string // succeeds if the package manager has the package; nil means that it does
	line    []string
}{
	{
		"apt-get", true, []string{"apt-cache", "show", headlessShell},
		[]string{"apt-get", "install", "-y", "--no-install-recommends", headlessShell},
	},
	{"apt-get", true, nil, []string{"apt-get", "install", "-y", "--no-install-recommends", "chromium"}},
	{"dnf", true, nil, []string{"dnf", "install", "-y", "chromium-headless"}},
	{"apk", true, nil, []string{"apk", "add", "chromium"}},
	{"pacman", true, nil, []string{"pacman", "-S", "--noconfirm", "chromium"}},
	{"zypper", true, nil, []string{"zypper", "--non-interactive", "install", "chromium"}},
	{"brew", false, nil, []string{"brew", "install", "--cask", "chromium"}},
	{"winget", false, nil, []string{"winget", "install", "--exact", "--id", "Hibbiki.Chromium"}},
}

func browserInstall(w Environment) *cobra.Command {
	var printOnly bool
	c := &cobra.Command{
		Use:   "install",
		Short: "Install a browser with the package manager of this system",
		Long: `Install Chromium with the package manager of this system, if it has no browser.
The command that is run is printed first; it may ask for the password of sudo.`,
		Example: "  gatehouse browser install --print",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if program, err := chromium.FindProgram(""); err == nil && !printOnly {
				fmt.Fprintf(w.Out, "this machine has %s\n", program)
				return nil
			}
			line, err := installLine(c.Context())
			if err != nil {
				return err
			}
			fmt.Fprintln(w.Out, strings.Join(line, " "))
			if printOnly {
				return nil
			}
			run := exec.CommandContext(c.Context(), line[0], line[1:]...)
			run.Stdin, run.Stdout, run.Stderr = os.Stdin, w.Out, w.Err
			if err := run.Run(); err != nil {
				return fmt.Errorf("%s: %w", line[0], err)
			}
			program, err := chromium.FindProgram("")
			if err == nil {
				fmt.Fprintf(w.Out, "installed %s\n", program)
			}
			return err
		},
	}
	c.Flags().BoolVar(&printOnly, "print", false, "print the command and do not run it")
	return c
}

// installLine returns the command that installs a browser here.
func installLine(ctx context.Context) ([]string, error) {
	for _, i := range installers {
		if _, err := exec.LookPath(i.program); err != nil {
			continue
		}
		if i.known != nil && exec.CommandContext(ctx, i.known[0], i.known[1:]...).Run() != nil {
			continue
		}
		if i.root && os.Geteuid() != 0 {
			return append([]string{"sudo"}, i.line...), nil
		}
		return i.line, nil
	}
	return nil, fmt.Errorf("no package manager was found; install Chromium, and name it in modules.webview.program")
}

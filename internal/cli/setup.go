package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/cli/clientconfig"
	"gatehouse/internal/config"
	"gatehouse/internal/files/roots"
)

func setupCommand(w Environment) *cobra.Command {
	return &cobra.Command{
		Use:   "setup",
		Short: "Connect the MCP clients of this machine, step by step",
		Long: `Connect the MCP clients of this machine, step by step: it asks for a folder, finds
the clients, shows the change of each one's configuration file and asks before it
makes it. It can be run again at any time. gatehouse alone does the same at a
terminal, until a client is connected or there is a file with settings.`,
		Example: `  gatehouse setup`,
		Args:    noArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return runSetup(w) },
	}
}

// firstStart reports whether this is a terminal of a user who has neither settings
// nor a connected client yet.
func firstStart(w Environment) bool {
	if !isTerminal(w.In) || !isTerminal(w.Out) {
		return false
	}
	l, err := config.Load(w.Getenv, "")
	if err != nil || l.File != "" {
		return false
	}
	connected, err := clientconfig.Store{Dir: clientsFolder(l)}.Any()
	return err == nil && !connected
}

func runSetup(w Environment) error {
	if !isTerminal(w.In) {
		return usagef("setup asks questions, and standard input is not a terminal; gatehouse connect --yes asks none")
	}
	l, err := readSettings(w)
	if err != nil {
		return err
	}
	f := connectFlags{name: "gatehouse", scope: string(clientconfig.User)}
	k, err := f.newConnector(w, l, []string{"stdio"})
	if err != nil {
		return err
	}
	if err := k.chooseFolder(l); err != nil {
		return err
	}
	var found []*clientconfig.Client
	for _, c := range clientconfig.Clients {
		if k.machine.Installed(c) {
			found = append(found, c)
		}
	}
	fmt.Fprintln(w.Err)
	if len(found) == 0 {
		k.say("2 of 3: Clients. None was found on this machine.")
		k.say("gatehouse connect --list lists those that are known; one that is named gets its file.")
		return nil
	}
	k.say("2 of 3: Clients. Found: %s", titles(found))
	var failed []error
	for _, c := range found {
		if err := k.connectOne(c); err != nil {
			k.say("%v", err)
			failed = append(failed, err)
		}
	}
	fmt.Fprintln(w.Err)
	k.finish(found)
	if len(failed) > 0 {
		return errors.New("not every client could be connected; what is wrong is said above")
	}
	return nil
}

func titles(clients []*clientconfig.Client) string {
	all := make([]string, len(clients))
	for i, c := range clients {
		all[i] = c.Title
	}
	return strings.Join(all, ", ")
}

// chooseFolder asks for the folder of clients that have none of their own, unless
// settings name folders.
func (k *connector) chooseFolder(l *config.Loaded) error {
	if k.folders {
		k.say("1 of 3: Folders. Your settings name %s.", strings.Join(l.Roots.Folders, ", "))
		return nil
	}
	k.say("1 of 3: Folder. A client that works in a project uses the folder of the project.")
	suggested := k.here
	if suggested == k.machine.Home || suggested == filepath.Dir(suggested) {
		suggested = ""
	}
	for {
		hint := ""
		if suggested != "" {
			hint = " [" + displaytext.Line(suggested) + "]"
		}
		fmt.Fprintf(k.w.Err, "[gatehouse] Which folder may other clients use?%s ", hint)
		line, err := k.answers.ReadString('\n')
		if err != nil {
			return notAnswered(err)
		}
		answer := strings.TrimSpace(line)
		if answer == "" {
			answer = suggested
		}
		dir, err := filepath.Abs(roots.Expand(answer))
		if err != nil {
			return err
		}
		if info, err := os.Stat(dir); answer != "" && err == nil && info.IsDir() {
			k.here, k.chosen = dir, true
			return nil
		}
		k.say("There is no folder %q; name one that exists", displaytext.Line(answer))
	}
}

// notAnswered is the error of a question whose input has ended.
func notAnswered(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the input ended before the question was answered; nothing more was changed")
	}
	return err
}

// finish says what was connected and what comes next.
func (k *connector) finish(found []*clientconfig.Client) {
	var connected []*clientconfig.Client
	for _, c := range found {
		if _, _, state := k.state(c); state == stateConnected {
			connected = append(connected, c)
		}
	}
	if len(connected) == 0 {
		k.say("3 of 3: Done. No client is connected; gatehouse connect CLIENT connects one.")
		return
	}
	k.say("3 of 3: Done. Connected: %s", titles(connected))
	k.say("Start a client and ask it which tools it has: it starts the daemon. gatehouse doctor checks this machine.")
	for _, c := range connected {
		if n := k.otherServers(c); n > 0 {
			k.say("%s has %d other servers: gatehouse import %s takes them over for all clients.", c.Title, n, c.ID)
		}
	}
	k.say("gatehouse connect --remove takes the changes back.")
}

// otherServers counts the servers of a client that could become packages.
func (k *connector) otherServers(c *clientconfig.Client) int {
	all, err := k.machine.ReadServers(clientconfig.Source{Client: c, Scope: k.scope, File: k.machine.Path(c, k.scope)})
	if err != nil {
		return 0 // the change of the file has said why
	}
	n := 0
	for _, s := range all {
		if s.Command != "" && !s.Disabled && !ourProgram(s) {
			n++
		}
	}
	return n
}

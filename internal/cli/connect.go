package cli

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gatehouse/internal/cli/clientconfig"
	"gatehouse/internal/config"
)

// connectFlags are the flags of gatehouse connect.
type connectFlags struct {
	host     hostFlags
	change   changeFlags
	remove   bool
	list     bool
	asJSON   bool
	link     bool
	replace  bool
	name     string
	scope    string
	http     string
	headers  []string
	tokenEnv string
}

func connectCommand(w Environment) *cobra.Command {
	var f connectFlags
	c := &cobra.Command{
		Use:   "connect [CLIENT...]",
		Short: "Add this host to the MCP clients of this machine",
		Long: `Add this host to the configuration files of MCP clients: of those that are named,
or of all that are found on this machine. Each change is shown as a diff and made
when you agree; a backup stays in the data folder, and --remove takes the change
back. Comments and everything else in the files stay as they are.

A client gets the command gatehouse stdio, which connects it to the daemon, so that
all clients share one host. The flags -d, --context and those of gatehouse stdio go
with it. A client that starts its servers in no folder of yours, such as an editor
or a desktop application, gets -d with the current folder if settings name none.
With --http it gets the address of a server that runs.

gatehouse connect --list lists the clients and their files. For a client that keeps
its servers in its own settings, the JSON to paste there is printed.

Exit codes: 0 done, 1 a file could not be changed, 2 the command line is wrong.`,
		Example: `  gatehouse connect                         # shows each change and asks
  gatehouse connect claude-code codex --yes
  gatehouse connect cursor -d ~/projects --context review
  gatehouse connect vscode --scope project  # .vscode/mcp.json in this folder
  gatehouse connect zed --http http://127.0.0.1:3000/mcp
  gatehouse connect --remove --yes
  gatehouse connect cursor --link           # prints a link that adds this host
  gatehouse connect jetbrains-ai -d .       # prints what to paste into its settings`,
		RunE: func(c *cobra.Command, names []string) error {
			k, err := f.connector(c, w)
			if err != nil {
				return err
			}
			switch {
			case f.list:
				return k.listClients(names, f.asJSON)
			case f.link:
				return k.links(names)
			}
			if name := f.host.context; name != "" && !f.remove && !slices.Contains(contextNames(w), name) {
				k.say("There is no context %s yet; clients are refused until gatehouse context create makes it", name)
			}
			return k.connectAll(names)
		},
	}
	c.Flags().SortFlags = false
	f.register(c)
	c.ValidArgsFunction = clientNames
	scopes := cobra.FixedCompletions([]string{"user", "project"}, cobra.ShellCompDirectiveNoFileComp)
	c.RegisterFlagCompletionFunc("scope", scopes)
	completeContext(c, w)
	return c
}

func (f *connectFlags) register(c *cobra.Command) {
	set := c.Flags()
	f.change.register(set)
	set.BoolVar(&f.remove, "remove", false, "take the change back: remove this host from the files")
	set.BoolVar(&f.list, "list", false, "list the clients, their files, and whether they are connected")
	set.BoolVar(&f.asJSON, "json", false, "print the list as JSON; needs --list")
	set.BoolVar(&f.link, "link", false, "print a link that adds this host, for clients that have them")
	set.StringVar(
		&f.scope,
		"scope",
		string(clientconfig.User),
		"user: the file for all projects; project: the one of the current folder",
	)
	set.StringVar(&f.name, "name", "gatehouse", "name of the server in the files")
	set.BoolVar(&f.replace, "replace", false, "replace a server of the same name that is not this program")
	set.StringVar(&f.http, "http", "", "write the `address` of a server that runs instead of a command")
	set.StringArrayVar(&f.headers, "header", nil, "header to send to it, `NAME: VALUE`; can be repeated; needs --http")
	set.StringVar(&f.tokenEnv, "token-env", "",
		"environment `variable` of the client that holds its token; needs --http")
	f.host.register(set)
}

// clientNames completes the clients that are not named yet.
func clientNames(_ *cobra.Command, named []string, begin string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, c := range clientconfig.Clients {
		if strings.HasPrefix(c.ID, begin) && !slices.Contains(named, c.ID) {
			names = append(names, c.ID+"\t"+c.Title)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// connector connects clients with the flags of one command line.
type connector struct {
	changer
	flags   *connectFlags
	scope   clientconfig.Scope
	args    []string // of the forwarder
	env     map[string]string
	folders bool   // -d is given, or settings name folders
	here    string // the folder for a client that has none of its own
	chosen  bool   // a user has named it
}

var serverName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func (f *connectFlags) connector(c *cobra.Command, w Environment) (*connector, error) {
	if err := f.checkFlags(c); err != nil {
		return nil, err
	}
	f.host.mistaken = goesOn(w)
	l, err := f.host.config(w.Getenv)
	if err != nil {
		return nil, err
	}
	var own []string
	c.Flags().Visit(func(flag *pflag.Flag) {
		if !slices.Contains(f.host.names(), flag.Name) {
			own = append(own, flag.Name)
		}
	})
	return f.newConnector(w, l, append([]string{"stdio"}, given(c.Flags(), own...)...))
}

// newConnector makes a connector that writes the arguments of the forwarder.
func (f *connectFlags) newConnector(w Environment, l *config.Loaded, args []string) (*connector, error) {
	ch, err := f.change.changer(w, l)
	if err != nil {
		return nil, err
	}
	env := l.Environment(w.Getenv)
	if f.scope == string(clientconfig.User) { // the file of a project is shared with other machines
		maps.Copy(env, config.FolderVariables(w.Getenv))
	}
	return &connector{
		changer: ch, flags: f, scope: clientconfig.Scope(f.scope), args: args, env: env,
		folders: len(l.Roots.Folders) > 0 || l.Roots.Unrestricted, here: ch.machine.Project,
	}, nil
}

// checkFlags returns what is wrong with the flags.
func (f *connectFlags) checkFlags(c *cobra.Command) error {
	switch {
	case !serverName.MatchString(f.name):
		return usagef("--name %s: expected 1 to 64 of letters, digits, _ and -", f.name)
	case f.scope != string(clientconfig.User) && f.scope != string(clientconfig.Project):
		return usagef("--scope %s: expected user or project", f.scope)
	case f.asJSON && !f.list:
		return usagef("--json needs --list")
	case f.list && (f.remove || f.link):
		return usagef("--list goes with neither --remove nor --link")
	case f.remove && (f.link || f.http != ""):
		return usagef("--remove goes with neither --link nor --http")
	case f.http == "" && (len(f.headers) > 0 || f.tokenEnv != ""):
		return usagef("--header and --token-env need --http")
	}
	if f.http == "" {
		return nil
	}
	if u, err := url.Parse(f.http); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return usagef("--http %s: expected an address such as http://127.0.0.1:3000/mcp", f.http)
	}
	for _, name := range f.host.names() {
		if c.Flags().Changed(name) {
			return usagef("--%s is for a host that the client starts; the one at --http has its own settings", name)
		}
	}
	return nil
}

// server is what is written for a client.
func (k *connector) server(c *clientconfig.Client) (clientconfig.Server, error) {
	s := clientconfig.Server{Name: k.flags.name}
	if k.flags.http != "" {
		s.URL, s.TokenEnv, s.Headers = k.flags.http, k.flags.tokenEnv, map[string]string{}
		for _, h := range k.flags.headers {
			name, value, ok := strings.Cut(h, ":")
			if !ok || strings.TrimSpace(name) == "" {
				return s, usagef("--header %q: expected NAME: VALUE", h)
			}
			s.Headers[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
		return s, nil
	}
	s.Command, s.Args, s.Env = forwarderProgram(k.scope), slices.Clone(k.args), k.env
	if c.InProject || k.folders {
		return s, nil
	}
	if home := k.machine.Home; !k.chosen && (k.here == home || k.here == filepath.Dir(k.here)) {
		return s, usagef(
			"%s starts its servers in no folder of yours, and the current one is %s: name a folder for it with -d",
			c.Title, k.here,
		)
	}
	s.Args = append(s.Args, "--directory="+k.here)
	return s, nil
}

// forwarderProgram is the path of this program for a client's file: the one that
// PATH leads to, which stays when another version is installed, if that is this
// program. In a file that is shared with others it is just the name.
func forwarderProgram(scope clientconfig.Scope) string {
	own := program()
	named, err := exec.LookPath("gatehouse")
	if err != nil || !filepath.IsAbs(named) {
		return own
	}
	one, err1 := os.Stat(named)
	two, err2 := os.Stat(own)
	switch {
	case err1 != nil || err2 != nil || !os.SameFile(one, two):
		return own
	case scope == clientconfig.Project:
		return "gatehouse"
	}
	return named
}

// connectAll connects or disconnects the clients that are named, or all that it
// makes sense for. One that fails does not stop the others.
func (k *connector) connectAll(names []string) error {
	clients, err := k.chooseClients(names)
	if err != nil {
		return err
	}
	var failed []error
	for _, c := range clients {
		if err := k.connectOne(c); err != nil {
			if _, usage := errors.AsType[*usageError](err); usage {
				return err
			}
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// chooseClients returns the named clients, or those that are found.
func (k *connector) chooseClients(names []string) ([]*clientconfig.Client, error) {
	var chosen []*clientconfig.Client
	for _, name := range names {
		c, err := findClient(name)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, c)
	}
	if len(chosen) > 0 {
		return chosen, nil
	}
	for _, c := range clientconfig.Clients {
		file := k.machine.Path(c, k.scope)
		if file == "" {
			continue
		}
		if k.flags.remove {
			if _, _, state := k.state(c); state == stateConnected || state == stateOther {
				chosen = append(chosen, c)
			}
		} else if k.machine.Installed(c) {
			chosen = append(chosen, c)
		}
	}
	switch {
	case len(chosen) > 0:
		return chosen, nil
	case k.flags.remove:
		k.say("No client is connected")
		return nil, nil
	}
	return nil, errors.New(
		"no MCP client was found on this machine; gatehouse connect --list lists the clients that can be named",
	)
}

func findClient(name string) (*clientconfig.Client, error) {
	if c := clientconfig.FindClient(name); c != nil {
		return c, nil
	}
	var known []string
	for _, c := range clientconfig.Clients {
		known = append(known, c.ID)
	}
	if near := nearest(name, slices.Values(known)); near != "" {
		return nil, usagef("there is no client %q; did you mean %s?", name, near)
	}
	return nil, usagef("there is no client %q; gatehouse connect --list lists those that are known", name)
}

// pasted reports whether a client keeps its servers in its own settings, where a user
// pastes them.
func (k *connector) pasted(c *clientconfig.Client) bool {
	return c.Paste != "" && k.machine.Path(c, k.scope) == ""
}

// printPasted prints what a user pastes into the settings of a client, and where.
func (k *connector) printPasted(c *clientconfig.Client) error {
	if k.flags.remove {
		k.say("%s keeps its servers in its own settings; remove %s in: %s", c.Title, k.flags.name, c.Paste)
		return nil
	}
	s, err := k.server(c)
	if err != nil {
		return err
	}
	text, err := c.Pasted(s)
	if err != nil {
		return err
	}
	k.say("%s keeps its servers in its own settings. Paste this into: %s", c.Title, c.Paste)
	_, err = k.w.Out.Write(text)
	return err
}

func (k *connector) connectOne(c *clientconfig.Client) error {
	if k.pasted(c) {
		return k.printPasted(c)
	}
	if k.flags.remove {
		did, err := k.applyChange(func() (*clientconfig.Change, error) {
			return k.machine.PlanRemove(k.connections, c, k.scope, k.flags.name)
		})
		switch {
		case err != nil || did == skipped:
			return err
		case did == nothing:
			k.say("%s is not connected", c.Title)
		case did == done:
			k.say("Disconnected %s", c.Title)
		}
		return nil
	}
	s, err := k.server(c)
	if err != nil {
		return err
	}
	if !k.machine.Installed(c) {
		k.say("%s was not found on this machine; its file is made nevertheless", c.Title)
	}
	did, err := k.applyChange(func() (*clientconfig.Change, error) {
		ch, err := k.machine.PlanPut(c, k.scope, s)
		if err == nil && !k.flags.replace {
			err = k.ours(ch)
		}
		return ch, err
	})
	switch {
	case err != nil || did == skipped:
		return err
	case did == nothing:
		k.say("%s is connected already", c.Title)
	case did == done:
		k.say("Connected %s: %s", c.Title, c.Reload)
	}
	return nil
}

// ours returns an error if a change would replace the server of another program.
func (k *connector) ours(ch *clientconfig.Change) error {
	if !ch.Existed || !ch.Changes() {
		return nil
	}
	all, err := ch.Client.Servers(ch.Before)
	if err != nil {
		return nil // nothing is there yet
	}
	for _, s := range all {
		if s.Name != ch.Name || ourProgram(s) {
			continue
		}
		if known, err := k.connections.Knows(ch); err != nil || known {
			return err
		}
		return fmt.Errorf(
			"%s has another server %q (%s): --name gives this host another name, --replace replaces that server",
			ch.File, s.Name, printable(cmp.Or(s.URL, s.Command)),
		)
	}
	return nil
}

// ourProgram reports whether a server starts this program.
func ourProgram(s clientconfig.Server) bool {
	name := strings.TrimSuffix(filepath.Base(filepath.ToSlash(s.Command)), ".exe")
	if name != "gatehouse" && s.Command != program() {
		return false
	}
	return len(s.Args) > 0 && (s.Args[0] == "stdio" || s.Args[0] == "serve")
}

// links prints an installation link for each client that has them.
func (k *connector) links(names []string) error {
	if len(names) == 0 {
		for _, c := range clientconfig.Clients {
			if c.Link != 0 {
				names = append(names, c.ID)
			}
		}
	}
	for _, name := range names {
		c, err := findClient(name)
		if err != nil {
			return err
		}
		s, err := k.server(c)
		if err != nil {
			return err
		}
		link, err := c.InstallLink(s)
		if err != nil {
			return err
		}
		fmt.Fprintln(k.w.Out, link)
	}
	return nil
}

// States of a client in the list.
const (
	stateConnected = "connected"
	stateOther     = "connected otherwise"
	stateFound     = "not connected"
	stateAbsent    = "not found"
	stateUnread    = "cannot be read"
	statePasted    = "by hand" // a user pastes what gatehouse connect CLIENT prints
)

// state returns the file of a client, what its entry starts or connects to, and
// whether it is connected.
func (k *connector) state(c *clientconfig.Client) (file string, entry clientconfig.Server, state string) {
	file = k.machine.Path(c, k.scope)
	state = stateFound
	if !k.machine.Installed(c) {
		state = stateAbsent
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return file, entry, state
	}
	all, err := c.Servers(text)
	if err != nil && len(strings.TrimSpace(string(text))) > 0 {
		return file, entry, stateUnread
	}
	for _, s := range all {
		if s.Name == k.flags.name {
			if ourProgram(s) || k.flags.http != "" && s.URL == k.flags.http {
				return file, s, stateConnected
			}
			return file, s, stateOther
		}
	}
	return file, entry, state
}

// listedClient is a client in the list.
type listedClient struct {
	ID     string `json:"id"`
	Title  string `json:"title"`
	State  string `json:"state"`
	File   string `json:"file"`
	Source string `json:"source"`
}

func (k *connector) listClients(names []string, asJSON bool) error {
	clients := clientconfig.Clients
	if len(names) > 0 {
		var err error
		if clients, err = k.chooseClients(names); err != nil {
			return err
		}
	}
	var all []listedClient
	for _, c := range clients {
		file, _, state := k.state(c)
		switch {
		case k.pasted(c):
			file, state = c.Paste, statePasted
		case file == "":
			continue
		}
		all = append(all, listedClient{c.ID, c.Title, state, file, c.Source})
	}
	if asJSON {
		return showJSON(k.w.Out, map[string]any{"clients": orEmpty(all)})
	}
	t := newTable(k.w.Out)
	fmt.Fprintln(t, "CLIENT\tSTATE\tFILE")
	for _, one := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\n", one.ID, one.State, one.File)
	}
	return t.Flush()
}

// clientsFolder is where what was changed in clients is remembered.
func clientsFolder(l *config.Loaded) string { return filepath.Join(l.Folders.Data, "clients") }

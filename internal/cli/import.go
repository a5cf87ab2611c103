package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/cli/clientconfig"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/packages"
)

// importFlags are the flags of gatehouse import.
type importFlags struct {
	packageFlags
	grantFlags
	dryRun bool
	keep   bool
	only   []string
	scope  string
	folder string
}

func importCommand(w Environment) *cobra.Command {
	var f importFlags
	c := &cobra.Command{
		Use:   "import [CLIENT|FILE]",
		Short: "Take over the MCP servers that a client has configured",
		Long: `Take over the MCP servers that a client has configured: each becomes a package of
this host, so that every client has its tools. CLIENT is a name of gatehouse connect
--list, FILE a configuration file of any client; without one, all clients that are
found are read.

A server that npx or another runner starts becomes an npm package, one with an
address a remote server, any other a program of this machine. Values that look like secrets go to the secret store, and
the package refers to them. Then it offers to remove the servers from the file of
the client and to add this host in their place; gatehouse connect --remove restores
the file.

Exit codes: 0 done, 1 a server could not be taken over, 2 the command line is wrong.`,
		Example: `  gatehouse import --dry-run              # lists the servers and what would be done
  gatehouse import claude-desktop
  gatehouse import ./mcp.json --only github --yes
  gatehouse import cursor --keep --yes    # the file of the client stays as it is`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("%s takes one client or file, got %d", c.CommandPath(), len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			m, err := f.importer(w)
			if err != nil {
				return err
			}
			return m.importServers(c, args)
		},
	}
	f.registerFlags(c.Flags())
	c.Flags().Lookup("json").Hidden = true
	f.addYes(c.Flags())
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "list the servers and what would become of them")
	f.registerTrust(c.Flags())
	c.Flags().BoolVar(&f.keep, "keep", false, "leave the file of the client as it is")
	c.Flags().StringArrayVar(&f.only, "only", nil, "take over the server of this `name` alone; can be repeated")
	c.Flags().StringVarP(
		&f.folder,
		"directory",
		"d",
		"",
		"folder for a client that has none of its own (default: the current one)",
	)
	c.Flags().StringVar(&f.scope, "scope", string(clientconfig.User), "user or project: which file of CLIENT is read")
	c.ValidArgsFunction = func(c *cobra.Command, named []string, begin string) ([]string, cobra.ShellCompDirective) {
		names, _ := clientNames(c, named, begin)
		return names, cobra.ShellCompDirectiveDefault
	}
	scopes := cobra.FixedCompletions([]string{"user", "project"}, cobra.ShellCompDirectiveNoFileComp)
	c.RegisterFlagCompletionFunc("scope", scopes)
	return c
}

// importer takes over servers with the flags of one command line.
type importer struct {
	*connector
	flags *importFlags
	taken map[string]bool // ids of packages that exist or will
}

func (f *importFlags) importer(w Environment) (*importer, error) {
	if f.scope != string(clientconfig.User) && f.scope != string(clientconfig.Project) {
		return nil, usagef("--scope %s: expected user or project", f.scope)
	}
	if f.json {
		return nil, usagef("import prints no JSON")
	}
	l, err := readSettings(w)
	if err != nil {
		return nil, err
	}
	entry := connectFlags{name: "gatehouse", scope: f.scope, change: changeFlags{yes: f.yes}}
	k, err := entry.newConnector(w, l, []string{"stdio"})
	if err != nil {
		return nil, err
	}
	if f.folder != "" {
		if k.here, err = filepath.Abs(roots.Expand(f.folder)); err != nil {
			return nil, err
		}
		if info, err := os.Stat(k.here); err != nil || !info.IsDir() {
			return nil, usagef("-d %s: there is no such folder", f.folder)
		}
		k.chosen, k.folders = true, false
	}
	return &importer{connector: k, flags: f, taken: map[string]bool{}}, nil
}

func (m *importer) importServers(c *cobra.Command, args []string) error {
	sources, err := m.sources(args)
	if err != nil {
		return err
	}
	if !m.flags.dryRun {
		if err := m.flags.canAgree(m.w); err != nil {
			return err
		}
	}
	var a *admin
	defer func() {
		if a != nil {
			a.close()
		}
	}()
	var failed []error
	found := 0
	for _, from := range sources {
		all, err := m.machine.ReadServers(from)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		wishes := m.wishes(from, all)
		found += len(wishes)
		if len(wishes) == 0 || m.flags.dryRun {
			continue
		}
		var own clientconfig.Server
		if !m.flags.keep {
			if own, err = m.ownEntry(from, all); err != nil {
				return err
			}
		}
		if a == nil {
			if a, err = m.flags.connect(c, m.w); err != nil {
				return err
			}
		}
		if err := m.installServers(c.Context(), a, from, wishes, own); err != nil {
			failed = append(failed, err)
		}
	}
	if found == 0 && len(failed) == 0 {
		m.say("There are no servers to take over")
	}
	return errors.Join(failed...)
}

// sources returns the files to read.
func (m *importer) sources(args []string) ([]clientconfig.Source, error) {
	if len(args) == 0 {
		var all []clientconfig.Source
		for _, c := range clientconfig.Clients {
			file := m.machine.Path(c, m.scope)
			if _, err := os.Stat(file); file != "" && err == nil {
				all = append(all, clientconfig.Source{Client: c, Scope: m.scope, File: file})
			}
		}
		return all, nil
	}
	if c := clientconfig.FindClient(args[0]); c != nil {
		file := m.machine.Path(c, m.scope)
		if file == "" {
			return nil, usagef("%s has no file for the scope %s on this platform", c.Title, m.scope)
		}
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("%s has no servers yet: %w", c.Title, err)
		}
		return []clientconfig.Source{{Client: c, Scope: m.scope, File: file}}, nil
	}
	from, err := m.machine.SourceOf(args[0])
	if errors.Is(err, os.ErrNotExist) {
		if _, mistake := findClient(args[0]); !strings.ContainsAny(args[0], `/\.`) {
			return nil, mistake
		}
	}
	if err != nil {
		return nil, &usageError{err}
	}
	return []clientconfig.Source{from}, nil
}

// imported is a server that can be taken over.
type imported struct {
	name string
	wish packages.Wish
}

// wishes lists the servers of a file, and returns those that can be taken over.
func (m *importer) wishes(from clientconfig.Source, all []clientconfig.Server) []imported {
	var wishes []imported
	header := false
	show := func(name, what string) {
		if !header {
			fmt.Fprintf(m.w.Out, "%s (%s)\n", from.Client.Title, from.File)
			header = true
		}
		fmt.Fprintf(m.w.Out, "  %s: %s\n", printable(name), printable(what))
	}
	for _, s := range all {
		if ourProgram(s) || len(m.flags.only) > 0 && !slices.Contains(m.flags.only, s.Name) {
			continue
		}
		wish, notes, err := m.wish(from, s)
		if err != nil {
			show(s.Name, "left there: "+err.Error())
			continue
		}
		what := "becomes the package " + wish.ID + " from " + wish.Source.String()
		if wish.Command != "" {
			what = "becomes the package " + wish.ID + ", started as " + wish.Command
		}
		if len(wish.Secrets) > 0 {
			what += "; kept secret: " + strings.Join(slices.Sorted(maps.Keys(wish.Secrets)), ", ")
		}
		show(s.Name, strings.Join(append([]string{what}, notes...), "; "))
		wishes = append(wishes, imported{s.Name, wish})
	}
	return wishes
}

// wish makes a package of a server. notes say what is different about it.
func (m *importer) wish(
	from clientconfig.Source, s clientconfig.Server,
) (wish packages.Wish, notes []string, err error) {
	switch {
	case s.Disabled:
		return wish, nil, errors.New("it is switched off there")
	case s.URL != "":
		return m.remoteWish(s)
	case s.Command == "":
		return wish, nil, errors.New("it names no program")
	}
	env := map[string]string{}
	for name, value := range s.Env {
		if env[name], err = m.expandVariables(value); err != nil {
			return wish, nil, fmt.Errorf("its variable %s %w", name, err)
		}
	}
	program, err := m.expandVariables(s.Command)
	if err != nil {
		return wish, nil, fmt.Errorf("its program %w", err)
	}
	words := []string{program}
	for i, arg := range s.Args {
		expanded, err := m.expandVariables(arg)
		if err != nil {
			return wish, nil, fmt.Errorf("its argument %d %w", i+1, err)
		}
		key, value, ok := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if secret.Suspicious("", arg) || ok && secret.Suspicious(strings.ReplaceAll(key, "-", "_"), value) {
			notes = append(notes, fmt.Sprintf("argument %d looks like a secret and stays readable", i+1))
		}
		words = append(words, expanded)
	}
	if wish, err = packages.ParseTarget(m.packageID(s.Name), words, env); err != nil {
		return wish, nil, err
	}
	if wish.Source.Kind == packages.Command {
		if wish.Command, err = findProgram(wish.Command, s.Cwd, filepath.Dir(from.File)); err != nil {
			return wish, nil, err
		}
	}
	if !m.flags.trust {
		wish.GrantNamed()
	}
	if len(wish.Grants.Folders) > 0 {
		notes = append(notes, "may use "+strings.Join(wish.Grants.Folders, ", "))
	}
	if s.Cwd != "" {
		notes = append(notes, "it works in its own folder instead of "+s.Cwd)
	}
	m.taken[wish.ID] = true
	return wish, notes, nil
}

// remoteWish makes a package of a server that is reached by an address.
func (m *importer) remoteWish(s clientconfig.Server) (wish packages.Wish, notes []string, err error) {
	address, err := m.expandVariables(s.URL)
	if err != nil {
		return wish, nil, fmt.Errorf("its address %w", err)
	}
	headers := map[string]string{}
	for name, value := range s.Headers {
		if headers[name], err = m.expandVariables(value); err != nil {
			return wish, nil, fmt.Errorf("its header %s %w", name, err)
		}
	}
	if s.TokenEnv != "" {
		token := m.w.Getenv(s.TokenEnv)
		if token == "" {
			return wish, nil, fmt.Errorf("its token is in the variable %s, which is not set here", s.TokenEnv)
		}
		headers["Authorization"] = "Bearer " + token
	}
	if wish, err = packages.ParseTarget(m.packageID(s.Name), []string{"url:" + address}, nil); err == nil {
		err = wish.SetHeaders(headers)
	}
	if err != nil {
		return wish, nil, err
	}
	m.taken[wish.ID] = true
	return wish, nil, nil
}

// packageID makes the id of a package of the name of a server.
func (m *importer) packageID(name string) string {
	const longest = 32
	id := strings.Trim(notInID.ReplaceAllString(strings.ToLower(name), "-"), "-")
	if id == "" || id[0] >= '0' && id[0] <= '9' {
		id = "server-" + id
	}
	id = strings.Trim(id[:min(len(id), longest-3)], "-")
	for n, first := 2, id; m.taken[id]; n++ {
		id = fmt.Sprintf("%s-%d", first, n)
	}
	return id
}

var (
	notInID  = regexp.MustCompile(`[^a-z0-9]+`)
	variable = regexp.MustCompile(`\$\{(?:env:)?([A-Za-z_]\w*)\}|\{env:([A-Za-z_]\w*)\}|^\$([A-Za-z_]\w*)$`)
	unknown  = regexp.MustCompile(`\$\{[^}]*\}`)
)

// expandVariables puts the values of the environment where clients would. What
// only a client knows, such as its answer to a question, is an error.
func (m *importer) expandVariables(text string) (string, error) {
	var missing string
	expanded := variable.ReplaceAllStringFunc(text, func(found string) string {
		p := variable.FindStringSubmatch(found)
		name := p[1] + p[2] + p[3]
		value := m.w.Getenv(name)
		if value == "" {
			missing = name
		}
		return value
	})
	if missing != "" {
		return "", fmt.Errorf("takes its value from $%s, which is not set here; set it and import again", missing)
	}
	if left := unknown.FindString(text); left != "" && !variable.MatchString(left) {
		return "", fmt.Errorf(
			"refers to %s, which only the client knows; use gatehouse package add with --secret or --env", left,
		)
	}
	return expanded, nil
}

// findProgram returns the path of a program, since a host may have another PATH
// than the client.
func findProgram(command, cwd, folder string) (string, error) {
	if !filepath.IsAbs(command) && strings.ContainsAny(command, `/\`) {
		if cwd == "" {
			cwd = folder
		}
		command = filepath.Join(cwd, command)
	}
	path, err := exec.LookPath(command)
	if err != nil {
		return "", fmt.Errorf("its program %s is not on this machine", command)
	}
	return filepath.Abs(path)
}

// installServers installs packages and offers to replace their servers in the file.
func (m *importer) installServers(
	ctx context.Context, a *admin, from clientconfig.Source, wishes []imported, own clientconfig.Server,
) error {
	var there struct{ Packages []packageEntry }
	if err := a.callTool(ctx, m.w, "package_list", struct{}{}, &there); err != nil {
		return err
	}
	var replaced []string
	var failed []error
	for _, one := range wishes {
		if slices.ContainsFunc(there.Packages, func(e packageEntry) bool { return e.ID == one.wish.ID }) {
			m.say("There is a package %s already, so the server %s stays", one.wish.ID, printable(one.name))
			continue
		}
		if m.flags.trust {
			one.wish.Confinement = packages.Trusted
		}
		done, err := addPackage(ctx, m.w, a, one.wish)
		if err != nil {
			m.say("The server %s was not taken over", printable(one.name))
			failed = append(failed, err)
			continue
		}
		m.say("Installed %s with %d tools", done.ID, len(done.Tools))
		for _, note := range slices.Concat(done.Warnings, done.Left) {
			m.say("%s", printable(note))
		}
		replaced = append(replaced, one.name)
	}
	if len(replaced) > 0 && !m.flags.keep {
		failed = append(failed, m.replaceServers(from, replaced, own))
	}
	return errors.Join(failed...)
}

// ownEntry returns the entry of this host in a file, or the one that it gets.
func (m *importer) ownEntry(from clientconfig.Source, all []clientconfig.Server) (clientconfig.Server, error) {
	for _, s := range all {
		if ourProgram(s) {
			return s, nil
		}
	}
	return m.server(from.Client)
}

// replaceServers offers to put this host in the place of servers.
func (m *importer) replaceServers(from clientconfig.Source, names []string, own clientconfig.Server) error {
	did, err := m.applyChange(func() (*clientconfig.Change, error) { return m.machine.PlanTake(from, names, own) })
	if err == nil && did == done {
		m.say("%s has these servers through this host now: %s", from.Client.Title, from.Client.Reload)
	}
	return err
}

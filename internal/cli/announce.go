package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/server/httpserver"
	"gatehouse/internal/server/socket"
)

// warn prints warnings about what the settings expose, before any listener opens.
func warn(stderr io.Writer, cfg config.Config) {
	var lines []string
	if cfg.Listen.HTTP.Open {
		lines = append(lines, httpserver.WarnExposed(cfg.Listen.HTTP.Host, cfg.Listen.HTTP.TLS.On)...)
	}
	if cfg.Listen.TCP != "" {
		lines = append(lines, socket.WarnExposed(cfg.Listen.TCP)...)
	}
	if cfg.Roots.Unrestricted {
		lines = append(lines, "WARNING: Running unrestricted lets the tools access every file this user can.",
			"         Consider naming folders with -d instead.")
	}
	if hasShell(cfg) && !cfg.Modules.Shell.Confine {
		lines = append(
			lines,
			"WARNING: Command lines have all permissions of this user. --allow and --deny restrict the programs they start.",
			"         Consider modules.shell.confine, which runs each command line in a sandbox.",
		)
	}
	for _, line := range lines {
		fmt.Fprintln(stderr, line)
	}
}

// announce prints the modules that are served, their folders, and the listeners. For HTTP it adds text to paste
// into a terminal or a client's configuration.
func announce(w Environment, cfg config.Config, host *app.App, same command) {
	say := func(format string, args ...any) { fmt.Fprintf(w.Err, "[gatehouse] "+format+"\n", args...) }
	var kinds []string
	for _, d := range host.Listeners() {
		kinds = append(kinds, d.Kind)
	}
	say("%s server (%s)", strings.Join(host.Modules(), ", "), strings.Join(kinds, ", "))
	if host.ServesAlone() {
		// It has no tools of this host, which could access folders.
	} else if cfg.Roots.Unrestricted {
		say("Allowed directories: all")
	} else {
		say("Allowed directories: %s", strings.Join(host.Folders(), ", "))
	}
	if cfg.View.ReadOnly {
		say("Read-only: tools that change anything are not offered")
	}
	for _, d := range host.Listeners() {
		for _, line := range d.Notes {
			say("%s", line)
		}
		switch {
		case d.Kind != app.Stdio:
			say("Listening on %s", d.Address)
		case isTerminal(w.In):
			say(
				"Waiting for a client's messages on standard input; Ctrl-D ends the server. To list the tools: " +
					"gatehouse tools",
			)
		}
		if d.Kind == app.HTTP || d.Kind == app.HTTPS {
			shown := credential{
				token:  host.LocalToken(),
				file:   app.LocalTokenFile(cfg.Folders),
				secret: !isTerminal(w.Err),
			}
			defer snippets(w.Err, d, same, host.Example(), shown)
		}
		if d.Kind == app.TCP {
			defer lineSnippet(w.Err, d, host.Example(), host.LocalToken() != "" && !cfg.Auth.Insecure)
		}
	}
}

// pair prints how to create the first user on a host that admits no caller without
// credentials and has no user yet.
func pair(ctx context.Context, w Environment, host *app.App) error {
	code, err := host.Pairing(ctx)
	if code != "" {
		fmt.Fprintf(
			w.Err,
			"[gatehouse] No user exists yet. Create the first user, an administrator, within 15 minutes, "+
				"with the code\n"+
				"    %s\nby POST /auth/pair {\"code\", \"user\", \"password\"}, or without the code: "+
				"gatehouse user add NAME --role admin\n",
			code,
		)
	}
	return err
}

// credential is the local token, for the text that the user pastes.
type credential struct {
	token  string // "" if none is needed
	file   string // the path of the file that holds it
	secret bool   // not printed, because standard error is not a terminal and may be stored
}

// header returns the header for a client's settings, the same header as an option of a shell command, and a note
// for the user.
func (c credential) header() (value, shell, note string) {
	switch {
	case c.token == "":
		return "", "", ""
	case c.secret:
		return "Bearer TOKEN", ` -H "Authorization: Bearer $(cat '` + c.file + `')"`, "\nTOKEN is the content of " +
			c.file
	}
	return "Bearer " + c.token, " -H 'Authorization: Bearer " + c.token + "'", ""
}

// usage returns a command that calls the server at an address: a call of the example tool, or the list of the
// tools if there is no example.
func usage(url, local, example string) string {
	if example == "" {
		return fmt.Sprintf("List the tools:\n  %s tools --url %s%s", program(), url, local)
	}
	return fmt.Sprintf("Call a tool:\n  %s call --url %s%s %s", program(), url, local, example)
}

// lineSnippet prints text to paste that uses the server on a TCP listener.
func lineSnippet(stderr io.Writer, d app.Listener, example string, token bool) {
	local := ""
	if token {
		local = " --token local"
	}
	fmt.Fprintf(stderr, "\n%s\n\n", usage(reachable(d.Address), local, example))
}

// reachable returns the address of a listener as a client on this machine names it.
func reachable(address string) string {
	return strings.NewReplacer("://0.0.0.0:", "://127.0.0.1:", "://[::]:", "://[::1]:").Replace(address)
}

// program returns the name or path by which the user can start this program.
func program() string {
	if path, err := os.Executable(); err == nil {
		return path
	}
	return "gatehouse"
}

// command is a program that a client starts, with its arguments and environment.
type command struct {
	program string
	args    []string
	env     map[string]string
}

// sameServer returns the command by which a client starts a server that offers the same tools over its standard
// input and output.
type sameServer func(l *config.Loaded, folders []string) command

// sameOnStdio repeats the command line of serve without the flags of listeners and authentication: modules,
// folders as absolute paths, and every other flag. A restricted server has the same restrictions where the entry
// is pasted.
func sameOnStdio(c *cobra.Command, w Environment, modules []string, l *config.Loaded, folders []string) command {
	same := command{program(), slices.Concat([]string{"serve"}, modules), l.Environment(w.Getenv)}
	if l.Roots.Unrestricted {
		same.args = append(same.args, "--unrestricted")
	} else {
		for _, f := range folders {
			same.args = append(same.args, "-d", f)
		}
	}
	left := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(listenerFlags).register(left)
	c.Flags().Visit(func(f *pflag.Flag) {
		switch {
		case f.Name == "directory", f.Name == "unrestricted":
		case f.Name != "rate-limit" && left.Lookup(f.Name) != nil:
		default:
			same.args = append(same.args, "--"+f.Name+"="+flagValue(f))
		}
	})
	return same
}

// flagValue returns the value of a flag in the form in which a command line accepts it.
func flagValue(f *pflag.Flag) string {
	text := f.Value.String()
	switch {
	case f.Value.Type() == "stringSlice": // printed as [a,"b,c"]
		return strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
	case f.Name == "config":
		if abs, err := filepath.Abs(text); err == nil {
			return abs
		}
	}
	return text
}

// snippets prints text to paste that uses the server on an HTTP listener. The token is valid on this machine
// alone.
func snippets(stderr io.Writer, d app.Listener, same command, example string, as credential) {
	url := reachable(d.Address)
	trust, ca := "", ""
	if d.Trust != "" {
		trust = fmt.Sprintf(
			"\nA client that is written in JavaScript accepts the certificate with\n  export NODE_EXTRA_CA_CERTS=%s",
			d.Trust,
		)
		ca = "--cacert " + d.Trust + " "
	}
	type server struct {
		Type    string            `json:"type,omitempty"`
		URL     string            `json:"url,omitempty"`
		Headers map[string]string `json:"headers,omitempty"`
		Command string            `json:"command,omitempty"`
		Args    []string          `json:"args,omitempty"`
		Env     map[string]string `json:"env,omitempty"`
	}
	byURL, local := server{Type: "http", URL: url}, ""
	value, bearer, note := as.header()
	if value != "" {
		byURL.Headers = map[string]string{"Authorization": value}
		local = " --token local"
	}
	entry := func(s server) string {
		b, _ := json.Marshal(map[string]map[string]server{"mcpServers": {"gatehouse": s}}) // strings only
		return string(b)
	}
	fmt.Fprintf(stderr, `
%s
Or by hand:
  curl -s %s%s%s -H 'Content-Type: application/json' -H 'Accept: application/json' \
    -d '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}'
A client that connects by URL:
  %s%s%s
A client that starts the server itself:
  %s

`, usage(url, local, example), ca, url, bearer, entry(byURL), note, trust,
		entry(server{Command: same.program, Args: same.args, Env: same.env}))
}

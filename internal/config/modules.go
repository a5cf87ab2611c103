package config

import (
	"fmt"
	"net/url"
	"time"

	"gatehouse/internal/exec/shellpolicy"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/modules/file"
	"gatehouse/internal/modules/process"
	"gatehouse/internal/modules/shell"
	"gatehouse/internal/packages"
	"gatehouse/internal/sandbox/manager"
)

// Modules holds the settings of single modules.
type Modules struct {
	File    file.Settings     `doc:"Files. A file that is protected by its name is protected for every tool, in every folder."`
	Shell   shell.Settings    `doc:"Command lines. They can be run only if the module, or its context, is named."`
	Process process.Settings  `doc:"Processes. They can be started only if the module is named."`
	Package packages.Settings `doc:"Third-party MCP servers."`

	Sandbox manager.Settings `doc:"Sandboxes for code. They can be created only if the module, or its context, is named."`
}

// longestCommand is the longest time limit of a command.
const longestCommand = time.Hour

func (m Modules) validate(w *problems) {
	validateSandboxes(m.Sandbox, w)
	f := m.File
	w.names("modules.file.deny", f.Deny)
	w.names("modules.file.allow", f.Allow)
	atLeast(w, "modules.file.max_edit", "largest file to edit", f.MaxEdit, 0)
	atLeast(w, "modules.file.max_copy", "largest file to copy", f.MaxCopy, 0)
	validateShell(w, m.Shell)
	validateProcesses(w, m.Process)
	validatePackages(w, m.Package)
}

// checkPackages validates the packages that are declared.
func (c Config) checkPackages(w *problems) {
	names := map[string]bool{}
	for i, d := range c.Packages {
		at := fmt.Sprintf("packages[%d]", i)
		if _, err := d.Record(); err != nil {
			w.addf(at, "%w", err)
		}
		if names[d.Name] {
			w.addf(at+".name", "there are two packages called %q", d.Name)
		}
		names[d.Name] = true
	}
}

func validatePackages(w *problems, p packages.Settings) {
	atLeast(w, "modules.package.begin", "time to be ready", p.Begin, 0)
	atLeast(w, "modules.package.answer", "time for a call", p.Answer, 0)
	atLeast(w, "modules.package.idle", "time without calls", p.Idle, 0)
	atLeast(w, "modules.package.install", "time for an installation", p.Install, 0)
	if p.Message != 0 {
		atLeast(w, "modules.package.message", "message of a server", p.Message, 64<<10)
	}
	atLeast(w, "modules.package.most", "packages", p.Most, 0)
	atLeast(w, "modules.package.search.refresh", "age of a listing", p.Search.Refresh, 0)
	for _, x := range []struct {
		key string
		all []string
	}{
		{"registries", p.Search.Registries}, {"npm", []string{p.Search.NPM}}, {"pypi", []string{p.Search.PyPI}},
		{"crates", []string{p.Search.Crates}},
	} {
		for _, address := range x.all {
			u, err := url.Parse(address)
			if address != "" && address != packages.Off && (err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http") {
				w.addf("modules.package.search."+x.key, "%q is not an address; expected https://host, or %s", address, packages.Off)
			}
		}
	}
}

func validateProcesses(w *problems, p process.Settings) {
	for _, x := range []struct {
		key, what string
		value     int
	}{
		{"running", "processes of one caller", p.PerOwner}, {"context", "processes of one context", p.PerContext},
		{"everyones", "processes at once", p.Total}, {"processes", "processes of one process group", p.Processes},
		{"buffer", "output that is kept", p.Buffer}, {"kept", "ended processes that are kept", p.MaxEnded},
	} {
		atLeast(w, "modules.process."+x.key, x.what, x.value, 0)
	}
	atLeast(w, "modules.process.keep", "time that ended processes are kept", p.Retention, 0)
}

// NoTimeout returns the error for a timeout that a command cannot have.
func NoTimeout(t time.Duration) error {
	return fmt.Errorf("timeout is %v: expected whole seconds, from 1 to %d", t, longestCommand/time.Second)
}

func validateShell(w *problems, s shell.Settings) {
	if t := s.Timeout; t < 0 || t > longestCommand || t%time.Second != 0 {
		w.addf("modules.shell.timeout", "%w", NoTimeout(t))
	}
	w.commands("modules.shell.allow", s.Allow)
	w.commands("modules.shell.deny", s.Deny)
	if s.Output != 0 {
		atLeast(w, "modules.shell.output", "output of a stream", s.Output, 1<<10)
	}
	atLeast(w, "modules.shell.processes", "processes of a command", s.Processes, 0)
}

func (w *problems) commands(at string, list []string) {
	for i, p := range list {
		if _, err := shellpolicy.New(nil, []string{p}); err != nil {
			w.addf(fmt.Sprintf("%s[%d]", at, i), "%w", err)
		}
	}
}

func (w *problems) names(at string, list []string) {
	for i, p := range list {
		if _, err := roots.NewGuard([]string{p}); err != nil || p[0] == '!' {
			w.addf(
				fmt.Sprintf("%s[%d]", at, i),
				"%q is not a pattern of names; expected one such as .env, *.key, secrets/** or write:dist/**",
				p,
			)
		}
	}
}

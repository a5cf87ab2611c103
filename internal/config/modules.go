package config

import (
	"fmt"
	"net/url"
	"time"

	"gatehouse/internal/exec/shellpolicy"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/modules/code"
	"gatehouse/internal/modules/file"
	"gatehouse/internal/modules/ide"
	"gatehouse/internal/modules/lsp"
	"gatehouse/internal/modules/ml"
	"gatehouse/internal/modules/process"
	"gatehouse/internal/modules/rag"
	"gatehouse/internal/modules/shell"
	"gatehouse/internal/modules/webview"
	"gatehouse/internal/packages"
	"gatehouse/internal/sandbox/manager"
)

// Modules holds the settings of single modules.
type Modules struct {
	File    file.Settings     `doc:"Files. A file that is protected by its name is protected for every tool, in every folder."`
	Shell   shell.Settings    `doc:"Command lines. They can be run only if the module, or its context, is named."`
	Code    code.Settings     `doc:"Programs that call tools. They can be run only if the module is named."`
	Process process.Settings  `doc:"Processes. They can be started only if the module is named."`
	IDE     ide.Settings      `doc:"Coding agents. They are started only if the module is named."`
	LSP     lsp.Settings      `doc:"Language servers. They are started only if the module is named."`
	Package packages.Settings `doc:"Third-party MCP servers."`
	ML      ml.Settings       `yaml:"ml" doc:"Language models."`
	RAG     rag.Settings      `yaml:"rag" doc:"Search in documents and code."`

	WebView webview.Settings `yaml:"webview" doc:"Web pages in a browser."`

	Sandbox manager.Settings `doc:"Sandboxes for code. They can be created only if the module, or its context, is named."`
}

// longestCommand is the longest time limit of a command.
const longestCommand = time.Hour

func (m Modules) validate(w *problems) {
	validateSandboxes(m.Sandbox, w)
	validateModels(w, m.ML)
	if where, err := m.RAG.Validate(); err != nil {
		w.addf("modules.rag."+where, "%w", err)
	}
	f := m.File
	w.names("modules.file.deny", f.Deny)
	w.names("modules.file.allow", f.Allow)
	atLeast(w, "modules.file.max_edit", "largest file to edit", f.MaxEdit, 0)
	atLeast(w, "modules.file.max_copy", "largest file to copy", f.MaxCopy, 0)
	validateShell(w, m.Shell)
	validateProcesses(w, m.Process)
	validateLSP(w, m.LSP)
	if err := ide.ParseAgents(m.IDE.Agents); err != nil {
		w.addf("modules.ide.agents", "%w", err)
	}
	atLeast(w, "modules.ide.idle", "time without calls", m.IDE.Idle, 0)
	validatePackages(w, m.Package)
	validateWebView(w, m.WebView)
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

func validateModels(w *problems, m ml.Settings) {
	names := map[string]bool{}
	for i, b := range m.Backends {
		at := fmt.Sprintf("modules.ml.backends[%d]", i)
		if err := b.Validate(); err != nil {
			w.addf(at, "%w", err)
		}
		if names[b.Name] {
			w.addf(at+".name", "there are two backends called %q", b.Name)
		}
		names[b.Name] = true
	}
	w.url("modules.ml.influx.url", "InfluxDB", m.Influx.URL, "https", "http")
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
			if address != "" && address != packages.Off &&
				(err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http") {
				w.addf(
					"modules.package.search."+x.key,
					"%q is not an address; expected https://host, or %s",
					address,
					packages.Off,
				)
			}
		}
	}
}

func validateLSP(w *problems, s lsp.Settings) {
	if err := lsp.CheckServers(s.Servers); err != nil {
		w.addf("modules.lsp.servers", "%w", err)
	}
	atLeast(w, "modules.lsp.most", "language servers at once", s.Most, 0)
	atLeast(w, "modules.lsp.idle", "time without calls", s.Idle, 0)
	if s.Memory != 0 {
		atLeast(w, "modules.lsp.memory", "memory of a language server", s.Memory, 64<<20)
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

func validateWebView(w *problems, s webview.Settings) {
	for _, n := range []struct {
		name, what string
		got        int
	}{
		{"sessions", "browsers of one caller", s.PerOwner}, {"everyones", "browsers at once", s.Total},
		{"processes", "processes of one browser", s.Processes},
	} {
		atLeast(w, "modules.webview."+n.name, n.what, n.got, 0)
	}
	atLeast(w, "modules.webview.idle", "time without calls", s.Idle, 0)
	atLeast(w, "modules.webview.memory", "memory of a browser", s.Memory, 0)
	atLeast(w, "modules.webview.max_download", "largest download", s.MaxDownload, 0)
	if err := s.Check(); err != nil {
		w.addf("modules.webview", "%w", err)
	}
}

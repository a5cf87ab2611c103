package config

import (
	"fmt"
	"time"

	"gatehouse/internal/exec/shellpolicy"
	"gatehouse/internal/files/roots"
)

// Modules are what single modules are told.
type Modules struct {
	File    Files     `doc:"Files. What is protected by its name is so for every tool, in every folder."`
	Shell   Shell     `doc:"Command lines. They can be run only where the module is named, or its context is."`
	Process Processes `doc:"Processes. They can be started only where the module is named."`
	Package Packages  `doc:"Other people's MCP servers. They run only where the module is named."`

	Sandbox Sandboxes `doc:"Sandboxes for code. They can be had only where the module is named, or its context is."`
}

// Files are what the file module is told, and which names are protected in the
// folders.
type Files struct {
	Deny    []string `doc:"Names that tools stay away from besides the usual ones (.env, private keys, passwords; writing to .git): such as *.sqlite, secrets/** or, to leave reading alone, write:dist/**."`
	Allow   []string `doc:"Names that may be touched although they are on that list, the same way: .env.test, or write:.git/** for writing to .git."`
	MaxEdit int64    `doc:"Size of the largest file that is edited, before and after; it is held in memory. 0 means 64 MiB." unit:"bytes"`
	MaxCopy int64    `doc:"Size of the largest file that is copied or added to; 0 means 4 GiB." unit:"bytes"`
}

// Processes is what the process module is told. Each 0 stands for the default.
type Processes struct {
	Running   int           `doc:"Processes of one caller in one context at once; 0 means 256."`
	Context   int           `doc:"Processes of one context at once, of all its callers together; 0 means as many as on the host."`
	Everyones int           `doc:"Processes at once on this host; 0 means 1000."`
	Processes int           `doc:"How many processes and threads one process may become, where the system can count them; 0 means 512."`
	Buffer    int           `doc:"How much of each stream of a process is kept, the newest; 0 means 1 MiB." unit:"bytes"`
	Kept      int           `doc:"Ended processes of one caller that are remembered; 0 means 50."`
	Keep      time.Duration `doc:"For how long they are; 0 means 1h."`
}

// Packages is what the module of packages is told. Each 0 stands for the
// default.
type Packages struct {
	Begin   time.Duration `doc:"Time for a server to be ready; 0 means 30s."`
	Answer  time.Duration `doc:"Time for one call; 0 means 5m."`
	Idle    time.Duration `doc:"Time without calls, after which a server that is started on demand is ended; 0 means 10m."`
	Install time.Duration `doc:"Time for one installation; 0 means 15m."`
	Message int64         `doc:"Size of one message of a server; what is longer is answered by an error. 0 means 16 MiB, or what a door takes if that is less." unit:"bytes"`
	Most    int           `doc:"Packages on this host; 0 means 100."`
}

// Shell is what the shell module is told.
type Shell struct {
	Timeout    time.Duration `doc:"Time of a command that says nothing itself, in whole seconds up to 5m; 0 means 30s."`
	Allow      []string      `doc:"Patterns of commands that may run; none means all. Each is a glob on the program's name and, after a space, one on its arguments: ls*, which also means lsblk, or git push*. Every command of a line is held against them, and what cannot be judged is refused."`
	Deny       []string      `doc:"Patterns of commands that may not run, the same way; they go before those that may. A seat belt, no wall: an interpreter that may run can do what it likes."`
	Shell      string        `doc:"Name or path of the shell; left out, /bin/sh."`
	WorkingDir string        `doc:"Where commands begin, inside the folders; left out, in the first of them."`
	NoStderr   bool          `doc:"Throw away what commands print to standard error."`
	Output     int           `doc:"How much of each stream is in an answer, its beginning and its end; 0 means 1 MiB. The whole can be read as a resource." unit:"bytes"`
	Processes  int           `doc:"How many processes and threads one command may become, where the system can count them; 0 means 512."`
	Confine    bool          `doc:"Run each command in a sandbox of its own, in which it can read the caller's folders, write to a home that goes with it, and reach nothing else of the host and no network. A host that cannot make sandboxes then does not start."`
}

// longestCommand is the most time a command can be given.
const longestCommand = time.Hour

// Protect are the names that tools stay away from, as roots.NewGuard takes
// them; nil means the usual ones.
func (f Files) Protect() []string {
	if len(f.Deny)+len(f.Allow) == 0 {
		return nil
	}
	all := append(roots.Protected(), f.Deny...)
	for _, p := range f.Allow {
		all = append(all, "!"+p)
	}
	return all
}

func (m Modules) validate(w *wrong) {
	m.Sandbox.validate(w)
	f := m.File
	w.names("modules.file.deny", f.Deny)
	w.names("modules.file.allow", f.Allow)
	atLeast(w, "modules.file.max_edit", "largest file to edit", f.MaxEdit, 0)
	atLeast(w, "modules.file.max_copy", "largest file to copy", f.MaxCopy, 0)
	m.Shell.validate(w)
	m.Process.validate(w)
	m.Package.validate(w)
}

func (p Packages) validate(w *wrong) {
	atLeast(w, "modules.package.begin", "time to be ready", p.Begin, 0)
	atLeast(w, "modules.package.answer", "time for a call", p.Answer, 0)
	atLeast(w, "modules.package.idle", "time without calls", p.Idle, 0)
	atLeast(w, "modules.package.install", "time for an installation", p.Install, 0)
	if p.Message != 0 {
		atLeast(w, "modules.package.message", "message of a server", p.Message, 64<<10)
	}
	atLeast(w, "modules.package.most", "packages", p.Most, 0)
}

func (p Processes) validate(w *wrong) {
	for _, x := range []struct {
		key, what string
		value     int
	}{
		{"running", "processes of one caller", p.Running}, {"context", "processes of one context", p.Context},
		{"everyones", "processes at once", p.Everyones}, {"processes", "what one process may become", p.Processes},
		{"buffer", "output that is kept", p.Buffer}, {"kept", "processes that are remembered", p.Kept},
	} {
		atLeast(w, "modules.process."+x.key, x.what, x.value, 0)
	}
	atLeast(w, "modules.process.keep", "time they are remembered", p.Keep, 0)
}

// NoTimeout says that a command cannot be given this time.
func NoTimeout(t time.Duration) error {
	return fmt.Errorf("timeout is %v: expected whole seconds, from 1 to %d", t, longestCommand/time.Second)
}

func (s Shell) validate(w *wrong) {
	if t := s.Timeout; t < 0 || t > longestCommand || t%time.Second != 0 {
		w.add("modules.shell.timeout", "%w", NoTimeout(t))
	}
	w.commands("modules.shell.allow", s.Allow)
	w.commands("modules.shell.deny", s.Deny)
	if s.Output != 0 {
		atLeast(w, "modules.shell.output", "output of a stream", s.Output, 1<<10)
	}
	atLeast(w, "modules.shell.processes", "processes of a command", s.Processes, 0)
}

func (w *wrong) commands(at string, list []string) {
	for i, p := range list {
		if _, err := shellpolicy.New(nil, []string{p}); err != nil {
			w.add(fmt.Sprintf("%s[%d]", at, i), "%w", err)
		}
	}
}

func (w *wrong) names(at string, list []string) {
	for i, p := range list {
		if _, err := roots.NewGuard([]string{p}); err != nil || p[0] == '!' {
			w.add(fmt.Sprintf("%s[%d]", at, i), "%q is no pattern of names; expected one such as .env, *.key, secrets/** or write:dist/**", p)
		}
	}
}

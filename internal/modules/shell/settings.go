package shell

import "time"

// Settings are the settings of the module, which the configuration of a host
// embeds. The zero value is usable.
type Settings struct {
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

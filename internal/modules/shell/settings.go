package shell

import "time"

// Settings are the settings of the module, which the configuration of a host
// embeds. The zero value is usable.
type Settings struct {
	Timeout    time.Duration `doc:"Time of a command that says nothing itself, in whole seconds up to 5m; 0 means 30s."`
	Allow      []string      `doc:"Patterns of commands that may run; none means all. Each is a glob on the program's name and, after a space, one on its arguments: ls*, which also means lsblk, or git push*. What a program may start and a line may not follows with:, npm with: env node. Every program of a line is held against them when it is started, however deep. gatehouse shell learn prints the list of a command."`
	Deny       []string      `doc:"Patterns of commands that may not run, the same way; they go before those that may. Copies and links of a file are the file. Where allow or deny is set, a line writes only in the caller's folders and in those for temporary files, and sudo does not work in it."`
	Writable   []string      `doc:"More folders in which a line may write where allow or deny is set, such as ~/.cache; / means all."`
	Shell      string        `doc:"Name or path of the shell; left out, /bin/sh."`
	WorkingDir string        `doc:"Where commands begin, inside the folders; left out, in the first of them."`
	NoStderr   bool          `doc:"Throw away what commands print to standard error."`
	Output     int           `doc:"How much of each stream is in an answer, its beginning and its end; 0 means 1 MiB. The whole can be read as a resource." unit:"bytes"`
	Processes  int           `doc:"How many processes and threads one command may become, where the system can count them; 0 means 512."`
	Confine    bool          `doc:"Run each command in a sandbox of its own, in which it can read the caller's folders, write to a home that goes with it, and reach nothing else of the host and no network. A host that cannot make sandboxes then does not start."`
}

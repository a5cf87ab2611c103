package lsp

import "time"

// Settings are the settings of the module, which the configuration of a host embeds. The zero value is usable.
type Settings struct {
	Servers  []string      `doc:"Language servers, each as language=command line: go=/opt/gopls, python=pylsp. It replaces the usual server of that language, which is looked up in PATH."`
	Most     int           `doc:"Language servers that run at once; the one that was used least recently makes room. 0 means 6."`
	Memory   int64         `doc:"Memory that one language server and its processes may use; above it they are restarted. 0 means 4 GiB." unit:"bytes"`
	Idle     time.Duration `doc:"Time without calls after which a language server is stopped; 0 means 15m."`
	Writable []string      `doc:"More folders in which language servers may write, besides those for temporary files and caches, where the system can enforce that."`
}

const (
	defaultMost   = 6
	defaultMemory = 4 << 30
	defaultIdle   = 15 * time.Minute
)

package cli

import (
	"fmt"
	"io"

	"gatehouse/internal/config"
)

// foreign are variables of the servers that this program replaces, and what to use instead if they are not read.
var foreign = []struct{ name, instead string }{
	{
		"CORE_MCP_TRANSPORT",
		"GATEHOUSE_MCP_TRANSPORT (tcp, socket, http or all) for gatehouse daemon, GATEHOUSE_TRANSPORT for gatehouse serve",
	},
	{"CORE_DAEMON", "gatehouse daemon start"},
	{"BOUVET_TRANSPORT", "GATEHOUSE_TRANSPORT (stdio, http or both)"},
	{"BOUVET_HTTP_HOST", "GATEHOUSE_HTTP_HOST"},
	{"BOUVET_HTTP_PORT", "GATEHOUSE_HTTP_PORT"},
}

// warnForeign prints, for each variable of another server that the settings were not read from, what replaces it
// here.
func warnForeign(stderr io.Writer, getenv func(string) string, l *config.Loaded) {
	for _, f := range foreign {
		if getenv(f.name) != "" && !l.From(f.name) {
			fmt.Fprintf(stderr, "[gatehouse] %s is set and is not read here; use %s\n", f.name, f.instead)
		}
	}
}

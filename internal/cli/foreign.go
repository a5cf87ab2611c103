package cli

import (
	"fmt"
	"io"
)

// foreign are settings of the servers that this program stands in for, which it
// does not read, and what to use in their place.
var foreign = []struct{ name, instead string }{
	{"CORE_MCP_TRANSPORT", "GATEHOUSE_MCP_TRANSPORT (tcp, socket, http or all) for gatehouse daemon, GATEHOUSE_TRANSPORT for gatehouse serve"},
	{"CORE_MCP_ADDR", "GATEHOUSE_MCP_ADDR"},
	{"CORE_MCP_TCP_ADDR", "GATEHOUSE_MCP_ADDR"},
	{"CORE_HEALTH_ADDR", "GATEHOUSE_HEALTH_ADDR"},
	{"CORE_PID_FILE", "GATEHOUSE_PID_FILE"},
	{"CORE_DAEMON", "gatehouse daemon start"},
	{"BOUVET_TRANSPORT", "GATEHOUSE_TRANSPORT (stdio, http or both)"},
	{"BOUVET_HTTP_HOST", "GATEHOUSE_HTTP_HOST"},
	{"BOUVET_HTTP_PORT", "GATEHOUSE_HTTP_PORT"},
	{"BOUVET_KERNEL", "GATEHOUSE_KERNEL"},
	{"BOUVET_ROOTFS", "GATEHOUSE_ROOTFS"},
	{"BOUVET_FIRECRACKER", "GATEHOUSE_FIRECRACKER"},
	{"BOUVET_CHROOT", "GATEHOUSE_CHROOT"},
	{"BOUVET_POOL_ENABLED", "GATEHOUSE_POOL_ENABLED"},
	{"BOUVET_POOL_MIN_SIZE", "GATEHOUSE_POOL_MIN_SIZE"},
	{"BOUVET_POOL_MAX_BOOTS", "GATEHOUSE_POOL_MAX_BOOTS"},
}

// warnForeign says of each variable of another server what replaces it here.
func warnForeign(stderr io.Writer, getenv func(string) string) {
	for _, f := range foreign {
		if getenv(f.name) != "" {
			fmt.Fprintf(stderr, "[gatehouse] %s is set and is not read here; use %s\n", f.name, f.instead)
		}
	}
}

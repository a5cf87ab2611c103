package cli

import (
	"os/exec"
	"strings"

	"gatehouse/internal/cli/clientconfig"
	"gatehouse/internal/config"
)

// checkClients looks whether the clients that are connected can start this
// program.
func checkClients(w Environment, l *config.Loaded) (all []finding) {
	f := connectFlags{name: "gatehouse", scope: string(clientconfig.User)}
	k, err := f.newConnector(w, l, nil)
	if err != nil {
		return []finding{ok("clients: %v", err).but("warn", "set HOME, and start in a folder that exists")}
	}
	var connected []string
	for _, c := range clientconfig.Clients {
		file, entry, state := k.state(c)
		switch {
		case state == stateUnread:
			all = append(all, ok("clients: %s cannot be read", file).but(
				"warn", "correct it; gatehouse connect %s --dry-run says where", c.ID,
			))
		case state != stateConnected:
		case startable(entry):
			connected = append(connected, c.Title)
		default:
			all = append(all, ok("clients: %s starts %s, which is not there", c.Title, printable(entry.Command)).but(
				"warn", "gatehouse connect %s", c.ID,
			))
		}
	}
	if len(connected) == 0 {
		return append(all, ok("clients: none is connected; gatehouse connect adds this host to them"))
	}
	return append(all, ok("clients: %s", strings.Join(connected, ", ")))
}

func startable(s clientconfig.Server) bool {
	_, err := exec.LookPath(s.Command)
	return err == nil
}

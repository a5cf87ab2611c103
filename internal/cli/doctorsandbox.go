package cli

import (
	"context"

	"gatehouse/internal/sandbox/namespaces"
)

// checkSandboxes tries what sandboxes are made of. A host serves without them,
// so nothing of it is a failure.
func checkSandboxes(ctx context.Context) (all []finding) {
	d, err := namespaces.New(namespaces.Options{})
	if err != nil {
		return []finding{ok("sandboxes: %v", err).but("warn", "free memory, or raise the limits of this user; until then there are no sandboxes")}
	}
	defer d.Close()
	for _, f := range d.Doctor(ctx) {
		line := ok("sandboxes: %s: %s", f.Name, f.Detail)
		switch {
		case f.OK:
		case f.Remedy != "":
			line = line.but("warn", "%s", f.Remedy)
		case f.Needed:
			line = line.but("warn", "look in the kernel's log (dmesg) for what was refused; until then there are no sandboxes")
		default:
			line = line.but("warn", "nothing to be done here; sandboxes hold less")
		}
		all = append(all, line)
	}
	return all
}

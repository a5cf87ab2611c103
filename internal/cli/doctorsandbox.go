package cli

import (
	"context"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/namespaces"
	"gatehouse/internal/sandbox/oci"
)

// checkSandboxes tries what sandboxes are made of. A host serves without them,
// so nothing of it is a failure.
func checkSandboxes(ctx context.Context) (all []finding) {
	d, err := namespaces.New(namespaces.Options{})
	if err != nil {
		return []finding{ok("sandboxes: %v", err).but("warn", "free memory, or raise the limits of this user; until then there are no sandboxes")}
	}
	defer d.Close()
	all = findingsOf("sandboxes", d.Doctor(ctx))
	c, err := oci.New(oci.Options{})
	if err != nil {
		return append(all, ok("sandboxes of the driver oci: %v", err).but("warn", "make room in the folder for temporary files, or name another one by TMPDIR"))
	}
	defer c.Close()
	return append(all, findingsOf("sandboxes of the driver oci", c.Doctor(ctx))...)
}

func findingsOf(what string, found []sandbox.Finding) (all []finding) {
	for _, f := range found {
		line := ok("%s: %s: %s", what, f.Name, f.Detail)
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

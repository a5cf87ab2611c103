package cli

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/config"
	"gatehouse/internal/modules/system"
)

// checkDaemons says which tools of the module system this machine can have. A machine
// needs only what its administrators use, so that none is missing.
func checkDaemons(ctx context.Context) finding {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	has, lacks, err := system.Daemons(ctx)
	if err != nil {
		return ok("daemons for the module system: none, since the system's D-Bus cannot be reached").
			but("ok", "only the module system needs it: apt-get install dbus systemd, on a machine that systemd has started")
	}
	var there, packages []string
	for _, d := range has {
		there = append(there, d.Title)
	}
	for _, d := range lacks {
		if !slices.Contains(packages, d.Package) {
			packages = append(packages, d.Package)
		}
	}
	f := ok("daemons for the module system: %s", cmp.Or(strings.Join(there, ", "), "none"))
	if len(packages) > 0 {
		f.fix = "apt-get install " + strings.Join(packages, " ") + " adds tools of the module system"
	}
	return f
}

// checkEngine says whether this host can be a node of a cluster. Without one nothing is missing.
func checkEngine(c config.Cluster) finding {
	if c.NATS.Address != "" {
		return ok("cluster: an engine of its own at %s", c.NATS.Address)
	}
	path, err := cluster.FindProgram(c.Program)
	switch {
	case err == nil:
		return ok("cluster: %s", path)
	case c.Name != "":
		return ok("cluster %s: %s", c.Name, err).but("fail", "apt-get install gatehouse-nats, of the same release")
	}
	return ok("cluster: none, and no gatehouse-nats, which only clusters need")
}

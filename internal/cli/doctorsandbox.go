package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"gatehouse/internal/app"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/manager"
)

// checkSandboxes tries what sandboxes are made of, each driver by itself, and
// says which one they would be made by. A host serves without them, so nothing
// of it is a failure.
func checkSandboxes(ctx context.Context, s manager.Settings, cache string) (all []finding) {
	chosen := ""
	ladder := s.Ladder()
	for _, r := range app.SandboxDrivers(each(ladder, manager.DriverNames()), s, cache, nil) {
		what := "sandboxes of the driver " + r.Name
		d, err := r.Open()
		if err != nil {
			all = append(
				all,
				ok(
					"%s: %v",
					what,
					err,
				).but("warn", "free memory, make room in the folder for temporary files, or raise the limits of this user"),
			)
			continue
		}
		found := d.Doctor(ctx)
		if chosen == "" && slices.Contains(ladder, r.Name) && works(found) && d.Capabilities().Tier >= least(s) {
			chosen = fmt.Sprintf("%s, of the tier %s", r.Name, d.Capabilities().Tier)
		}
		all = append(all, findingsOf(what, found)...)
		d.Close()
	}
	if chosen != "" {
		return append(all, ok("sandboxes are made by the driver %s", chosen))
	}
	return append(all, ok("sandboxes: none can be made of the tier %s or above", least(s)).
		but("warn", "one of the fixes above, modules.sandbox.drivers, or a lower modules.sandbox.min_isolation if that will do"),
	)
}

// each is what is in a, and then what is in b alone.
func each(a, b []string) []string {
	all := slices.Clone(a)
	for _, name := range b {
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

func works(found []sandbox.Finding) bool {
	return !slices.ContainsFunc(found, func(f sandbox.Finding) bool { return f.Needed && !f.OK })
}

func least(s manager.Settings) sandbox.Tier {
	if t := sandbox.ParseTier(s.Isolation); t != sandbox.Unknown {
		return t
	}
	return sandbox.Namespaces
}

func findingsOf(what string, found []sandbox.Finding) (all []finding) {
	for _, f := range found {
		detail := strings.TrimSuffix(f.Detail, "; "+f.Remedy) // Create's error says both
		line := ok("%s: %s: %s", what, f.Name, detail)
		switch {
		case f.OK:
		case f.Remedy != "":
			line = line.but("warn", "%s", f.Remedy)
		case f.Needed:
			line = line.but(
				"warn",
				"look in the kernel's log (dmesg) for what was refused; until then there are no sandboxes",
			)
		default:
			line = line.but("warn", "nothing to be done here; sandboxes hold less")
		}
		all = append(all, line)
	}
	return all
}

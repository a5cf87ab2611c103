package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/exec/overlay"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/manager"
)

// checkSandboxes tests each driver of sandboxes by itself and reports which one would be used. No finding is a
// failure, because a host serves without sandboxes.
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
				).but("warn", "free memory, free space in the folder for temporary files, or raise the limits of this user"),
			)
			continue
		}
		found := d.Doctor(ctx)
		if chosen == "" && slices.Contains(ladder, r.Name) && works(found) && d.Capabilities().Tier >= least(s) {
			chosen = fmt.Sprintf("%s, with the isolation %s", r.Name, d.Capabilities().Tier)
		}
		all = append(all, findingsOf(what, found)...)
		d.Close()
	}
	if chosen != "" {
		return append(all, ok("sandboxes are made by the driver %s", chosen))
	}
	return append(all, ok("sandboxes: none can be made with the isolation %s or above", least(s)).
		but("warn", "apply one of the fixes above, or set modules.sandbox.drivers or a lower "+
			"modules.sandbox.min_isolation"),
	)
}

// each returns the entries of a, and then those that only b has.
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
		detail := strings.TrimSuffix(f.Detail, "; "+f.Remedy) // Create's error contains both
		line := ok("%s: %s: %s", what, f.Name, detail)
		switch {
		case f.OK:
		case f.Remedy != "":
			line = line.but("warn", "%s", f.Remedy)
		case f.Needed:
			line = line.but(
				"warn",
				"read the kernel's log (dmesg) for what was refused; until this is fixed there are no sandboxes",
			)
		default:
			line = line.but("warn", "this machine cannot change that; sandboxes have fewer resources")
		}
		all = append(all, line)
	}
	return all
}

// checkStaging tests whether calls can be staged.
func checkStaging(folders config.Folders, settings config.Stage) finding {
	dir := app.StageFolder(folders)
	if dir == "" {
		return ok("staged calls: this host stores nothing, so it stages nothing")
	}
	if _, err := os.Stat(folders.Data); err != nil {
		dir = filepath.Join(os.TempDir(), "gatehouse-doctor-stage") // nothing is made where nothing is stored yet
	}
	defer os.Remove(dir) // unless it has tasks
	if settings.Layer == config.LayerCopies {
		return ok("staged calls: copies of what file tools write (stage.layer); calls that start programs ask instead")
	}
	if err := overlay.Probe(dir, settings.Network); err != nil {
		fix := "only file tools are staged, by copies of what they write, and calls that start programs ask instead"
		if runtime.GOOS == "linux" {
			fix += "; allow user namespaces, and use a data folder on ext4, xfs, btrfs or tmpfs"
		}
		return ok("staged calls: %v", err).but("warn", "%s", fix)
	}
	return ok("staged calls: overlay file systems can be mounted over folders")
}

package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/sandbox/manager"
)

func validateSandboxes(s manager.Settings, w *problems) {
	for _, n := range []struct {
		name string
		got  int
	}{
		{"memory_mib", s.Memory}, {"vcpu_count", s.VCPUs}, {"processes", s.Processes}, {"disk_mib", s.Disk},
		{"descriptors", s.Descriptors},
		{"output", s.Output}, {"most", s.Most}, {"pool.min_size", s.Pool.MinSize}, {"snapshots", s.Snapshots},
	} {
		atLeast(w, "modules.sandbox."+n.name, n.name, n.got, 1)
	}
	for _, d := range []struct {
		name string
		got  time.Duration
	}{{"call", s.Call}, {"idle", s.Idle}, {"lifetime", s.Lifetime}, {"snapshot_lifetime", s.SnapshotLife}} {
		atLeast(w, "modules.sandbox."+d.name, d.name, d.got, time.Millisecond)
	}
	atLeast(w, "modules.sandbox.most_memory_mib", "most_memory_mib", s.MostMemory, s.Memory)
	for name, n := range map[string]int{"total_memory_mib": s.TotalMemory, "principal_memory_mib": s.PrincipalMemory} {
		if n != 0 {
			atLeast(w, "modules.sandbox."+name, name, n, s.Memory)
		}
	}
	atLeast(w, "modules.sandbox.most_vcpu_count", "most_vcpu_count", s.MostVCPUs, s.VCPUs)
	atLeast(w, "modules.sandbox.most_call", "most_call", s.MostCall, s.Call)
	atLeast(w, "modules.sandbox.pool.max_boots", "max_boots", s.Pool.MaxBoots, 0)
	atLeast(w, "modules.sandbox.snapshot_bytes", "snapshot_bytes", s.SnapshotBytes, 1<<20)
	atLeast(w, "modules.sandbox.image_bytes", "image_bytes", s.ImageBytes, 1<<20)
	atLeast(w, "modules.sandbox.machine_bytes", "machine_bytes", s.MachineBytes, 1<<20)
	if !slices.Contains([]string{"", "kvm", "tcg"}, s.Accelerator) {
		w.addf("modules.sandbox.accelerator", "%q is not an accelerator; expected kvm, tcg or nothing", s.Accelerator)
	}
	validateSandboxDrivers(s, w)
	validateSandboxTemplates(s, w)
	validateSandboxSecrets(s, w)
	switch s.Isolation {
	case "process", "filtered", "namespaces", "user kernel", "machine":
	default:
		w.addf(
			"modules.sandbox.min_isolation",
			"%q is not a level of isolation; expected process, filtered, namespaces, user kernel or machine",
			s.Isolation,
		)
	}
}

func validateSandboxDrivers(s manager.Settings, w *problems) {
	said := map[string][]string{"drivers": s.Drivers, "prefer": s.Prefer}
	if !s.Auto() {
		said["driver"] = []string{s.Driver}
	}
	for key, names := range said {
		for _, name := range names {
			checkDriver(w, "modules.sandbox."+key, name, s.Unsafe)
		}
	}
}

func checkDriver(w *problems, path, name string, unsafe bool) {
	switch {
	case name == "process" && !unsafe:
		w.addf(path, "the driver process isolates nothing; set unsafe: true beside it to use it")
	case name != "process" && !slices.Contains(manager.DriverNames(), name):
		w.addf(path, "%q is not a driver; expected %s or process", name, strings.Join(manager.DriverNames(), ", "))
	}
}

func validateSandboxTemplates(s manager.Settings, w *problems) {
	names := map[string]bool{}
	for i, t := range s.Templates {
		path := fmt.Sprintf("modules.sandbox.templates[%d]", i)
		switch {
		case t.Name == "" || len(t.Name) > 64:
			w.addf(path+".name", "the name of a template must have 1 to 64 bytes")
		case names[t.Name]:
			w.addf(path+".name", "there are two templates named %q", t.Name)
		}
		names[t.Name] = true
		if t.Driver != "" {
			checkDriver(w, path+".driver", t.Driver, s.Unsafe)
			if ladder := s.Ladder(); !slices.Contains(ladder, t.Driver) {
				w.addf(
					path+".driver",
					"%s is not among the drivers that callers may request, which are %s: add it to "+
						"modules.sandbox.drivers",
					t.Driver,
					strings.Join(ladder, ", "),
				)
			}
		}
		for _, v := range t.Env {
			if name, _, ok := strings.Cut(v, "="); !ok || name == "" {
				w.addf(path+".env", "%q is not a variable; expected NAME=value", v)
			}
		}
		for _, n := range []int{t.Memory, t.VCPUs, t.Processes, t.Disk} {
			atLeast(w, path, "a limit", n, 0)
		}
	}
}

func validateSandboxSecrets(s manager.Settings, w *problems) {
	for i, one := range s.Secrets {
		path := fmt.Sprintf("modules.sandbox.secrets[%d]", i)
		if err := secret.CheckName(one.Name); err != nil {
			w.addf(path+".name", "%w", err)
		}
		if len(one.Hosts) == 0 {
			w.addf(path+".hosts", "no host is named; expected one such as api.example.com")
		}
	}
}

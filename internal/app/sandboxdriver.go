package app

import (
	"log/slog"
	"path/filepath"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/firecracker"
	"gatehouse/internal/sandbox/gvisor"
	"gatehouse/internal/sandbox/manager"
	"gatehouse/internal/sandbox/namespaces"
	"gatehouse/internal/sandbox/oci"
	"gatehouse/internal/sandbox/process"
	"gatehouse/internal/sandbox/qemu"
)

// SandboxDrivers returns the drivers with these names, in that order. Unknown names are left out. Data that
// drivers keep between runs is in the cache folder.
func SandboxDrivers(names []string, s manager.Settings, cache string, log *slog.Logger) (ladder []manager.LadderEntry) {
	make := map[string]func() (sandbox.Driver, error){
		namespaces.Name: func() (sandbox.Driver, error) {
			return namespaces.New(namespaces.Options{Boots: s.Pool.MaxBoots, Log: log})
		},
		oci.Name:    func() (sandbox.Driver, error) { return oci.New(oci.Options{Runtime: s.Runtime, Log: log}) },
		gvisor.Name: func() (sandbox.Driver, error) { return gvisor.New(gvisor.Options{Runsc: s.Runsc, Log: log}) },
		firecracker.Name: func() (sandbox.Driver, error) {
			return firecracker.New(firecracker.Options{
				Binary: s.Firecracker, Jailer: s.Jailer, Kernel: s.Kernel, Modules: s.KernelModules, Rootfs: s.Rootfs,
				Chroot: s.Chroot, Cache: machines(cache), DiskBytes: s.MachineBytes, Log: log,
			})
		},
		qemu.Name: func() (sandbox.Driver, error) {
			return qemu.New(qemu.Options{
				Program: s.QEMU, Accelerator: s.Accelerator, Kernel: s.Kernel, Modules: s.KernelModules,
				Rootfs: s.Rootfs, Folder: machines(cache), DiskBytes: s.MachineBytes, Log: log,
			})
		},
		process.Name: func() (sandbox.Driver, error) { return process.New(process.Options{Unsafe: s.Unsafe, Log: log}) },
	}
	for _, name := range names {
		if open := make[name]; open != nil {
			ladder = append(ladder, manager.LadderEntry{Name: name, Open: open})
		}
	}
	return ladder
}

// machines returns the folder for the files that virtual machines boot from, or "" if there is none.
func machines(cache string) string {
	if cache == "" {
		return ""
	}
	return filepath.Join(cache, "machines")
}

// sandboxTemplates returns the templates of sandboxes.
func sandboxTemplates(s manager.Settings) map[string]manager.Template {
	all := map[string]manager.Template{}
	for _, t := range s.Templates {
		all[t.Name] = manager.Template{
			Image: t.Image, Driver: t.Driver, Strict: t.Strict, Env: t.Env, Ready: t.Ready,
			Limits: sandbox.Limits{MemoryMiB: t.Memory, VCPUs: t.VCPUs, Processes: t.Processes, DiskMiB: t.Disk},
		}
	}
	return all
}

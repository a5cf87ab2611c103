package hosttest_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"gatehouse/internal/app"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/modules/code"
	"gatehouse/internal/sandbox/firecracker"
	"gatehouse/internal/sandbox/gvisor"
	"gatehouse/internal/sandbox/manager"
	"gatehouse/internal/sandbox/namespaces"
	"gatehouse/internal/sandbox/oci"
	"gatehouse/internal/sandbox/process"
	"gatehouse/internal/sandbox/qemu"
	"gatehouse/internal/tests/hosttest"
)

// Programs run in the sandboxes of every driver that has an agent: their calls, calls at once, and a question. A driver
// without one refuses them.
func TestProgramsRunInEveryDriver(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes several seconds")
	}
	for _, driver := range []string{
		namespaces.Name, oci.Name, gvisor.Name, firecracker.Name, qemu.Name, process.Name,
	} {
		t.Run(driver, func(t *testing.T) {
			if (driver == qemu.Name || driver == firecracker.Name) && os.Getenv("GATEHOUSE_TEST_ALL") == "" {
				t.Skip("make verify-code starts machines")
			}
			s := manager.Settings{
				Runsc: builtRunsc(t), Unsafe: true, Kernel: machineKernel(t), Accelerator: "tcg",
				Firecracker: os.Getenv("GATEHOUSE_FIRECRACKER"), Rootfs: os.Getenv("GATEHOUSE_ROOTFS"),
			}
			ladder := app.SandboxDrivers([]string{driver}, s, t.TempDir(), slog.New(slog.DiscardHandler))
			d, err := ladder[0].Open()
			if err != nil {
				t.Skip(err)
			}
			defer d.Close()
			for _, f := range d.Doctor(t.Context()) {
				if f.Needed && !f.OK {
					t.Skipf("not run: %s: %s; %s", f.Name, f.Detail, f.Remedy)
				}
			}
			boxes := manager.New(manager.Options{
				Ladder: ladder, NoPool: true,
				NewID: func(kind string) string { return fmt.Sprintf("%s_%d", kind, boxNumber.Add(1)) },
			})
			t.Cleanup(func() {
				if err := boxes.Close(); err != nil {
					t.Error(err)
				}
			})
			p := programsIn(t, modernClient(), hosttest.Options{Spec: &views.Spec{ProgramsAsk: true}}, code.Settings{},
				boxes)
			source := `
print(tools.pad_read(word="a")["said"])
print(sum(int(x["said"]) for x in tools.gather(*[tools.pen_slow.later(word=str(i)) for i in range(5)])))
print(tools.pen_write(word="b")["said"])
`
			if driver == process.Name {
				args, _ := json.Marshal(map[string]string{"language": "python", "code": source})
				has(t, hosttest.Call(p, "code_run", string(args), accept).Text(), "have no channel to the host")
				return
			}
			text, _ := p.run("python", source, accept)
			has(t, text, "pad_read a\n", "10\n", "wrote b", "pen_slow x5 (line 3)", "pen_write (line 4)")
			if n := p.tools.wrote.Load(); n != 1 {
				t.Errorf("wrote %d times", n)
			}
		})
	}
}

// machineKernel returns a kernel for virtual machines, or "" if there is none.
func machineKernel(t *testing.T) string {
	t.Helper()
	if named := os.Getenv("GATEHOUSE_KERNEL"); named != "" {
		return named
	}
	found, _ := filepath.Glob("../../../.tools/kernel/boot/vmlinuz-*")
	if len(found) == 0 {
		return ""
	}
	path, err := filepath.Abs(slices.Max(found))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// builtRunsc returns the program of the driver gvisor as make setup builds it, or "" if it was not built.
func builtRunsc(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../../.tools/gatehouse-runsc")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

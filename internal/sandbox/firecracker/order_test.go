//go:build linux && (amd64 || arm64)

package firecracker

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/firecracker/api"
)

// What the process refuses of a machine that runs is refused here, too, so that
// the other tests prove that the driver keeps the order.
func TestAMachineThatRunsIsNotConfigured(t *testing.T) {
	d := faked(t, false)
	b := made(t, d, sandbox.Spec{}).(*instance)
	c, ctx := b.machine.api, t.Context()
	const late = "not supported after starting the microVM"
	for what, call := range map[string]struct {
		err  error
		says string
	}{
		"machine": {c.PutMachine(ctx, api.Machine{VCPUs: 1, MemoryMiB: 64}), late},
		"boot":    {c.PutBootSource(ctx, api.BootSource{Kernel: kernelFile}), late},
		"drive":   {c.PutDrive(ctx, api.Drive{ID: "vdb", Path: disk(0)}), late},
		"vsock":   {c.PutVsock(ctx, api.Vsock{CID: 3, Path: "other.sock"}), late},
		"entropy": {c.PutEntropy(ctx, api.Entropy{}), late},
		"logger":  {c.PutLogger(ctx, api.Logger{}), late},
		"start":   {c.Start(ctx), late},
		"load": {c.LoadSnapshot(ctx, api.SnapshotLoad{
			State:  stateFile,
			Memory: api.MemoryBackend{Type: "File", Path: memoryFile},
		}), late},
		"snapshot": {c.CreateSnapshot(ctx, api.SnapshotCreate{State: stateFile, Memory: memoryFile}),
			"save/restore unavailable while running"},
	} {
		f, ok := errors.AsType[*api.Fault](call.err)
		if !ok || f.Status != http.StatusBadRequest || !strings.Contains(f.Message, call.says) {
			t.Errorf("%s: %v, want %q", what, call.err, call.says)
		}
	}
	if i, err := c.Instance(ctx); err != nil || i.State != api.Running || i.ID != b.jail.id {
		t.Errorf("%+v, %v", i, err)
	}
	if err := c.PatchDrive(ctx, api.DriveUpdate{ID: disk(0), Path: disk(0)}); err != nil {
		t.Errorf("a drive is changed: %v", err)
	}
}

//go:build linux && (amd64 || arm64)

package fake

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
)

// start boots what was configured.
func (v *VMM) start() error {
	boot := v.said["boot-source"]
	if boot == nil {
		return refusal("Start microvm error: Cannot start microvm without kernel configuration.")
	}
	if err := v.elf(boot["kernel_image_path"].(string)); err != nil {
		return refusal(
			"Start microvm error: Cannot load kernel due to invalid memory configuration or invalid kernel image: " +
				err.Error(),
		)
	}
	g, err := newGuest(nil)
	if err != nil {
		return refusal("Start microvm error: " + err.Error())
	}
	return v.runGuest(g, "Running", "Start microvm error: ")
}

// elf looks whether a kernel is what can be booted.
func (v *VMM) elf(path string) error {
	f, err := os.Open(v.At(path))
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, 4)
	if _, err := io.ReadFull(f, head); err != nil || !bytes.Equal(head, []byte("\x7fELF")) {
		return refusal("Kernel Loader: failed to load ELF kernel image: Invalid ELF magic number")
	}
	return nil
}

// runGuest has a machine that is made, with its socket device.
func (v *VMM) runGuest(g *guest, state, prefix string) error {
	if vsock := v.said["vsock"]; vsock != nil {
		if err := g.listen(v.At(vsock["uds_path"].(string))); err != nil {
			g.close()
			return refusal(prefix + "Cannot create backend for vsock device: " + err.Error())
		}
	}
	v.guest, v.state = g, state
	g.hold(state == "Paused")
	return nil
}

// set pauses or resumes. Either may be said twice.
func (v *VMM) set(state string) error {
	if v.state = "Running"; state == "Paused" {
		v.state = "Paused"
	}
	v.guest.hold(v.state == "Paused")
	return nil
}

// kept is what a file of state holds.
type kept struct {
	Version string
	Said    map[string]map[string]any
	Plan    []byte // what the agent's place is like; nil when it has none yet
}

// saveSnapshot writes a snapshot, and has the connections of the socket device reset
// when the machine goes on.
func (v *VMM) saveSnapshot(says map[string]any) error {
	if v.state != "Paused" {
		return refusal(
			"Create snapshot error: Cannot save the microVM state: Operation not allowed: save/restore unavailable " +
				"while running",
		)
	}
	b, err := json.Marshal(kept{v.Version, v.said, v.guest.placed()})
	if err != nil {
		return err
	}
	if err := os.WriteFile(v.At(says["snapshot_path"].(string)), b, 0o644); err != nil {
		return refusal("Create snapshot error: Cannot perform open on the snapshot backing file: " + err.Error())
	}
	memory, err := os.OpenFile(v.At(says["mem_file_path"].(string)), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err == nil {
		err = errors.Join(memory.Truncate(v.memory()), memory.Close())
	}
	if err != nil {
		return refusal("Create snapshot error: Cannot perform open on the memory backing file: " + err.Error())
	}
	v.guest.resetOnResume()
	return nil
}

func (v *VMM) memory() int64 {
	if m := v.said["machine-config"]; m != nil {
		return int64(m["mem_size_mib"].(float64)) << 20
	}
	return 128 << 20
}

// load makes the machine one that was kept. When it fails the process is of no
// use any more.
func (v *VMM) load(says map[string]any) error {
	if v.bound {
		return refusal(
			"Load snapshot error: Loading a microVM snapshot not allowed after configuring boot-specific resources.",
		)
	}
	backend, _ := says["mem_backend"].(map[string]any)
	old, _ := says["mem_file_path"].(string)
	switch {
	case backend != nil && old != "":
		return malformed("too many fields: either `mem_backend` or `mem_file_path` exclusively is required")
	case backend == nil && old == "":
		return malformed("missing field: either `mem_backend` or `mem_file_path` is required")
	case backend != nil:
		if backend["backend_type"] != "File" {
			return malformed("missing field `backend_type`")
		}
		old, _ = backend["backend_path"].(string)
	}
	if err := v.restore(says, old); err != nil {
		v.fatal = refusal("Load snapshot error: Failed to restore from snapshot: " + err.Error())
		return v.fatal
	}
	return nil
}

func (v *VMM) restore(says map[string]any, memory string) error {
	b, err := os.ReadFile(v.At(says["snapshot_path"].(string)))
	if err != nil {
		return refusal("Failed to get snapshot state from file: Failed to open snapshot file: " + err.Error())
	}
	var k kept
	if err := json.Unmarshal(b, &k); err != nil {
		return refusal("Failed to get snapshot state from file: Failed to load snapshot state from file: " +
			err.Error())
	}
	v.said = k.Said
	info, err := os.Stat(v.At(memory))
	if err != nil || info.Size() != v.memory() {
		return refusal("Failed to load guest memory: the file is not there, or not as large as the memory")
	}
	for path, d := range v.said {
		if at, drive := d["path_on_host"].(string); drive && v.readable(at) != nil {
			return refusal("Failed to restore devices: " + path + ": " + v.readable(at).Error())
		}
	}
	if to, _ := says["vsock_override"].(map[string]any); to != nil && v.said["vsock"] != nil {
		v.said["vsock"]["uds_path"] = to["uds_path"]
	}
	g, err := newGuest(k.Plan)
	if err != nil {
		return err
	}
	state := "Paused"
	if says["resume_vm"] == true {
		state = "Running"
	}
	return v.runGuest(g, state, "")
}

// Close ends the machine.
func (v *VMM) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.guest != nil {
		v.guest.close()
	}
	return nil
}

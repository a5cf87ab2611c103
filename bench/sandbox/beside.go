package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const script = "print(6 * 7)"

// beside measures what else is here, each from nothing to the first result of
// Python.
func beside(ctx context.Context, s *sheet, n int) {
	for _, o := range []struct {
		name string
		argv func() ([]string, func(), error)
	}{
		{"python3, not shut in",
			func() ([]string, func(), error) { return []string{"/usr/bin/python3", "-c", script}, func() {}, nil }},
		{"bwrap --unshare-all", bubblewrap},
		{"crun", func() ([]string, func(), error) { return container("crun") }},
		{"runc", func() ([]string, func(), error) { return container("runc") }},
		{"runsc --platform=systrap", func() ([]string, func(), error) { return container("runsc") }},
	} {
		r := s.row(o.name+", cold, first Python", "")
		for range n {
			if err := r.timed(func() error { return other(ctx, o.argv) }); err != nil {
				r.note = "not run: " + strings.ReplaceAll(err.Error(), "\n", " ")
				break
			}
		}
	}
}

func other(ctx context.Context, argv func() ([]string, func(), error)) error {
	a, clean, err := argv()
	if err != nil {
		return err
	}
	defer clean()
	out, err := exec.CommandContext(ctx, a[0], a[1:]...).CombinedOutput()
	if err == nil && string(out) != "42\n" {
		err = fmt.Errorf("it printed %.200q", out)
	}
	if err != nil {
		return fmt.Errorf("%w: %.200q", err, out)
	}
	return nil
}

func bubblewrap() ([]string, func(), error) {
	path, err := exec.LookPath("bwrap")
	if err != nil {
		return nil, nil, err
	}
	argv := []string{
		path,
		"--unshare-all",
		"--die-with-parent",
		"--ro-bind",
		"/usr",
		"/usr",
		"--proc",
		"/proc",
		"--dev",
		"/dev",
		"--tmpfs",
		"/tmp",
	}
	for _, l := range []string{"bin", "lib", "lib64", "sbin"} {
		argv = append(argv, "--symlink", "usr/"+l, "/"+l)
	}
	return append(argv, "/usr/bin/python3", "-c", script), func() {}, nil
}

// container writes a bundle for a runtime of containers; what it costs to make
// it is part of a cold start.
func container(name string) ([]string, func(), error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "bundle")
	if err != nil {
		return nil, nil, err
	}
	clean := func() { os.RemoveAll(dir) }
	root := filepath.Join(dir, "rootfs")
	for _, d := range []string{"usr", "proc", "dev", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return nil, nil, err
		}
	}
	for _, l := range []string{"bin", "lib", "lib64", "sbin"} {
		os.Symlink("usr/"+l, filepath.Join(root, l))
	}
	spec := map[string]any{
		"ociVersion": "1.0.2",
		"root":       map[string]any{"path": "rootfs", "readonly": true},
		"process": map[string]any{
			"args": []string{"/usr/bin/python3", "-c", script}, "cwd": "/", "env": []string{"PATH=/usr/bin:/bin"},
			"user": map[string]any{"uid": 0, "gid": 0}, "noNewPrivileges": true,
		},
		"mounts": []map[string]any{
			{"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
			{"destination": "/usr", "type": "bind", "source": "/usr", "options": []string{"rbind", "ro"}},
		},
		"linux": map[string]any{
			"namespaces": []map[string]string{
				{"type": "pid"},
				{"type": "network"},
				{"type": "ipc"},
				{"type": "uts"},
				{"type": "mount"},
			},
		},
	}
	b, err := json.Marshal(spec)
	if err != nil {
		return nil, nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), b, 0o644); err != nil {
		return nil, nil, err
	}
	argv := []string{path}
	switch _, err := os.Stat("/sys/fs/cgroup/unified"); {
	case name == "runsc":
		argv = append(argv, "--platform=systrap", "--network=none")
	case name == "crun" && err == nil: // it refuses to start beside both versions of control groups
		argv = append(
			[]string{"unshare", "-m", "sh", "-c", `umount -l /sys/fs/cgroup/unified; exec "$@"`, "sh"},
			argv...)
	}
	return append(argv, "run", "--bundle", dir, filepath.Base(dir)), clean, nil
}

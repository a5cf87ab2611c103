//go:build amd64 || arm64

package gvisor

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/bundle"
)

const tryWait = 30 * time.Second // for each test of Doctor

const (
	remedyFailed = "gVisor needs ptrace, seccomp and user namespaces: inside a container, start that " +
		"container with --security-opt seccomp=unconfined, or use the driver namespaces; a runsc that was built " +
		"with cgo does not work"
	remedySnapshot = "use another version of runsc, such as the one that make runsc builds: restoring fails in " +
		"some versions"
	remedyRoot = "run gatehouse as root, or save only the files, with archives"
)

// Doctor looks for runsc, makes a sandbox with it, runs a program, and restores a snapshot.
func (d *Driver) Doctor(ctx context.Context) []sandbox.Finding {
	found := sandbox.Finding{Name: "gVisor's runsc", Needed: true}
	if d.missing != nil {
		found.Detail, found.Remedy = d.missing.Error(), remedyMissing
		return []sandbox.Finding{found}
	}
	version, err := bundle.VersionOf(ctx, d.runsc.path)
	if err != nil {
		found.Detail, found.Remedy = err.Error(), remedyMissing
		return []sandbox.Finding{found}
	}
	found.OK, found.Detail = true, d.runsc.path+": "+version
	made := sandbox.Try(ctx, d, tryWait, func(error) string { return remedyFailed })
	findings := []sandbox.Finding{found, made}
	if made.OK {
		findings = append(findings, d.trySnapshot(ctx))
	}
	return findings
}

// trySnapshot reports whether a snapshot can be restored.
func (d *Driver) trySnapshot(ctx context.Context) sandbox.Finding {
	f := sandbox.Finding{Name: "a snapshot is taken and restored"}
	if d.runsc.rootless {
		f.Detail, f.Remedy = "runsc supports snapshots only for root", remedyRoot
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, tryWait)
	defer cancel()
	began := time.Now()
	if err := d.snapshotAndRestore(ctx); err != nil {
		f.Detail, f.Remedy = err.Error(), remedySnapshot
		return f
	}
	f.OK, f.Detail = true, fmt.Sprintf("in %v", time.Since(began).Round(time.Millisecond))
	return f
}

func (d *Driver) snapshotAndRestore(ctx context.Context) error {
	const file, text = "kept", "as it was"
	b, err := d.Create(ctx, sandbox.Spec{})
	if err != nil {
		return err
	}
	defer b.Close()
	if _, err := b.(sandbox.Files).WriteFile(ctx, file, strings.NewReader(text), sandbox.WriteOptions{}); err != nil {
		return err
	}
	s, err := b.(sandbox.Snapshotter).Snapshot(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	again, err := s.Create(ctx)
	if err != nil {
		return err
	}
	defer again.Close()
	var got bytes.Buffer
	if _, err := again.(sandbox.Files).ReadFile(ctx, file, 0, 0, &got); err != nil {
		return err
	}
	if got.String() != text {
		return fmt.Errorf("a file contained %q before and %q after the restore", text, got.String())
	}
	return nil
}

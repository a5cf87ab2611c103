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

const trial = 30 * time.Second // for each of the things a Doctor tries

const (
	remedyFailed = "gVisor needs ptrace, seccomp and user namespaces: inside a container start that one with --security-opt seccomp=unconfined, or use the driver namespaces; a runsc that was built with cgo does not work"
	remedyKeep   = "use another version of runsc, such as the one that make runsc builds: errors in restoring come and go with versions"
	remedyRoot   = "run gatehouse as root, or keep files only, by archives"
)

// Doctor looks for runsc, makes a sandbox with it, runs a program, and goes on
// from an image of a sandbox.
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
	made := sandbox.Try(ctx, d, trial, func(error) string { return remedyFailed })
	findings := []sandbox.Finding{found, made}
	if made.OK {
		findings = append(findings, d.tryKeeping(ctx))
	}
	return findings
}

// tryKeeping finds out whether what was kept can be gone on from.
func (d *Driver) tryKeeping(ctx context.Context) sandbox.Finding {
	f := sandbox.Finding{Name: "a sandbox is kept and gone on from"}
	if d.runsc.rootless {
		f.Detail, f.Remedy = "runsc does that for root only", remedyRoot
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, trial)
	defer cancel()
	began := time.Now()
	if err := d.keepOne(ctx); err != nil {
		f.Detail, f.Remedy = err.Error(), remedyKeep
		return f
	}
	f.OK, f.Detail = true, fmt.Sprintf("in %v", time.Since(began).Round(time.Millisecond))
	return f
}

func (d *Driver) keepOne(ctx context.Context) error {
	const file, text = "kept", "as it was"
	b, err := d.Create(ctx, sandbox.Spec{})
	if err != nil {
		return err
	}
	defer b.Close()
	if _, err := b.(sandbox.Files).WriteFile(ctx, file, strings.NewReader(text), sandbox.Writing{}); err != nil {
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
		return fmt.Errorf("a file that said %q says %q afterwards", text, got.String())
	}
	return nil
}

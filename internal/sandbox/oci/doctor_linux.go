//go:build amd64 || arm64

package oci

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/bundle"
)

const tryWait = 30 * time.Second // for the sandbox that Doctor makes

const remedyFailed = "try the driver namespaces, which requires no runtime; inside a container, start that " +
	"container with --security-opt seccomp=unconfined --security-opt systempaths=unconfined"

// Doctor looks for the runtime, makes a sandbox with it and runs a program.
func (d *Driver) Doctor(ctx context.Context) []sandbox.Finding {
	found := sandbox.Finding{Name: "a container runtime", Needed: true}
	if d.missing != nil {
		found.Detail, found.Remedy = d.missing.Error(), remedyMissing
		return []sandbox.Finding{found}
	}
	ctx, cancel := context.WithTimeout(ctx, tryWait)
	defer cancel()
	version, err := bundle.VersionOf(ctx, d.runtime.path)
	if err != nil {
		found.Detail, found.Remedy = err.Error(), remedyMissing
		return []sandbox.Finding{found}
	}
	found.OK, found.Detail = true, d.runtime.path+": "+version
	findings := []sandbox.Finding{found}
	if old := outdated(version); old != "" {
		findings = append(findings, sandbox.Finding{
			Name:   "a runtime without known vulnerabilities",
			Detail: old,
			Remedy: "upgrade it with the system's package manager, or use crun or the driver namespaces",
		})
	}
	if err := d.groups.CanFreeze(); err != nil {
		findings = append(findings, sandbox.Finding{Name: "pausing a sandbox", Detail: err.Error(),
			Remedy: "run as root"})
	} else {
		findings = append(findings,
			sandbox.Finding{Name: "pausing a sandbox", OK: true, Detail: "by its control group"})
	}
	return append(findings, sandbox.Try(ctx, d, tryWait, func(error) string { return remedyFailed }))
}

// outdated describes a runc with vulnerabilities that let containers break out (CVE-2025-31133,
// CVE-2025-52565, CVE-2025-52881); "" if the version is not affected.
func outdated(version string) string {
	number, ok := strings.CutPrefix(version, "runc version ")
	if !ok {
		return ""
	}
	var v [3]int
	for i, part := range strings.SplitN(number, ".", 3) {
		part = part[:len(part)-len(strings.TrimLeft(part, "0123456789"))]
		v[i], _ = strconv.Atoi(part)
	}
	fixed := v[0] > 1 || v[0] == 1 && (v[1] > 3 || v[1] == 3 && v[2] >= 3 || v[1] == 2 && v[2] >= 8)
	if fixed {
		return ""
	}
	return fmt.Sprintf("%s is older than 1.2.8 and 1.3.3, which fixed three vulnerabilities that let "+
		"containers break out", filepath.Base(version))
}

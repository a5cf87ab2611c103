//go:build linux && (amd64 || arm64)

package oci

import (
	"testing"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/cgroup"
	"gatehouse/internal/sandbox/sandboxtest"
)

// Without control groups memory is limited for each process, and what is memory of none is closed. This is the
// state of a machine where no groups can be created.
//
//redteam:attack Code in a sandbox is shut in several times: memory that is data of no process; driver oci without control groups
func TestWithoutControlGroups(t *testing.T) {
	d := driver(t, "crun")
	d.groups = &cgroup.Hierarchy{}
	if got := d.Capabilities().Memory; got != sandbox.PerProcess {
		t.Fatalf("memory is limited %s", got)
	}
	sandboxtest.Pressure(t, d)
}

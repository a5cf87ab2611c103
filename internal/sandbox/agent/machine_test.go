//go:build linux && (amd64 || arm64)

package agent

import (
	"reflect"
	"slices"
	"testing"
)

func TestKernelArgumentsDescribeTheMachine(t *testing.T) {
	const line = "quiet gatehouse.channel=vsock gatehouse.root=vda:ext4 gatehouse.tree=vdb:squashfs:/opt/a/../b\n"
	got, err := parseBoot(line)
	want := boot{vsock: true, root: disk{"vda", "ext4", "/"}, trees: []disk{{"vdb", "squashfs", "/opt/b"}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for _, line := range []string{
		"",
		"gatehouse.root=vda",
		"gatehouse.root=../sda:ext4",
		"gatehouse.root=vda:ext4 gatehouse.channel=tcp",
		"gatehouse.root=vda:ext4 gatehouse.tree=vdb:ext4",
		"gatehouse.root=vda:ext4 gatehouse.tree=vdb:ext4:opt",
	} {
		if got, err := parseBoot(line); err == nil {
			t.Errorf("%q: %+v, want an error", line, got)
		}
	}
}

func TestLaterVariablesOverrideEarlierOnes(t *testing.T) {
	got := environment([]string{"A=1", "B=2"}, []string{"B=3", "C=4", "A=5"})
	if want := []string{"A=5", "B=3", "C=4"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

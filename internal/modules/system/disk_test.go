package system

import (
	"os/exec"
	"testing"

	"gatehouse/internal/tests/machinetest"
)

// loop makes a file system in a file that is attached to a loop device.
func loop(t *testing.T) string {
	t.Helper()
	machinetest.Need(t)
	file := machinetest.LoopFile + "-disk"
	command(t, "truncate", "-s", "8M", file)
	command(t, "mkfs.ext4", "-q", "-F", file)
	return file
}

func attach(t *testing.T, file string) string {
	t.Helper()
	at := command(t, "losetup", "--find", "--show", file)
	t.Cleanup(func() { exec.Command("losetup", "--detach", at).Run() })
	return at
}

func TestADiskIsRepaired(t *testing.T) {
	file := loop(t)
	command(t, "debugfs", "-w", "-R", "set_inode_field <11> links_count 7", file)
	device := attach(t, file)
	s := open(t, Config{})
	var out diskOut
	await(t, "UDisks knows the device",
		func() bool { return ask(t, s, "system_disk_check", &out, "device", device) == "" })
	if out.Healthy || out.FileSystem != "ext4" {
		t.Errorf("the damaged file system: %+v", out)
	}
	must(t, s, "system_disk_repair", &out, "device", device)
	if !out.Repaired || !out.Healthy {
		t.Errorf("after the repair: %+v", out)
	}
	if err := exec.Command("e2fsck", "-f", "-n", device).Run(); err != nil {
		t.Errorf("its checker still finds damage: %v", err)
	}
	out = diskOut{}
	must(t, s, "system_disk_repair", &out, "device", device)
	if out.Repaired || !out.Healthy {
		t.Errorf("a healthy one was repaired: %+v", out)
	}
	refuses(t, s, "system_disk_repair", "invalid_arguments:", "device", "/etc/passwd")
	refuses(t, s, "system_disk_repair", "invalid_arguments:", "device", "/dev/../etc/passwd")
	refuses(t, s, "system_disk_repair", "not_found:", "device", "/dev/nothing")
	command(t, "mount", device, "/mnt")
	defer command(t, "umount", "/mnt")
	await(t, "UDisks knows the mount", func() bool {
		refused := ask(t, s, "system_disk_repair", nil, "device", device)
		return len(refused) > 5 && refused[:5] == "busy:"
	})
}

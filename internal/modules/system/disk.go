package system

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"gatehouse/tool"
)

const (
	udisksName = "org.freedesktop.UDisks2"
	blocksAt   = "/org/freedesktop/UDisks2/block_devices/"
	repairTime = 30 * time.Minute
)

func (s *system) diskTools() []daemonTool {
	return []daemonTool{
		changing(s, udisksName, tool.Def{
			Name: "system_disk_repair", Title: "Repair a file system", Aliases: []string{"disk.repair"},
			Timeout: repairTime + time.Minute,
			Effects: tool.Writes | tool.Destroys,
			Description: "Checks a file system that is not mounted, and repairs it with its own checker if it is " +
				"damaged, after the user has agreed.",
			Help: finalHelp + " Data in damaged places may be lost, so that a backup comes first. " +
				"system_disk_check looks only. It needs the checker of the file system, such as e2fsprogs or dosfstools.",
		}, s.askRepair, s.repair),
		reading(s, udisksName, tool.Def{
			Name: "system_disk_check", Title: "Check a file system", Timeout: repairTime + time.Minute,
			Description: "Checks a file system that is not mounted, and changes nothing.",
		}, func(ctx context.Context, _ *tool.Call, in diskIn) (diskOut, error) {
			at, kind, err := s.fileSystem(ctx, in.Device)
			if err != nil {
				return diskOut{}, err
			}
			out := diskOut{Device: in.Device, FileSystem: kind}
			out.Healthy, err = s.checkDisk(ctx, at, "Check")
			return out, err
		}),
	}
}

type diskIn struct {
	Device string `json:"device" doc:"such as /dev/sda1; disk_list lists them" min:"6" max:"200"`
}

type repairIn struct {
	diskIn
	agreed
}

type diskOut struct {
	Device     string `json:"device"`
	FileSystem string `json:"fileSystem"`
	Healthy    bool   `json:"healthy"`
	Repaired   bool   `json:"repaired,omitempty"`
}

// fileSystem returns the object of a file system that is not mounted.
func (s *system) fileSystem(ctx context.Context, path string) (at dbus.ObjectPath, kind string, err error) {
	name := filepath.Base(path)
	if filepath.Dir(path) != "/dev" || strings.HasPrefix(name, ".") {
		return "", "", invalid("device", path, "a device such as /dev/sda1")
	}
	at = dbus.ObjectPath(blocksAt + objectName(name))
	block, err := s.bus.all(ctx, udisksName, at, udisksName+".Block")
	if err != nil || !at.IsValid() {
		return "", "", &tool.Refusal{Code: tool.CodeNotFound, Message: fmt.Sprintf("UDisks knows no device %q", path),
			Next: "disk_list lists the disks and their partitions."}
	}
	kind = get[string](block, "IdType")
	fs, err := s.bus.all(ctx, udisksName, at, udisksName+".Filesystem")
	if get[string](block, "IdUsage") != "filesystem" || err != nil {
		return "", "", tool.Refuse(tool.CodeUnsupported, "%s holds no file system that UDisks knows", path)
	}
	if mounts := get[[][]byte](fs, "MountPoints"); len(mounts) > 0 {
		return "", "", tool.Refuse(tool.CodeBusy, "%s is mounted at %s; only what is not mounted can be checked", path,
			strings.TrimRight(string(mounts[0]), "\x00"))
	}
	return at, kind, nil
}

// objectName returns a name as UDisks writes it in the path of an object.
func objectName(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "_%02x", c)
		}
	}
	return b.String()
}

// checkDisk calls Check or Repair, and reports whether the file system is healthy.
func (s *system) checkDisk(ctx context.Context, at dbus.ObjectPath, method string) (healthy bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, repairTime)
	defer cancel()
	options := map[string]dbus.Variant{"auth.no_user_interaction": dbus.MakeVariant(true)}
	err = s.bus.callMethod(ctx, udisksName, at, udisksName+".Filesystem."+method, options).Store(&healthy)
	return healthy, err
}

func (s *system) askRepair(ctx context.Context, in repairIn) (change, error) {
	_, kind, err := s.fileSystem(ctx, in.Device)
	return change{
		in.Device,
		fmt.Sprintf(
			"Repair the file system (%s) on %s of this machine? It cannot be undone, and data in damaged places may be lost.",
			kind,
			in.Device,
		),
	}, err
}

func (s *system) repair(ctx context.Context, _ *tool.Call, in repairIn) (diskOut, error) {
	at, kind, err := s.fileSystem(ctx, in.Device)
	if err != nil {
		return diskOut{}, err
	}
	out := diskOut{Device: in.Device, FileSystem: kind}
	if out.Healthy, err = s.checkDisk(ctx, at, "Check"); err != nil || out.Healthy {
		return out, err
	}
	if out.Repaired, err = s.checkDisk(ctx, at, "Repair"); err != nil {
		return out, err
	}
	out.Healthy, err = s.checkDisk(ctx, at, "Check")
	return out, err
}

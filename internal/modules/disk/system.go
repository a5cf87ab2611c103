package disk

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shirou/gopsutil/v4/disk"
)

const (
	sector       = 512 // bytes; Linux counts in sectors of this size on every disk
	mostFile     = 64 << 10
	usageTimeout = 2 * time.Second // for one file system to report its used space
)

// mount is a mounted file system.
type mount struct{ device, point, kind string }

// usage returns the used bytes and the size of a file system.
type usage func(ctx context.Context, point string) (used, all uint64, err error)

// listMounts returns the mounted file systems on devices of this machine.
func listMounts(ctx context.Context) (all []mount, err error) {
	found, err := disk.PartitionsWithContext(ctx, false)
	for _, p := range found {
		all = append(all, mount{p.Device, p.Mountpoint, p.Fstype})
	}
	if len(all) > 0 { // an error of the others is ignored
		err = nil
	}
	return all, err
}

// measureUsage is the usage of a mounted file system. If the file system does not
// answer in time, its goroutine is abandoned.
func measureUsage(ctx context.Context, point string) (uint64, uint64, error) {
	type answer struct {
		stat *disk.UsageStat
		err  error
	}
	said := make(chan answer, 1)
	go func() {
		s, err := disk.UsageWithContext(ctx, point)
		said <- answer{s, err}
	}()
	select {
	case a := <-said:
		if a.err != nil {
			return 0, 0, a.err
		}
		return a.stat.Used, a.stat.Total, nil
	case <-time.After(usageTimeout):
		return 0, 0, errors.New("the file system does not answer")
	case <-ctx.Done():
		return 0, 0, context.Cause(ctx)
	}
}

// disksOfMounts returns each file system as a disk, for systems without a list of
// disks.
func disksOfMounts(ctx context.Context, mounts []mount, ask usage) []Disk {
	all := []Disk{}
	for _, m := range mounts {
		p := Partition{LogicalName: m.device, FileSystem: m.kind, MountPoints: []string{m.point}}
		if n, capacity, err := ask(ctx, m.point); err == nil {
			p.Used, p.Capacity = &n, capacity
		}
		all = append(all, Disk{LogicalName: m.device, Capacity: p.Capacity, Partitions: []Partition{p}})
	}
	return all
}

// system has the directories in which Linux describes its disks.
type system struct {
	sys   fs.FS // /sys/class/block
	udev  fs.FS // /run/udev/data: what udev has found on a device
	usage usage
}

func newSystem(ask usage) system {
	return system{os.DirFS("/sys/class/block"), os.DirFS("/run/udev/data"), ask}
}

// disks lists the disks by name. there is false if the system has no such directory.
func (s system) disks(ctx context.Context, mounts []mount) (all []Disk, there bool, err error) {
	names, err := fs.ReadDir(s.sys, ".")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	all = []Disk{}
	for _, e := range names {
		if ctx.Err() != nil {
			return nil, true, context.Cause(ctx)
		}
		if name := e.Name(); s.isDisk(name) {
			all = append(all, s.disk(ctx, name, mounts))
		}
	}
	return all, true, err
}

// isDisk reports whether a block device is a disk: not a partition, not made of a
// file or memory, and not a drive without a medium.
func (s system) isDisk(name string) bool {
	for _, no := range []string{"loop", "ram", "zram", "nbd"} {
		if rest, ok := strings.CutPrefix(name, no); ok && strings.Trim(rest, "0123456789") == "" {
			return false
		}
	}
	_, err := fs.Stat(s.sys, path.Join(name, "partition"))
	return err != nil && s.readNumber(name, "size") > 0
}

func (s system) disk(ctx context.Context, name string, mounts []mount) Disk {
	about := s.udevProperties(name)
	d := Disk{
		LogicalName: device(name), Capacity: s.readNumber(name, "size") * sector,
		Vendor: s.readText(name, "device/vendor"), Model: s.readText(name, "device/model"),
		Removable: s.readNumber(name, "removable") == 1, ReadOnly: s.readNumber(name, "ro") == 1,
		PartitionTable: about["ID_PART_TABLE_TYPE"], GUID: about["ID_PART_TABLE_UUID"], Partitions: []Partition{},
	}
	entries, _ := fs.ReadDir(s.sys, name)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), name) && s.readNumber(name, e.Name()+"/partition") > 0 {
			d.Partitions = append(d.Partitions, s.partition(ctx, name+"/"+e.Name(), mounts))
		}
	}
	slices.SortStableFunc(d.Partitions, func(a, b Partition) int {
		return cmp.Or(cmp.Compare(len(a.LogicalName), len(b.LogicalName)), cmp.Compare(a.LogicalName, b.LogicalName))
	})
	if len(d.Partitions) == 0 {
		if whole := s.partition(ctx, name, mounts); whole.FileSystem != "" {
			d.Partitions = append(d.Partitions, whole)
		}
	}
	return d
}

func (s system) partition(ctx context.Context, at string, mounts []mount) Partition {
	about := s.udevProperties(at)
	p := Partition{
		LogicalName: device(path.Base(at)), Capacity: s.readNumber(at, "size") * sector,
		Label: about["ID_FS_LABEL"], FileSystem: about["ID_FS_TYPE"], GUID: about["ID_PART_ENTRY_UUID"],
	}
	for _, m := range mounts {
		if m.device != p.LogicalName && !s.isMapped(at, m.device) {
			continue
		}
		p.MountPoints = append(p.MountPoints, m.point)
		if p.FileSystem = cmp.Or(p.FileSystem, m.kind); p.Used == nil {
			if n, _, err := s.usage(ctx, m.point); err == nil {
				p.Used = &n
			}
		}
	}
	return p
}

// isMapped reports whether a device is the mapped device at, as /dev/mapper/root is
// /dev/dm-0.
func (s system) isMapped(at, device string) bool {
	name, ok := strings.CutPrefix(device, "/dev/mapper/")
	return ok && name != "" && s.readText(at, "dm/name") == name
}

// device returns the device file of a kernel name, which has ! in place of /.
func device(name string) string { return "/dev/" + strings.ReplaceAll(name, "!", "/") }

// readText returns the content of a file in sysfs, or "".
func (s system) readText(name, file string) string {
	b, err := fs.ReadFile(s.sys, path.Join(name, file))
	if err != nil || len(b) > mostFile {
		return ""
	}
	return strings.ToValidUTF8(strings.TrimSpace(string(b)), "")
}

func (s system) readNumber(name, file string) uint64 {
	n, err := strconv.ParseUint(s.readText(name, file), 10, 64)
	if err != nil || n > 1<<53 {
		return 0
	}
	return n
}

// udevProperties returns the properties that udev has stored for a device.
func (s system) udevProperties(at string) map[string]string {
	all := map[string]string{}
	numbers := s.readText(at, "dev")
	if numbers == "" {
		return all
	}
	b, err := fs.ReadFile(s.udev, "b"+numbers)
	if err != nil || len(b) > mostFile {
		return all
	}
	for line := range strings.Lines(strings.ToValidUTF8(string(b), "")) {
		if key, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "E:"), "="); ok {
			all[key] = value
		}
	}
	return all
}

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
	sector     = 512 // bytes, in which Linux counts whatever the disk does
	mostFile   = 64 << 10
	usagePause = 2 * time.Second // for a file system to say how full it is
)

// mount is a file system and where it is.
type mount struct{ device, point, kind string }

// usage says how many bytes of a file system are used, and how many it has.
type usage func(ctx context.Context, point string) (used, all uint64, err error)

// mounted are the file systems on devices of this machine.
func mounted(ctx context.Context) (all []mount, err error) {
	found, err := disk.PartitionsWithContext(ctx, false)
	for _, p := range found {
		all = append(all, mount{p.Device, p.Mountpoint, p.Fstype})
	}
	if len(all) > 0 { // the others could not be looked at
		err = nil
	}
	return all, err
}

// used asks a file system. One that does not answer in time is left to itself.
func used(ctx context.Context, point string) (uint64, uint64, error) {
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
	case <-time.After(usagePause):
		return 0, 0, errors.New("it does not answer")
	case <-ctx.Done():
		return 0, 0, context.Cause(ctx)
	}
}

// ofMounts lists file systems as disks of their own, where the system has no
// list of disks.
func ofMounts(ctx context.Context, mounts []mount, ask usage) []Disk {
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

// system is where Linux tells of its disks.
type system struct {
	sys  fs.FS // /sys/class/block
	udev fs.FS // /run/udev/data: what was found on a device, if anybody looked
	ask  usage
}

func machine(ask usage) system {
	return system{os.DirFS("/sys/class/block"), os.DirFS("/run/udev/data"), ask}
}

// disks lists them by name; there is false where this is no such system.
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

// isDisk tells disks from partitions, from what is made of files or memory, and
// from drives without a medium.
func (s system) isDisk(name string) bool {
	for _, no := range []string{"loop", "ram", "zram", "nbd"} {
		if rest, ok := strings.CutPrefix(name, no); ok && strings.Trim(rest, "0123456789") == "" {
			return false
		}
	}
	_, err := fs.Stat(s.sys, path.Join(name, "partition"))
	return err != nil && s.number(name, "size") > 0
}

func (s system) disk(ctx context.Context, name string, mounts []mount) Disk {
	about := s.about(name)
	d := Disk{
		LogicalName: device(name), Capacity: s.number(name, "size") * sector,
		Vendor: s.text(name, "device/vendor"), Model: s.text(name, "device/model"),
		Removable: s.number(name, "removable") == 1, ReadOnly: s.number(name, "ro") == 1,
		PartitionTable: about["ID_PART_TABLE_TYPE"], GUID: about["ID_PART_TABLE_UUID"], Partitions: []Partition{},
	}
	entries, _ := fs.ReadDir(s.sys, name)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), name) && s.number(name, e.Name()+"/partition") > 0 {
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
	about := s.about(at)
	p := Partition{
		LogicalName: device(path.Base(at)), Capacity: s.number(at, "size") * sector,
		Label: about["ID_FS_LABEL"], FileSystem: about["ID_FS_TYPE"], GUID: about["ID_PART_ENTRY_UUID"],
	}
	for _, m := range mounts {
		if m.device != p.LogicalName && !s.isMapped(at, m.device) {
			continue
		}
		p.MountPoints = append(p.MountPoints, m.point)
		if p.FileSystem = cmp.Or(p.FileSystem, m.kind); p.Used == nil {
			if n, _, err := s.ask(ctx, m.point); err == nil {
				p.Used = &n
			}
		}
	}
	return p
}

// isMapped reports whether a device is the one at a place by its other name:
// /dev/mapper/root is /dev/dm-0.
func (s system) isMapped(at, device string) bool {
	name, ok := strings.CutPrefix(device, "/dev/mapper/")
	return ok && name != "" && s.text(at, "dm/name") == name
}

// device is the device file of a name of the kernel, which has ! for /.
func device(name string) string { return "/dev/" + strings.ReplaceAll(name, "!", "/") }

// text is what a file of the kernel says; "" when it says nothing.
func (s system) text(name, file string) string {
	b, err := fs.ReadFile(s.sys, path.Join(name, file))
	if err != nil || len(b) > mostFile {
		return ""
	}
	return strings.ToValidUTF8(strings.TrimSpace(string(b)), "")
}

func (s system) number(name, file string) uint64 {
	n, err := strconv.ParseUint(s.text(name, file), 10, 64)
	if err != nil || n > 1<<53 {
		return 0
	}
	return n
}

// about is what udev has found out of a device.
func (s system) about(at string) map[string]string {
	all := map[string]string{}
	numbers := s.text(at, "dev")
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

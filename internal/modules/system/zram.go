package system

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gatehouse/internal/modules/system/swap"
	"gatehouse/tool"
)

// zram is swap in memory that the kernel compresses. No daemon owns it: it is set up in files of the kernel.
type zram struct {
	sys, dev, meminfo string // folders and a file of the kernel
	swapOn            func(path string, priority int) error
	swapOff           func(path string) error
}

var kernelZRAM = zram{"/sys", "/dev", "/proc/meminfo", swap.On, swap.Off}

const (
	zramPriority = 100     // it is used before swap on a disk
	maxZRAM      = 8 << 30 // bytes before compression
)

var pageSize = uint64(os.Getpagesize())

func (s *system) zramTools() []daemonTool {
	t := []daemonTool{
		changing(s, "", tool.Def{
			Name: "system_zram", Title: "Compressed swap", Aliases: []string{"server.experimental.zram"},
			Description: "Turns swap in compressed memory on or off, after the user has agreed.",
			Help: changeHelp + " It holds half of the memory, 8 GiB at most, before compression. " +
				"The kernel forgets it when the machine " +
				"restarts. It is not turned off while the memory is too full to take back what is in it. " +
				"server_metrics shows its use.",
		}, func(_ context.Context, in zramIn) (change, error) {
			if in.Enable {
				return change{"zram", "Let this machine swap to compressed memory?"}, nil
			}
			return change{"zram", "Take back what is in compressed swap of this machine, and turn it off?"}, nil
		}, func(_ context.Context, _ *tool.Call, in zramIn) (zramOut, error) {
			if in.Enable {
				return s.zram.on()
			}
			return s.zram.off()
		}),
	}
	t[0].there = s.zram.there
	return t
}

type zramIn struct {
	Enable bool `json:"enable"`
	agreed
}

type zramOut struct {
	Devices []zramDevice `json:"devices" doc:"compressed swap that is in use"`
}

type zramDevice struct {
	Name  string `json:"name"`
	Bytes uint64 `json:"bytes" doc:"before compression"`
}

// listDevices returns the devices that are in use.
func (z *zram) listDevices() (out zramOut) {
	out.Devices = []zramDevice{}
	entries, _ := os.ReadDir(filepath.Join(z.sys, "block")) // without it there are none
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "zram") {
			continue
		}
		size, err := strconv.ParseUint(z.read("block", e.Name(), "disksize"), 10, 64)
		if err == nil && size > 0 {
			out.Devices = append(out.Devices, zramDevice{e.Name(), size})
		}
	}
	return out
}

func (z *zram) read(at ...string) string {
	b, _ := os.ReadFile(filepath.Join(z.sys, filepath.Join(at...))) // "" without it
	return strings.TrimSpace(string(b))
}

// on adds a device and swaps to it, unless there is one.
func (z *zram) on() (zramOut, error) {
	if now := z.listDevices(); len(now.Devices) > 0 {
		return now, nil
	}
	number := z.read("class", "zram-control", "hot_add") // the kernel adds a device when the file is read
	if number == "" {
		return zramOut{}, &tool.Refusal{
			Code:    tool.CodeUnsupported,
			Message: "the kernel of this machine has no compressed swap, or this host may not add it",
			Next:    "Load the kernel's module zram (modprobe zram) and run the host as root.",
		}
	}
	name := "zram" + number
	size, err := z.size()
	if err == nil {
		err = os.WriteFile(filepath.Join(z.sys, "block", name, "disksize"), []byte(strconv.FormatUint(size, 10)), 0)
	}
	device := filepath.Join(z.dev, name)
	if err == nil {
		err = makeSwap(device, size)
	}
	if err == nil {
		err = z.swapOn(device, zramPriority)
	}
	if err != nil {
		return zramOut{}, errors.Join(fmt.Errorf("set up %s: %w", name, err), z.remove(name))
	}
	return z.listDevices(), nil
}

// off ends swapping to each device, and removes it.
func (z *zram) off() (zramOut, error) {
	for _, d := range z.listDevices().Devices {
		if err := z.swapOff(filepath.Join(z.dev, d.Name)); err != nil {
			return z.listDevices(), tool.Refuse(tool.CodeBusy,
				"%s stays, because what is in it does not fit into memory: %v", d.Name, err)
		}
		if err := z.remove(d.Name); err != nil {
			return z.listDevices(), err
		}
	}
	return z.listDevices(), nil
}

func (z *zram) remove(name string) error {
	number := strings.TrimPrefix(name, "zram")
	return os.WriteFile(filepath.Join(z.sys, "class", "zram-control", "hot_remove"), []byte(number), 0)
}

// size returns half of the machine's memory in whole pages, at most maxZRAM.
func (z *zram) size() (uint64, error) {
	b, err := os.ReadFile(z.meminfo)
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "MemTotal:" {
			kib, err := strconv.ParseUint(f[1], 10, 64)
			return min(kib<<10/2/pageSize*pageSize, maxZRAM), err
		}
	}
	return 0, errors.Join(err, fs.ErrNotExist)
}

// makeSwap writes the header of swap space, version 1, as mkswap does.
func makeSwap(device string, size uint64) error {
	page := make([]byte, pageSize)
	binary.NativeEndian.PutUint32(page[1024:], 1)
	binary.NativeEndian.PutUint32(page[1028:], uint32(size/pageSize)-1) // the number of the last page
	copy(page[pageSize-10:], "SWAPSPACE2")
	f, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(page)
	return errors.Join(err, f.Close())
}

// there reports whether the kernel has compressed swap.
func (z *zram) there() bool {
	_, err := os.Stat(filepath.Join(z.sys, "class", "zram-control"))
	return err == nil
}

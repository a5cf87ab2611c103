package server

import (
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// sysfs is the file system in which Linux describes devices. It is empty on other
// systems.
var sysfs = os.DirFS("/sys")

// device is a device of the machine.
type device struct {
	Class   string `json:"class" doc:"processor, display, network or storage"`
	Name    string `json:"name,omitempty" doc:"name in the system"`
	Vendor  string `json:"vendor,omitempty" doc:"name or PCI number"`
	Product string `json:"product,omitempty" doc:"name or PCI number"`
	Driver  string `json:"driver,omitempty"`
}

const maxDevices = 200

// devicesOf lists the display adapters, network interfaces and disks with a
// hardware device; loops, bridges and other virtual ones have none.
func devicesOf(sys fs.FS) (all []device) {
	for _, of := range []struct{ class, dir string }{{"display", "class/drm"}, {"network", "class/net"},
		{"storage", "block"}} {
		entries, _ := fs.ReadDir(sys, of.dir) // if it is missing there are no such devices
		for _, e := range entries {
			at := path.Join(of.dir, e.Name(), "device")
			// card0-HDMI-A-1 is a connector of card0
			if of.class == "display" && strings.Contains(e.Name(), "-") || len(all) == maxDevices {
				continue
			}
			if _, err := fs.Stat(sys, at); err != nil {
				continue
			}
			d := device{
				Class:   of.class,
				Name:    e.Name(),
				Vendor:  readWord(sys, at, "vendor"),
				Product: readWord(sys, at, "model"),
			}
			if d.Product == "" {
				d.Product = readWord(sys, at, "device")
			}
			if to, err := fs.ReadLink(sys, path.Join(at, "driver")); err == nil {
				d.Driver = path.Base(to)
			}
			all = append(all, d)
		}
	}
	return all
}

// zramOf adds up the compressed swap in memory: its capacity and its used part, both
// before compression. It returns false if there is none.
func zramOf(sys fs.FS) (total, used uint64, ok bool) {
	entries, _ := fs.ReadDir(sys, "block") // if it is missing there is no zram
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "zram") {
			continue
		}
		size, err := strconv.ParseUint(readWord(sys, "block", e.Name(), "disksize"), 10, 64)
		if err != nil || size == 0 { // it is not in use
			continue
		}
		// The first number is the size of the data before compression, in bytes.
		if first, _, _ := strings.Cut(readWord(sys, "block", e.Name(), "mm_stat"), " "); first != "" {
			if n, err := strconv.ParseUint(first, 10, 64); err == nil {
				used += min(n, size)
			}
		}
		total, ok = total+size, true
	}
	return total, used, ok
}

// readWord returns the text of a small file, or "" if it cannot be read.
func readWord(sys fs.FS, at ...string) string {
	text, err := fs.ReadFile(sys, path.Join(at...))
	if err != nil || len(text) > 4<<10 {
		return ""
	}
	return strings.TrimSpace(string(text))
}

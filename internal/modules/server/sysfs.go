package server

import (
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// sysfs is where Linux tells of devices. It is empty on other systems.
var sysfs = os.DirFS("/sys")

// device is a part of the machine.
type device struct {
	Class   string `json:"class" doc:"processor, display, network or storage"`
	Name    string `json:"name,omitempty" doc:"the system's"`
	Vendor  string `json:"vendor,omitempty" doc:"its name, or its PCI number"`
	Product string `json:"product,omitempty" doc:"its name, or its PCI number"`
	Driver  string `json:"driver,omitempty"`
}

const mostDevices = 200

// devicesOf lists the displays, network interfaces and disks that have a device
// behind them; loops, bridges and other virtual ones have none.
func devicesOf(sys fs.FS) (all []device) {
	for _, of := range []struct{ class, dir string }{{"display", "class/drm"}, {"network", "class/net"}, {"storage", "block"}} {
		entries, _ := fs.ReadDir(sys, of.dir) // without it there are none to list
		for _, e := range entries {
			at := path.Join(of.dir, e.Name(), "device")
			if of.class == "display" && strings.Contains(e.Name(), "-") || len(all) == mostDevices { // card0-HDMI-A-1 is an outlet of card0
				continue
			}
			if _, err := fs.Stat(sys, at); err != nil {
				continue
			}
			d := device{Class: of.class, Name: e.Name(), Vendor: word(sys, at, "vendor"), Product: word(sys, at, "model")}
			if d.Product == "" {
				d.Product = word(sys, at, "device")
			}
			if to, err := fs.ReadLink(sys, path.Join(at, "driver")); err == nil {
				d.Driver = path.Base(to)
			}
			all = append(all, d)
		}
	}
	return all
}

// zramOf adds up the memory that holds compressed swap: how much fits into it
// before compression, and how much is in it. It reports false without any.
func zramOf(sys fs.FS) (total, used uint64, ok bool) {
	entries, _ := fs.ReadDir(sys, "block") // without it there is none
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "zram") {
			continue
		}
		size, err := strconv.ParseUint(word(sys, "block", e.Name(), "disksize"), 10, 64)
		if err != nil || size == 0 { // it is not in use
			continue
		}
		// The first number is the bytes that were written, before compression.
		if first, _, _ := strings.Cut(word(sys, "block", e.Name(), "mm_stat"), " "); first != "" {
			if n, err := strconv.ParseUint(first, 10, 64); err == nil {
				used += min(n, size)
			}
		}
		total, ok = total+size, true
	}
	return total, used, ok
}

// word is the text of a small file; "" where it cannot be read.
func word(sys fs.FS, at ...string) string {
	text, err := fs.ReadFile(sys, path.Join(at...))
	if err != nil || len(text) > 4<<10 {
		return ""
	}
	return strings.TrimSpace(string(text))
}

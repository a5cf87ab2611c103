package server

import (
	"io/fs"
	"reflect"
	"testing"
	"testing/fstest"
)

func text(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s + "\n")} }

func TestDevicesAreListed(t *testing.T) {
	sys := fstest.MapFS{
		"class/drm/card0/device/vendor": text("0x8086"),
		"class/drm/card0/device/device": text("0x46a6"),
		"class/drm/card0/device/driver": &fstest.MapFile{
			Data: []byte("../../../bus/pci/drivers/i915"),
			Mode: fs.ModeSymlink,
		},
		"class/drm/card0-DP-1/device/x":    text("an outlet"),
		"class/net/lo/mtu":                 text("65536"),
		"class/net/eth0/device/vendor":     text("0x1af4"),
		"block/loop0/size":                 text("0"),
		"block/sda/device/vendor":          text("ATA     "),
		"block/sda/device/model":           text("Samsung SSD 870"),
		"bus/pci/drivers/i915/placeholder": text(""),
	}
	want := []device{
		{Class: "display", Name: "card0", Vendor: "0x8086", Product: "0x46a6", Driver: "i915"},
		{Class: "network", Name: "eth0", Vendor: "0x1af4"},
		{Class: "storage", Name: "sda", Vendor: "ATA", Product: "Samsung SSD 870"},
	}
	if got := devicesOf(sys); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := devicesOf(fstest.MapFS{}); got != nil {
		t.Errorf("without sysfs: %+v", got)
	}
}

func TestCompressedSwapIsMeasured(t *testing.T) {
	for name, c := range map[string]struct {
		sys         fstest.MapFS
		total, used uint64
		ok          bool
	}{
		"none": {fstest.MapFS{"block/sda/size": text("1")}, 0, 0, false},
		"not in use": {
			fstest.MapFS{"block/zram0/disksize": text("0"), "block/zram0/mm_stat": text("0 0 0")}, 0, 0, false,
		},
		"two": {fstest.MapFS{
			"block/zram0/disksize": text("1000"), "block/zram0/mm_stat": text("  400 100 200 0 200 0 0 0 0"),
			"block/zram1/disksize": text("500"), "block/zram1/mm_stat": text("50 10 20 0 20 0 0 0 0"),
		}, 1500, 450, true},
		"odd": {fstest.MapFS{"block/zram0/disksize": text("1000"), "block/zram0/mm_stat": text("much")}, 1000, 0, true},
	} {
		if total, used, ok := zramOf(c.sys); total != c.total || used != c.used || ok != c.ok {
			t.Errorf("%s: got %d, %d, %v", name, total, used, ok)
		}
	}

	was := sysfs
	t.Cleanup(func() { sysfs = was })
	sysfs = fstest.MapFS{"block/zram0/disksize": text("1000"), "block/zram0/mm_stat": text("400 100")}
	m := memoryNow(t.Context())
	if m == nil || m.ZRAMTotal == nil || *m.ZRAMTotal != 1000 || *m.ZRAMUsed != 400 || *m.ZRAMAvailable != 600 {
		t.Errorf("got %+v", m)
	}
	sysfs = fstest.MapFS{}
	if m := memoryNow(t.Context()); m == nil || m.ZRAMTotal != nil {
		t.Errorf("without: %+v", m)
	}
}

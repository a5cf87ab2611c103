package system

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Swap belongs to the whole machine, which tests leave alone: a folder stands for the files of the kernel, as its
// documentation describes them.
func TestCompressedSwap(t *testing.T) {
	dir := t.TempDir()
	file := func(path, text string) string {
		t.Helper()
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	read := func(path string) string {
		b, _ := os.ReadFile(filepath.Join(dir, path))
		return string(b)
	}
	s := open(t, Config{Bus: "unix:path=/nonexistent/bus"})
	var used []string
	full := false
	s.zram = zram{dir, filepath.Join(dir, "dev"), file("meminfo", "MemTotal:       4000000 kB\n"),
		func(path string, priority int) error { used = append(used, path); return nil },
		func(path string) error {
			if full {
				return errors.New("cannot allocate memory")
			}
			used = slices.DeleteFunc(used, func(p string) bool { return p == path })
			return nil
		}}
	s.look(t.Context())
	if slices.Contains(tools(t, s), "system_zram") {
		t.Error("it is listed where the kernel has none")
	}
	if _, err := s.zram.on(); err == nil || !strings.Contains(err.Error(), "no compressed swap") {
		t.Errorf("without zram: %v", err)
	}

	file("class/zram-control/hot_add", "0\n")
	file("block/zram0/disksize", "0\n")
	device := file("dev/zram0", "")
	s.look(t.Context())
	if !slices.Contains(tools(t, s), "system_zram") {
		t.Error("it is not listed")
	}
	var out zramOut
	must(t, s, "system_zram", &out, "enable", true)
	const half = 4000000 << 10 / 2
	if len(out.Devices) != 1 || out.Devices[0].Bytes != half || !slices.Equal(used, []string{device}) {
		t.Errorf("got %+v, swaps to %q", out, used)
	}
	header := read("dev/zram0")
	if len(header) != int(pageSize) || header[pageSize-10:] != "SWAPSPACE2" ||
		binary.NativeEndian.Uint32([]byte(header[1028:])) != uint32(half/pageSize)-1 {
		t.Errorf("the header of the swap space is wrong: %q", header[1024:1040])
	}
	must(t, s, "system_zram", &out, "enable", true) // again
	full = true
	refuses(t, s, "system_zram", "busy:", "enable", false)
	full = false
	if ask(t, s, "system_zram", nil, "enable", false); read("class/zram-control/hot_remove") != "0" || len(used) != 0 {
		t.Errorf("it was not removed: swaps to %q", used)
	}
}

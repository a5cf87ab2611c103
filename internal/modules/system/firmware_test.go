package system

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/tests/machinetest"
)

// fwupd's own test device, which exists in memory, gets the newer firmware of fwupd's test suite.
func TestFirmwareIsUpdated(t *testing.T) {
	machinetest.Need(t)
	if _, err := os.Stat("/usr/share/installed-tests/fwupd/fakedevice124.cab"); err != nil {
		t.Fatal("Debian's fwupd-tests is not there: ", err)
	}
	// Its unit does not start in containers, for which systemd takes this machine.
	const more = "/etc/systemd/system/fwupd.service.d"
	err := errors.Join(os.MkdirAll(more, 0o755), os.WriteFile(more+"/test.conf", []byte("[Unit]\nConditionVirtualization=\n"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	command(t, "systemctl", "daemon-reload")
	text := "[fwupd]\nTestDevices=true\nOnlyTrusted=false\nIgnorePower=true\n"
	if err := os.WriteFile("/etc/fwupd/fwupd.conf", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	command(t, "systemctl", "restart", "fwupd")
	s := open(t, Config{})
	// Debian builds the file anew, so that its digest is not that of the list.
	refuses(t, s, "system_firmware_update", "failed: ./fakedevice124.cab has not the content")
	command(t, "sh", "-c", "cd /usr/share/installed-tests/fwupd && sed -i s/fc0aabcf98bf3546c91270f2941f0acd0395dd79/$(sha1sum <fakedevice124.cab | cut -c1-40)/ fwupd-tests.xml")
	command(t, "systemctl", "restart", "fwupd")
	var all firmwareOut
	must(t, s, "system_firmware", &all)
	webcam := ""
	for _, d := range all.Devices {
		if strings.Contains(d.Name, "Webcam") && d.Newer == "1.2.4" {
			webcam = d.ID
		}
	}
	if webcam == "" {
		t.Fatalf("the test device is not listed with newer firmware: %+v", all.Devices)
	}
	if len(all.Lists) == 0 || all.Lists[0].ID == "" {
		t.Fatalf("the lists are %+v", all.Lists)
	}
	i := slices.IndexFunc(all.Lists, func(l firmwareList) bool { return l.ID == "fwupd-tests" })
	info, err := os.Stat("/usr/share/installed-tests/fwupd/fwupd-tests.xml")
	if err != nil || i < 0 || !all.Lists[i].Local || all.Lists[i].Refreshed != info.ModTime().UTC().Format(time.RFC3339) {
		t.Errorf("the lists are %+v; the file of one %v", all.Lists, err)
	}
	refuses(t, s, "system_firmware_update", "not_found:", "device", "no such device")
	var out firmwareUpdateOut
	must(t, s, "system_firmware_update", &out, "device", webcam)
	var after firmwareOut
	must(t, s, "system_firmware", &after)
	for _, d := range after.Devices {
		if d.ID == webcam && (d.Version != "1.2.4" || d.Newer != "") {
			t.Errorf("after the update: %+v", d)
		}
	}
	refuses(t, s, "system_firmware_update", "unchanged:", "device", webcam)
}

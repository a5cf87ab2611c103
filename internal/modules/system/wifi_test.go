package system

import (
	"bufio"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"gatehouse/internal/tests/machinetest"
)

const mockIface = "org.freedesktop.DBus.Mock"

// mocked starts a D-Bus of its own with a published template of python-dbusmock, and
// returns its address and a connection.
func mocked(t *testing.T, template, name string) (string, *dbus.Conn) {
	t.Helper()
	machinetest.Need(t)
	daemon := exec.CommandContext(t.Context(), "dbus-daemon", "--session", "--nofork", "--print-address=1")
	out, err := daemon.StdoutPipe()
	if err == nil {
		err = daemon.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { daemon.Process.Kill(); daemon.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	address := strings.TrimSpace(line)
	mock := exec.CommandContext(t.Context(), "python3", "-m", "dbusmock", "--system", "--template", template)
	mock.Env = append(os.Environ(), "DBUS_SYSTEM_BUS_ADDRESS="+address)
	mock.Stderr = t.Output()
	if err := mock.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mock.Process.Kill(); mock.Wait() })
	conn, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	await(t, "the mock has its name", func() bool {
		var has bool
		return conn.BusObject().Call(busName+".NameHasOwner", 0, name).Store(&has) == nil && has
	})
	return address, conn
}

func mockCall(t *testing.T, o dbus.BusObject, into any, method string, args ...any) {
	t.Helper()
	call := o.Call(mockIface+"."+method, 0, args...)
	if call.Err != nil {
		t.Fatalf("%s: %v", method, call.Err)
	}
	if into != nil {
		if err := call.Store(into); err != nil {
			t.Fatal(err)
		}
	}
}

// The template has no checkpoints: this adds one.
const checkpoints = `
self.AddObject("/org/freedesktop/NetworkManager/Checkpoint/1", "org.freedesktop.NetworkManager.Checkpoint", {"Created": dbus.Int64(1)}, [])
ret = dbus.ObjectPath("/org/freedesktop/NetworkManager/Checkpoint/1")
`

func TestWifiNetworks(t *testing.T) {
	address, conn := mocked(t, "networkmanager", nmName)
	manager := conn.Object(nmName, nmPath)
	var radio, ap, saved string
	mockCall(t, manager, &radio, "AddWiFiDevice", "radio", "wlan0", int32(30))
	mockCall(t, manager, &ap, "AddAccessPoint", radio, "ap0", "Garden", "00:00:00:00:00:01", uint32(2), uint32(2425),
		uint32(5400), byte(82), uint32(0x100))
	mockCall(t, manager, &ap, "AddAccessPoint", radio, "ap1", "Garden", "00:00:00:00:00:02", uint32(2), uint32(2425),
		uint32(5400), byte(40), uint32(0x100))
	mockCall(t, manager, &ap, "AddAccessPoint", radio, "ap2", "Open", "00:00:00:00:00:03", uint32(2), uint32(2425),
		uint32(5400), byte(30), uint32(0))
	mockCall(t, manager, &ap, "AddAccessPoint", radio, "ap3", "Home", "00:00:00:00:00:04", uint32(2), uint32(2425),
		uint32(5400), byte(20), uint32(0x100))
	mockCall(t, manager, &saved, "AddWiFiConnection", radio, "home", "Home", "wpa-psk")
	mockCall(t, manager, nil, "AddMethod", nmName, "CheckpointCreate", "aouu", "o", checkpoints)
	mockCall(t, manager, nil, "AddMethod", nmName, "CheckpointDestroy", "o", "", `self.RemoveObject(str(args[0]))`)
	mockCall(t, manager, nil, "AddMethod", nmName, "CheckpointRollback", "o", "", `self.RemoveObject(str(args[0]))`)

	s := open(t, Config{Bus: address})
	var w wifiOut
	must(t, s, "system_wifi_get", &w)
	if !w.Enabled || w.SSIDs["Home"] != 20 || len(w.SSIDs) != 1 || len(w.Available) != 2 || w.Ethernet {
		t.Fatalf("got %+v", w)
	}
	if g := w.Available[0]; g.SSID != "Garden" || g.Strength != 82 ||
		!slices.Equal(g.Security, []string{"wpa", "wpa2"}) {
		t.Errorf("the strongest is %+v", g)
	}
	if o := w.Available[1]; o.SSID != "Open" || len(o.Security) != 0 {
		t.Errorf("the other is %+v", o)
	}
	var seen availableOut
	must(t, s, "system_wifi_available_get", &seen)
	if len(seen.Available) != 2 {
		t.Errorf("available: %+v", seen)
	}
	must(t, s, "system_wifi_add", nil, "ssid", "Garden", "password", "correct horse")
	must(t, s, "system_wifi_get", &w)
	if w.SSIDs["Garden"] != 82 {
		t.Errorf("after it was saved: %+v", w)
	}
	refuses(t, s, "system_wifi_add", "exists:", "ssid", "Garden", "password", "correct horse")
	refuses(t, s, "system_wifi_add", "invalid_arguments:", "ssid", "Other", "password", "short")
	refuses(t, s, "system_wifi_connect", "not_found:", "ssid", "Nowhere")
	var up wifiConnectOut
	if refused := over(t, s, "first", "system_wifi_connect", &up, "ssid", "Garden"); refused != "" {
		t.Fatal(refused)
	}
	if refused := over(t, s, "second", "system_confirm", nil, "change", up.Change); refused != "" {
		t.Error(refused)
	}
	must(t, s, "system_wifi_get", &w)
	if w.Connected != "Garden" {
		t.Errorf("connected to %q", w.Connected)
	}
	refuses(t, s, "system_wifi_remove", "busy:", "ssid", "Garden")
	must(t, s, "system_wifi_remove", nil, "ssid", "Home")
	refuses(t, s, "system_wifi_remove", "not_found:", "ssid", "Home")
}

// The radio of NetworkManager is turned off, and on again by a timer.
func TestWifiIsTurnedOffAndTakenBack(t *testing.T) {
	network(t)
	s := open(t, Config{})
	s.takeBack = 2 * time.Second
	radio := func() string { return command(t, "nmcli", "radio", "wifi") }
	if radio() != "enabled" {
		t.Fatal(radio())
	}
	must(t, s, "system_wifi_set_enabled", nil, "enabled", false)
	if radio() != "disabled" {
		t.Error("wifi is still on")
	}
	await(t, "wifi is on again", func() bool { return radio() == "enabled" })
	refuses(t, s, "system_wifi_available_get", "unsupported:")
}

// wpa_supplicant runs with a link that is no radio, whose country it keeps all the same.
func TestTheCountryOfWifi(t *testing.T) {
	network(t)
	s := open(t, Config{})
	refuses(t, s, "system_wifi_country_set", "unsupported:", "country", "DE")
	refuses(t, s, "system_wifi_country_set", "invalid_arguments:", "country", "Germany")
	command(t, "systemctl", "start", "wpa_supplicant")
	command(t, "ip", "link", "add", "radio0", "type", "veth", "peer", "name", "radio1")
	command(t, "busctl", "call", supplicantName, "/fi/w1/wpa_supplicant1", supplicantName, "CreateInterface", "a{sv}",
		"2", "Ifname", "s", "radio0", "Driver", "s", "wired")
	var out countryOut
	must(t, s, "system_wifi_country_set", &out, "country", "DE")
	if out.Country != "DE" {
		t.Errorf("got %+v", out)
	}
	var w wifiOut
	must(t, s, "system_wifi_get", &w)
	if w.Country != "DE" || !w.Ethernet {
		t.Errorf("got %+v", w)
	}
}

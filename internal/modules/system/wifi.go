package system

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"gatehouse/tool"
)

const (
	supplicantName = "fi.w1.wpa_supplicant1"
	wifiType       = "802-11-wireless"
	deviceEthernet = 1 // NMDeviceType
	deviceWifi     = 2
	deviceVeth     = 20 // the Ethernet of a container
	connectTime    = 45 * time.Second
)

func (s *system) wifiTools() []daemonTool {
	return []daemonTool{
		reading(s, nmName, tool.Def{
			Name: "system_wifi_get", Title: "Show wifi", Aliases: []string{"wifi.get"},
			Description: "Shows whether wifi is on, the saved networks, the one that is connected, " +
				"and those that are available.",
			Help: onlyHelp + " strength is from 0 to 100. country is known while wpa_supplicant runs.",
		}, func(ctx context.Context, _ *tool.Call, _ struct{}) (wifiOut, error) { return s.wifi(ctx) }),
		reading(s, nmName, tool.Def{
			Name: "system_wifi_available_get", Title: "Look for wifi networks", Aliases: []string{"wifi.available.get"},
			Description: "Looks for wifi networks that are not saved, strongest first.",
		}, s.wifiAvailable),
		changing(s, nmName, tool.Def{
			Name: "system_wifi_set_enabled", Title: "Turn wifi on or off", Aliases: []string{"wifi.set-enabled"},
			Description: "Turns the wifi of the machine on or off, after the user has agreed.", Help: guardHelp,
		}, askWifiEnabled, s.setWifiEnabled),
		changing(s, nmName, tool.Def{
			Name: "system_wifi_add", Title: "Save a wifi network", Aliases: []string{"wifi.add"},
			Description: "Saves a wifi network and its password without connecting, after the user has agreed.",
		}, s.askWifiAdd, s.addWifi),
		changing(s, nmName, tool.Def{
			Name: "system_wifi_connect", Title: "Connect to a wifi network", Aliases: []string{"wifi.connect"},
			Timeout:     90 * time.Second,
			Description: "Connects the machine to a saved wifi network, after the user has agreed.", Help: guardHelp,
		}, s.askWifi("Connect this machine to the wifi network %q?"), s.connectWifi),
		changing(s, nmName, tool.Def{
			Name: "system_wifi_remove", Title: "Forget a wifi network", Aliases: []string{"wifi.remove"},
			Effects:     tool.Writes | tool.Destroys,
			Description: "Deletes a saved wifi network that is not connected, after the user has agreed.",
			Help:        finalHelp,
		}, s.askWifi("Delete the saved wifi network %q with its password? It cannot be undone."), s.removeWifi),
		changing(s, supplicantName, tool.Def{
			Name: "system_wifi_country_set", Title: "Set the country of wifi", Aliases: []string{"wifi.country.set"},
			Description: "Sets the country whose rules the wifi of the machine obeys, after the user has agreed.",
			Help:        changeHelp + " It needs an Ethernet connection that is up. Saved networks stay.",
		}, s.askCountry, s.setCountry),
	}
}

type accessPoint struct {
	SSID     string   `json:"ssid"`
	Strength int      `json:"strength"`
	Security []string `json:"security" doc:"wep, wpa, wpa2 or wpa3; none for an open network"`
}

type wifiOut struct {
	Enabled   bool           `json:"enabled"`
	SSIDs     map[string]int `json:"ssids" doc:"saved networks with their strength, 0 if they are not in reach"`
	Connected string         `json:"connected,omitempty"`
	Country   string         `json:"country,omitempty"`
	Ethernet  bool           `json:"ethernet" doc:"an Ethernet connection is up"`
	Available []accessPoint  `json:"availableWifi"`
}

// device is a network device of NetworkManager.
type device struct {
	path dbus.ObjectPath
	properties
}

func (s *system) devices(ctx context.Context, kinds ...uint32) (all []device, err error) {
	var paths []dbus.ObjectPath
	if err := s.bus.callMethod(ctx, nmName, nmPath, nmName+".GetDevices").Store(&paths); err != nil {
		return nil, err
	}
	for _, p := range paths {
		d, err := s.bus.all(ctx, nmName, p, nmName+".Device")
		if err == nil && slices.Contains(kinds, get[uint32](d, "DeviceType")) {
			all = append(all, device{p, d})
		}
	}
	return all, nil
}

const activated = 100 // NMDeviceState

func (s *system) wifi(ctx context.Context) (out wifiOut, err error) {
	out = wifiOut{SSIDs: map[string]int{}, Available: []accessPoint{}}
	manager, err := s.bus.all(ctx, nmName, nmPath, nmName)
	if err != nil {
		return out, err
	}
	out.Enabled = get[bool](manager, "WirelessEnabled")
	cables, err := s.devices(ctx, deviceEthernet, deviceVeth)
	if err != nil {
		return out, err
	}
	out.Ethernet = slices.ContainsFunc(cables,
		func(d device) bool { return get[uint32](d.properties, "State") == activated })
	seen, err := s.accessPoints(ctx)
	if err != nil {
		return out, err
	}
	saved, err := s.savedWifi(ctx)
	for _, c := range saved {
		name := c.ssid()
		out.SSIDs[name] = 0
		if c.active {
			out.Connected = name
		}
	}
	for _, a := range seen {
		if _, is := out.SSIDs[a.SSID]; is {
			out.SSIDs[a.SSID] = a.Strength
		} else {
			out.Available = append(out.Available, a)
		}
	}
	out.Country = s.country(ctx)
	return out, err
}

func (c *connection) ssid() string {
	b, _ := c.settings[wifiType]["ssid"].Value().([]byte) // none
	return strings.ToValidUTF8(string(b), "\ufffd")
}

func (s *system) savedWifi(ctx context.Context) ([]*connection, error) {
	all, err := s.connections(ctx)
	return slices.DeleteFunc(all, func(c *connection) bool { return c.get("connection", "type") != wifiType }), err
}

// accessPoints returns the networks in reach, strongest first, each once.
func (s *system) accessPoints(ctx context.Context) ([]accessPoint, error) {
	radios, err := s.devices(ctx, deviceWifi)
	best := map[string]accessPoint{}
	for _, d := range radios {
		var paths []dbus.ObjectPath
		if s.bus.callMethod(ctx, nmName, d.path, nmName+".Device.Wireless.GetAllAccessPoints").Store(&paths) != nil {
			continue // the radio is gone or off
		}
		for _, p := range paths[:min(len(paths), 500)] {
			a, err := s.bus.all(ctx, nmName, p, nmName+".AccessPoint")
			if err != nil {
				continue // it is out of reach meanwhile
			}
			one := accessPoint{
				strings.ToValidUTF8(string(get[[]byte](a, "Ssid")), "\ufffd"),
				int(get[byte](a, "Strength")),
				security(a),
			}
			if one.SSID != "" && best[one.SSID].Strength <= one.Strength {
				best[one.SSID] = one
			}
		}
	}
	all := make([]accessPoint, 0, len(best))
	for _, a := range best {
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b accessPoint) int {
		return cmp.Or(cmp.Compare(b.Strength, a.Strength), cmp.Compare(a.SSID, b.SSID))
	})
	return all, err
}

// security returns what protects a network, by the flags of its access point.
func security(a properties) []string {
	const privacy, sae = 1, 0x400
	flags, wpa, rsn := get[uint32](a, "Flags"), get[uint32](a, "WpaFlags"), get[uint32](a, "RsnFlags")
	all := []string{}
	if flags&privacy != 0 && wpa == 0 && rsn == 0 {
		all = append(all, "wep")
	}
	if wpa != 0 {
		all = append(all, "wpa")
	}
	if rsn&^sae != 0 {
		all = append(all, "wpa2")
	}
	if rsn&sae != 0 {
		all = append(all, "wpa3")
	}
	return all
}

type availableOut struct {
	Available []accessPoint `json:"available"`
}

// scanTime is how long a scan may take that was asked for.
const scanTime = 8 * time.Second

func (s *system) wifiAvailable(ctx context.Context, _ *tool.Call, _ struct{}) (availableOut, error) {
	radios, err := s.devices(ctx, deviceWifi)
	if err != nil {
		return availableOut{}, err
	}
	if len(radios) == 0 {
		return availableOut{}, tool.Refuse(tool.CodeUnsupported, "NetworkManager has no wifi device")
	}
	for _, d := range radios {
		was := get[int64](s.wireless(ctx, d), "LastScan")
		if s.bus.callMethod(
			ctx,
			nmName,
			d.path,
			nmName+".Device.Wireless.RequestScan",
			map[string]dbus.Variant{},
		).err != nil {
			continue // it has just looked, and says so by refusing; what it saw is listed
		}
		for end := time.Now().Add(scanTime); time.Now().Before(end) &&
			ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
			if now := s.wireless(ctx, d); now["LastScan"].Value() == nil || get[int64](now, "LastScan") != was {
				break
			}
		}
	}
	w, err := s.wifi(ctx)
	return availableOut{w.Available}, err
}

func (s *system) wireless(ctx context.Context, d device) properties {
	p, err := s.bus.all(ctx, nmName, d.path, nmName+".Device.Wireless")
	if err != nil {
		return nil
	}
	return p
}

type enabledIn struct {
	Enabled bool `json:"enabled"`
	agreed
}

type enabledOut struct {
	Enabled bool `json:"enabled"`
	pendingOut
}

func askWifiEnabled(_ context.Context, in enabledIn) (change, error) {
	if in.Enabled {
		return change{"wifi", "Turn the wifi of this machine on?"}, nil
	}
	return change{"wifi", "Turn the wifi of this machine off? What reaches it by wifi alone is cut off."}, nil
}

// setWifiEnabled does not use a checkpoint, which has the connections and not the radio.
func (s *system) setWifiEnabled(ctx context.Context, c *tool.Call, in enabledIn) (out enabledOut, err error) {
	manager, err := s.bus.all(ctx, nmName, nmPath, nmName)
	if err != nil {
		return out, err
	}
	was := get[bool](manager, "WirelessEnabled")
	back := undo{{"set-property", nmName, string(nmPath), nmName, "WirelessEnabled", "b", fmt.Sprint(was)}}
	out.Enabled = in.Enabled
	out.pendingOut, err = s.guarded(ctx, c, back, func() error {
		return s.bus.set(ctx, nmName, nmPath, nmName, "WirelessEnabled", in.Enabled)
	})
	return out, err
}

type wifiAddIn struct {
	SSID     string `json:"ssid" min:"1" max:"32"`
	Password string `json:"password,omitempty" doc:"8 to 63 characters; none for an open network" max:"63"`
	agreed
}

var isASCII = regexp.MustCompile(`^[ -~]*$`)

func (s *system) askWifiAdd(ctx context.Context, in wifiAddIn) (change, error) {
	switch {
	case len(in.SSID) > 32:
		return change{}, invalid("ssid", in.SSID, "at most 32 bytes")
	case in.Password != "" && (len(in.Password) < 8 || !isASCII.MatchString(in.Password)):
		return change{}, tool.Refuse(tool.CodeInvalidArguments, "password is not 8 to 63 ASCII characters long")
	}
	if _, err := s.findWifi(ctx, in.SSID); err == nil {
		return change{}, &tool.Refusal{
			Code:    tool.CodeExists,
			Message: fmt.Sprintf("the wifi network %q is saved", in.SSID),
			Next:    "Delete it first with system_wifi_remove.",
		}
	}
	return change{in.SSID, fmt.Sprintf("Save the wifi network %q on this machine?", in.SSID)}, nil
}

type wifiNameOut struct {
	SSID string `json:"ssid"`
}

func (s *system) addWifi(ctx context.Context, _ *tool.Call, in wifiAddIn) (wifiNameOut, error) {
	c := settings{
		"connection": {"id": dbus.MakeVariant(in.SSID), "type": dbus.MakeVariant(wifiType)},
		wifiType:     {"ssid": dbus.MakeVariant([]byte(in.SSID)), "mode": dbus.MakeVariant("infrastructure")},
		"ipv4":       {"method": dbus.MakeVariant("auto")},
		"ipv6":       {"method": dbus.MakeVariant("auto")},
	}
	if in.Password != "" {
		c["802-11-wireless-security"] = map[string]dbus.Variant{
			"key-mgmt": dbus.MakeVariant("wpa-psk"), "psk": dbus.MakeVariant(in.Password),
		}
	}
	const at = dbus.ObjectPath("/org/freedesktop/NetworkManager/Settings")
	return wifiNameOut{in.SSID}, s.bus.callMethod(ctx, nmName, at, nmName+".Settings.AddConnection", c).err
}

type wifiIn struct {
	SSID string `json:"ssid" min:"1" max:"32"`
	agreed
}

func (s *system) findWifi(ctx context.Context, ssid string) (*connection, error) {
	saved, err := s.savedWifi(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range saved {
		if c.ssid() == ssid {
			return c, nil
		}
	}
	return nil, &tool.Refusal{Code: tool.CodeNotFound, Message: fmt.Sprintf("the wifi network %q is not saved", ssid),
		Next: "system_wifi_add saves it."}
}

func (s *system) askWifi(question string) func(context.Context, wifiIn) (change, error) {
	return func(ctx context.Context, in wifiIn) (change, error) {
		_, err := s.findWifi(ctx, in.SSID)
		return change{in.SSID, fmt.Sprintf(question, in.SSID)}, err
	}
}

type wifiConnectOut struct {
	SSID string `json:"ssid"`
	pendingOut
}

func (s *system) connectWifi(ctx context.Context, c *tool.Call, in wifiIn) (out wifiConnectOut, err error) {
	saved, err := s.findWifi(ctx, in.SSID)
	if err != nil {
		return out, err
	}
	radios, err := s.devices(ctx, deviceWifi)
	if err == nil && len(radios) == 0 {
		err = tool.Refuse(tool.CodeUnsupported, "NetworkManager has no wifi device")
	}
	if err != nil {
		return out, err
	}
	out.SSID = in.SSID
	out.pendingOut, err = s.guarded(ctx, c, nil, func() error {
		var active dbus.ObjectPath
		err := s.bus.callMethod(ctx, nmName, nmPath, nmName+".ActivateConnection", saved.path, radios[0].path,
			dbus.ObjectPath("/")).Store(&active)
		if err != nil {
			return err
		}
		return s.awaitActive(ctx, active)
	})
	return out, err
}

// awaitActive waits until a connection is up, or has failed.
func (s *system) awaitActive(ctx context.Context, at dbus.ObjectPath) error {
	const up, down = 2, 4 // NMActiveConnectionState
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	for {
		p, err := s.bus.all(ctx, nmName, at, nmName+".Connection.Active")
		switch state := get[uint32](p, "State"); {
		case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
			return tool.Refuse(tool.CodeTimeout, "the network was not connected in %v", connectTime)
		case err != nil || state >= down:
			return tool.Refuse(tool.CodeFailed,
				"the network could not be connected: its password may be wrong, or it is out of reach")
		case state == up:
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (s *system) removeWifi(ctx context.Context, _ *tool.Call, in wifiIn) (wifiNameOut, error) {
	c, err := s.findWifi(ctx, in.SSID)
	if err != nil {
		return wifiNameOut{}, err
	}
	if c.active {
		return wifiNameOut{}, tool.Refuse(tool.CodeBusy,
			"the wifi network %q is connected; connect to another one first", in.SSID)
	}
	return wifiNameOut{in.SSID}, s.bus.callMethod(ctx, nmName, c.path, nmName+".Settings.Connection.Delete").err
}

// country returns the country of the first radio of wpa_supplicant; "" if it does not run.
func (s *system) country(ctx context.Context) string {
	for _, at := range s.supplicantRadios(ctx) {
		if p, err := s.bus.all(ctx, supplicantName, at, supplicantName+".Interface"); err == nil {
			return get[string](p, "Country")
		}
	}
	return ""
}

func (s *system) supplicantRadios(ctx context.Context) []dbus.ObjectPath {
	var runs bool
	if s.bus.callMethod(ctx, busName, "/", busName+".NameHasOwner", supplicantName).Store(&runs) != nil || !runs {
		return nil
	}
	p, err := s.bus.all(ctx, supplicantName, "/fi/w1/wpa_supplicant1", supplicantName)
	if err != nil {
		return nil
	}
	return get[[]dbus.ObjectPath](p, "Interfaces")
}

type countryIn struct {
	Country string `json:"country" doc:"two letters of ISO 3166, such as DE" pattern:"^[A-Z]{2}$"`
	agreed
}

type countryOut struct {
	Country string `json:"country"`
}

var isCountry = regexp.MustCompile(`^[A-Z]{2}$`)

func (s *system) askCountry(ctx context.Context, in countryIn) (change, error) {
	if !isCountry.MatchString(in.Country) {
		return change{}, invalid("country", in.Country, "two letters such as DE")
	}
	w, err := s.wifi(ctx)
	if err != nil {
		return change{}, err
	}
	if !w.Ethernet {
		return change{}, tool.Refuse(tool.CodeUnsupported,
			"no Ethernet connection is up; wifi may be lost when its country changes")
	}
	return change{in.Country, "Let the wifi of this machine obey the rules of " + in.Country + "?"}, nil
}

func (s *system) setCountry(ctx context.Context, _ *tool.Call, in countryIn) (countryOut, error) {
	radios := s.supplicantRadios(ctx)
	if len(radios) == 0 {
		return countryOut{}, tool.Refuse(tool.CodeUnsupported, "wpa_supplicant has no wifi device")
	}
	for _, at := range radios {
		if err := s.bus.set(ctx, supplicantName, at, supplicantName+".Interface", "Country", in.Country); err != nil {
			return countryOut{}, err
		}
	}
	return countryOut{s.country(ctx)}, nil
}

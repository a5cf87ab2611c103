package system

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/godbus/dbus/v5"

	"gatehouse/tool"
)

func (s *system) gatewayTools() []daemonTool {
	all := []daemonTool{
		reading(s, nmName, tool.Def{
			Name: "system_gateway_list", Title: "List saved connections",
			Description: "Lists the connections that NetworkManager has saved, and which of them are up.",
		}, s.listGateways),
		changing(s, nmName, tool.Def{
			Name: "system_gateway_set_name", Title: "Rename a connection", Aliases: []string{"net.gateway.set-name"},
			Description: "Renames a saved connection of the machine, after the user has agreed.",
		}, s.askRename, s.rename),
		changing(s, nmName, tool.Def{
			Name: "system_gateway_forget", Title: "Forget a connection", Aliases: []string{"net.gateway.forget"},
			Effects:     tool.Writes | tool.Destroys,
			Description: "Deletes a saved connection of the machine that is not up, after the user has agreed.",
		}, s.askForget, s.forget),
		changing(s, nmName, tool.Def{
			Name: "system_dns_set_static", Title: "Set name servers", Aliases: []string{"net.dns.set-static"},
			Description: "Sets the name servers of the machine's connections, after the user has agreed. Without servers it uses those of the network again.",
			Help: guardHelp + " Where systemd-resolved runs and NetworkManager does not, it sets them for the interfaces with a default " +
				"route, until systemd-resolved restarts.",
		}, s.askDNS, s.setDNS),
	}
	all[len(all)-1].or = resolvedName
	return all
}

const guardHelp = changeHelp + " It is taken back after 60 s, also if this host ends meanwhile, unless system_confirm " +
	"confirms it over a new connection."

// settings are those of a saved connection, as NetworkManager gives and takes them.
type settings map[string]map[string]dbus.Variant

// dropOld removes the older forms of address-data and route-data, which lose their types here.
func (s settings) dropOld() {
	for _, section := range []string{"ipv4", "ipv6"} {
		delete(s[section], "addresses")
		delete(s[section], "routes")
	}
}

// connection is a saved connection.
type connection struct {
	path     dbus.ObjectPath
	settings settings
	active   bool
	devices  []dbus.ObjectPath // it is up on these
}

func (c *connection) get(section, name string) string {
	text, _ := c.settings[section][name].Value().(string) // "" without one
	return text
}

// maxConnections bounds how many saved connections are looked at.
const maxConnections = 500

// connections returns the saved connections.
func (s *system) connections(ctx context.Context) (all []*connection, err error) {
	var paths []dbus.ObjectPath
	const at = dbus.ObjectPath("/org/freedesktop/NetworkManager/Settings")
	if err := s.bus.callMethod(ctx, nmName, at, nmName+".Settings.ListConnections").Store(&paths); err != nil {
		return nil, err
	}
	for _, p := range paths[:min(len(paths), maxConnections)] {
		c := &connection{path: p}
		if s.bus.callMethod(ctx, nmName, p, nmName+".Settings.Connection.GetSettings").Store(&c.settings) != nil {
			continue // it was deleted meanwhile, or belongs to another user
		}
		all = append(all, c)
	}
	manager, err := s.bus.all(ctx, nmName, nmPath, nmName)
	if err != nil {
		return nil, err
	}
	for _, p := range get[[]dbus.ObjectPath](manager, "ActiveConnections") {
		active, err := s.bus.all(ctx, nmName, p, nmName+".Connection.Active")
		if err != nil {
			continue // it ended meanwhile
		}
		for _, c := range all {
			if c.path == get[dbus.ObjectPath](active, "Connection") {
				c.active, c.devices = true, append(c.devices, get[[]dbus.ObjectPath](active, "Devices")...)
			}
		}
	}
	return all, nil
}

type gatewayOut struct {
	ID        string `json:"id" doc:"a UUID"`
	Name      string `json:"name"`
	Type      string `json:"type"`
	Interface string `json:"interface,omitempty"`
	Active    bool   `json:"active" doc:"it is up"`
}

func (c *connection) out() gatewayOut {
	return gatewayOut{c.get("connection", "uuid"), c.get("connection", "id"), c.get("connection", "type"),
		c.get("connection", "interface-name"), c.active}
}

type gatewaysOut struct {
	Gateways []gatewayOut `json:"gateways"`
}

func (s *system) listGateways(ctx context.Context, _ *tool.Call, _ struct{}) (gatewaysOut, error) {
	all, err := s.connections(ctx)
	out := gatewaysOut{Gateways: []gatewayOut{}}
	for _, c := range all {
		out.Gateways = append(out.Gateways, c.out())
	}
	return out, err
}

// findGateway returns the connection of an id, a name or an interface.
func (s *system) findGateway(ctx context.Context, name string) (*connection, error) {
	all, err := s.connections(ctx)
	if err != nil {
		return nil, err
	}
	for _, member := range []string{"uuid", "id", "interface-name"} {
		var found []*connection
		for _, c := range all {
			if c.get("connection", member) == name {
				found = append(found, c)
			}
		}
		switch len(found) {
		case 0:
		case 1:
			return found[0], nil
		default:
			return nil, &tool.Refusal{Code: tool.CodeAmbiguous, Message: fmt.Sprintf("%d connections are called %q", len(found), name),
				Next: "Give the id; system_gateway_list lists them."}
		}
	}
	return nil, &tool.Refusal{Code: tool.CodeNotFound, Message: fmt.Sprintf("there is no saved connection %q", name),
		Next: "system_gateway_list lists them."}
}

type renameIn struct {
	Gateway string `json:"id" doc:"id, name or interface of a saved connection" min:"1" max:"200"`
	Name    string `json:"name" min:"1" max:"200"`
	agreed
}

func (s *system) askRename(ctx context.Context, in renameIn) (change, error) {
	c, err := s.findGateway(ctx, in.Gateway)
	if err != nil {
		return change{}, err
	}
	return change{in.Gateway, fmt.Sprintf("Rename the connection %q of this machine to %q?", c.get("connection", "id"), in.Name)}, nil
}

func (s *system) rename(ctx context.Context, _ *tool.Call, in renameIn) (gatewayOut, error) {
	c, err := s.findGateway(ctx, in.Gateway)
	if err != nil {
		return gatewayOut{}, err
	}
	c.settings["connection"]["id"] = dbus.MakeVariant(in.Name)
	if err := s.save(ctx, c); err != nil {
		return gatewayOut{}, err
	}
	return c.out(), nil
}

// save saves a connection whose settings were changed. Its secrets, which are not among
// them, stay.
func (s *system) save(ctx context.Context, c *connection) error {
	const toDisk = 1
	c.settings.dropOld()
	var secrets settings
	for section := range c.settings {
		call := s.bus.callMethod(ctx, nmName, c.path, nmName+".Settings.Connection.GetSecrets", section)
		if call.Store(&secrets) != nil {
			continue // this section has none
		}
		maps.Copy(c.settings[section], secrets[section])
	}
	return s.bus.callMethod(ctx, nmName, c.path, nmName+".Settings.Connection.Update2", c.settings, uint32(toDisk),
		map[string]dbus.Variant{}).err
}

type forgetIn struct {
	Gateway string `json:"gateway" doc:"id, name or interface of a saved connection" min:"1" max:"200"`
	agreed
}

func (s *system) askForget(ctx context.Context, in forgetIn) (change, error) {
	c, err := s.findGateway(ctx, in.Gateway)
	if err != nil {
		return change{}, err
	}
	if c.active {
		return change{}, tool.Refuse(tool.CodeBusy, "the connection %q is up; only one that is not can be forgotten", in.Gateway)
	}
	return change{in.Gateway, fmt.Sprintf("Delete the saved connection %q of this machine, with its passwords? It cannot be undone.",
		c.get("connection", "id"))}, nil
}

func (s *system) forget(ctx context.Context, _ *tool.Call, in forgetIn) (gatewayOut, error) {
	c, err := s.findGateway(ctx, in.Gateway)
	if err != nil {
		return gatewayOut{}, err
	}
	return c.out(), s.bus.callMethod(ctx, nmName, c.path, nmName+".Settings.Connection.Delete").err
}

type dnsIn struct {
	Servers []string `json:"servers,omitempty" doc:"addresses; none means those of the network" max:"8"`
	agreed
}

type dnsOut struct {
	Connections []string `json:"connections" doc:"names of those that were changed"`
	pendingOut
}

func (s *system) askDNS(_ context.Context, in dnsIn) (change, error) {
	for _, a := range in.Servers {
		if _, err := netip.ParseAddr(a); err != nil {
			return change{}, invalid("servers", a, "the address of a name server")
		}
	}
	if len(in.Servers) == 0 {
		return change{"dns", "Let this machine use the name servers of its networks again?"}, nil
	}
	return change{"dns", fmt.Sprintf("Let this machine use the name servers %v alone?", in.Servers)}, nil
}

// setDNS changes the connections that are up and have addresses of their own.
func (s *system) setDNS(ctx context.Context, c *tool.Call, in dnsIn) (out dnsOut, err error) {
	manages, err := s.bus.runs(ctx, nmName)
	if err != nil {
		return out, err
	}
	if !manages {
		return s.setResolved(ctx, c, in)
	}
	all, err := s.connections(ctx)
	if err != nil {
		return out, err
	}
	all = slices.DeleteFunc(all, func(c *connection) bool {
		kind := c.get("connection", "type")
		return !c.active || kind == "loopback" || kind == "tun" || kind == "bridge" && len(c.devices) == 0
	})
	if len(all) == 0 {
		return out, tool.Refuse(tool.CodeNotFound, "NetworkManager has no connection that is up, whose name servers could be set")
	}
	out.Connections = []string{}
	out.pendingOut, err = s.guarded(ctx, c, nil, func() error {
		for _, one := range all {
			one.setServers(in.Servers)
			if err := s.save(ctx, one); err != nil {
				return err
			}
			for _, device := range one.devices {
				err := s.bus.callMethod(ctx, nmName, device, nmName+".Device.Reapply", settings{}, uint64(0), uint32(0)).err
				if err != nil {
					return err
				}
			}
			out.Connections = append(out.Connections, one.get("connection", "id"))
		}
		return nil
	})
	return out, err
}

// setServers sets the name servers of a connection; none means those of the network.
func (c *connection) setServers(servers []string) {
	four, six := serversOfNM(parseServers(servers))
	for section, value := range map[string]any{"ipv4": four, "ipv6": six} {
		if method := c.get(section, "method"); method != "auto" && method != "manual" && method != "dhcp" {
			continue // it has no name servers
		}
		delete(c.settings[section], "dns-data") // the same in a newer form
		c.settings[section]["dns"] = dbus.MakeVariant(value)
		c.settings[section]["ignore-auto-dns"] = dbus.MakeVariant(len(servers) > 0)
	}
}

// parseServers returns the addresses of name servers. Those that are none are left out; askDNS has refused them.
func parseServers(texts []string) (all []netip.Addr) {
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, a.Unmap())
		}
	}
	return all
}

// serversOfNM returns addresses in the two forms that NetworkManager takes.
func serversOfNM(servers []netip.Addr) (four []uint32, six [][]byte) {
	four, six = []uint32{}, [][]byte{}
	for _, a := range servers {
		if a.Is4() {
			b := a.As4()
			four = append(four, binary.NativeEndian.Uint32(b[:]))
		} else {
			six = append(six, a.AsSlice())
		}
	}
	return four, six
}

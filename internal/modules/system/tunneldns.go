package system

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/godbus/dbus/v5"

	"gatehouse/tool"
)

// tunnelSeen bounds how long NetworkManager may need to see the interface of a tunnel.
const tunnelSeen = 10 * time.Second

// setTunnelDNS has the machine ask the name servers of a tunnel's configuration. Both daemons forget them with the
// interface, so that they end with the tunnel, however this host ends.
func (s *system) setTunnelDNS(ctx context.Context, r *runningTunnel) error {
	c := r.config
	if len(c.DNS) == 0 {
		return nil
	}
	// Without domains a server that is not asked for all names would be asked for none.
	forAll := r.All || len(c.Domains) == 0
	manages, err := s.bus.runs(ctx, nmName)
	if err == nil && manages {
		err = s.setTunnelDNSOfNM(ctx, r, forAll)
	} else {
		err = s.setTunnelDNSOfResolved(ctx, r, forAll)
	}
	if err != nil {
		return err
	}
	for _, a := range c.DNS {
		r.dns = append(r.dns, a.String())
	}
	return nil
}

// setTunnelDNSOfNM changes what NetworkManager applies to the interface, without saving it.
func (s *system) setTunnelDNSOfNM(ctx context.Context, r *runningTunnel, forAll bool) error {
	device, err := s.awaitDevice(ctx, r.ID, s.tunnels.devices[r.ID])
	if err != nil {
		return err
	}
	s.tunnels.devices[r.ID] = device
	var applied settings
	var version uint64
	call := s.bus.callMethod(ctx, nmName, device, nmName+".Device.GetAppliedConnection", uint32(0))
	if err := call.Store(&applied, &version); err != nil {
		return err
	}
	applied.dropOld()
	four, six := serversOfNM(r.config.DNS)
	domains := append([]string{}, r.config.Domains...)
	priority := int32(100) // NetworkManager's own for other connections is the same
	if forAll {
		// A negative one has the servers of connections with a higher one not be asked.
		priority, domains = -50, append(domains, "~.")
	}
	for section, servers := range map[string]any{"ipv4": four, "ipv6": six} {
		if applied[section] == nil {
			continue
		}
		if method, _ := applied[section]["method"].Value().(string); method != "auto" && method != "manual" {
			continue // it has no addresses, and therefore no servers
		}
		delete(applied[section], "dns-data") // the same in a newer form
		applied[section]["dns"] = dbus.MakeVariant(servers)
		applied[section]["dns-search"] = dbus.MakeVariant(domains)
		applied[section]["dns-priority"] = dbus.MakeVariant(priority)
	}
	// Addresses and routes are the tunnel's own; without this NetworkManager takes them away and ends its part.
	const preserveExternalIP = 1
	return s.bus.callMethod(ctx, nmName, device, nmName+".Device.Reapply", applied, version, uint32(preserveExternalIP)).err
}

// awaitDevice waits until NetworkManager has an interface up, and returns its object. It is not former, which is the object
// of an interface of the same name that was removed: NetworkManager may not have seen that yet.
func (s *system) awaitDevice(ctx context.Context, name string, former dbus.ObjectPath) (at dbus.ObjectPath, err error) {
	ctx, cancel := context.WithTimeout(ctx, tunnelSeen)
	defer cancel()
	const activated = 100
	for {
		if err = s.bus.callMethod(ctx, nmName, nmPath, nmName+".GetDeviceByIpIface", name).Store(&at); err == nil && at != former {
			var p properties
			if p, err = s.bus.all(ctx, nmName, at, nmName+".Device"); err == nil && get[uint32](p, "State") == activated {
				return at, nil
			}
		}
		select {
		case <-ctx.Done():
			return "", tool.Refuse(tool.CodeTimeout, "NetworkManager does not have the interface %s up after %v", name, tunnelSeen)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// setTunnelDNSOfResolved tells systemd-resolved the name servers of the interface.
func (s *system) setTunnelDNSOfResolved(ctx context.Context, r *runningTunnel, forAll bool) error {
	runs, err := s.bus.runs(ctx, resolvedName)
	if err != nil {
		return err
	}
	if !runs {
		return tool.Refuse(tool.CodeUnavailable, "neither NetworkManager nor systemd-resolved runs")
	}
	link, err := net.InterfaceByName(r.ID)
	if err != nil {
		return fmt.Errorf("find the interface: %w", err)
	}
	type domain struct {
		Name  string
		Route bool // only to choose the server, not to complete names
	}
	domains := []domain{}
	for _, d := range r.config.Domains {
		domains = append(domains, domain{d, false})
	}
	if forAll {
		domains = append(domains, domain{".", true})
	}
	index := int32(link.Index)
	for _, one := range []struct {
		method string
		value  any
	}{{"SetLinkDNS", serversOfResolved(r.config.DNS)}, {"SetLinkDomains", domains}, {"SetLinkDefaultRoute", forAll}} {
		if err := s.bus.callMethod(ctx, resolvedName, resolvedPath, resolvedName+".Manager."+one.method, index, one.value).err; err != nil {
			return err
		}
	}
	return nil
}

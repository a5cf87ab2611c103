package packages

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"gatehouse/internal/mcp/client"
	"gatehouse/internal/sandbox/proxy"
	"gatehouse/tool"
)

// SetOutbound has the connections of a package to the network use one interface of this machine; "" means
// whichever the system chooses. Servers of the package are stopped, so that the next ones use it. Names are
// resolved as before.
func (h *Manager) SetOutbound(id, gateway string) error {
	leave, err := h.addWork()
	if err != nil {
		return err
	}
	defer leave()
	if gateway != "" {
		if err := checkGateway(gateway); err != nil {
			return err
		}
	}
	_, err = h.changePackage(id, "setting its outbound gateway", func(p *managedPackage, was Record) error {
		return p.setOutbound(was, gateway)
	})
	return err
}

func (p *managedPackage) setOutbound(r Record, gateway string) error {
	switch {
	case r.State != Installed:
		return tool.Refuse(tool.CodeUnavailable, "package %s is not completely installed", p.id)
	case gateway != "" && !p.routesOutbound(&r):
		return &tool.Refusal{
			Code: tool.CodeUnsupported,
			Message: fmt.Sprintf(
				"package %s is in no sandbox and connects to the network itself, so this host cannot choose its "+
					"interface; nothing was changed",
				p.id,
			),
			Next: fmt.Sprintf("gatehouse package grant %s --confine has it run in a sandbox, whose connections this host "+
				"makes.", p.id),
		}
	}
	r.Outbound = gateway
	if err := p.saveRecord(r); err != nil {
		return err
	}
	return p.stopServers()
}

// checkGateway refuses what is no connected interface.
func checkGateway(name string) error {
	i, err := net.InterfaceByName(name)
	if err != nil {
		var names []string
		if all, err := net.Interfaces(); err == nil {
			for _, i := range all {
				names = append(names, i.Name)
			}
		}
		return &tool.Refusal{Code: tool.CodeNotFound,
			Message: fmt.Sprintf("gateway: there is no network interface %q", shorten(name, 100)),
			Next:    "There are " + strings.Join(names, ", ") + "; net_interfaces describes them."}
	}
	if addresses, err := i.Addrs(); err != nil || i.Flags&net.FlagUp == 0 || len(addresses) == 0 {
		return tool.Refuse(tool.CodeUnavailable, "gateway: interface %s is not connected", name)
	}
	return nil
}

// routesOutbound reports whether this host makes the connections of the package.
func (p *managedPackage) routesOutbound(r *Record) bool {
	return r.Source.Kind == URL || r.Source.Kind == TCP || p.confines(r)
}

// dialOutbound connects for a package, by the interface of its record. It fails if the interface is gone, and never
// uses another.
func (r *Record) dialOutbound(ctx context.Context, network, address string) (net.Conn, error) {
	d := client.NewDialer(dialTimeout)
	if r.Outbound != "" && network != Unix {
		if err := checkGateway(r.Outbound); err != nil {
			return nil, err
		}
		alive := d.Control
		if err := proxy.BindTo(d, r.Outbound); err != nil {
			return nil, err
		}
		bind := d.Control
		d.Control = func(network, address string, c syscall.RawConn) error {
			return errors.Join(bind(network, address, c), alive(network, address, c))
		}
	}
	return d.DialContext(ctx, network, address)
}

package network

import (
	"cmp"
	"context"
	"slices"
	"time"

	psnet "github.com/shirou/gopsutil/v4/net"
	"github.com/shirou/gopsutil/v4/process"

	"gatehouse/tool"
)

const (
	mostListeners = 500
	listenersWait = 15 * time.Second
)

type listenersIn struct {
	Port     int    `json:"port,omitempty" doc:"only listeners with this value" min:"0" max:"65535"`
	Protocol string `json:"protocol,omitempty" doc:"only listeners with this value" enum:"tcp,udp"`
}

type listenersOut struct {
	Listeners []listenerOut `json:"listeners"`
	Hidden    int           `json:"hidden,omitempty"`
	More      int           `json:"more,omitempty" doc:"number of listeners not listed"`
}

type listenerOut struct {
	Protocol string `json:"protocol"`
	Address  string `json:"address"`
	Port     int    `json:"port"`
	PID      int    `json:"pid,omitempty"`
	Process  string `json:"process,omitempty"`
	User     string `json:"user,omitempty"`
}

func (n *network) listeners(ctx context.Context, _ *tool.Call, in listenersIn) (listenersOut, error) {
	out := listenersOut{Listeners: []listenerOut{}}
	ctx, cancel := context.WithTimeout(ctx, listenersWait)
	defer cancel()
	for _, protocol := range []string{"tcp", "udp"} {
		if in.Protocol != "" && in.Protocol != protocol {
			continue
		}
		all, err := psnet.ConnectionsWithContext(ctx, protocol)
		if err != nil {
			return out, err
		}
		for _, c := range all {
			if listens(protocol, c) && (in.Port == 0 || int(c.Laddr.Port) == in.Port) {
				out.Listeners = append(
					out.Listeners,
					listenerOut{Protocol: protocol, Address: c.Laddr.IP, Port: int(c.Laddr.Port), PID: int(c.Pid)},
				)
			}
		}
	}
	slices.SortFunc(out.Listeners, func(a, b listenerOut) int {
		return cmp.Or(
			cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Address, b.Address),
			cmp.Compare(a.PID, b.PID),
		)
	})
	out.Listeners = slices.Compact(out.Listeners)
	if len(out.Listeners) > mostListeners {
		out.Listeners, out.More = out.Listeners[:mostListeners], len(out.Listeners)-mostListeners
	}
	out.resolveNames(ctx)
	return out, nil
}

// listens reports whether a socket accepts connections or packets from any peer.
func listens(protocol string, c psnet.ConnectionStat) bool {
	if protocol == "tcp" {
		return c.Status == "LISTEN"
	}
	return c.Raddr.Port == 0
}

// resolveNames adds the names of processes and their users.
func (o *listenersOut) resolveNames(ctx context.Context) {
	known := map[int]listenerOut{}
	for i := range o.Listeners {
		l := &o.Listeners[i]
		if l.PID == 0 {
			o.Hidden++
			continue
		}
		k, there := known[l.PID]
		if !there {
			if p, err := process.NewProcessWithContext(ctx, int32(l.PID)); err == nil {
				k.Process, _ = p.NameWithContext(ctx) // empty if the process has ended
				k.User, _ = p.UsernameWithContext(ctx)
			}
			known[l.PID] = k
		}
		l.Process, l.User = k.Process, k.User
	}
}

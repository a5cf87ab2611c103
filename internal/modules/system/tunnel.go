package system

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/modules/system/wireguard"
	"gatehouse/tool"
)

// tunnelsSecret is the name of the secret that holds the tunnels which are to be up, because their configurations have
// private keys.
const tunnelsSecret = "system-tunnels"

const (
	maxTunnels   = 16
	tunnelPrefix = "tunnel-" // of the ids of changes
)

// Secrets stores the configurations of tunnels; *secret.Store implements it.
type Secrets interface {
	Get(name string) (secret.Text, error)
	Set(name string, value secret.Text) error
}

// keptTunnel is a tunnel that is to be up.
type keptTunnel struct {
	ID     string `json:"id"` // wgN
	Name   string `json:"name"`
	Config string `json:"config"`
	All    bool   `json:"all,omitempty"`
	Type   string `json:"type,omitempty"` // "" means outbound-only
}

// tunnels are those that this host runs. Safe for concurrent use.
type tunnels struct {
	secrets Secrets // nil keeps nothing for the next start

	mu      sync.Mutex
	up      map[string]*runningTunnel  // by id
	pending *pendingTunnel             // the change that waits to be confirmed
	devices map[string]dbus.ObjectPath // NetworkManager's objects of the last interfaces, by id
}

type runningTunnel struct {
	keptTunnel
	config *wireguard.Config
	tunnel *wireguard.Tunnel // nil if it could not be started, or was removed by a change that waits
	wrong  string            // why it is not up, or its name servers are not used
	dns    []string          // its name servers that are used
}

// pendingTunnel is a change that is taken back when its timer fires. If this host is killed before, its tunnels end,
// and the next start brings up those that were confirmed.
type pendingTunnel struct {
	change string
	id     string
	added  bool // otherwise it was removed
	timer  *time.Timer
}

func (s *system) tunnelTools() []daemonTool {
	all := []daemonTool{
		reading(s, "", tool.Def{
			Name: "system_tunnel_list", Title: "List tunnels",
			Description: "Lists the WireGuard tunnels that this host runs.",
			Help:        onlyHelp + " Keys are not shown, except the public ones of peers.",
		}, func(context.Context, *tool.Call, struct{}) (tunnelsOut, error) { return s.tunnels.listTunnels(), nil }),
		changing(s, "", tool.Def{
			Name: "system_tunnel_add", Title: "Add a tunnel", Aliases: []string{"net.tunnel.add"}, Timeout: time.Minute,
			Description: "Starts a WireGuard tunnel from a configuration file's text, after the user has agreed.",
			Help: tunnelHelp + " config is what wg-quick reads, without commands. The tunnel runs in this host: it ends with it, and " +
				"starts with it again. With setAsDefaultOutbound all connections of the machine that no more specific route " +
				"takes go through it. package_set_outbound_gateway has a package use it. The other end can begin TCP connections to " +
				"this machine with type inbound-outbound alone. Name servers of the configuration are used, by way of NetworkManager or " +
				"systemd-resolved, for the domains that it names beside them, else and with setAsDefaultOutbound for all names.",
			Effects: tool.Writes | tool.OpenWorld,
		}, s.askTunnel, s.addTunnel),
		changing(s, "", tool.Def{
			Name: "system_tunnel_remove", Title: "Remove a tunnel", Aliases: []string{"net.tunnel.remove"},
			Description: "Ends a WireGuard tunnel and forgets its configuration, after the user has agreed.",
			Help:        tunnelHelp,
		}, func(_ context.Context, in tunnelIn) (change, error) {
			t, err := s.tunnels.findTunnel(in.ID)
			if err != nil {
				return change{}, err
			}
			return change{t.ID, fmt.Sprintf("End the tunnel %s (%s) of this machine, and forget its configuration?", t.ID, t.Name)}, nil
		}, s.removeTunnel),
	}
	for i := range all {
		all[i].there = wireguard.Available
	}
	return all
}

const tunnelHelp = changeHelp + " It is taken back after 60 s, or when this host ends, unless system_confirm confirms it over " +
	"a new connection."

type tunnelIn struct {
	ID string `json:"id" doc:"such as wg0" min:"1" max:"10"`
	agreed
}

type tunnelAddIn struct {
	Name    string `json:"name" min:"1" max:"64"`
	Config  string `json:"config" doc:"text of the configuration: sections [Interface] and [Peer]" min:"1" max:"16384"`
	Type    string `json:"type,omitempty" enum:"inbound-outbound,outbound-only" default:"outbound-only"`
	Default bool   `json:"setAsDefaultOutbound,omitempty"`
	agreed
}

type tunnelsOut struct {
	Tunnels []tunnelOut `json:"tunnels"`
}

type tunnelOut struct {
	ID        string   `json:"id" doc:"the interface"`
	Name      string   `json:"name"`
	Up        bool     `json:"up"`
	Why       string   `json:"why,omitempty" doc:"why it is not up, or its name servers are not used"`
	Type      string   `json:"type" enum:"inbound-outbound,outbound-only"`
	Default   bool     `json:"defaultOutbound"`
	Addresses []string `json:"addresses" doc:"of this machine"`
	Peers     []string `json:"peers" doc:"public key and endpoint"`
	DNS       []string `json:"dns,omitempty" doc:"name servers of the configuration that are used"`
	Received  int64    `json:"received" doc:"bytes"`
	Sent      int64    `json:"sent" doc:"bytes"`
	Handshake string   `json:"handshake,omitempty" doc:"when a peer last answered"`
}

type tunnelChangeOut struct {
	Tunnel tunnelOut `json:"tunnel"`
	pendingOut
}

func (r *runningTunnel) out() tunnelOut {
	o := tunnelOut{ID: r.ID, Name: r.Name, Up: r.tunnel != nil, Why: r.wrong, Type: r.options(nil).Type(), Default: r.All, DNS: r.dns, Addresses: []string{}, Peers: []string{}}
	for _, a := range r.config.Addresses {
		o.Addresses = append(o.Addresses, a.String())
	}
	for _, p := range r.config.Peers {
		o.Peers = append(o.Peers, strings.TrimSpace(p.PublicKey()+" "+p.Endpoint))
	}
	if r.tunnel != nil {
		state := r.tunnel.State()
		o.Received, o.Sent = state.Received, state.Sent
		if !state.Handshake.IsZero() {
			o.Handshake = state.Handshake.UTC().Format(time.RFC3339)
		}
	}
	return o
}

func (t *tunnels) listTunnels() tunnelsOut {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := tunnelsOut{Tunnels: []tunnelOut{}}
	for _, r := range t.up {
		out.Tunnels = append(out.Tunnels, r.out())
	}
	slices.SortFunc(out.Tunnels, func(a, b tunnelOut) int { return cmp.Or(len(a.ID)-len(b.ID), strings.Compare(a.ID, b.ID)) })
	return out
}

func (t *tunnels) findTunnel(id string) (*runningTunnel, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.up[id]; r != nil {
		return r, nil
	}
	return nil, &tool.Refusal{Code: tool.CodeNotFound, Message: fmt.Sprintf("there is no tunnel %q", id), Next: "system_tunnel_list lists them."}
}

// free refuses a change while another one waits.
func (t *tunnels) free() error {
	if t.pending == nil {
		return nil
	}
	return &tool.Refusal{
		Code: tool.CodeBusy, Message: "the change " + t.pending.change + " of a tunnel waits to be confirmed",
		Next: "Confirm it with system_confirm, take it back with system_take_back, or wait.",
	}
}

func parseTunnel(in tunnelAddIn) (*wireguard.Config, error) {
	c, err := wireguard.Parse(in.Config)
	if err != nil {
		return nil, tool.Refuse(tool.CodeInvalidArguments, "config: %v", err)
	}
	if in.Default && !c.AllowAll() {
		return nil, tool.Refuse(tool.CodeInvalidArguments, "config: of several peers one needs AllowedIPs = 0.0.0.0/0 to be the way for all connections")
	}
	return c, nil
}

func (s *system) askTunnel(_ context.Context, in tunnelAddIn) (change, error) {
	c, err := parseTunnel(in)
	if err != nil {
		return change{}, err
	}
	what := "connections to " + fmt.Sprint(c.Peers[0].Allowed)
	if in.Default {
		what = "all its connections"
	}
	more := ""
	if in.Type == wireguard.InboundOutbound {
		more = ", and let the other end connect to this machine"
	}
	if len(c.DNS) > 0 {
		more += fmt.Sprintf(", and ask the name servers %v", c.DNS)
	}
	return change{in.Name, fmt.Sprintf("Start the WireGuard tunnel %q to %s, and send %s of this machine through it%s?",
		in.Name, cmp.Or(c.Peers[0].Endpoint, c.Peers[0].PublicKey()), what, more)}, nil
}

func (s *system) addTunnel(ctx context.Context, c *tool.Call, in tunnelAddIn) (out tunnelChangeOut, err error) {
	config, err := parseTunnel(in)
	if err != nil {
		return out, err
	}
	t := &s.tunnels
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.free(); err != nil {
		return out, err
	}
	number, err := wireguard.Free(maxTunnels)
	if err != nil {
		return out, tool.Refuse(tool.CodeTooMany, "%v", err)
	}
	r := &runningTunnel{keptTunnel: keptTunnel{fmt.Sprintf("wg%d", number), in.Name, in.Config, in.Default, in.Type}, config: config}
	if err := s.start(ctx, r); err != nil {
		return out, tool.Refuse(tool.CodeFailed, "%v", err)
	}
	t.up[r.ID] = r
	out.Tunnel, out.pendingOut = r.out(), s.waitForTunnel(c, r.ID, true)
	return out, nil
}

func (s *system) removeTunnel(_ context.Context, c *tool.Call, in tunnelIn) (out tunnelChangeOut, err error) {
	r, err := s.tunnels.findTunnel(in.ID)
	if err != nil {
		return out, err
	}
	t := &s.tunnels
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.free(); err != nil {
		return out, err
	}
	r.stop("it was removed, which is taken back unless it is confirmed")
	out.Tunnel, out.pendingOut = r.out(), s.waitForTunnel(c, r.ID, false)
	return out, nil
}

func (s *system) start(ctx context.Context, r *runningTunnel) (err error) {
	var number int
	if _, err := fmt.Sscanf(r.ID, "wg%d", &number); err != nil {
		return err
	}
	r.wrong = ""
	if r.tunnel, err = wireguard.Up(ctx, number, r.config, r.options(s.deps.Log)); err != nil {
		r.tunnel, r.wrong = nil, err.Error()
		return err
	}
	if err := s.setTunnelDNS(ctx, r); err != nil {
		r.wrong = "its name servers are not used: " + err.Error()
	}
	return nil
}

func (r *runningTunnel) options(log *slog.Logger) wireguard.Options {
	return wireguard.Options{All: r.All, Inbound: r.Type == wireguard.InboundOutbound, Log: log}
}

func (r *runningTunnel) stop(why string) {
	if r.tunnel != nil {
		r.tunnel.Close()
	}
	r.tunnel, r.wrong, r.dns = nil, why, nil
}

// waitForTunnel begins to wait for a change to be confirmed.
func (s *system) waitForTunnel(c *tool.Call, id string, added bool) pendingOut {
	p := &pendingTunnel{change: tunnelPrefix + strings.ToLower(rand.Text()[:16]), id: id, added: added}
	s.tunnels.pending = p
	s.guard.note(p.change, c.Caller.Wire)
	p.timer = time.AfterFunc(s.takeBack, func() { s.endTunnelChange(context.Background(), p.change, false) })
	return pendingOut{p.change, time.Now().Add(s.takeBack).UTC().Format(time.RFC3339), confirmNext}
}

// waits reports whether a change of a tunnel waits to be confirmed.
func (t *tunnels) waits(change string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pending != nil && t.pending.change == change
}

// endTunnelChange keeps a change, or takes it back.
func (s *system) endTunnelChange(ctx context.Context, change string, keep bool) error {
	t := &s.tunnels
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.pending
	if p == nil || p.change != change {
		return nil // it has ended meanwhile
	}
	p.timer.Stop()
	t.pending = nil
	r := t.up[p.id]
	switch {
	case p.added && !keep:
		r.stop("")
		delete(t.up, p.id)
		return nil
	case !p.added && !keep:
		return s.start(ctx, r)
	case !p.added:
		delete(t.up, p.id)
	}
	return t.save()
}

// save stores the tunnels for the next start.
func (t *tunnels) save() error {
	if t.secrets == nil {
		return nil
	}
	all := []keptTunnel{}
	for _, r := range t.up {
		all = append(all, r.keptTunnel)
	}
	b, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return t.secrets.Set(tunnelsSecret, secret.New(string(b)))
}

// startTunnels brings up the tunnels of the last run. One that cannot be started is logged and listed with the reason.
func (s *system) startTunnels(ctx context.Context) {
	t := &s.tunnels
	if t.secrets == nil || !wireguard.Available() {
		return
	}
	text, err := t.secrets.Get(tunnelsSecret)
	var all []keptTunnel
	if err == nil {
		err = json.Unmarshal([]byte(text.Reveal()), &all)
	}
	if err != nil {
		if !errors.Is(err, secret.ErrNotFound) {
			s.deps.Log.WarnContext(ctx, "tunnels cannot be read", "err", err)
		}
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range all[:min(len(all), maxTunnels)] {
		c, err := parseTunnel(tunnelAddIn{Config: k.Config, Default: k.All})
		if err != nil {
			s.deps.Log.WarnContext(ctx, "tunnel left out", "tunnel", k.ID, "err", err)
			continue
		}
		r := &runningTunnel{keptTunnel: k, config: c}
		if err := s.start(ctx, r); err != nil {
			s.deps.Log.WarnContext(ctx, "tunnel not started", "tunnel", k.ID, "err", err)
		}
		t.up[k.ID] = r
	}
}

func (t *tunnels) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pending != nil {
		t.pending.timer.Stop()
	}
	for _, r := range t.up {
		r.stop("")
	}
}

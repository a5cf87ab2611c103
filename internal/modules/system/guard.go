package system

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"

	"gatehouse/tool"
)

// takeBack is how long a change that could cut off its caller waits to be confirmed.
const takeBack = 60 * time.Second

// guard takes back changes that are not confirmed. What takes one back is not the
// host, which may have ended: NetworkManager has a checkpoint, or systemd a timer that
// was started before the change. Tunnels alone end with the host, see tunnel.go.
type guard struct {
	mu sync.Mutex
	// made are the wires over which changes were made by this host, by the id of the change.
	made map[string]string
}

// note remembers over which wire a change was made.
func (g *guard) note(change, wire string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.made) > 100 {
		clear(g.made) // all but the last have been taken back or confirmed
	}
	g.made[change] = wire
}

// undo are calls of daemons that take a change back, each as arguments of busctl.
type undo [][]string

// pendingOut is the result of a change that waits to be confirmed.
type pendingOut struct {
	Change string `json:"change" doc:"its id"`
	Until  string `json:"until" doc:"then it is taken back"`
	Next   string `json:"next"`
}

const confirmNext = "Connect to this host again, and call system_confirm with this change over the new connection. " +
	"Without that it is taken back."

// guarded makes a change that is taken back unless it is confirmed. Without an undo, a
// checkpoint of NetworkManager takes it back. If do fails, it is taken back at once.
func (s *system) guarded(ctx context.Context, c *tool.Call, back undo, do func() error) (out pendingOut, err error) {
	until := time.Now().Add(s.takeBack)
	if back == nil {
		out.Change, err = s.checkpoint(ctx)
	} else {
		out.Change, err = s.armTimer(ctx, back)
	}
	if err != nil {
		return out, err
	}
	s.guard.note(out.Change, c.Caller.Wire)
	if err := do(); err != nil {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
		defer cancel()
		return pendingOut{}, errors.Join(err, s.endChange(late, out.Change, false))
	}
	out.Until, out.Next = until.UTC().Format(time.RFC3339), confirmNext
	return out, nil
}

const (
	nmName       = "org.freedesktop.NetworkManager"
	nmPath       = dbus.ObjectPath("/org/freedesktop/NetworkManager")
	checkpointAt = "/org/freedesktop/NetworkManager/Checkpoint/"
	timerPrefix  = "gatehouse-undo-"
)

var isChange = regexp.MustCompile(
	`^(checkpoint-[0-9]{1,9}|(` + timerPrefix + `|` + tunnelPrefix + `)[a-z0-9]{1,40})$`)

// checkpoint makes a checkpoint of NetworkManager, to which it returns by itself.
func (s *system) checkpoint(ctx context.Context) (string, error) {
	var at dbus.ObjectPath
	const deleteNew, disconnectNew = 2, 4
	err := s.bus.callMethod(ctx, nmName, nmPath, nmName+".CheckpointCreate", []dbus.ObjectPath{},
		uint32((s.takeBack+time.Second-1)/time.Second), uint32(deleteNew|disconnectNew)).Store(&at)
	if r, is := errors.AsType[*tool.Refusal](err); is && r.Code == tool.CodeFailed {
		return "", &tool.Refusal{
			Code: tool.CodeBusy, Message: "an earlier change waits to be confirmed: " + r.Message,
			Next: "Confirm it with system_confirm, take it back with system_take_back, or wait.",
		}
	}
	return "checkpoint-" + strings.TrimPrefix(string(at), checkpointAt), err
}

type unitProperty struct {
	Name  string
	Value dbus.Variant
}

type auxiliaryUnit struct {
	Name       string
	Properties []unitProperty
}

// armTimer starts a timer of systemd that calls what takes a change back.
func (s *system) armTimer(ctx context.Context, back undo) (string, error) {
	id := timerPrefix + strings.ToLower(rand.Text()[:16])
	type command struct {
		Path   string
		Args   []string
		Ignore bool
	}
	var run []command
	for _, call := range back {
		run = append(run, command{"/usr/bin/busctl", append([]string{"busctl", "--system"}, call...), false})
	}
	micro := uint64(s.takeBack / time.Microsecond)
	timer := []unitProperty{
		{"Description", dbus.MakeVariant("Takes back a change that was not confirmed")},
		{"TimersMonotonic", dbus.MakeVariant([]struct {
			Base string
			Sec  uint64
		}{{"OnActiveSec", micro}})},
		{"AccuracyUSec", dbus.MakeVariant(uint64(100_000))},
		{"RemainAfterElapse", dbus.MakeVariant(false)},
	}
	service := auxiliaryUnit{id + ".service", []unitProperty{
		{"Description", dbus.MakeVariant("Takes back a change that was not confirmed")},
		{"Type", dbus.MakeVariant("oneshot")},
		{"ExecStart", dbus.MakeVariant(run)},
	}}
	return id, s.bus.callMethod(ctx, systemdName, systemdPath, systemdName+".Manager.StartTransientUnit", id+".timer", "fail",
		timer, []auxiliaryUnit{service}).err
}

// endChange confirms a change, or takes it back now.
func (s *system) endChange(ctx context.Context, id string, keep bool) error {
	if strings.HasPrefix(id, tunnelPrefix) {
		return s.endTunnelChange(ctx, id, keep)
	}
	if number, is := strings.CutPrefix(id, "checkpoint-"); is {
		at := dbus.ObjectPath(checkpointAt + number)
		if keep {
			return s.bus.callMethod(ctx, nmName, nmPath, nmName+".CheckpointDestroy", at).err
		}
		return s.bus.callMethod(ctx, nmName, nmPath, nmName+".CheckpointRollback", at).err
	}
	if keep {
		return s.runJob(ctx, "StopUnit", id+".timer")
	}
	if err := s.runJob(ctx, "StartUnit", id+".service"); err != nil {
		return err
	}
	return s.runJob(ctx, "StopUnit", id+".timer")
}

func (s *system) guardTools() []daemonTool {
	return []daemonTool{
		{Tool: tool.New(tool.Def{
			Name: "system_confirm", Title: "Keep a change", Effects: tool.Writes, Task: tool.TaskNever,
			Description: "Keeps a change of the machine's network that would be taken back. " +
				"It must come over another connection than the change.",
			Help: onlyHelp + " The connection on which a change was made may have survived what cuts off every new one. " +
				"A client that has one connection alone is helped by gatehouse call --daemon system_confirm.",
		}, s.confirmChange)},
		{Tool: tool.New(tool.Def{
			Name: "system_take_back", Title: "Take a change back", Effects: tool.Writes, Task: tool.TaskNever,
			Description: "Takes back a change of the machine's network now that has not been confirmed.",
			Help:        onlyHelp,
		}, s.takeBackChange)},
	}
}

type changeIn struct {
	Change string `json:"change" doc:"id of the change" min:"1" max:"80"`
}

type changeOut struct {
	Change string `json:"change"`
	Kept   bool   `json:"kept" doc:"false: it was taken back"`
}

// findChange refuses an id that names no change that waits.
func (s *system) findChange(ctx context.Context, id string) error {
	if !isChange.MatchString(id) {
		return invalid("change", id, "the id in the result of a change")
	}
	gone := &tool.Refusal{
		Code:    tool.CodeNotFound,
		Message: fmt.Sprintf("no change %q waits to be confirmed: it was confirmed, or taken back", id),
		Next:    "Look at the present state before you repeat it.",
	}
	if number, is := strings.CutPrefix(id, "checkpoint-"); is {
		if _, err := s.bus.all(ctx, nmName, dbus.ObjectPath(checkpointAt+number), nmName+".Checkpoint"); err != nil {
			return gone
		}
		return nil
	}
	if strings.HasPrefix(id, tunnelPrefix) {
		if !s.tunnels.waits(id) {
			return gone
		}
		return nil
	}
	var at dbus.ObjectPath
	if s.bus.callMethod(ctx, systemdName, systemdPath, systemdName+".Manager.GetUnit", id+".timer").Store(&at) != nil {
		return gone
	}
	return nil
}

func (s *system) confirmChange(ctx context.Context, c *tool.Call, in changeIn) (changeOut, error) {
	if err := s.cfg.Rules.Check(c, rightOfHost); err != nil {
		return changeOut{}, err
	}
	if err := s.findChange(ctx, in.Change); err != nil {
		return changeOut{}, err
	}
	s.guard.mu.Lock()
	wire, ours := s.guard.made[in.Change]
	s.guard.mu.Unlock()
	if ours && wire == c.Caller.Wire {
		return changeOut{}, &tool.Refusal{
			Code:    tool.CodeDenied,
			Message: "the change was made over this connection, which does not show that this host can still be reached",
			Next:    "Open a new connection, and confirm it there.",
		}
	}
	return changeOut{in.Change, true}, s.endChange(ctx, in.Change, true)
}

func (s *system) takeBackChange(ctx context.Context, c *tool.Call, in changeIn) (changeOut, error) {
	if err := s.cfg.Rules.Check(c, rightOfHost); err != nil {
		return changeOut{}, err
	}
	if err := s.findChange(ctx, in.Change); err != nil {
		return changeOut{}, err
	}
	return changeOut{in.Change, false}, s.endChange(ctx, in.Change, false)
}

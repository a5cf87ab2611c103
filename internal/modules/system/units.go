package system

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"gatehouse/tool"
)

const (
	systemdName = "org.freedesktop.systemd1"
	systemdPath = dbus.ObjectPath("/org/freedesktop/systemd1")
	maxUnits    = 500
	jobTime     = 100 * time.Second // systemd ends the start of a unit after 90 s by default
)

func (s *system) unitTools() []daemonTool {
	return []daemonTool{
		reading(s, systemdName, tool.Def{
			Name: "system_units", Title: "List units",
			Description: "Lists the units of the machine that systemd has loaded: services, timers, sockets, mounts.",
			Help: onlyHelp +
				" At most 500 units are listed; narrow them by pattern or state. It does not list units that are " +
				"not loaded; system_unit shows each.",
		}, s.listUnits),
		reading(s, systemdName, tool.Def{
			Name: "system_unit", Title: "Show a unit", Description: "Shows the state of a unit of the machine.",
		}, s.showUnit),
		s.unitChange("system_unit_start", "Start", "StartUnit"),
		s.unitChange("system_unit_stop", "Stop", "StopUnit"),
		s.unitChange("system_unit_restart", "Restart", "RestartUnit"),
		reading(s, systemdName, tool.Def{
			Name: "system_logs", Title: "Read the log of units",
			Description: "Returns messages of the machine's journal: of one unit, or of all, newest last.",
			Help: onlyHelp +
				" cursor continues from an earlier page: behind its endCursor, or with before, " +
				"in front of its startCursor. boot is an id, or 0 for this start of the machine, " +
				"-1 for the one before.",
		}, s.readJournal),
	}
}

type unitsIn struct {
	Pattern string `json:"pattern,omitempty" doc:"names to list, such as *.service" default:"*.service" max:"256"`
	State   string `json:"state,omitempty" doc:"only units in this state, such as failed or active" max:"40"`
}

type unitLine struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Load        string `json:"load" doc:"loaded, not-found, masked or error"`
	Active      string `json:"active" doc:"active, inactive, failed, activating or deactivating"`
	Sub         string `json:"sub" doc:"a finer state, such as running or exited"`
}

type unitsOut struct {
	Units []unitLine `json:"units"`
	More  int        `json:"more,omitempty" doc:"units that are left out"`
}

func (s *system) listUnits(ctx context.Context, _ *tool.Call, in unitsIn) (unitsOut, error) {
	states := []string{}
	if in.State != "" {
		states = append(states, in.State)
	}
	var all []struct {
		Name, Description, Load, Active, Sub, Following string
		Path                                            dbus.ObjectPath
		Job                                             uint32
		JobType                                         string
		JobPath                                         dbus.ObjectPath
	}
	err := s.bus.callMethod(ctx, systemdName, systemdPath, systemdName+".Manager.ListUnitsByPatterns", states,
		[]string{in.Pattern}).Store(&all)
	out := unitsOut{Units: []unitLine{}, More: max(0, len(all)-maxUnits)}
	for _, u := range all[:min(len(all), maxUnits)] {
		out.Units = append(out.Units, unitLine{u.Name, u.Description, u.Load, u.Active, u.Sub})
	}
	return out, err
}

type unitIn struct {
	Unit string `json:"unit" doc:"name with its suffix, such as ssh.service" min:"1" max:"256"`
}

type unitOut struct {
	unitLine
	Enabled string `json:"enabled,omitempty" doc:"enabled, disabled, static, masked ..."`
	File    string `json:"file,omitempty"`
	PID     uint32 `json:"pid,omitempty" doc:"the main process"`
	Memory  uint64 `json:"memory,omitempty" doc:"bytes"`
	Since   string `json:"since,omitempty" doc:"in this state"`
	Result  string `json:"result,omitempty" doc:"of the last run of a service"`
}

// checkUnit refuses what cannot be the name of a unit.
func checkUnit(name string) error {
	if ext := path.Ext(name); len(ext) < 2 || strings.ContainsAny(name, "/ \t\n*?[") {
		return invalid("unit", name, "the name of a unit with its suffix, such as ssh.service")
	}
	return nil
}

func (s *system) showUnit(ctx context.Context, _ *tool.Call, in unitIn) (out unitOut, err error) {
	if err := checkUnit(in.Unit); err != nil {
		return out, err
	}
	var at dbus.ObjectPath
	if err := s.bus.callMethod(ctx, systemdName, systemdPath,
		systemdName+".Manager.LoadUnit", in.Unit).Store(&at); err != nil {
		return out, err
	}
	p, err := s.bus.all(ctx, systemdName, at, systemdName+".Unit")
	if err != nil {
		return out, err
	}
	if get[string](p, "LoadState") == "not-found" {
		return out, &tool.Refusal{
			Code: tool.CodeNotFound, Message: fmt.Sprintf("there is no unit %q", in.Unit),
			Next: "system_units lists the units that are loaded.",
		}
	}
	out.unitLine = unitLine{get[string](p, "Id"), get[string](p, "Description"), get[string](p, "LoadState"),
		get[string](p, "ActiveState"), get[string](p, "SubState")}
	out.Enabled, out.File = get[string](p, "UnitFileState"), get[string](p, "FragmentPath")
	out.Since = timestamp(get[uint64](p, "StateChangeTimestamp"))
	if path.Ext(in.Unit) != ".service" {
		return out, nil
	}
	p, err = s.bus.all(ctx, systemdName, at, systemdName+".Service")
	out.Result = get[string](p, "Result")
	if out.Active != "inactive" && out.Active != "failed" {
		out.PID = get[uint32](p, "MainPID")
	}
	if m := get[uint64](p, "MemoryCurrent"); m != ^uint64(0) {
		out.Memory = m
	}
	return out, err
}

// timestamp returns microseconds since 1970 in RFC 3339, or "" for 0.
func timestamp(micro uint64) string {
	if micro == 0 {
		return ""
	}
	return time.UnixMicro(int64(micro)).UTC().Format(time.RFC3339)
}

type unitChangeIn struct {
	unitIn
	agreed
}

// unitChange makes a tool that starts, stops or restarts a unit.
func (s *system) unitChange(name, title, method string) daemonTool {
	d := tool.Def{
		Name: name, Title: title + " a unit", Timeout: 2 * time.Minute,
		Description: title + "s a unit of the machine, after the user has agreed, and waits until it has been done.",
		Effects:     tool.Writes | tool.Destroys,
	}
	return changing(s, systemdName, d,
		func(ctx context.Context, in unitChangeIn) (change, error) {
			u, err := s.showUnit(ctx, nil, in.unitIn)
			return change{
				in.Unit,
				fmt.Sprintf("%s the unit %s (%s) of this machine?", title, in.Unit, u.Description),
			}, err
		},
		func(ctx context.Context, _ *tool.Call, in unitChangeIn) (unitOut, error) {
			if err := s.runJob(ctx, method, in.Unit); err != nil {
				return unitOut{}, err
			}
			return s.showUnit(ctx, nil, in.unitIn)
		})
}

// runJob runs a job of systemd, and waits until it has ended.
func (s *system) runJob(ctx context.Context, method, unit string) error {
	ctx, cancel := context.WithTimeout(ctx, jobTime)
	defer cancel()
	conn, err := s.bus.dial() // a connection of its own, for the signals of this job alone
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.AddMatchSignalContext(ctx, dbus.WithMatchInterface(systemdName+".Manager"),
		dbus.WithMatchMember("JobRemoved")); err != nil {
		return err
	}
	ended := make(chan *dbus.Signal, 64)
	conn.Signal(ended)
	manager := conn.Object(systemdName, systemdPath)
	if err := manager.CallWithContext(ctx, systemdName+".Manager.Subscribe", 0).Err; err != nil {
		return refusalOf(systemdName, err)
	}
	var job dbus.ObjectPath
	if err := manager.CallWithContext(ctx, systemdName+".Manager."+method, 0, unit, "replace").Store(&job); err != nil {
		return refusalOf(systemdName, err)
	}
	for {
		select {
		case <-ctx.Done():
			return tool.Refuse(tool.CodeTimeout, "%s has not ended its job in %v; it goes on", unit, jobTime)
		case e, open := <-ended:
			if !open {
				return tool.Refuse(tool.CodeUnavailable, "the connection to the system's D-Bus was lost")
			}
			if len(e.Body) < 4 || e.Body[1] != job {
				continue
			}
			if result, _ := e.Body[3].(string); result != "done" && result != "skipped" {
				return &tool.Refusal{
					Code: tool.CodeFailed, Message: fmt.Sprintf("the job of %s ended with %q", unit, result),
					Next: "system_logs shows its messages.",
				}
			}
			return nil
		}
	}
}

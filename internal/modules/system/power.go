package system

import (
	"context"
	"fmt"
	"time"

	"gatehouse/tool"
)

const (
	loginName = "org.freedesktop.login1"
	loginPath = "/org/freedesktop/login1"
	// powerDelay is the time in which the result of the call reaches the caller.
	powerDelay = 5 * time.Second
)

func (s *system) powerTools() []daemonTool {
	return []daemonTool{
		s.powerTool("system_shutdown", "Turn the machine off", "poweroff", "CanPowerOff",
			"Turn this machine off? Nothing of it can be reached until somebody turns it on."),
		s.powerTool("system_restart", "Restart the machine", "reboot", "CanReboot",
			"Restart this machine? Everything that runs on it ends."),
	}
}

type powerIn struct{ agreed }

type powerOut struct {
	At  string `json:"at" doc:"when the machine goes down"`
	How string `json:"how"`
}

// powerTool makes a tool that ends all that runs on the machine.
func (s *system) powerTool(name, title, kind, can, question string) daemonTool {
	return changing(s, loginName, tool.Def{
		Name: name, Title: title, Effects: tool.Writes | tool.Destroys,
		Description: title + " on which this host runs, after the user has agreed. server_restart restarts the host alone.",
		Help:        finalHelp + fmt.Sprintf(" The machine goes down %v after the answer.", powerDelay),
	}, func(ctx context.Context, _ powerIn) (change, error) {
		var may string
		err := s.bus.callMethod(ctx, loginName, loginPath, loginName+".Manager."+can).Store(&may)
		if err == nil && may != "yes" {
			err = tool.Refuse(tool.CodeDenied,
				"not permitted: the system answers %q when asked whether this host may do it", may)
		}
		return change{"machine", question}, err
	}, func(ctx context.Context, _ *tool.Call, _ powerIn) (powerOut, error) {
		at := time.Now().Add(s.powerDelay)
		err := s.bus.callMethod(ctx, loginName, loginPath, loginName+".Manager.ScheduleShutdown", kind,
			uint64(at.UnixMicro())).err
		return powerOut{at.UTC().Format(time.RFC3339), "the machine was told to " + kind}, err
	})
}

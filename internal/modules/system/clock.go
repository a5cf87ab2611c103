package system

import (
	"context"
	"fmt"
	"slices"
	"time"

	"gatehouse/tool"
)

const (
	timedateName = "org.freedesktop.timedate1"
	timesyncName = "org.freedesktop.timesync1"
)

func (s *system) clockTools() []daemonTool {
	return []daemonTool{
		reading(s, timedateName, tool.Def{
			Name: "system_time", Title: "Show the clock",
			Description: "Shows the clock of the machine: time zone, and whether it is synchronized over the network.",
		}, func(ctx context.Context, _ *tool.Call, _ struct{}) (clockOut, error) { return s.clock(ctx) }),
		changing(s, timedateName, tool.Def{
			Name: "system_set_time", Title: "Set the clock",
			Description: "Sets time zone, time or network synchronization of the machine's clock, " +
				"after the user has agreed.",
			Help: changeHelp + " The time cannot be set while synchronization is on.",
		}, s.askClock, s.setClock),
	}
}

type clockOut struct {
	Time         string   `json:"time" doc:"in RFC 3339, in the time zone of the machine"`
	TimeZone     string   `json:"timezone"`
	NTP          bool     `json:"ntp" doc:"synchronization over the network is on"`
	CanNTP       bool     `json:"canNtp" doc:"a service for it is installed"`
	Synchronized bool     `json:"synchronized"`
	LocalRTC     bool     `json:"localRtc" doc:"the hardware clock has local time"`
	Servers      []string `json:"ntpServers" doc:"of systemd-timesyncd"`
}

func (s *system) clock(ctx context.Context) (out clockOut, err error) {
	p, err := s.bus.all(ctx, timedateName, "/org/freedesktop/timedate1", timedateName)
	if err != nil {
		return out, err
	}
	out = clockOut{TimeZone: get[string](p, "Timezone"), NTP: get[bool](p, "NTP"), CanNTP: get[bool](p, "CanNTP"),
		Synchronized: get[bool](p, "NTPSynchronized"), LocalRTC: get[bool](p, "LocalRTC"), Servers: []string{}}
	zone, err := time.LoadLocation(out.TimeZone)
	if err != nil {
		zone = time.UTC
	}
	out.Time = time.UnixMicro(int64(get[uint64](p, "TimeUSec"))).In(zone).Format(time.RFC3339)
	out.Servers = append(out.Servers, s.timeServers(ctx)...)
	return out, nil
}

// timeServers returns the servers of systemd-timesyncd; none if it does not run.
func (s *system) timeServers(ctx context.Context) (all []string) {
	var runs bool
	if s.bus.callMethod(ctx, busName, "/", busName+".NameHasOwner", timesyncName).Store(&runs) != nil || !runs {
		return nil
	}
	p, err := s.bus.all(ctx, timesyncName, "/org/freedesktop/timesync1", timesyncName+".Manager")
	if err != nil {
		return nil
	}
	for _, list := range []string{"RuntimeNTPServers", "LinkNTPServers", "SystemNTPServers", "FallbackNTPServers"} {
		if all = get[[]string](p, list); len(all) > 0 {
			return all
		}
	}
	return nil
}

type setClockIn struct {
	TimeZone string `json:"timezone,omitempty" doc:"such as Europe/Berlin" max:"100"`
	NTP      *bool  `json:"ntp,omitempty" doc:"synchronize the clock over the network"`
	Time     string `json:"time,omitempty" doc:"in RFC 3339" max:"40"`
	agreed
}

func (s *system) askClock(ctx context.Context, in setClockIn) (change, error) {
	if in.TimeZone == "" && in.NTP == nil && in.Time == "" {
		return change{}, tool.Refuse(tool.CodeInvalidArguments, "nothing is to be set: give timezone, ntp or time")
	}
	what := change{thing: "clock", question: "Set the clock of this machine:"}
	if in.TimeZone != "" {
		var zones []string
		err := s.bus.callMethod(ctx, timedateName, "/org/freedesktop/timedate1", timedateName+".ListTimezones").Store(&zones)
		if err != nil {
			return change{}, err
		}
		if !slices.Contains(zones, in.TimeZone) {
			return change{}, invalid("timezone", in.TimeZone, "the name of a time zone, such as Europe/Berlin")
		}
		what.question += " time zone " + in.TimeZone + ";"
	}
	if in.NTP != nil {
		what.question += fmt.Sprintf(" synchronization %t;", *in.NTP)
	}
	if in.Time != "" {
		if _, err := time.Parse(time.RFC3339, in.Time); err != nil {
			return change{}, invalid("time", in.Time, "a time such as 2026-01-31T12:00:00Z")
		}
		what.question += " time " + in.Time + ";"
	}
	what.question = what.question[:len(what.question)-1] + "?"
	return what, nil
}

func (s *system) setClock(ctx context.Context, _ *tool.Call, in setClockIn) (clockOut, error) {
	set := func(method string, args ...any) error {
		return s.bus.callMethod(ctx, timedateName, "/org/freedesktop/timedate1", timedateName+"."+method, args...).err
	}
	if in.TimeZone != "" {
		if err := set("SetTimezone", in.TimeZone, false); err != nil {
			return clockOut{}, err
		}
	}
	if in.NTP != nil {
		if err := set("SetNTP", *in.NTP, false); err != nil {
			return clockOut{}, err
		}
		s.awaitNTP(ctx, *in.NTP)
	}
	if in.Time != "" {
		at, err := time.Parse(time.RFC3339, in.Time)
		if err == nil {
			err = set("SetTime", at.UnixMicro(), false, false)
		}
		if err != nil {
			return clockOut{}, err
		}
	}
	return s.clock(ctx)
}

// awaitNTP waits until timedated shows a change of synchronization, which it makes after
// its answer, for at most 5 s.
func (s *system) awaitNTP(ctx context.Context, want bool) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for {
		p, err := s.bus.all(ctx, timedateName, "/org/freedesktop/timedate1", timedateName)
		if err != nil || get[bool](p, "NTP") == want {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

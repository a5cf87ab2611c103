package system

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"gatehouse/tool"
)

const (
	packageKitName = "org.freedesktop.PackageKit"
	packageKitPath = dbus.ObjectPath("/org/freedesktop/PackageKit")
	updateTime     = time.Hour
	maxUpdates     = 1000
)

func (s *system) updateTools() []daemonTool {
	return []daemonTool{
		reading(s, packageKitName, tool.Def{
			Name: "system_updates", Title: "List updates of the system", Timeout: 10 * time.Minute,
			Description: "Lists the packages of the operating system of which newer versions are known.",
			Help:        onlyHelp + " With refresh it asks the repositories first.", Effects: tool.OpenWorld,
		}, s.listUpdates),
		changing(s, packageKitName, tool.Def{
			Name: "system_update", Title: "Update the system", Timeout: updateTime + time.Minute,
			Description: "Installs newer versions of packages of the operating system, after the user has agreed.",
			Help: finalHelp +
				" Services of these packages may be restarted. server_update replaces this host's own program.",
			Effects: tool.Writes | tool.Destroys | tool.OpenWorld,
		}, s.askUpdate, s.update),
	}
}

type updatesIn struct {
	Refresh bool `json:"refresh,omitempty" doc:"ask the repositories first"`
}

type systemPackage struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Kind    string `json:"kind" doc:"security, important, bugfix, enhancement, blocked or normal"`
	Summary string `json:"summary,omitempty"`

	id string // as PackageKit names it
}

type updatesOut struct {
	Updates []systemPackage `json:"updates"`
	More    int             `json:"more,omitempty" doc:"updates that are left out"`
}

// Numbers of PackageKit: bits of a transaction, kinds of a package, ends of a transaction.
const (
	onlyTrusted = 1 << 1
	exitSuccess = 1
)

var updateKinds = map[uint32]string{
	3:  "normal",
	4:  "normal",
	5:  "enhancement",
	6:  "normal",
	7:  "bugfix",
	8:  "important",
	9:  "security",
	10: "blocked",
}

// transaction runs a transaction of PackageKit, and returns the packages of which it told.
func (s *system) transaction(
	ctx context.Context,
	report func(percent float64),
	method string,
	args ...any,
) (all []systemPackage, err error) {
	ctx, cancel := context.WithTimeout(ctx, updateTime)
	defer cancel()
	conn, err := s.bus.dial() // a connection of its own, for the signals of this transaction alone
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var at dbus.ObjectPath
	err = conn.Object(packageKitName, packageKitPath).
		CallWithContext(ctx, packageKitName+".CreateTransaction", 0).
		Store(&at)
	if err != nil {
		return nil, refusalOf(packageKitName, err)
	}
	if err := conn.AddMatchSignalContext(ctx, dbus.WithMatchObjectPath(at)); err != nil {
		return nil, err
	}
	told := make(chan *dbus.Signal, 4096)
	conn.Signal(told)
	work := conn.Object(packageKitName, at)
	if err := work.CallWithContext(ctx, packageKitName+".Transaction.SetHints", 0,
		[]string{"interactive=false"}).Err; err != nil {
		return nil, refusalOf(packageKitName, err)
	}
	if err := work.CallWithContext(ctx, packageKitName+".Transaction."+method, 0, args...).Err; err != nil {
		return nil, refusalOf(packageKitName, err)
	}
	return collect(ctx, told, report)
}

// collect reads the signals of a transaction until it has ended.
func collect(
	ctx context.Context,
	told <-chan *dbus.Signal,
	report func(percent float64),
) (all []systemPackage, err error) {
	for {
		var e *dbus.Signal
		select {
		case <-ctx.Done():
			return all, tool.Refuse(tool.CodeTimeout, "PackageKit has not ended its work in time; it may go on")
		case e = <-told:
		}
		if e == nil {
			return all, tool.Refuse(tool.CodeUnavailable, "the connection to the system's D-Bus was lost")
		}
		switch e.Name {
		case packageKitName + ".Transaction.Package":
			var kind uint32
			var id, summary string
			if dbus.Store(e.Body, &kind, &id, &summary) == nil {
				name, rest, _ := strings.Cut(id, ";")
				version, _, _ := strings.Cut(rest, ";")
				all = append(all, systemPackage{name, version, cmp.Or(updateKinds[kind&0xffff], "normal"), summary, id})
			}
		case packageKitName + ".Transaction.ItemProgress":
			if len(e.Body) == 3 {
				if percent, is := e.Body[2].(uint32); is && percent <= 100 {
					report(float64(percent))
				}
			}
		case packageKitName + ".Transaction.ErrorCode":
			var code uint32
			var text string
			if dbus.Store(e.Body, &code, &text) == nil {
				err = tool.Refuse(tool.CodeFailed, "PackageKit: %s", text)
			}
		case packageKitName + ".Transaction.Finished":
			var exit, took uint32
			if dbus.Store(e.Body, &exit, &took) == nil && exit != exitSuccess && err == nil {
				err = tool.Refuse(tool.CodeFailed, "PackageKit ended with code %d", exit)
			}
			return all, err
		}
	}
}

func quiet(float64) {}

func (s *system) listUpdates(ctx context.Context, c *tool.Call, in updatesIn) (updatesOut, error) {
	if in.Refresh {
		if _, err := s.transaction(ctx, quiet, "RefreshCache", true); err != nil {
			return updatesOut{}, err
		}
	}
	all, err := s.transaction(ctx, quiet, "GetUpdates", uint64(0))
	out := updatesOut{Updates: []systemPackage{}, More: max(0, len(all)-maxUpdates)}
	out.Updates = append(out.Updates, all[:min(len(all), maxUpdates)]...)
	return out, err
}

type updateIn struct {
	Packages []string `json:"packages,omitempty" doc:"names; default: all that have a newer version" max:"500"`
	agreed
}

// chosenUpdates returns the updates of the packages that were named.
func (s *system) chosenUpdates(ctx context.Context, names []string) (chosen []systemPackage, err error) {
	all, err := s.transaction(ctx, quiet, "GetUpdates", uint64(0))
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		if len(all) == 0 {
			return nil, tool.Refuse(tool.CodeUnchanged,
				"no package has a newer version; system_updates with refresh asks the repositories")
		}
		return all, nil
	}
	for _, name := range names {
		n := len(chosen)
		for _, p := range all {
			if p.Name == name {
				chosen = append(chosen, p)
			}
		}
		if len(chosen) == n {
			return nil, &tool.Refusal{
				Code:    tool.CodeNotFound,
				Message: fmt.Sprintf("there is no newer version of %q", name),
				Next:    "system_updates lists the newer versions.",
			}
		}
	}
	return chosen, nil
}

func (s *system) askUpdate(ctx context.Context, in updateIn) (change, error) {
	all, err := s.chosenUpdates(ctx, in.Packages)
	if err != nil {
		return change{}, err
	}
	what := fmt.Sprintf("%d packages", len(all))
	if len(all) <= 5 {
		var names []string
		for _, p := range all {
			names = append(names, p.Name+" "+p.Version)
		}
		what = strings.Join(names, ", ")
	}
	return change{"updates", "Install newer versions of " + what + " on this machine? It cannot be undone."}, nil
}

func (s *system) update(ctx context.Context, c *tool.Call, in updateIn) (updatesOut, error) {
	all, err := s.chosenUpdates(ctx, in.Packages)
	if err != nil {
		return updatesOut{}, err
	}
	var ids []string
	for _, p := range all {
		ids = append(ids, p.id)
	}
	_, err = s.transaction(ctx, func(percent float64) { c.Peer.Progress(percent, 100, "installing") }, "UpdatePackages",
		uint64(onlyTrusted), ids)
	return updatesOut{Updates: all}, err
}

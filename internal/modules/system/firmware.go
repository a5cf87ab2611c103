package system

import (
	"cmp"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"gatehouse/tool"
)

const (
	fwupdName = "org.freedesktop.fwupd"
	fwupdPath = dbus.ObjectPath("/")

	firmwareTime       = 30 * time.Minute
	maxFirmware        = 512 << 20 // bytes of one file
	maxFirmwareDevices = 200
)

// Bits of a device's Flags, as libfwupd's fwupd-device.rs names them.
const (
	deviceUpdatable     = 1 << 1
	deviceNeedsReboot   = 1 << 8
	deviceNeedsShutdown = 1 << 17
)

func (s *system) firmwareTools() []daemonTool {
	return []daemonTool{
		reading(s, fwupdName, tool.Def{
			Name: "system_firmware", Title: "List firmware", Timeout: 10 * time.Minute,
			Description: "Lists the devices of the machine whose firmware can be updated, and the newer versions that are known.",
			Help: onlyHelp + " lists are those that newer versions come from; refreshed is when the machine last " +
				"fetched one, and a version published later is not known. system_unit_start with fwupd-refresh.service fetches them.",
		}, s.listFirmware),
		changing(s, fwupdName, tool.Def{
			Name: "system_firmware_update", Title: "Update firmware", Timeout: firmwareTime + time.Minute,
			Aliases:     []string{"server.update-firmware"},
			Description: "Installs newer firmware on one device, or on all that have some, after the user has agreed.",
			Help: finalHelp + " Do not switch the machine off meanwhile. needsReboot says that the firmware is used only after a restart " +
				"of the machine; system_restart does that.",
			Effects: tool.Writes | tool.Destroys | tool.OpenWorld,
		}, s.askFirmware, s.updateFirmware),
	}
}

// firmwareDevice is a device with firmware.
type firmwareDevice struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Vendor  string `json:"vendor,omitempty"`
	Version string `json:"version"`
	Newer   string `json:"newer,omitempty" doc:"the version that an update installs"`
	Urgency string `json:"urgency,omitempty" doc:"of the newer version: low, medium, high or critical"`
	Summary string `json:"summary,omitempty" doc:"of the newer version"`

	release properties
}

type firmwareOut struct {
	Devices []firmwareDevice `json:"devices"`
	Lists   []firmwareList   `json:"lists"`
}

// firmwareList is a list of newer versions; fwupd calls it a remote.
type firmwareList struct {
	ID        string `json:"id"`
	Name      string `json:"name,omitempty"`
	Local     bool   `json:"local" doc:"it comes from this machine, not from the network"`
	Refreshed string `json:"refreshed,omitempty" doc:"when it was last fetched or written; none: never"`
}

// firmwareLists returns the lists that are used.
func (s *system) firmwareLists(ctx context.Context) (all []firmwareList, err error) {
	const download = 1 // of fwupd's kinds; the others are on the machine
	remotes, err := s.remotes(ctx)
	for _, r := range remotes {
		if !get[bool](r, "Enabled") {
			continue
		}
		l := firmwareList{ID: get[string](r, "RemoteId"), Name: get[string](r, "Title"), Local: get[uint32](r, "Type") != download}
		if at := get[uint64](r, "ModificationTime"); at > 0 && at < math.MaxInt64 {
			l.Refreshed = time.Unix(int64(at), 0).UTC().Format(time.RFC3339)
		}
		all = append(all, l)
	}
	return all, err
}

// remotes returns what fwupd says of its lists.
func (s *system) remotes(ctx context.Context) (all []properties, err error) {
	var found []map[string]dbus.Variant
	err = s.bus.callMethod(ctx, fwupdName, fwupdPath, fwupdName+".GetRemotes").Store(&found)
	for _, r := range found {
		all = append(all, r)
	}
	return all, err
}

func (s *system) listFirmware(ctx context.Context, _ *tool.Call, _ struct{}) (firmwareOut, error) {
	out := firmwareOut{Devices: []firmwareDevice{}, Lists: []firmwareList{}}
	lists, err := s.firmwareLists(ctx)
	if err != nil {
		return out, err
	}
	all, err := s.firmwareDevices(ctx)
	out.Devices, out.Lists = append(out.Devices, all...), append(out.Lists, lists...)
	return out, err
}

// firmwareDevices returns the devices whose firmware can be updated, each with the newest version that fwupd knows.
func (s *system) firmwareDevices(ctx context.Context) (all []firmwareDevice, err error) {
	var found []map[string]dbus.Variant
	if err := s.bus.callMethod(ctx, fwupdName, fwupdPath, fwupdName+".GetDevices").Store(&found); err != nil {
		if r, is := err.(*tool.Refusal); is && r.Code == tool.CodeUnchanged { // fwupd's words for no device
			return nil, nil
		}
		return nil, err
	}
	for _, f := range found[:min(len(found), maxFirmwareDevices)] {
		p := properties(f)
		if get[uint64](p, "Flags")&deviceUpdatable == 0 {
			continue
		}
		d := firmwareDevice{ID: get[string](p, "DeviceId"), Name: get[string](p, "Name"), Vendor: get[string](p, "Vendor"),
			Version: get[string](p, "Version")}
		var newer []map[string]dbus.Variant // the newest first
		err := s.bus.callMethod(ctx, fwupdName, fwupdPath, fwupdName+".GetUpgrades", d.ID).Store(&newer)
		if err == nil && len(newer) > 0 && get[string](newer[0], "Version") != d.Version {
			d.release = newer[0]
			d.Newer, d.Summary = get[string](d.release, "Version"), get[string](d.release, "Summary")
			d.Urgency = urgencies[get[uint32](d.release, "Urgency")]
		}
		all = append(all, d)
	}
	return all, nil
}

var urgencies = map[uint32]string{1: "low", 2: "medium", 3: "high", 4: "critical"}

type firmwareIn struct {
	Device string `json:"device,omitempty" doc:"id or name; default: all devices with newer firmware" max:"200"`
	agreed
}

// chosenDevices returns the devices that an update would change.
func (s *system) chosenDevices(ctx context.Context, name string) (chosen []firmwareDevice, err error) {
	all, err := s.firmwareDevices(ctx)
	if err != nil {
		return nil, err
	}
	known := false
	for _, d := range all {
		is := name == "" || d.ID == name || d.Name == name
		known = known || is
		if is && d.release != nil {
			chosen = append(chosen, d)
		}
	}
	switch {
	case len(chosen) > 0:
		return chosen, nil
	case name != "" && !known:
		return nil, &tool.Refusal{Code: tool.CodeNotFound, Message: fmt.Sprintf("no device with firmware that can be updated is called %q", name),
			Next: "system_firmware lists them."}
	}
	return nil, &tool.Refusal{Code: tool.CodeUnchanged, Message: "no newer firmware is known",
		Next: "system_firmware tells how old the lists are; system_unit_start with fwupd-refresh.service fetches new ones."}
}

func (s *system) askFirmware(ctx context.Context, in firmwareIn) (change, error) {
	all, err := s.chosenDevices(ctx, in.Device)
	if err != nil {
		return change{}, err
	}
	var what []string
	for _, d := range all {
		what = append(what, fmt.Sprintf("%s %s (now %s)", d.Name, d.Newer, d.Version))
	}
	return change{"firmware", "Install this firmware on devices of the machine: " + strings.Join(what, ", ") +
		"? It cannot be undone, and the machine must not be switched off meanwhile."}, nil
}

type firmwareUpdateOut struct {
	Devices     []firmwareDevice `json:"devices" doc:"with the versions that they had"`
	NeedsReboot bool             `json:"needsReboot" doc:"the firmware is used after a restart of the machine"`
}

func (s *system) updateFirmware(ctx context.Context, c *tool.Call, in firmwareIn) (out firmwareUpdateOut, err error) {
	out.Devices = []firmwareDevice{}
	all, err := s.chosenDevices(ctx, in.Device)
	if err != nil {
		return out, err
	}
	for i, d := range all {
		c.Peer.Progress(float64(i), float64(len(all)), d.Name)
		if err := s.installFirmware(ctx, d); err != nil {
			return out, fmt.Errorf("%s: %w", d.Name, err)
		}
		out.Devices = append(out.Devices, d)
	}
	var found []map[string]dbus.Variant
	if err := s.bus.callMethod(ctx, fwupdName, fwupdPath, fwupdName+".GetDevices").Store(&found); err != nil {
		return out, err
	}
	for _, f := range found {
		flags := get[uint64](f, "Flags")
		out.NeedsReboot = out.NeedsReboot || flags&(deviceNeedsReboot|deviceNeedsShutdown) != 0
	}
	return out, nil
}

// installFirmware gives fwupd the file of a release. fwupd checks its signature.
func (s *system) installFirmware(ctx context.Context, d firmwareDevice) error {
	ctx, cancel := context.WithTimeout(ctx, firmwareTime)
	defer cancel()
	file, err := s.fetchFirmware(ctx, d.release)
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	options := map[string]dbus.Variant{
		"reason": dbus.MakeVariant("user-action"), "filename": dbus.MakeVariant("firmware.cab"),
	}
	return s.bus.callMethod(ctx, fwupdName, fwupdPath, fwupdName+".Install", d.ID, dbus.UnixFD(file.Fd()), options).err
}

// fetchFirmware copies the file of a release into one of its own, and compares its digest with that of fwupd's list.
func (s *system) fetchFirmware(ctx context.Context, release properties) (file *os.File, err error) {
	at, from, err := s.openRelease(ctx, release)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	file, err = os.CreateTemp("", "gatehouse-firmware-")
	if err != nil {
		return nil, err
	}
	old, new := sha1.New(), sha256.New()
	n, err := io.Copy(io.MultiWriter(file, old, new), io.LimitReader(from, maxFirmware+1))
	switch known := get[string](release, "Checksum"); {
	case err != nil:
		err = tool.Refuse(tool.CodeUnreachable, "%s cannot be read: %v", at, err)
	case n > maxFirmware:
		err = tool.Refuse(tool.CodeTooLarge, "%s has over %d MiB", at, maxFirmware>>20)
	case !matches(known, hex.EncodeToString(old.Sum(nil)), hex.EncodeToString(new.Sum(nil))):
		err = tool.Refuse(tool.CodeFailed, "%s has not the content that fwupd's list names (%s); nothing was installed", at, known)
	default:
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		file.Close()
		os.Remove(file.Name())
		return nil, err
	}
	return file, nil
}

// matches reports whether fwupd's list names one of the digests, and no other of the same kind.
func matches(list string, digests ...string) (found bool) {
	for known := range strings.SplitSeq(list, ",") {
		for _, d := range digests {
			if len(known) == len(d) && known != d {
				return false
			}
			found = found || known == d
		}
	}
	return found
}

// openRelease opens the file of a release: one of the machine, whose list is one of the machine, or one of the web.
func (s *system) openRelease(ctx context.Context, release properties) (at string, from io.ReadCloser, err error) {
	at = get[string](release, "Uri")
	if all := get[[]string](release, "Locations"); len(all) > 0 {
		at = all[0]
	}
	u, err := url.Parse(at)
	if err != nil {
		return at, nil, tool.Refuse(tool.CodeFailed, "fwupd names %q as the place of the firmware", at)
	}
	switch u.Scheme {
	case "https":
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
		if err != nil {
			return at, nil, err
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			return at, nil, tool.Refuse(tool.CodeUnreachable, "%v", err)
		}
		if res.StatusCode != http.StatusOK {
			res.Body.Close()
			return at, nil, tool.Refuse(tool.CodeUnreachable, "%s answers with %s", at, res.Status)
		}
		return at, res.Body, nil
	case "", "file":
		folder, err := s.remoteFolder(ctx, get[string](release, "RemoteId"))
		if err != nil {
			return at, nil, err
		}
		path := cmp.Or(u.Path, at)
		if !filepath.IsAbs(path) {
			path = filepath.Join(folder, path)
		}
		if rel, err := filepath.Rel(folder, path); err != nil || !filepath.IsLocal(rel) {
			return at, nil, tool.Refuse(tool.CodeFailed, "the firmware %s is not in the folder of its list, %s", at, folder)
		}
		root, err := os.OpenRoot(folder)
		if err != nil {
			return at, nil, err
		}
		defer root.Close()
		rel, _ := filepath.Rel(folder, path) // it was possible above
		f, err := root.Open(rel)
		if err != nil {
			return at, nil, tool.Refuse(tool.CodeNotFound, "%v", err)
		}
		return at, f, nil
	}
	return at, nil, tool.Refuse(tool.CodeUnsupported, "the firmware is at %s; only https is used", at)
}

// remoteFolder returns the folder of a list that lies on this machine.
func (s *system) remoteFolder(ctx context.Context, id string) (string, error) {
	remotes, err := s.remotes(ctx)
	if err != nil {
		return "", err
	}
	for _, r := range remotes {
		if get[string](r, "RemoteId") != id {
			continue
		}
		at := strings.TrimPrefix(cmp.Or(get[string](r, "FilenameCache"), get[string](r, "Uri")), "file://")
		if filepath.IsAbs(at) {
			return filepath.Dir(at), nil
		}
	}
	return "", tool.Refuse(tool.CodeFailed, "fwupd has no list %q in a file of this machine", id)
}

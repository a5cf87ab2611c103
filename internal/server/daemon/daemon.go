// Package daemon runs a host in the background: PID file, proof of readiness, health, and the link that
// gatehouse stdio uses to reach it.
//
// It wraps a host and does not build one. The process that runs a daemon claims its PID file, opens its
// listeners, proves to its parent that it serves, and notifies the service manager. A client first
// greets it over its Unix socket: the greeting identifies both programs, so that two versions never
// mix. Forwarder carries a client's messages over that link and outlives the daemon at its other end.
//
// This package starts the daemon directly and not through proc, because a process that proc starts ends
// with its parent.
package daemon

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"time"
)

// About is a daemon's description of itself.
type About struct {
	PID        int       `json:"pid"`
	Version    string    `json:"version"`
	Build      string    `json:"build"`      // equal if the program is the same
	Executable string    `json:"executable"` // path of the program when it started
	Replaced   bool      `json:"replaced"`   // another program is at that path by now
	Started    time.Time `json:"started"`
	Ready      bool      `json:"ready"`            // it serves calls, and is not stopping
	Listeners  []string  `json:"listeners"`        // their addresses
	Health     string    `json:"health,omitempty"` // URL of its health; "" if it has none
	Folders    []string  `json:"folders"`          // that tools may access
	Limited    bool      `json:"limited"`          // clients may work in no other folders
	Dir        string    `json:"dir"`              // working directory at its start
	Args       []string  `json:"args"`             // arguments after the command
	Accepted   bool      `json:"accepted"`         // of a greeting: the messages that follow are served
}

// formerAbout holds the members of About under the names that the version before gave them.
type formerAbout struct {
	Doors []string `json:"doors"`
}

// aboutFields is About without its methods.
type aboutFields About

// MarshalJSON encodes the listeners under their former name too, because a client of the version before reads it.
func (a About) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		aboutFields
		formerAbout
	}{aboutFields(a), formerAbout{a.Listeners}})
}

// UnmarshalJSON accepts the former name of the listeners, which a daemon of the version before sends.
func (a *About) UnmarshalJSON(data []byte) error {
	var former formerAbout
	if err := json.Unmarshal(data, (*aboutFields)(a)); err != nil {
		return err
	}
	if a.Listeners != nil {
		return nil
	}
	err := json.Unmarshal(data, &former)
	a.Listeners = former.Doors
	return err
}

// Running is the error of starting a second daemon.
type Running struct{ PID int }

func (r *Running) Error() string {
	if r.PID == 0 {
		return "a daemon is starting already"
	}
	return fmt.Sprintf("a daemon is running already, as process %d", r.PID)
}

// Build identifies the program that a process runs.
type Build struct {
	Version string
	ID      string // the version, and what distinguishes two builds of one version
	Path    string // at its start
	file    fs.FileInfo
}

// Self returns the build of this process. Call it early, because another program may be at the path
// later.
func Self(version string) (Build, error) {
	path, err := os.Executable()
	if err != nil {
		return Build{}, fmt.Errorf("find this program's file: %w", err)
	}
	info, err := os.Stat("/proc/self/exe") // this program itself, even if another is at its path by now
	if err != nil {
		info, err = os.Stat(path)
	}
	if err != nil {
		return Build{}, fmt.Errorf("find this program's file: %w", err)
	}
	id, changed := Commit()
	b := Build{Version: version, Path: path, file: info, ID: version + "+" + id}
	if id == "" || changed {
		b.ID = fmt.Sprintf("%s+%d.%d", version, info.Size(), info.ModTime().UnixNano())
	}
	return b, nil
}

// commit is set by the linker in releases, which are built without a version control system.
var commit string

// Commit returns the commit from which this program was built, "" if it is unknown, and whether files
// were changed since.
func Commit() (id string, changed bool) {
	if commit != "" {
		return commit, false
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", false
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			id = s.Value
		case s.Key == "vcs.modified":
			changed = s.Value == "true"
		}
	}
	return id, changed
}

// Replaced reports whether another program is at the path of this one. A removed program is not
// replaced.
func (b Build) Replaced() bool {
	now, err := os.Stat(b.Path)
	if err != nil || b.file == nil {
		return false
	}
	return !os.SameFile(now, b.file) || now.Size() != b.file.Size() || !now.ModTime().Equal(b.file.ModTime())
}

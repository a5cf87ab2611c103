// Package daemon runs a host in the background: PID file, proof of readiness,
// health, and the link that gatehouse stdio uses to reach it.
//
// It wraps a host and does not build one. The process that runs a daemon claims its PID
// file, opens its listeners, proves to its parent that it serves, and tells
// the system's manager. A client first greets it over its Unix socket:
// the greeting tells both which program the other is, so that two versions
// never mix. Forwarder carries a client's messages over that link and outlives
// the daemon at its other end.
//
// This package starts the daemon directly and not through proc, because a process
// that proc starts ends with its parent.
package daemon

import (
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"time"
)

// About is how a daemon describes itself.
type About struct {
	PID        int       `json:"pid"`
	Version    string    `json:"version"`
	Build      string    `json:"build"`      // equal where the program is the same
	Executable string    `json:"executable"` // where the program lay when it started
	Replaced   bool      `json:"replaced"`   // another program lies there by now
	Started    time.Time `json:"started"`
	Ready      bool      `json:"ready"` // it serves, and is not stopping
	Doors      []string  `json:"doors"`
	Health     string    `json:"health,omitempty"` // URL of its health; "" where it shows none
	Folders    []string  `json:"folders"`          // that tools may touch
	Limited    bool      `json:"limited"`          // clients may work in no other folders
	Dir        string    `json:"dir"`              // where it was started
	Args       []string  `json:"args"`             // with which it was started, without the command
	Accepted   bool      `json:"accepted"`         // of a greeting: what follows is served
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
	ID      string // the version, and what tells two programs of one version apart
	Path    string // where it lay when it started
	file    fs.FileInfo
}

// Self is the build of this process. Call it early: what is at the path later
// may be another.
func Self(version string) (Build, error) {
	path, err := os.Executable()
	if err != nil {
		return Build{}, fmt.Errorf("find this program's file: %w", err)
	}
	info, err := os.Stat("/proc/self/exe") // the program itself, even if another is at its path by now
	if err != nil {
		info, err = os.Stat(path)
	}
	if err != nil {
		return Build{}, fmt.Errorf("find this program's file: %w", err)
	}
	b := Build{Version: version, Path: path, file: info, ID: version + "+" + source()}
	if source() == "" {
		b.ID = fmt.Sprintf("%s+%d.%d", version, info.Size(), info.ModTime().UnixNano())
	}
	return b, nil
}

// source is the commit this program was made from; "" when there is none, or
// it was changed since.
func source() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	commit := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			return ""
		}
	}
	return commit
}

// Replaced reports whether another program lies where this one did. One that
// is gone is not replaced.
func (b Build) Replaced() bool {
	now, err := os.Stat(b.Path)
	if err != nil || b.file == nil {
		return false
	}
	return !os.SameFile(now, b.file) || now.Size() != b.file.Size() || !now.ModTime().Equal(b.file.ModTime())
}

// OwnFolder makes a folder for this user only, and refuses one that is
// another user's: its owner could put a socket there.
func OwnFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is no folder; remove it, or set GATEHOUSE_RUNTIME_DIR", dir)
	case !owned(info):
		return fmt.Errorf("%s belongs to another user; set GATEHOUSE_RUNTIME_DIR to a folder of your own", dir)
	case exposed(info):
		return fmt.Errorf(
			"other users can write to %s; chmod 700 it, or set GATEHOUSE_RUNTIME_DIR to a folder of your own",
			dir,
		)
	}
	return nil
}

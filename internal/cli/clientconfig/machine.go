package clientconfig

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Machine is where clients are looked for.
type Machine struct {
	GOOS    string
	Home    string
	Project string // the folder of files for one project
	Getenv  func(string) string
	Look    func(program string) bool // whether a command is installed
}

// This is the machine of this process.
func This(getenv func(string) string, project string) (Machine, error) {
	home, err := os.UserHomeDir()
	if h := getenv("HOME"); runtime.GOOS != "windows" && h != "" {
		home, err = h, nil
	}
	return Machine{
		GOOS: runtime.GOOS, Home: home, Project: project, Getenv: getenv,
		Look: func(program string) bool {
			_, err := exec.LookPath(program)
			return err == nil
		},
	}, err
}

// expand returns the path that a template stands for.
func (m Machine) expand(template string) string {
	word, rest, _ := strings.Cut(template, "}")
	base := m.Home
	switch word + "}" {
	case "{project}":
		base = m.Project
	case "{xdg}":
		base = m.xdg()
	case "{config}":
		base = m.settings()
	}
	return filepath.Join(base, filepath.FromSlash(rest))
}

func (m Machine) xdg() string {
	if dir := m.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return dir
	}
	return filepath.Join(m.Home, ".config")
}

// settings is the folder for the settings of programs.
func (m Machine) settings() string {
	switch m.GOOS {
	case "darwin":
		return filepath.Join(m.Home, "Library", "Application Support")
	case "windows":
		if dir := m.Getenv("APPDATA"); dir != "" {
			return dir
		}
		return filepath.Join(m.Home, "AppData", "Roaming")
	}
	return m.xdg()
}

// Path returns the file of a client, "" if it has none for this scope and
// platform.
func (m Machine) Path(c *Client, s Scope) string {
	for _, f := range c.Files {
		if f.Scope != s {
			continue
		}
		template := f.template(m.GOOS)
		if template == "" {
			return ""
		}
		path := m.expand(template)
		if f.Env != "" {
			if dir := m.Getenv(f.Env); dir != "" {
				return filepath.Join(dir, filepath.Base(path))
			}
		}
		return path
	}
	return ""
}

func (f File) template(goos string) string {
	if p, ok := f.Paths[goos]; ok {
		return p
	}
	return f.Paths[""]
}

// Installed reports whether a client seems to be on this machine: its command,
// its folder, or its file is there.
func (m Machine) Installed(c *Client) bool {
	path := m.Path(c, User)
	if path == "" {
		return false
	}
	if slices.ContainsFunc(c.Programs, m.Look) {
		return true
	}
	for _, dir := range c.Folders {
		if _, err := os.Stat(m.expand(dir)); err == nil {
			return true
		}
	}
	_, err := os.Lstat(path)
	return err == nil
}

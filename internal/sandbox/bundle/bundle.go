//go:build linux && (amd64 || arm64)

// Package bundle writes a sandbox down as container runtimes read it: a folder
// with a root, empty but for where things go, and a configuration.
//
// It holds of the OCI's runtime specification what is needed here.
package bundle

import (
	"encoding/json"
	"os"
	"path/filepath"

	"gatehouse/internal/sandbox/seccomp"
)

type (
	// Config is what a container is to be.
	Config struct {
		Version  string  `json:"ociVersion"`
		Process  Program `json:"process"`
		Root     Root    `json:"root"`
		Hostname string  `json:"hostname"`
		Mounts   []Mount `json:"mounts"`
		Linux    Linux   `json:"linux"`
	}
	// Program is the first that runs in it.
	Program struct {
		User         User                `json:"user"`
		Args         []string            `json:"args"`
		Env          []string            `json:"env"`
		Cwd          string              `json:"cwd"`
		Capabilities map[string][]string `json:"capabilities"`
		NoNew        bool                `json:"noNewPrivileges"`
	}
	// User is who runs it.
	User struct {
		UID int `json:"uid"`
		GID int `json:"gid"`
	}
	// Root is the folder of the host that is / in it.
	Root struct {
		Path     string `json:"path"`
		Readonly bool   `json:"readonly"`
	}
	// Mount is what is shown at a path of it.
	Mount struct {
		At      string   `json:"destination"`
		Type    string   `json:"type,omitempty"`
		From    string   `json:"source,omitempty"`
		Options []string `json:"options,omitempty"`
	}
	// Linux is what only that kernel has.
	Linux struct {
		UIDs       []IDs             `json:"uidMappings,omitempty"`
		GIDs       []IDs             `json:"gidMappings,omitempty"`
		Namespaces []Namespace       `json:"namespaces"`
		Groups     string            `json:"cgroupsPath,omitempty"`
		Seccomp    *seccomp.Profile  `json:"seccomp,omitempty"`
		Masked     []string          `json:"maskedPaths,omitempty"`
		Readonly   []string          `json:"readonlyPaths,omitempty"`
		Resources  map[string]string `json:"resources,omitempty"`
	}
	// IDs are which ids of the host those in it are.
	IDs struct {
		Inside int `json:"containerID"`
		Host   int `json:"hostID"`
		Size   int `json:"size"`
	}
	// Namespace is one of the kernel's kinds that it has of its own.
	Namespace struct {
		Type string `json:"type"`
	}
)

// Version is that of the specification.
const Version = "1.0.2"

// Needed are what the agent can do in its container. It makes a space of
// processes for each program and gives all of this up before it starts one.
var Needed = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_ADMIN",
	"CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_SYS_RESOURCE",
}

// Spaces names kinds of namespaces.
func Spaces(kinds ...string) (all []Namespace) {
	for _, k := range kinds {
		all = append(all, Namespace{k})
	}
	return all
}

// Write puts the configuration into the folder of a bundle.
func (c Config) Write(folder string) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "config.json"), text, 0o600)
}

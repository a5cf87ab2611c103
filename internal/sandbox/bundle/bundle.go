//go:build linux && (amd64 || arm64)

// Package bundle writes a sandbox as an OCI bundle for container runtimes: a folder with a root file system,
// which contains little but mount points, and a configuration.
//
// It defines the part of the OCI runtime specification that is used here.
package bundle

import (
	"encoding/json"
	"os"
	"path/filepath"

	"gatehouse/internal/sandbox/seccomp"
)

type (
	// Config is the configuration of a container.
	Config struct {
		Version  string  `json:"ociVersion"`
		Process  Program `json:"process"`
		Root     Root    `json:"root"`
		Hostname string  `json:"hostname"`
		Mounts   []Mount `json:"mounts"`
		Linux    Linux   `json:"linux"`
	}
	// Program is the container's first process.
	Program struct {
		User            User                `json:"user"`
		Args            []string            `json:"args"`
		Env             []string            `json:"env"`
		Cwd             string              `json:"cwd"`
		Capabilities    map[string][]string `json:"capabilities"`
		NoNewPrivileges bool                `json:"noNewPrivileges"`
	}
	// User is the user of the process.
	User struct {
		UID int `json:"uid"`
		GID int `json:"gid"`
	}
	// Root is the folder of the host that is / in the container.
	Root struct {
		Path     string `json:"path"`
		Readonly bool   `json:"readonly"`
	}
	// Mount is a mount in the container.
	Mount struct {
		Destination string   `json:"destination"`
		Type        string   `json:"type,omitempty"`
		Source      string   `json:"source,omitempty"`
		Options     []string `json:"options,omitempty"`
	}
	// Linux holds the settings specific to Linux.
	Linux struct {
		UIDMappings   []IDs             `json:"uidMappings,omitempty"`
		GIDMappings   []IDs             `json:"gidMappings,omitempty"`
		Namespaces    []Namespace       `json:"namespaces"`
		CgroupsPath   string            `json:"cgroupsPath,omitempty"`
		Seccomp       *seccomp.Profile  `json:"seccomp,omitempty"`
		MaskedPaths   []string          `json:"maskedPaths,omitempty"`
		ReadonlyPaths []string          `json:"readonlyPaths,omitempty"`
		Resources     map[string]string `json:"resources,omitempty"`
	}
	// IDs maps ids in the container to ids of the host.
	IDs struct {
		Inside int `json:"containerID"`
		Host   int `json:"hostID"`
		Size   int `json:"size"`
	}
	// Namespace is a kind of namespace that the container does not share.
	Namespace struct {
		Type string `json:"type"`
	}
)

// Version is the version of the specification.
const Version = "1.0.2"

// Needed are the agent's capabilities in its container. It creates a PID namespace for each program, and gives
// up all of these before it starts one.
var Needed = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_ADMIN",
	"CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_SYS_RESOURCE",
}

// Namespaces returns namespaces of the given kinds.
func Namespaces(kinds ...string) (all []Namespace) {
	for _, k := range kinds {
		all = append(all, Namespace{k})
	}
	return all
}

// Write writes the configuration to the folder of a bundle.
func (c Config) Write(folder string) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "config.json"), text, 0o600)
}

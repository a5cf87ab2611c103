// Package product holds what every part of a release needs to know of it: its
// names, its version, its platforms and its addresses.
package product

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Address is where Gatehouse is published: the path of its Go module, and without
// the scheme the page of the project. A publisher changes this line. The host of
// it is reserved for examples, so that no release points at another party.
const Address = "gatehouse.example/gatehouse"

// Constants of all releases.
const (
	Name       = "gatehouse"
	Title      = "Gatehouse"
	Short      = "Gives AI agents their tools over the Model Context Protocol"
	Licence    = "Apache-2.0"
	Maintainer = "The Gatehouse authors"
	Runsc      = "gatehouse-runsc"
	NATS       = "gatehouse-nats"
)

// Helper is a program of its own Go module that a host starts for one of its parts.
type Helper struct {
	Name        string
	Folder      string // of its module
	Version     string // path of the module whose version it is given; "" for none
	Description string
}

// Helpers are built for Linux.
var Helpers = []Helper{
	{Runsc, "runsc", "gvisor.dev/gvisor", "gVisor's runsc, with which Gatehouse runs sandboxes of the driver gvisor"},
	{NATS, "cluster", "", "The NATS server with which hosts of Gatehouse form a cluster"},
}

// Long describes the product in a paragraph, without a line feed.
const Long = "Gatehouse is one program that gives AI agents their tools over the Model Context Protocol (MCP): " +
	"files of the folders that you name, commands, sandboxes, and other MCP servers as packages. " +
	"It decides for each call whether the caller may make it, and records it."

// Platform is a system and a processor, as Go names them.
type Platform struct{ OS, Arch string }

func (p Platform) String() string { return p.OS + "-" + p.Arch }

// Exe returns the name of a program's file on p.
func (p Platform) Exe(name string) string {
	if p.OS == "windows" {
		return name + ".exe"
	}
	return name
}

// Platforms are those that a whole release has programs for.
var Platforms = []Platform{
	{"linux", "amd64"}, {"linux", "arm64"},
	{"darwin", "amd64"}, {"darwin", "arm64"},
	{"windows", "amd64"}, {"windows", "arm64"},
}

// ParsePlatforms parses names such as linux/amd64, separated by commas.
func ParsePlatforms(text string) (all []Platform, err error) {
	for name := range strings.SplitSeq(text, ",") {
		system, arch, ok := strings.Cut(name, "/")
		if !ok {
			return nil, fmt.Errorf("%q is not a platform; expected one such as linux/amd64", name)
		}
		all = append(all, Platform{system, arch})
	}
	return all, nil
}

// Release is one release while it is made. Its fields do not change once Source,
// Commit and Version are known.
type Release struct {
	Address   string
	Version   string    // such as 1.4.0
	Commit    string    // 40 hexadecimal digits
	Time      time.Time // of the commit, in UTC; every file of the release has it
	Source    string    // folder with the main Go module
	Module    string    // path of the main Go module in Source
	Dist      string    // folder of the finished files
	Work      string    // folder of everything else
	Platforms []Platform
	Fast      bool   // whether to compress little, for tests
	Helpers   bool   // whether Helpers are built
	Full      bool   // whether there is an image with Python, Node, uv and git, whose parts are downloaded
	Key       string // minisign's public key that the release is signed with; "" if it is not signed
}

// Page returns the address of the project's page.
func (r *Release) Page() string { return "https://" + r.Address }

// Download returns the folder from which the files of this release can be had.
func (r *Release) Download() string { return r.Page() + "/releases/download/v" + r.Version }

// Latest returns the folder from which the files of the newest release can be had.
func (r *Release) Latest() string { return r.Page() + "/releases/latest/download" }

// Program returns the file of a program that was built for p.
func (r *Release) Program(name string, p Platform) string {
	return filepath.Join(r.Work, "programs", p.String(), p.Exe(name))
}

// File returns the path of a finished file.
func (r *Release) File(name string) string { return filepath.Join(r.Dist, name) }

// For returns the platforms of this release on one system.
func (r *Release) For(system string) (all []Platform) {
	for _, p := range r.Platforms {
		if p.OS == system {
			all = append(all, p)
		}
	}
	return all
}

// Base returns the beginning of the names of all files for p.
func (r *Release) Base(name string, p Platform) string {
	return name + "-" + r.Version + "-" + p.String()
}

// ServerName returns the name of the product in MCP's registry: the host of the address, backwards,
// and the name below it.
func (r *Release) ServerName() string {
	host, rest, _ := strings.Cut(r.Address, "/")
	labels := strings.Split(host, ".")
	slices.Reverse(labels)
	if rest == "" {
		rest = Name
	}
	return strings.Join(labels, ".") + "/" + strings.ReplaceAll(rest, "/", "-")
}

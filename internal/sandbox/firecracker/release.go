//go:build linux && (amd64 || arm64)

package firecracker

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// release is a version.
type release [3]int

func (r release) String() string { return fmt.Sprintf("%d.%d.%d", r[0], r[1], r[2]) }

func (r release) before(o release) bool {
	for i := range r {
		if r[i] != o[i] {
			return r[i] < o[i]
		}
	}
	return false
}

var (
	// oldest is the first after whose restoring the socket device works: 1.16.0
	// never looks at what a restored machine says through it.
	oldest = release{1, 16, 1}
	// bare is the first whose socket device works after a pause in which no
	// snapshot was taken. Before, whatever the host says after one is kept back.
	bare = release{1, 17, 0}
)

const remedyOld = "install a newer release of firecracker and of its jailer, at least 1.16.1: machines that 1.16.0 restores do not answer any more"

const asking = 10 * time.Second // for a program to say its version

var versionLine = regexp.MustCompile(`(?m)^(?:Firecracker|Jailer) v(\d+)\.(\d+)\.(\d+)`)

// program is one that is installed.
type program struct {
	path    string
	version release
}

// find looks for a program and asks for its version.
func find(name string) (*program, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return nil, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), asking)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env, cmd.WaitDelay = environment, time.Second
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s --version: %w", path, err)
	}
	p := &program{path: path}
	found := versionLine.FindSubmatch(out[:min(len(out), 1<<10)])
	if found == nil {
		return nil, fmt.Errorf("%s --version does not tell a version of Firecracker", path)
	}
	for i := range p.version {
		p.version[i], _ = strconv.Atoi(string(found[i+1])) // digits; what is too large is new enough
	}
	return p, nil
}

// environment is that of the programs. Nothing comes from the host.
var environment = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}

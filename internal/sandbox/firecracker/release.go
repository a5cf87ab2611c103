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
	// oldest is the first supported release: in 1.16.0 the vsock device of a restored machine does not work.
	oldest = release{1, 16, 1}
	// pauseWorks is the first release whose vsock device works after a pause without a snapshot. Before, data from
	// the host is not delivered after such a pause.
	pauseWorks = release{1, 17, 0}
)

const remedyOld = "install a newer release of firecracker and of its jailer, at least 1.16.1: machines restored " +
	"by 1.16.0 do not answer"

const versionWait = 10 * time.Second // for a program to print its version

var versionLine = regexp.MustCompile(`(?m)^(?:Firecracker|Jailer) v(\d+)\.(\d+)\.(\d+)`)

// program is an installed program.
type program struct {
	path    string
	version release
}

// findProgram looks up a program and reads its version.
func findProgram(name string) (*program, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return nil, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), versionWait)
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
		return nil, fmt.Errorf("%s --version does not print a version of Firecracker", path)
	}
	for i := range p.version {
		p.version[i], _ = strconv.Atoi(string(found[i+1])) // digits; a number that overflows is new enough
	}
	return p, nil
}

// environment is the environment of the programs. Nothing comes from the host.
var environment = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}

package chromium

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/chromedp/chromedp"

	"gatehouse/internal/sandbox"
)

// Limits of a confined browser. Its profile is in memory.
const (
	defaultMemory      = 2048 // MiB
	confinedDisk       = 1024 // MiB, of the profile and temporary files
	confinedFiles      = 8192 // open files of one process
	confinedProcessors = 4
	longestLife        = 24 * time.Hour // the most that a sandbox allows; the command itself has no limit
)

// wanted are folders of the host that browsers read: settings, policies, and what fontconfig knows about fonts, which
// takes it a second to find out again.
var wanted = []string{
	"/etc/chromium.d", "/etc/chromium", "/etc/chromium-browser", "/etc/opt/chrome", "/etc/opt/edge", "/etc/fonts",
	"/var/cache/fontconfig",
}

// begin is the script that starts a browser in a sandbox: its input and output become the descriptors 3 and 4, at which
// --remote-debugging-pipe expects them, and the proxy is the one of the sandbox.
const begin = `exec 3<&0 4>&1 </dev/null >&2; exec "$0" --proxy-server="$HTTP_PROXY" "$@"`

// launchConfined starts a browser in a sandbox. It has no files of the host but programs and o.Shared, its own users,
// and no network but what o.Network allows. Chromium's own sandbox is off, because the system calls that it needs are
// not allowed in there.
func launchConfined(ctx context.Context, program string, o Options, event func(Event)) (_ *Process, err error) {
	memory, processes := o.Memory, o.Processes
	if memory == 0 {
		memory = defaultMemory
	}
	spec := sandbox.Spec{
		Limits: sandbox.Limits{
			MemoryMiB: memory, VCPUs: confinedProcessors, Processes: processes, DiskMiB: confinedDisk,
			Descriptors: confinedFiles, Call: longestLife,
		},
		Trees: treesOf(program),
	}
	if o.Shared != "" {
		spec.Mounts = []sandbox.Mount{{From: o.Shared, Write: true}}
	}
	box, err := o.Driver.Create(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("cannot make a sandbox for the browser: %w", err)
	}
	defer func() {
		if err != nil {
			box.Close()
		}
	}()
	networked, ok := box.(sandbox.Networked)
	if !ok {
		return nil, errors.New("sandboxes of this driver have no network")
	}
	if err := networked.SetNetwork(ctx, o.Network); err != nil {
		return nil, err
	}
	toIt, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, fromIt, err := os.Pipe()
	if err != nil {
		toIt.Close()
		in.Close()
		return nil, err
	}
	o.NoSandbox, o.Proxy = true, ""
	p := &Process{said: &lastWords{}, box: box}
	args := append([]string{"/bin/sh", "-c", begin, program}, o.arguments("/tmp/profile")...)
	running, err := box.Exec(context.WithoutCancel(ctx), sandbox.Command{
		Argv: args, Env: []string{"XDG_RUNTIME_DIR=/tmp"}, Stdin: toIt, Stdout: fromIt, Stderr: p.said,
		Timeout: -1, OutputBytes: -1,
	})
	if err != nil {
		for _, f := range []*os.File{toIt, in, out, fromIt} {
			f.Close()
		}
		return nil, fmt.Errorf("cannot start %s in a sandbox: %w", program, err)
	}
	p.ended = running.Done()
	p.Conn = NewConn(chromedp.NewPipeConn(out, in), event)
	p.wg.Go(p.Conn.Run)
	p.wg.Go(func() {
		<-p.ended
		toIt.Close()
		fromIt.Close() // which ends Conn.Run
	})
	return p, nil
}

// treesOf returns the folders that a browser needs besides what every sandbox has.
func treesOf(program string) (trees []sandbox.Tree) {
	for _, path := range wanted {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			trees = append(trees, sandbox.Tree{From: path})
		}
	}
	if real, err := filepath.EvalSymlinks(program); err == nil && !strings.HasPrefix(real, "/usr/") {
		trees = append(trees, sandbox.Tree{From: filepath.Dir(real)})
	}
	return trees
}

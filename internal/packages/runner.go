package packages

import (
	"context"
	"io"
	"os"
	"slices"
	"strings"

	"gatehouse/internal/exec/proc"
	"gatehouse/tool"
)

// BuildStep is a program that installs or builds a package, such as npm, uv, cargo or go. It gets no secret: neither
// those of the package nor the environment of the host, except for what Env says.
type BuildStep struct {
	Path string   // a file, or a name to look up in the host's PATH
	Args []string // without the program's name
	// Dir is the working folder, which it may write. It is below the package's folder.
	Dir string
	// Env are further variables, NAME=value; later values override earlier ones. Without them it has PATH, a HOME of
	// its own and a TMPDIR.
	Env []string
	// Write are further folders of the host that it may read and write, such as a cache of downloads that only such
	// steps use.
	Write []string
	// Read are folders and files of the host that it may only read, such as a toolchain outside of
	// the system's folders.
	Read []string
	// Hosts returns what it may reach, as rules of package proxy, such as packages.example.com:443; nil means nothing.
	// It is asked only if the step is confined.
	Hosts func(ctx context.Context) ([]string, error)
}

// runStep runs a step to its end, or until ctx ends. Its output goes to the log of the package, and printed is its
// end, at most lines of it. exit is its exit code. It is confined as the server of the package is.
func (p *managedPackage) runStep(
	ctx context.Context,
	r *Record,
	s BuildStep,
	lines int,
) (exit int, printed string, err error) {
	since := p.journal.endOffset()
	words := &lineWriter{journal: &p.journal}
	if p.confines(r) {
		exit, err = p.runConfinedStep(ctx, r, s, words)
	} else {
		exit, err = runFreeStep(ctx, s, words)
	}
	return exit, p.journal.tail(since, lines), err
}

// runFreeStep runs a step as the user of the host, with a folder for temporary files that is removed afterwards.
func runFreeStep(ctx context.Context, s BuildStep, output io.Writer) (exit int, err error) {
	temporary, err := os.MkdirTemp("", "gatehouse-step-*")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(temporary)
	env := append(proc.BaseEnv(), "TMPDIR="+temporary, "TMP="+temporary, "TEMP="+temporary)
	child, err := proc.Start(ctx, proc.Spec{
		Path: s.Path, Args: s.Args, Dir: s.Dir, Env: append(env, s.Env...),
		Stdout: output, Stderr: output, Whole: true, Processes: maxProcesses,
		Own: slices.Concat([]string{s.Dir, temporary}, s.Write), OwnReadOnly: s.Read,
	})
	if err != nil {
		return 0, noStep(s.Path, err)
	}
	end, err := child.Wait()
	if err == nil && end.Stopped != nil {
		err = end.Stopped
	}
	return end.Code, err
}

// noStep says that a program that installs packages cannot be started.
func noStep(program string, err error) error {
	return &tool.Refusal{
		Code:    tool.CodeUnsupported,
		Message: program + " cannot be started: " + err.Error(),
		Next:    "Install it with the system's package manager, or give the program as command, folder or archive.",
	}
}

// lastLines returns the last n lines of a text.
func lastLines(text string, n int) string {
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(len(lines)-n, 0):], "\n")
}

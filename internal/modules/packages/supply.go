package packages

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"gatehouse/internal/packages"
	"gatehouse/internal/packages/pins"
	"gatehouse/tool"
)

func (k *manager) supplyTools() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "package_lock", Title: "Lock packages", Effects: tool.Reads, Task: tool.TaskNever,
			Description: "Returns the packages of this host as a lock file: sources, versions, digests, and hashes of " +
				"the approved tools.",
			Help: "It has no values of secrets and no times, and can be committed. package_sync installs from it.",
		}, k.lockPackages),
		tool.New(tool.Def{
			Name: "package_sync", Title: "Install from a lock file",
			Effects: tool.Writes | tool.Destroys | tool.OpenWorld, Task: tool.TaskNever, Restartable: true, Sync: true,
			Description: "Makes packages those of a lock file, after the user has agreed, or returns the " +
				"differences. It " +
				"returns a job.",
			Help: "Packages that are missing are installed in the version and with the digest of the lock file; a program " +
				"with another digest is not installed. Exactly what the lock file approves is offered. Other packages " +
				"stay. " + confirmHelp,
		}, k.sync),
		tool.New(tool.Def{
			Name: "package_why", Title: "Explain a package", Effects: tool.Reads, Task: tool.TaskNever,
			Description: "Says where a package comes from, who agreed to it, what it may, and why its tools are offered " +
				"or not.",
		}, k.why),
		tool.New(tool.Def{
			Name: "package_stats", Title: "Measure packages", Effects: tool.Reads, Task: tool.TaskNever,
			Aliases:     []string{"package.stats"},
			Description: "Returns what packages use and how they serve: memory, CPU, processes, calls, errors, latency.",
			Help:        "Memory and CPU are those of processes that run now, on Linux.",
		}, k.stats),
		k.shellTool(),
	}
}

type lockIn struct {
	IDs []string `json:"ids,omitempty" doc:"packages; default: all" max:"1000"`
}

type lockOut struct {
	Lock     json.RawMessage `json:"lock" doc:"the lock file"`
	Warnings []string        `json:"warnings,omitempty"`
}

func (k *manager) lockPackages(_ context.Context, c *tool.Call, in lockIn) (lockOut, error) {
	if err := k.checkOperator(c); err != nil {
		return lockOut{}, err
	}
	l, warnings, err := k.cfg.Packages.Lock(in.IDs)
	if err != nil {
		return lockOut{}, err
	}
	text, err := l.Encode()
	return lockOut{bytes.TrimSpace(text), warnings}, err
}

type syncIn struct {
	Lock    json.RawMessage `json:"lock" doc:"the lock file, from package_lock" names:"code"`
	IDs     []string        `json:"ids,omitempty" doc:"packages of it; default: all" max:"1000"`
	DryRun  bool            `json:"dry_run,omitempty" doc:"only return the differences"`
	Confirm string          `json:"confirm,omitempty" doc:"sync, once the user has agreed; needs the setting approvals.callers_word" max:"32"`
}

func (k *manager) sync(ctx context.Context, c *tool.Call, in syncIn) (appliedOut, error) {
	if err := k.checkOperator(c); err != nil {
		return appliedOut{}, err
	}
	lock, err := pins.Decode(in.Lock)
	if err == nil {
		lock, err = lock.Select(in.IDs)
	}
	if err != nil {
		return appliedOut{}, tool.Refuse(tool.CodeInvalidArguments, "lock: %v", err)
	}
	return k.change(ctx, c, severalPackages{
		thing: "sync", title: "change of packages by a lock file", published: "synced",
		question: func(steps string) string {
			return fmt.Sprintf("Make packages those of the lock file? %s. "+
				"Their programs run with the permissions of this host.", steps)
		},
		compare: func(string) ([]packages.Step, error) { return k.cfg.Packages.SyncSteps(lock) },
		run: func(ctx context.Context, work packages.Part, say packages.Report) ([]packages.Step, error) {
			return k.cfg.Packages.Sync(ctx, lock, work, say)
		},
	}, in.DryRun, in.Confirm)
}

type whyIn struct {
	ID   string `json:"id" min:"1" max:"32"`
	Tool string `json:"tool,omitempty" doc:"a tool or prompt, by its name on this host or the server's; default: all" max:"1000"`
}

type whyOut struct {
	ID        string       `json:"id"`
	Source    string       `json:"source"`
	Version   string       `json:"version,omitempty"`
	Digest    string       `json:"digest,omitempty" doc:"of its program, as it was approved"`
	Installed string       `json:"installed,omitempty"`
	By        string       `json:"by,omitempty" doc:"who installed it; settings, or lock file"`
	Declared  string       `json:"declared_by,omitempty" doc:"the settings that declare it"`
	Previous  string       `json:"previous,omitempty" doc:"version that package_rollback brings back"`
	May       []string     `json:"may" doc:"what its server may do"`
	Tools     []whyToolOut `json:"tools" doc:"its tools and prompts, or the one that was asked for"`
}

type whyToolOut struct {
	Kind   string `json:"kind" doc:"tool or prompt"`
	Name   string `json:"name"`
	Own    string `json:"own,omitempty" doc:"the server's name for it, if another"`
	State  string `json:"state" doc:"offered, off, new, changed or refused"`
	Reason string `json:"reason"`
	Hash   string `json:"hash,omitempty" doc:"of its definition"`
	By     string `json:"by,omitempty" doc:"who approved or refused it"`
	At     string `json:"at,omitempty"`
}

func (k *manager) why(_ context.Context, c *tool.Call, in whyIn) (whyOut, error) {
	if err := k.checkOperator(c); err != nil {
		return whyOut{}, err
	}
	w, err := k.cfg.Packages.Why(in.ID, in.Tool)
	if err != nil {
		return whyOut{}, err
	}
	out := whyOut{
		ID: w.ID, Source: w.Source, Version: w.Version, Digest: w.Digest, Installed: stamp(w.Installed), By: w.By,
		Declared: w.Declared, Previous: w.Previous, May: w.May, Tools: []whyToolOut{},
	}
	for _, t := range w.Tools {
		out.Tools = append(out.Tools, whyToolOut{t.Kind, t.Name, t.Own, t.State, t.Reason, t.Hash, t.By, stamp(t.At)})
	}
	return out, nil
}

type statsIn struct {
	ID string `json:"id,omitempty" doc:"a package; default: all" max:"32"`
}

type statsOut struct {
	Packages []statOut `json:"packages"`
}

type statOut struct {
	ID        string          `json:"id"`
	Status    string          `json:"status" doc:"status of its server: stopped, idle, starting, running, waiting or broken"`
	Confined  string          `json:"confinement" doc:"as package_list shows it"`
	Started   string          `json:"started,omitempty"`
	Instances int             `json:"instances" doc:"running servers"`
	Processes int             `json:"processes" doc:"of all instances"`
	Memory    int64           `json:"memory_bytes" doc:"of these; memory that they share counts for each"`
	CPU       float64         `json:"cpu_seconds" doc:"of processes that run now"`
	Disk      int64           `json:"disk_bytes" doc:"of its program"`
	Health    packages.Health `json:"health" doc:"how its server serves"`
}

func (k *manager) stats(ctx context.Context, c *tool.Call, in statsIn) (statsOut, error) {
	if err := k.checkOperator(c); err != nil {
		return statsOut{}, err
	}
	all, err := k.cfg.Packages.Stats(ctx, in.ID)
	out := statsOut{Packages: []statOut{}}
	for _, s := range all {
		out.Packages = append(out.Packages, statOut{
			s.ID, s.Status, s.Confined, stamp(s.Started), s.Instances, s.Processes, s.Memory, s.CPU, s.Disk, s.Health,
		})
	}
	return out, err
}

const mostShellOutput = 256 << 10 // bytes of each stream of a command that are returned

type shellIn struct {
	ID      string `json:"id" min:"1" max:"32"`
	Command string `json:"command" doc:"a command line for sh" min:"1" max:"65536" names:"line"`
	Timeout int    `json:"timeout,omitempty" doc:"seconds" default:"30" min:"1" max:"300"`
}

type shellOut struct {
	Output   string `json:"output" text:"product" doc:"its output, and how it ended"`
	ExitCode int    `json:"exit_code" text:"facts" doc:"-1 if a signal ended it"`
	TimedOut bool   `json:"timed_out" text:"facts"`
}

// shellTool returns the tool that runs a command as a package, with the arguments and text result of the shell
// of another server.
func (k *manager) shellTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "package_shell", Title: "Run a command as a package",
		Effects: tool.Writes | tool.Destroys | tool.OpenWorld, Task: tool.TaskNever,
		Timeout: packages.MaxShellTime + time.Minute, Aliases: []string{"package.shell"},
		Out:         reflect.TypeFor[shellOut](),
		Description: "Runs a command line with sh as the server of a package is run, and returns its output as text.",
		Help: "It runs in the package's data folder with its variables and secrets, which are masked in the output, and " +
			"with its access to files, processes and the network. The text is standard output, then standard error, " +
			"then the exit code. What it started ends with it. At most 256 KiB of each stream are returned.",
	}, func(ctx context.Context, c *tool.Call, in shellIn) (tool.Result, error) {
		if err := k.checkOperator(c); err != nil {
			return tool.Result{}, err
		}
		stdout, stderr := &headWriter{most: mostShellOutput}, &headWriter{most: mostShellOutput}
		r, err := k.cfg.Packages.Shell(ctx, in.ID, in.Command, time.Duration(in.Timeout)*time.Second, stdout, stderr)
		if err != nil {
			return tool.Result{}, err
		}
		k.publish("shell", in.ID, c)
		out := shellOut{ExitCode: r.Exit, TimedOut: r.TimedOut, Output: shellText(stdout.headText(), stderr.headText())}
		if r.TimedOut {
			out.Output = strings.TrimSuffix(
				fmt.Sprintf("Command timed out after %d seconds\n%s", in.Timeout, out.Output),
				"\n",
			)
		} else {
			out.Output = fmt.Sprintf("%s\n[exit code: %d]", cmp.Or(out.Output, "(no output)"), out.ExitCode)
		}
		res := tool.Typed(out)
		res.IsError = out.TimedOut || out.ExitCode != 0
		return res, nil
	})
}

// shellText returns both streams as one text.
func shellText(stdout, stderr string) string {
	text := strings.TrimSuffix(stdout, "\n")
	if stderr = strings.TrimSuffix(stderr, "\n"); stderr != "" {
		text = strings.TrimPrefix(text+"\n[stderr]\n"+stderr, "\n")
	}
	return text
}

// headWriter keeps the beginning of what is written to it. One goroutine at a time may use it.
type headWriter struct {
	kept    bytes.Buffer
	most    int
	dropped int64
}

// Write implements io.Writer.
func (w *headWriter) Write(p []byte) (int, error) {
	n := min(len(p), w.most-w.kept.Len())
	w.kept.Write(p[:n])
	w.dropped += int64(len(p) - n)
	return len(p), nil
}

func (w *headWriter) headText() string {
	text := strings.ToValidUTF8(w.kept.String(), "\uFFFD")
	if w.dropped > 0 {
		text += fmt.Sprintf("\n[%d more bytes]", w.dropped)
	}
	return text
}

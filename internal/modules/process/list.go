package process

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"gatehouse/module"
	"gatehouse/tool"
)

type listIn struct {
	RunningOnly bool `json:"running_only,omitempty"`
	Usage       bool `json:"usage,omitempty" doc:"with CPU, memory and ports of running ones"`
	All         bool `json:"all,omitempty" doc:"of all callers; administrators only"`
}

type processOut struct {
	ID      string   `json:"id"`
	Owner   string   `json:"owner,omitempty" doc:"with all"`
	Command string   `json:"command"`
	Args    []string `json:"args"`
	Dir     string   `json:"dir"`
	condition
	PID       int           `json:"pid"`
	StartedAt time.Time     `json:"startedAt"`
	Duration  time.Duration `json:"duration" doc:"nanoseconds; durationSeconds is easier to read"`
	Seconds   float64       `json:"durationSeconds"`
	Terminal  bool          `json:"terminal,omitempty"`
	CPU       float64       `json:"cpuSeconds,omitempty"`
	Memory    int64         `json:"memory,omitempty" doc:"bytes"`
	Processes int           `json:"processes,omitempty"`
	Ports     []int         `json:"ports,omitempty" doc:"TCP ports it listens on"`
	module.OnNode
}

type listOut struct {
	Processes []processOut `json:"processes"`
	Total     int          `json:"total"`
	module.Unreached
}

func (m *manager) listTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "process_list", Title: "List processes", Effects: tool.Reads,
		Description: "Lists your processes, oldest first. Ended ones are kept for a while.",
		Help: "CPU, memory, ports and the number of processes include every process that it started. They " +
			"are available on Linux; an ended process has its CPU time only.",
	}, func(ctx context.Context, c *tool.Call, in listIn) (listOut, error) {
		out := listOut{Processes: []processOut{}}
		if in.All {
			if err := m.cfg.Rules.Check(c, "list the processes of all callers"); err != nil {
				return out, err
			}
		}
		m.adopt() // another host may have ended since the last time
		for _, r := range m.matching(func(r *record) bool { return in.All || r.owner == c.Caller.Owner }) {
			if l := r.describe(in.Usage); !in.RunningOnly || l.Status == "running" {
				l.Node = m.deps.Node
				if in.All {
					l.Owner = m.ownerOf(r)
				}
				out.Processes = append(out.Processes, l)
			}
		}
		out.Unreached.Unreached = module.Gather(ctx, m.deps, c, func(_ string, there listOut) {
			out.Processes = append(out.Processes, there.Processes...)
		})
		slices.SortStableFunc(out.Processes, func(a, b processOut) int { return a.StartedAt.Compare(b.StartedAt) })
		out.Total = len(out.Processes)
		return out, nil
	})
}

// matching returns the processes for which match holds, in the order in which
// they were started.
func (m *manager) matching(match func(*record) bool) (all []*record) {
	m.mu.Lock()
	for _, r := range m.records {
		if match(r) {
			all = append(all, r)
		}
	}
	m.mu.Unlock()
	slices.SortFunc(all, func(a, b *record) int {
		return cmp.Or(a.startedAt.Compare(b.startedAt), strings.Compare(a.id, b.id))
	})
	return all
}

func (r *record) describe(usage bool) processOut {
	l := processOut{
		ID: r.id, Command: r.command, Args: nonNil(r.args), Dir: r.dir, PID: r.child.Pid(),
		StartedAt: r.startedAt, Terminal: r.terminal, condition: r.condition(),
	}
	if s, over := r.ended(); over {
		l.Duration, l.Seconds, l.CPU = s.Took, s.Took.Seconds(), s.CPU.Seconds()
		return l
	}
	l.Duration = time.Since(r.startedAt)
	l.Seconds = l.Duration.Seconds()
	if usage {
		if u, err := r.child.Usage(); err == nil {
			l.CPU, l.Memory, l.Processes, l.Ports = u.CPU.Seconds(), u.Memory, u.Processes, u.Ports
		}
	}
	return l
}

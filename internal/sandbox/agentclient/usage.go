package agentclient

import (
	"context"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentprotocol"
)

const mostCounts = 8 // most counters of a control group

// killsWait is how long the agent may take to answer GroupKills.
const killsWait = 5 * time.Second

// GroupKills returns how many processes the agent's control group has killed because memory ran out. It is 0
// if the agent has no control group of its own.
func (l *Client) GroupKills() int {
	ctx, cancel := context.WithTimeout(context.Background(), killsWait)
	defer cancel()
	u, err := l.groupUsage(ctx)
	if err != nil {
		return 0
	}
	return int(max(u.OOMKills, 0))
}

// GroupUsage returns what the agent's control group counts. It fails if the agent has no control group of its
// own.
func (l *Client) GroupUsage(ctx context.Context) (sandbox.Usage, error) {
	u, err := l.groupUsage(ctx)
	if err == nil {
		u.Disk, err = l.DiskUsed(ctx)
	}
	return u, err
}

// groupUsage is GroupUsage without the disk.
func (l *Client) groupUsage(ctx context.Context) (sandbox.Usage, error) {
	u := sandbox.Usage{CPU: -1, Memory: -1, Peak: -1, Processes: -1, Disk: -1, OOMKills: -1}
	f, err := l.do(ctx, "usage", "/", agentprotocol.FileRequest{Op: agentprotocol.GroupUsage})
	if err != nil {
		return u, err
	}
	for _, e := range f.entries {
		switch e.Name {
		case agentprotocol.UsageCPU:
			u.CPU = time.Duration(e.Size) * time.Microsecond
		case agentprotocol.UsageMemory:
			u.Memory = e.Size
		case agentprotocol.UsagePeak:
			u.Peak = e.Size
		case agentprotocol.UsageProcesses:
			u.Processes = e.Size
		case agentprotocol.UsageOOMKills:
			u.OOMKills = e.Size
		}
	}
	return u, nil
}

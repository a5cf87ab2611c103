package agentclient

import (
	"context"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentprotocol"
)

const mostCounts = 8 // things that a group may tell of

// killsWait is for the agent to say how often memory ran out.
const killsWait = 5 * time.Second

// GroupKills is how often memory ran out where the agent holds everything to its
// limits by a group of its own. It is 0 where that is not known.
func (l *Link) GroupKills() int {
	ctx, cancel := context.WithTimeout(context.Background(), killsWait)
	defer cancel()
	u, err := l.groupUsage(ctx)
	if err != nil {
		return 0
	}
	return int(max(u.OOMKills, 0))
}

// GroupUsage is what everything in the sandbox uses, where the agent holds it to its
// limits by a group of its own. It is an error elsewhere.
func (l *Link) GroupUsage(ctx context.Context) (sandbox.Usage, error) {
	u, err := l.groupUsage(ctx)
	if err == nil {
		u.Disk, err = l.DiskUsed(ctx)
	}
	return u, err
}

// groupUsage is that without what its files take.
func (l *Link) groupUsage(ctx context.Context) (sandbox.Usage, error) {
	u := sandbox.Usage{CPU: -1, Memory: -1, Peak: -1, Processes: -1, Disk: -1, OOMKills: -1}
	f, err := l.do(ctx, "usage", "/", agentprotocol.FileWork{Op: agentprotocol.UsedGroup})
	if err != nil {
		return u, err
	}
	for _, e := range f.entries {
		switch e.Name {
		case agentprotocol.UsedCPU:
			u.CPU = time.Duration(e.Size) * time.Microsecond
		case agentprotocol.UsedMemory:
			u.Memory = e.Size
		case agentprotocol.UsedPeak:
			u.Peak = e.Size
		case agentprotocol.UsedProcesses:
			u.Processes = e.Size
		case agentprotocol.UsedKills:
			u.OOMKills = e.Size
		}
	}
	return u, nil
}

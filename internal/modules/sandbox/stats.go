package sandbox

import (
	"context"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/manager"
	"gatehouse/internal/sandbox/pool"
	"gatehouse/tool"
)

type statsIn struct {
	ID string `json:"sandbox_id,omitempty" doc:"one of your sandboxes; default: only the host's statistics"`
}

type poolStats struct {
	Waiting int       `json:"waiting" doc:"ready to be claimed"`
	Booting int       `json:"booting"`
	Hits    int       `json:"hits" doc:"requests served from the pool"`
	Misses  int       `json:"misses" doc:"requests for which a sandbox was made"`
	HitRate float64   `json:"hit_rate"`
	Created int       `json:"created"`
	Expired int       `json:"expired,omitempty"`
	Failed  int       `json:"failed,omitempty" doc:"found ended before they were handed out"`
	Claim   float64   `json:"claim_mean_ms,omitempty"`
	Worst   float64   `json:"claim_worst_ms,omitempty"`
	Reason  string    `json:"reason,omitempty" doc:"why none can be made in advance"`
	Resume  time.Time `json:"resume,omitzero" doc:"when the next attempt starts"`
}

type namedPool struct {
	Driver string `json:"driver"`
	Image  string `json:"image,omitempty"`
	Strict bool   `json:"strict,omitempty"`
	poolStats
}

type boxStats struct {
	Limits  limitStats `json:"limits"`
	Calls   int        `json:"calls"`
	Busy    bool       `json:"busy"`
	Running int        `json:"background_processes"`
	Known   int        `json:"contexts"`
	Idle    time.Time  `json:"ends_unless_used_by"`
	Expires time.Time  `json:"expires_at"`
	Paused  bool       `json:"paused,omitempty"`
	Ports   []openPort `json:"ports,omitempty" doc:"open to the host"`
	Usage   *usage     `json:"usage,omitempty" doc:"current use, if the driver measures it; unknown members are omitted"`
}

type usage struct {
	CPU       *float64 `json:"cpu_seconds,omitempty"`
	Memory    *int64   `json:"memory_bytes,omitempty"`
	Peak      *int64   `json:"peak_memory_bytes,omitempty"`
	Processes *int64   `json:"processes,omitempty"`
	Disk      *int64   `json:"disk_bytes,omitempty"`
	OOMKills  *int64   `json:"oom_kills,omitempty" doc:"programs that were killed because memory ran out"`
}

type limitStats struct {
	Memory      int     `json:"memory_mib"`
	VCPUs       int     `json:"vcpu_count"`
	Processes   int     `json:"processes"`
	Disk        int     `json:"disk_mib"`
	Descriptors int     `json:"descriptors"`
	Output      int     `json:"output_bytes"`
	Call        float64 `json:"call_seconds"`
}

type heldStats struct {
	Isolation string `json:"isolation"`
	Memory    string `json:"memory" doc:"how its limit is enforced"`
	Processes string `json:"processes"`
	CPU       string `json:"cpu"`
	OwnUsers  bool   `json:"own_users"`
	Seccomp   bool   `json:"seccomp"`
	Landlock  int    `json:"landlock" doc:"version; 0 if the kernel has none"`
}

type statsOut struct {
	Driver    string      `json:"driver,omitempty" doc:"the driver used if none is requested"`
	Drivers   []string    `json:"drivers" doc:"drivers that may be requested; each is tried on its first request"`
	Templates []string    `json:"templates" doc:"templates that may be requested"`
	Held      *heldStats  `json:"held,omitempty"`
	Missing   string      `json:"missing,omitempty" doc:"why no sandbox can be made"`
	Yours     int         `json:"yours" doc:"number of your sandboxes"`
	Pool      *poolStats  `json:"pool,omitempty" doc:"of the default template"`
	Pools     []namedPool `json:"pools,omitempty" doc:"of each template that was requested"`
	Sandbox   *boxStats   `json:"sandbox,omitempty"`
}

func (m *sandboxTools) statsTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_stats", Title: "Statistics of sandboxes", Effects: tool.Reads, Handle: "sandbox_id",
		Description: "Returns how sandboxes are isolated on this host, the counters of the pools, and the " +
			"limits and use of one sandbox.",
	}, func(ctx context.Context, c *tool.Call, in statsIn) (statsOut, error) {
		out := statsOut{
			Yours:     len(m.boxes.List(c.Caller.Owner)),
			Drivers:   joinNames(m.boxes.Drivers()),
			Templates: joinNames(m.boxes.Templates()),
		}
		if d, err := m.boxes.Driver(); err != nil {
			out.Missing = err.Error()
		} else {
			h := d.Capabilities()
			out.Driver = d.Name()
			out.Held = &heldStats{h.Tier.String(), string(h.Memory), string(h.Processes), string(h.CPU),
				h.OwnUsers, h.Seccomp, h.Landlock}
		}
		out.Pool, out.Pools = m.pools()
		if in.ID == "" {
			return out, nil
		}
		b, done, err := m.findAny(c, in.ID)
		if err != nil {
			return statsOut{}, err
		}
		f, l := b.Status(), b.Limits()
		uses := usageOf(ctx, b)
		done()
		out.Sandbox = &boxStats{
			limitStats{l.MemoryMiB, l.VCPUs, l.Processes, l.DiskMiB, l.Descriptors, l.OutputBytes, l.Call.Seconds()},
			f.Calls, f.Busy, f.Processes, f.Contexts, f.IdleAt.UTC(), f.ExpiresAt.UTC(),
			f.Paused, portsOf(b), uses,
		}
		return out, nil
	})
}

func (m *sandboxTools) pools() (first *poolStats, all []namedPool) {
	if s, ok := m.boxes.Pool(); ok {
		first = new(asStats(s))
	}
	for _, p := range m.boxes.Pools() {
		all = append(all, namedPool{p.Driver, p.Image, p.Strict, asStats(p.Stats)})
	}
	return first, all
}

func asStats(s pool.Stats) poolStats {
	p := poolStats{
		s.Waiting, s.Booting, s.Hits, s.Misses, s.HitRate(), s.Created, s.Expired, s.Failed, 0,
		milliseconds(s.Worst), s.Reason, s.Resume,
	}
	if s.Hits > 0 {
		p.Claim = milliseconds(s.Claiming / time.Duration(s.Hits))
	}
	return p
}

func portsOf(b *manager.Box) (all []openPort) {
	for _, p := range b.Ports() {
		all = append(all, openPort{int(p.Port), p.Address})
	}
	return all
}

// usageOf returns what a sandbox uses, or nil if that is unknown.
func usageOf(ctx context.Context, b *manager.Box) *usage {
	m, ok := b.Sandbox.(sandbox.UsageReporter)
	if !ok {
		return nil
	}
	u, err := m.Usage(ctx)
	if err != nil {
		return nil
	}
	known := func(n int64) *int64 {
		if n < 0 {
			return nil
		}
		return &n
	}
	out := &usage{nil, known(u.Memory), known(u.Peak), known(u.Processes), known(u.Disk), known(u.OOMKills)}
	if u.CPU >= 0 {
		out.CPU = new(u.CPU.Seconds())
	}
	return out
}

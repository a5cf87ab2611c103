package sandbox

import (
	"context"
	"errors"
	"slices"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/manager"
	"gatehouse/module"
	"gatehouse/tool"
)

// inside are the effects of tools that change something in a sandbox: nothing outside it.
const inside = tool.Writes | tool.Destroys

type createIn struct {
	Memory int `json:"memory_mib,omitempty" doc:"memory of all processes together; default: the host's (256)" min:"1"`
	VCPUs  int `json:"vcpu_count,omitempty" doc:"processors that may be busy; default: the host's (2)" min:"1"`

	Name      string   `json:"name,omitempty" doc:"a name of your choice"`
	Processes int      `json:"processes,omitempty" doc:"processes and threads alive at once" min:"1"`
	Disk      int      `json:"disk_mib,omitempty" doc:"size of all files together; they are in memory, so at most half of memory_mib" min:"1"`
	Env       []string `json:"env,omitempty" doc:"NAME=value, for all programs in it"`
	Call      int      `json:"call_seconds,omitempty" doc:"time limit of a call that gives none" min:"1"`
	Idle      int      `json:"idle_seconds,omitempty" doc:"it ends if it is unused for this long; at most the host's limit" min:"1"`
	Lifetime  int      `json:"lifetime_seconds,omitempty" doc:"it ends after this time in any case; at most the host's limit" min:"1"`

	Snapshot string   `json:"snapshot_id,omitempty" doc:"from sandbox_snapshot: restore this snapshot with its template and limits; only name and times can be given in addition"`
	Template string   `json:"template,omitempty" doc:"one of the templates of sandbox_stats; default: default"`
	Image    string   `json:"image,omitempty" doc:"image of its file system, host/name:tag of a registry, if this host lets callers choose; default: that of the template"`
	Driver   string   `json:"driver,omitempty" doc:"one of the drivers of sandbox_stats; default: chosen by the host"`
	Labels   []string `json:"labels,omitempty" doc:"in a cluster, what its node must have, as key=value" max:"20"`
	Least    string   `json:"min_isolation,omitempty" doc:"the least isolation between the code and the host" enum:"process,filtered,namespaces,user kernel,machine"`
}

type createOut struct {
	ID        string     `json:"sandbox_id"`
	Isolation string     `json:"isolation,omitempty" doc:"the isolation between the code and the host"`
	Driver    string     `json:"driver,omitempty" doc:"the driver that made it"`
	Template  string     `json:"template,omitempty" doc:"the template it was made from"`
	From      string     `json:"created_from,omitempty" doc:"pool: it was ready before the request" enum:"pool,cold,snapshot"`
	FromPool  bool       `json:"from_pool,omitempty" doc:"it was ready before the request"`
	Took      float64    `json:"took_ms,omitempty"`
	Memory    int        `json:"memory_mib,omitempty"`
	VCPUs     int        `json:"vcpu_count,omitempty"`
	Disk      int        `json:"disk_mib,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	Kept      string     `json:"kept,omitempty" doc:"content of the snapshot: memory, or files only" enum:"memory,files"`
}

func (m *sandboxTools) createTool() tool.Tool {
	return adapted(m, tool.Def{
		Name: "sandbox_create", Title: "Create a sandbox", Effects: tool.Writes,
		Aliases: []string{"create_sandbox"}, Timeout: 20 * time.Minute,
		Restartable: true, // what a node had of it died with the node
		Description: "Creates a sandbox: an isolated environment with its own files and processes and no " +
			"network, in which code cannot harm the host.",
		Help: `It contains the host's interpreters and libraries, read-only, or the file system of an image, and an empty home folder ` + "`/home/user`" + `. It has no network and none of the host's files, processes or environment.

Only you can use it. It ends when you destroy it, when it is unused for its idle time, after its lifetime, and with the host. Its resources are limited as you request, within the limits of the host.`,
	}, "Failed to create sandbox: ", func(o createOut) any {
		return map[string]string{"sandbox_id": o.ID}
	}, m.create)
}

func (m *sandboxTools) create(ctx context.Context, c *tool.Call, in createIn) (createOut, []tool.Content, error) {
	began := time.Now()
	if err := m.checkLabels(in.Labels); err != nil {
		return createOut{}, nil, err
	}
	if in.Snapshot != "" {
		out, err := m.restore(ctx, c, in)
		return out, nil, err
	}
	b, err := m.boxes.Create(ctx, c.Caller.Owner, manager.Spec{
		Administrator: m.cfg.Rules.By(c.Caller),
		Name:          in.Name, Env: in.Env, Idle: seconds(in.Idle), Lifetime: seconds(in.Lifetime),
		Template: in.Template, Image: in.Image, Driver: in.Driver, Progress: pulled(c.Peer),
		Least: sandbox.ParseTier(in.Least),
		Limits: sandbox.Limits{
			MemoryMiB: in.Memory,
			VCPUs:     in.VCPUs,
			Processes: in.Processes,
			DiskMiB:   in.Disk,
			Call:      seconds(in.Call),
		},
	})
	m.boxes.Serve() // further requests are likely
	if err != nil {
		return createOut{}, nil, notCreated(ctx, err)
	}
	return made(b, began), nil, nil
}

// checkLabels refuses labels that this host does not have.
func (m *sandboxTools) checkLabels(labels []string) error {
	switch {
	case len(labels) == 0:
		return nil
	case m.cfg.HasLabels == nil:
		return tool.Refuse(tool.CodeInvalidArguments, "labels: this host makes sandboxes on its own machine alone")
	}
	return m.cfg.HasLabels(labels)
}

// pulled reports the progress of preparing an image.
func pulled(p tool.Peer) func(done, total int64) {
	return func(done, total int64) { p.Progress(float64(done), float64(total), "preparing the image") }
}

// restore makes a sandbox from a snapshot.
func (m *sandboxTools) restore(ctx context.Context, c *tool.Call, in createIn) (out createOut, err error) {
	began := time.Now()
	s, err := m.boxes.FindSnapshot(c.Caller.Owner, in.Snapshot)
	if err != nil {
		return out, noSnapshot
	}
	if in.Memory+in.VCPUs+in.Processes+in.Disk+in.Call+len(in.Env) > 0 ||
		in.Template+in.Image+in.Driver+in.Least != "" {
		return out, &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: "a sandbox restored from a snapshot has its limits, environment and driver",
			Next:    "Give snapshot_id only with name, idle_seconds and lifetime_seconds.",
		}
	}
	b, err := m.boxes.Restore(ctx, c.Caller.Owner, s.ID,
		manager.Spec{Name: in.Name, Idle: seconds(in.Idle), Lifetime: seconds(in.Lifetime),
			Administrator: m.cfg.Rules.By(c.Caller)})
	switch {
	case errors.Is(err, manager.ErrNoSnapshot):
		return out, noSnapshot
	case err != nil:
		return out, notCreated(ctx, err)
	}
	out = made(b, began)
	out.Kept = s.Kept
	return out, nil
}

// made describes a sandbox whose creation started at began.
func made(b *manager.Box, began time.Time) createOut {
	l, from := b.Limits(), "cold"
	switch {
	case b.Snapshot:
		from = "snapshot"
	case b.Warm:
		from = "pool"
	}
	return createOut{
		ID: b.ID, Isolation: b.Tier.String(), Driver: b.Driver, Template: b.Template, From: from, FromPool: b.Warm,
		Took: milliseconds(time.Since(began)), Memory: l.MemoryMiB, VCPUs: l.VCPUs, Disk: l.DiskMiB,
		ExpiresAt: new(b.Status().ExpiresAt.UTC()),
	}
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

func notCreated(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, manager.ErrFull):
		return &tool.Refusal{
			Code:    tool.CodeBusy,
			Message: err.Error(),
			Next:    "Destroy sandboxes that are no longer needed, or try again later.",
		}
	}
	if errors.Is(err, manager.ErrMemory) {
		return &tool.Refusal{
			Code:    tool.CodeBusy,
			Message: err.Error(),
			Next:    "Request less memory_mib, or destroy sandboxes that are no longer needed.",
		}
	}
	if errors.Is(err, manager.ErrNotOffered) {
		return &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: err.Error(),
			Next:    "sandbox_stats lists the templates and drivers.",
		}
	}
	if _, ok := errors.AsType[*sandbox.LimitError](err); ok {
		return &tool.Refusal{Code: tool.CodeInvalidArguments, Message: err.Error()}
	}
	return &tool.Refusal{
		Code:    tool.CodeUnsupported,
		Message: err.Error(),
		Next:    "The administrator finds what is missing with gatehouse doctor.",
	}
}

type idIn struct {
	ID string `json:"sandbox_id"`
}

type successOut struct {
	Success bool `json:"success"`
}

func asIs[T any](v T) any { return v }

func (m *sandboxTools) destroyTool() tool.Tool {
	return adapted(m, tool.Def{
		Name: "sandbox_destroy", Title: "Destroy a sandbox", Effects: tool.Destroys,
		Aliases: []string{"destroy_sandbox"}, Handle: "sandbox_id",
		Description: "Ends a sandbox and everything in it. Its files are lost.",
	}, "Failed to destroy sandbox: ", asIs,
		func(_ context.Context, c *tool.Call, in idIn) (successOut, []tool.Content, error) {
			owner := c.Caller.Owner
			if m.cfg.Rules.By(c.Caller) { // administrators may destroy those of all callers
				if of, err := m.boxes.Owner(in.ID); err == nil {
					owner = of
				}
			}
			switch err := m.boxes.Destroy(owner, in.ID); {
			case errors.Is(err, manager.ErrNotFound):
				_, _, err := m.findBox(c, "")
				return successOut{}, nil, err
			case err != nil:
				return successOut{}, nil, err
			}
			return successOut{true}, nil, nil
		})
}

type listedBox struct {
	ID        string    `json:"sandbox_id"`
	Owner     string    `json:"owner,omitempty" doc:"with all"`
	State     string    `json:"state"`
	Created   time.Time `json:"created_at"`
	Name      string    `json:"name,omitempty"`
	Isolation string    `json:"isolation,omitempty"`
	Memory    int       `json:"memory_mib,omitempty"`
	Driver    string    `json:"driver,omitempty"`
	Template  string    `json:"template,omitempty"`
	Busy      bool      `json:"busy,omitempty" doc:"a call is in progress"`
	Processes int       `json:"background_processes,omitempty"`
	Contexts  int       `json:"contexts,omitempty"`
	IdleAt    string    `json:"ends_unless_used_by,omitempty"`
	module.OnNode
}

type listOut struct {
	Sandboxes []listedBox `json:"sandboxes"`
	module.Unreached
}

type listIn struct {
	All bool `json:"all,omitempty" doc:"list those of all callers; administrators only"`
}

func (m *sandboxTools) listTool() tool.Tool {
	return adapted(m, tool.Def{
		Name: "sandbox_list", Title: "List sandboxes", Effects: tool.Reads, Aliases: []string{"list_sandboxes"},
		Description: "Lists your sandboxes, the oldest first.",
	}, "Failed to list sandboxes: ", func(o listOut) any {
		type plain struct {
			ID      string    `json:"sandbox_id"`
			State   string    `json:"state"`
			Created time.Time `json:"created_at"`
		}
		all := []plain{}
		for _, b := range o.Sandboxes {
			all = append(all, plain{b.ID, b.State, b.Created})
		}
		return map[string]any{"sandboxes": all}
	}, func(ctx context.Context, c *tool.Call, in listIn) (listOut, []tool.Content, error) {
		m.boxes.Serve() // a request is likely
		all, boxes := []listedBox{}, m.boxes.List(c.Caller.Owner)
		if in.All {
			if err := m.cfg.Rules.Check(c, "list the sandboxes of all callers"); err != nil {
				return listOut{}, nil, err
			}
			boxes = m.boxes.All()
		}
		for _, b := range boxes {
			f, state := b.Status(), "Ready"
			if f.Paused {
				state = "Paused"
			}
			all = append(all, listedBox{
				b.ID, "", state, b.Created.UTC(), b.Name, b.Tier.String(), b.Limits().MemoryMiB, b.Driver,
				b.Template, f.Busy, f.Processes, f.Contexts,
				f.IdleAt.UTC().Format(time.RFC3339), module.OnNode{Node: m.deps.Node},
			})
			if in.All {
				all[len(all)-1].Owner = b.Owner()
			}
		}
		unreached := module.Gather(ctx, m.deps, c, func(_ string, there listOut) { all = append(all, there.Sandboxes...) })
		slices.SortStableFunc(all, func(a, b listedBox) int { return a.Created.Compare(b.Created) })
		return listOut{all, module.Unreached{Unreached: unreached}}, nil, nil
	})
}

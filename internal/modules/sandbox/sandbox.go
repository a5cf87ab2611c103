// Package sandbox lets callers run code they do not trust: each gets closed
// places of its own, with files and processes nobody else has.
//
// Eight of the tools answer to the names, arguments and texts of an original
// where a view asks for those; the preset context sandbox does. A sandbox
// belongs to the principal and context that made it; for everybody else there
// is no such sandbox, and one text says so of every id that is not theirs.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"gatehouse/internal/access/operator"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/manager"
	"gatehouse/internal/sandbox/namespaces"
	"gatehouse/internal/sandbox/proxy"
	"gatehouse/module"
	"gatehouse/tool"
)

// Config is the module's section of the configuration. The zero value is
// usable: each zero stands for the default. One struct, because it mirrors one section
// of gatehouse.yaml, setting by setting.
type Config struct {
	Memory      int           `json:"memory_mib,omitempty"`   // of a sandbox nobody asked otherwise for, as all up to Call; 0 means 256
	VCPUs       int           `json:"vcpu_count,omitempty"`   // 0 means 2
	Processes   int           `json:"processes,omitempty"`    // and threads, alive at once; 0 means 256
	Disk        int           `json:"disk_mib,omitempty"`     // 0 means 1024; at most half of the memory is used for it
	Descriptors int           `json:"descriptors,omitempty"`  // files one process may have open; 0 means 1024
	Output      int           `json:"output_bytes,omitempty"` // of each stream of a call; 0 means 1 MiB
	Call        time.Duration `json:"call,omitempty"`         // for one call, in ns; 0 means 30 s

	MostMemory      int           `json:"most_memory_mib,omitempty"`      // that may be asked for; 0 means 32768
	TotalMemory     int           `json:"total_memory_mib,omitempty"`     // of the limits of all sandboxes together, in MiB; 0 means any
	PrincipalMemory int           `json:"principal_memory_mib,omitempty"` // of those of one principal; 0 means any
	MostVCPUs       int           `json:"most_vcpu_count,omitempty"`      // that may be asked for; 0 means 32
	MostCall        time.Duration `json:"most_call,omitempty"`            // that may be asked for, in ns; 0 means 1 h
	Idle            time.Duration `json:"idle,omitempty"`                 // unused for so long a sandbox ends, in ns; 0 means 15 min
	Lifetime        time.Duration `json:"lifetime,omitempty"`             // it ends in any case, in ns; 0 means 24 h
	Sandboxes       int           `json:"sandboxes,omitempty"`            // alive at once, of everybody; 0 means 100
	Least           string        `json:"min_isolation,omitempty"`        // the lowest tier there may be: process, filtered, namespaces, user kernel or machine; "" means namespaces

	Snapshots     int           `json:"snapshots,omitempty"`         // kept at once, of everybody; 0 means 20
	SnapshotBytes int64         `json:"snapshot_bytes,omitempty"`    // that all of them may take; 0 means 4 GiB
	SnapshotLife  time.Duration `json:"snapshot_lifetime,omitempty"` // one is kept for so long, in ns; 0 means 24 h
	Folder        string        `json:"snapshot_folder,omitempty"`   // where their files are; "" means the folder for temporary files

	NoPorts        bool     `json:"no_ports,omitempty"`        // no ports of sandboxes are opened on the host's loopback
	Network        bool     `json:"network,omitempty"`         // callers may open a way out of their sandboxes
	NetworkSpecial []string `json:"network_special,omitempty"` // addresses that are not public and that it may lead to, as rules
	NetworkDeny    []string `json:"network_deny,omitempty"`    // what that never leads to, as rules

	NoPool bool `json:"no_pool,omitempty"`        // keep none ready
	Ready  int  `json:"pool_min_size,omitempty"`  // how many are kept ready; 0 means 3
	Boots  int  `json:"pool_max_boots,omitempty"` // how many are made ready at the same time; 0 means twice the number of processors

	// Ladder are the drivers that callers may ask for, the preferred first;
	// nil means namespaces. Default is the one for who asks for none; "" means
	// the first that works and is as strong as is asked.
	Ladder  []manager.Rung `json:"-"`
	Default string         `json:"-"`
	// Templates are what callers may have sandboxes made of, by name.
	Templates map[string]manager.Template `json:"-"`
	// Image makes ready what a template or a caller names; nil means that there
	// are no images. MayImage says why a caller may not name one; nil means
	// that callers name none.
	Image    func(ctx context.Context, ref string, progress func(done, total int64)) (*Image, func(), error) `json:"-"`
	MayImage func(ref string) error                                                                          `json:"-"`
	// Secrets are those that a caller may have swapped in on the way out of
	// sandboxes, by the names of the variables they are in; nil means none.
	Secrets func(tool.Caller) (map[string]manager.Secret, error) `json:"-"`
	// Rules says who may list and end the sandboxes of all callers; nil means no one.
	Rules operator.Func `json:"-"`
	// Original reports whether callers in a context are to be answered as by
	// the original; nil means that none are.
	Original func(context string) bool `json:"-"`
	// Served returns when somebody came to whom sandboxes are offered, or ctx
	// ends; nil means that the first call tells.
	Served func(ctx context.Context) `json:"-"`
}

// Image is a system that sandboxes run.
type Image = sandbox.Image

// Limits of what one call brings or takes, in bytes.
const (
	mostContent = 10 << 20 // of a file's content, or of code
	mostCommand = 1 << 20
)

// longest is how long a call of a tool that runs code may take in all.
const longest = 25 * time.Hour

// desk is the module.
type desk struct {
	offer module.Offer
	cfg   Config
	boxes *manager.Manager
	// life ends with the module. Sandboxes outlive the calls that made them.
	life  context.Context
	end   context.CancelFunc
	waits chan struct{} // closed when Served has returned
	log   *slog.Logger

	writer roots.Writer // of files that are taken out
}

// New makes the module; Config says what can be configured. No sandbox is made
// before somebody asks for one or is served them.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		m := &desk{waits: make(chan struct{}), log: d.Log}
		m.cfg = cfg
		o, err := m.cfg.options()
		if err != nil {
			return nil, err
		}
		o.NewID, o.Tell, o.Log = d.NewID, d.Publish, d.Log
		if m.cfg.Original == nil {
			m.cfg.Original = func(string) bool { return false }
		}
		m.boxes = manager.New(o)
		m.life, m.end = context.WithCancel(context.Background())
		m.offer.Tools = m.tools()
		m.offer.Templates = []module.Resource{m.fileResource()}
		go m.whenServed() // ends with Close
		return m, nil
	}
}

// HandOver implements module.Transferable.
func (m *desk) HandOver(_ context.Context, heir module.Heir) []string { return m.boxes.HandOver(heir) }

// EndOwned implements module.Owned.
func (m *desk) EndOwned(_ context.Context, match func(owner string, made time.Time) bool) []string {
	return m.boxes.EndOwned(match)
}

// options are those of the manager.
func (c *Config) options() (manager.Options, error) {
	if err := proxy.Check(sandbox.Network{Special: c.NetworkSpecial, Deny: c.NetworkDeny}); err != nil {
		return manager.Options{}, fmt.Errorf("network_special, network_deny: %w", err)
	}
	o := manager.Options{
		Ladder: c.Ladder, Default: c.Default, Templates: c.Templates, Image: c.Image, MayImage: c.MayImage,
		Limits: sandbox.Limits{
			MemoryMiB: c.Memory, VCPUs: c.VCPUs, Processes: c.Processes, DiskMiB: c.Disk,
			Descriptors: c.Descriptors, OutputBytes: c.Output, Call: c.Call,
		},
		Most: sandbox.Limits{MemoryMiB: c.MostMemory, VCPUs: c.MostVCPUs, Call: c.MostCall},
		Idle: c.Idle, Lifetime: c.Lifetime, Sandboxes: c.Sandboxes, MemoryMiB: c.TotalMemory, PrincipalMiB: c.PrincipalMemory,
		Snapshots: c.Snapshots, SnapshotBytes: c.SnapshotBytes, SnapshotLife: c.SnapshotLife, Folder: c.Folder,
		NoPool: c.NoPool, Ready: c.Ready, Boots: c.Boots,
	}
	for _, n := range []int{c.Memory, c.VCPUs, c.Processes, c.Disk, c.Descriptors, c.Output, c.MostMemory, c.MostVCPUs, c.TotalMemory, c.PrincipalMemory, c.Sandboxes, c.Snapshots, int(c.SnapshotBytes), c.Ready, c.Boots} {
		if n < 0 {
			return o, fmt.Errorf("%d: a limit cannot be negative", n)
		}
	}
	if o.Ladder == nil {
		o.Ladder = []manager.Rung{{Name: namespaces.Name, Open: func() (sandbox.Driver, error) { return namespaces.New(namespaces.Options{Boots: c.Boots}) }}}
	}
	o.Least = sandbox.Namespaces
	if c.Least != "" {
		if o.Least = tier(c.Least); o.Least == sandbox.Unknown {
			return o, fmt.Errorf("min_isolation is %q; expected process, filtered, namespaces, user kernel or machine", c.Least)
		}
	}
	return o, nil
}

func tier(name string) sandbox.Tier {
	for t := sandbox.NoWall; t <= sandbox.Machine; t++ {
		if t.String() == name {
			return t
		}
	}
	return sandbox.Unknown
}

// whenServed has some kept ready as soon as they may be wanted.
func (m *desk) whenServed() {
	defer close(m.waits)
	if m.cfg.Served == nil {
		return
	}
	if m.cfg.Served(m.life); m.life.Err() == nil {
		m.boxes.Serve()
	}
}

// Offer implements module.Module.
func (m *desk) Offer(context.Context, module.Audience) (*module.Offer, error) { return &m.offer, nil }

// Close ends all sandboxes.
func (m *desk) Close(context.Context) error {
	m.end()
	<-m.waits
	return m.boxes.Close()
}

// tools are in the order in which they are needed.
func (m *desk) tools() []tool.Tool {
	return []tool.Tool{
		m.createTool(), m.destroyTool(), m.listTool(), m.codeTool(), m.commandTool(), m.readTool(), m.writeTool(), m.folderTool(),
		m.statTool(), m.moveTool(), m.removeTool(), m.searchTool(), m.contextTool(),
		m.startTool(), m.outputTool(), m.inputTool(), m.processesTool(), m.uploadTool(), m.downloadTool(), m.networkTool(), m.statsTool(),
		m.exposeTool(), m.unexposeTool(), m.pauseTool(), m.resumeTool(),
		m.snapshotTool(), m.forkTool(), m.snapshotsTool(), m.snapshotRemoveTool(),
	}
}

const notFound = "Sandbox not found or invalid ID"

// find is a sandbox of the caller's, kept from ending while it is in use. One
// that is paused is refused.
func (m *desk) find(c *tool.Call, id string) (b *manager.Box, done func(), err error) {
	if b, done, err = m.findAny(c, id); err == nil && b.Paused() {
		done()
		return nil, nil, paused
	}
	return b, done, err
}

// findAny is find, paused or not.
func (m *desk) findAny(c *tool.Call, id string) (b *manager.Box, done func(), err error) {
	b, err = m.boxes.Find(c.Caller.Owner, id)
	if err != nil {
		return nil, nil, &tool.Refusal{Code: "not_found", Message: notFound, Next: "sandbox_list shows the sandboxes that are yours. One ends when it was not used for a while."}
	}
	return b, b.Use(), nil
}

// tooLarge is how what is too long is refused, before anything else is looked
// at.
func tooLarge(what string, n, most int) error {
	if n <= most {
		return nil
	}
	return &tool.Refusal{
		Code: "too_large", Message: fmt.Sprintf("%s exceeds maximum size (%d bytes > %d bytes)", what, n, most),
		Next: "Write what is long to a file in parts, with append.",
	}
}

// gone tells of a sandbox that ended while it was used.
func gone(err error) error {
	if errors.Is(err, sandbox.ErrPaused) {
		return paused
	}
	if errors.Is(err, sandbox.ErrClosed) {
		return &tool.Refusal{Code: "gone", Message: "the sandbox ended: " + err.Error(), Next: "Create another one; what was in this one is lost."}
	}
	return err
}

// beyond tells of something that is used up.
func beyond(err error) error { return &tool.Refusal{Code: "busy", Message: err.Error()} }

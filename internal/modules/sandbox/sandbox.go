// Package sandbox lets callers run untrusted code in sandboxes of their own, with files and processes that no
// other caller can access.
//
// Eight of the tools also have the names, arguments and texts of an original server, for views that ask for
// them, such as the preset context sandbox. A sandbox belongs to the principal and context that made it; for
// all others it does not exist, and the error for an id is the same whether it exists or not.
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

// Config is the module's section of the configuration. Each zero field stands for its default. One struct, because
// it mirrors one section of gatehouse.yaml, setting by setting.
type Config struct {
	// Default of a sandbox, as all fields up to Call; 0 means 256.
	Memory      int           `json:"memory_mib,omitempty"`
	VCPUs       int           `json:"vcpu_count,omitempty"`   // 0 means 2
	Processes   int           `json:"processes,omitempty"`    // processes and threads alive at once; 0 means 256
	Disk        int           `json:"disk_mib,omitempty"`     // 0 means 1024; at most half of the memory is used for it
	Descriptors int           `json:"descriptors,omitempty"`  // open files of one process; 0 means 1024
	Output      int           `json:"output_bytes,omitempty"` // of each stream of a call; 0 means 1 MiB
	Call        time.Duration `json:"call,omitempty"`         // time limit of one call, in ns; 0 means 30 s

	MostMemory int `json:"most_memory_mib,omitempty"` // most that may be requested; 0 means 32768
	// Most of all sandboxes' limits together, in MiB; 0 means no limit.
	TotalMemory     int `json:"total_memory_mib,omitempty"`
	PrincipalMemory int `json:"principal_memory_mib,omitempty"` // most of one principal's; 0 means no limit
	MostVCPUs       int `json:"most_vcpu_count,omitempty"`      // most that may be requested; 0 means 32
	// Most that may be requested, in ns; 0 means 1 h.
	MostCall time.Duration `json:"most_call,omitempty"`
	// A sandbox ends if it is unused for this long, in ns; 0 means 15 min.
	Idle time.Duration `json:"idle,omitempty"`
	// A sandbox ends after this time in any case, in ns; 0 means 24 h.
	Lifetime  time.Duration `json:"lifetime,omitempty"`
	Sandboxes int           `json:"sandboxes,omitempty"` // open at once, of all owners; 0 means 100
	// Claim takes one of them for a principal; nil means that the first that asks gets one.
	Claim func(principal string, administrator bool) (release func(), err error) `json:"-"`
	// The lowest tier allowed: process, filtered, namespaces, user kernel or machine; "" means namespaces.
	Least string `json:"min_isolation,omitempty"`

	Snapshots     int           `json:"snapshots,omitempty"`         // kept at once, of all owners; 0 means 20
	SnapshotBytes int64         `json:"snapshot_bytes,omitempty"`    // most bytes of all of them; 0 means 4 GiB
	SnapshotLife  time.Duration `json:"snapshot_lifetime,omitempty"` // how long one is kept, in ns; 0 means 24 h
	// Folder of their files; "" means the folder for temporary files.
	Folder string `json:"snapshot_folder,omitempty"`

	// Ports of sandboxes may not be exposed on the host's loopback interface.
	NoPorts bool `json:"no_ports,omitempty"`
	Network bool `json:"network,omitempty"` // callers may give their sandboxes network access
	// Addresses that are not public and may be reached, as rules.
	NetworkSpecial []string `json:"network_special,omitempty"`
	NetworkDeny    []string `json:"network_deny,omitempty"` // what may never be reached, as rules

	NoPool bool `json:"no_pool,omitempty"`       // keep no sandboxes ready
	Ready  int  `json:"pool_min_size,omitempty"` // how many are kept ready; 0 means 3
	// How many are made ready concurrently; 0 means twice the number of processors.
	Boots int `json:"pool_max_boots,omitempty"`

	// Ladder are the drivers that callers may request, the preferred first; nil means namespaces. Default is
	// the driver used if none is requested; "" means the first that works and is strong enough.
	Ladder  []manager.LadderEntry `json:"-"`
	Default string                `json:"-"`
	// Templates are the templates that callers may request, by name.
	Templates map[string]manager.Template `json:"-"`
	// Image prepares an image that a template or a caller names; nil means that there are no images. MayImage
	// returns an error if a caller may not name an image; nil means that callers may name none.
	Image    func(ctx context.Context, ref string, progress func(done, total int64)) (*Image, func(), error) `json:"-"`
	MayImage func(ref string) error                                                                          `json:"-"`
	// Secrets returns the secrets that a caller may use in sandboxes, by the names of their variables; nil
	// means none.
	Secrets func(tool.Caller) (map[string]manager.Secret, error) `json:"-"`
	// Rules decides who may list and end the sandboxes of all callers; nil means no caller.
	Rules operator.Func `json:"-"`
	// Original reports whether callers in a context get the answers of the original server; nil means that
	// none do.
	Original func(context string) bool `json:"-"`
	// Served returns when a client is connected to which sandboxes are offered, or ctx ends; nil means that
	// the first call shows it.
	Served func(ctx context.Context) `json:"-"`
}

// Image is a file system for sandboxes.
type Image = sandbox.Image

// Limits of the parameters and results of one call, in bytes.
const (
	mostContent = 10 << 20 // of a file's content, or of code
	mostCommand = 1 << 20
)

// longest is the time limit of a tool that runs code.
const longest = 25 * time.Hour

// sandboxTools is the module.
type sandboxTools struct {
	offer module.Offer
	cfg   Config
	boxes *manager.Manager
	// life ends with the module. Sandboxes outlive the calls that made them.
	life  context.Context
	end   context.CancelFunc
	waits chan struct{} // closed when Served has returned
	log   *slog.Logger

	writer roots.Writer // of downloaded files
}

// New returns the module; Config says what can be configured. It makes no sandbox before a caller requests one
// or Served returns.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		m := &sandboxTools{waits: make(chan struct{}), log: d.Log}
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
		m.offer.Tools = m.definitions()
		m.offer.Templates = []module.Resource{m.fileResource()}
		go m.whenServed() // ends with Close
		return m, nil
	}
}

// HandOver implements module.Transferable.
func (m *sandboxTools) HandOver(_ context.Context, heir module.Heir) []string {
	return m.boxes.HandOver(heir)
}

// EndOwned implements module.Owned.
func (m *sandboxTools) EndOwned(_ context.Context, match func(owner string, made time.Time) bool) []string {
	return m.boxes.EndOwned(match)
}

// options returns the manager's options.
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
		Idle: c.Idle, Lifetime: c.Lifetime, Sandboxes: c.Sandboxes, Claim: c.Claim, MemoryMiB: c.TotalMemory,
		PrincipalMiB: c.PrincipalMemory,
		Snapshots:    c.Snapshots, SnapshotBytes: c.SnapshotBytes, SnapshotLife: c.SnapshotLife, Folder: c.Folder,
		NoPool: c.NoPool, Ready: c.Ready, Boots: c.Boots,
	}
	for _, n := range []int{
		c.Memory, c.VCPUs, c.Processes, c.Disk, c.Descriptors, c.Output, c.MostMemory, c.MostVCPUs, c.TotalMemory,
		c.PrincipalMemory, c.Sandboxes, c.Snapshots, int(c.SnapshotBytes), c.Ready, c.Boots,
	} {
		if n < 0 {
			return o, fmt.Errorf("%d: a limit cannot be negative", n)
		}
	}
	if o.Ladder == nil {
		o.Ladder = []manager.LadderEntry{{
			Name: namespaces.Name,
			Open: func() (sandbox.Driver, error) { return namespaces.New(namespaces.Options{Boots: c.Boots}) },
		}}
	}
	o.Least = sandbox.Namespaces
	if c.Least != "" {
		if o.Least = tier(c.Least); o.Least == sandbox.Unknown {
			return o, fmt.Errorf("min_isolation is %q; expected process, filtered, namespaces, user "+
				"kernel or machine", c.Least)
		}
	}
	return o, nil
}

func tier(name string) sandbox.Tier {
	for t := sandbox.NoIsolation; t <= sandbox.Machine; t++ {
		if t.String() == name {
			return t
		}
	}
	return sandbox.Unknown
}

// whenServed enables pools when sandboxes are likely to be requested.
func (m *sandboxTools) whenServed() {
	defer close(m.waits)
	if m.cfg.Served == nil {
		return
	}
	if m.cfg.Served(m.life); m.life.Err() == nil {
		m.boxes.Serve()
	}
}

// Offer implements module.Module.
func (m *sandboxTools) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &m.offer, nil
}

// Close closes all sandboxes.
func (m *sandboxTools) Close(context.Context) error {
	m.end()
	<-m.waits
	return m.boxes.Close()
}

// definitions returns the tools, the most used first.
func (m *sandboxTools) definitions() []tool.Tool {
	return []tool.Tool{
		m.createTool(), m.destroyTool(), m.listTool(), m.codeTool(), m.commandTool(), m.readTool(), m.writeTool(),
		m.folderTool(),
		m.statTool(), m.moveTool(), m.removeTool(), m.searchTool(), m.contextTool(),
		m.startTool(), m.outputTool(), m.inputTool(), m.processesTool(), m.uploadTool(), m.downloadTool(),
		m.networkTool(), m.statsTool(),
		m.exposeTool(), m.unexposeTool(), m.pauseTool(), m.resumeTool(),
		m.snapshotTool(), m.forkTool(), m.snapshotsTool(), m.snapshotRemoveTool(),
	}
}

const notFound = "Sandbox not found or invalid ID"

// findBox returns a sandbox of the caller and keeps it in use until done is called. It refuses a paused one.
func (m *sandboxTools) findBox(c *tool.Call, id string) (b *manager.Box, done func(), err error) {
	if b, done, err = m.findAny(c, id); err == nil && b.Paused() {
		done()
		return nil, nil, paused
	}
	return b, done, err
}

// findAny is find for paused sandboxes too.
func (m *sandboxTools) findAny(c *tool.Call, id string) (b *manager.Box, done func(), err error) {
	b, err = m.boxes.FindBox(c.Caller.Owner, id)
	if err != nil {
		return nil, nil, &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: notFound,
			Next:    "sandbox_list lists your sandboxes. A sandbox ends if it is unused for its idle time.",
		}
	}
	return b, b.Use(), nil
}

// tooLarge refuses a parameter that is too long. It is checked before all others.
func tooLarge(what string, n, most int) error {
	if n <= most {
		return nil
	}
	return &tool.Refusal{
		Code: tool.CodeTooLarge, Message: fmt.Sprintf("%s exceeds maximum size (%d bytes > %d bytes)", what, n, most),
		Next: "Write long content to a file in parts, with append.",
	}
}

// gone converts the error of a sandbox that has ended or is paused to a refusal.
func gone(err error) error {
	if errors.Is(err, sandbox.ErrPaused) {
		return paused
	}
	if errors.Is(err, sandbox.ErrClosed) {
		return &tool.Refusal{
			Code:    tool.CodeGone,
			Message: "the sandbox ended: " + err.Error(),
			Next:    "Create another one; the content of this one is lost.",
		}
	}
	return err
}

// beyond converts the error of an exhausted limit to a refusal.
func beyond(err error) error { return &tool.Refusal{Code: tool.CodeBusy, Message: err.Error()} }

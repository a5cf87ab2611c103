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

// Config is what the module needs: its section of the configuration, and what the host provides.
type Config struct {
	Settings manager.Settings // zero limits stand for their defaults
	// Folder of the snapshots' files; "" means the folder for temporary files.
	Folder string
	// Claim takes one of the sandboxes for a principal; nil means that the first that asks gets one.
	Claim func(principal string, administrator bool) (release func(), err error)

	// Ladder are the drivers that callers may request, the preferred first; nil means namespaces.
	Ladder []manager.LadderEntry
	// Templates are the templates that callers may request, by name.
	Templates map[string]manager.Template
	// Image prepares an image that a template or a caller names; nil means that there are no images. MayImage
	// returns an error if a caller may not name an image; nil means that callers may name none.
	Image    func(ctx context.Context, ref string, progress func(done, total int64)) (*Image, func(), error)
	MayImage func(ref string) error
	// Secrets returns the secrets that a caller may use in sandboxes, by the names of their variables; nil
	// means none.
	Secrets func(tool.Caller) (map[string]manager.Secret, error)
	// Rules decides who may list and end the sandboxes of all callers; nil means no caller.
	Rules operator.Func
	// Original reports whether callers in a context get the answers of the original server; nil means that
	// none do.
	Original func(context string) bool
	// Served returns when a client is connected to which sandboxes are offered, or ctx ends; nil means that
	// the first call shows it.
	Served func(ctx context.Context)
	// Stream keeps a stream for a caller and returns the path of the WebSocket that carries it, once; serve sends it as
	// bytes, or with text as a JSON text about them. nil means that the host has none.
	Stream func(c tool.Caller, serve func(ctx context.Context, send func(text bool, message []byte) error) error) (
		path string, err error)
	// HasLabels refuses labels that this node of a cluster does not have; nil means that a sandbox with labels is refused.
	HasLabels func(labels []string) error
	// Opened is called once with the manager of the sandboxes, which lives as long as the module. nil means that no
	// other part of the host uses it.
	Opened func(*manager.Manager)
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
	deps  module.Deps
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
		m := &sandboxTools{deps: d, waits: make(chan struct{}), log: d.Log}
		m.cfg = cfg
		o, err := m.cfg.Options()
		if err != nil {
			return nil, err
		}
		o.NewID, o.Publish, o.Log = d.NewID, d.Publish, d.Log
		if m.cfg.Original == nil {
			m.cfg.Original = func(string) bool { return false }
		}
		m.boxes = manager.New(o)
		if m.cfg.Opened != nil {
			m.cfg.Opened(m.boxes)
		}
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

// Options returns the options of the manager of sandboxes.
func (c *Config) Options() (manager.Options, error) {
	if err := proxy.Check(sandbox.Network{Special: c.Settings.NetworkSpecial,
		Deny: c.Settings.NetworkDeny}); err != nil {
		return manager.Options{}, fmt.Errorf("network_special, network_deny: %w", err)
	}
	o, err := c.Settings.Options()
	if err != nil {
		return o, err
	}
	o.Ladder, o.Templates, o.Image, o.MayImage = c.Ladder, c.Templates, c.Image, c.MayImage
	o.Claim, o.Folder = c.Claim, c.Folder
	if o.Ladder == nil {
		o.Ladder = []manager.LadderEntry{{
			Name: namespaces.Name,
			Open: func() (sandbox.Driver, error) {
				return namespaces.New(namespaces.Options{Boots: c.Settings.Pool.MaxBoots})
			},
		}}
	}
	return o, nil
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

package app

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"gatehouse/internal/cluster"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/packages"
	"gatehouse/tool"
)

// setLabels tells the other nodes what this one has: the labels of its settings, and what is known of its machine.
func (c *clusterNodes) setLabels() error {
	cfg := &c.app.cfg
	if err := cluster.CheckLabels(cfg.Cluster.Labels); err != nil {
		return &SettingError{fmt.Errorf("cluster.labels: %w", err)}
	}
	labels := append(slices.Clone(cfg.Cluster.Labels), "os="+runtime.GOOS, "arch="+runtime.GOARCH)
	if hasGPU() {
		labels = append(labels, "gpu=yes")
	}
	for _, m := range c.app.enabled {
		if m.runs {
			labels = append(labels, moduleLabel(m.Name))
		}
	}
	if c.app.hasModule(sandboxModule) {
		c.app.addPart("labels of this node", func(ctx context.Context) error {
			c.labelDrivers(ctx, labels)
			<-ctx.Done() // the host ends with the first of its parts
			return nil
		})
	}
	c.SetLabels(sortedLabels(labels))
	return nil
}

// moduleLabel is the label of nodes that have a module which runs programs.
func moduleLabel(name string) string { return "module=" + name }

func sortedLabels(labels []string) []string {
	labels = slices.Clone(labels)
	slices.Sort(labels)
	return slices.Compact(labels)
}

// labelDrivers adds the drivers of sandboxes that work on this machine. It opens each, which takes a while.
func (c *clusterNodes) labelDrivers(ctx context.Context, labels []string) {
	s := c.app.cfg.Modules.Sandbox
	for _, one := range SandboxDrivers(s.Ladder(), s, c.app.cfg.Folders.Cache, c.log) {
		if ctx.Err() != nil {
			return
		}
		d, err := one.Open()
		if err != nil {
			c.log.Debug("a driver of sandboxes does not work on this node", "driver", one.Name, "err", err)
			continue
		}
		if err := d.Close(); err != nil {
			c.log.Warn("a driver of sandboxes is not closed", "driver", one.Name, "err", err)
		}
		labels = append(labels, "driver="+one.Name)
		c.SetLabels(sortedLabels(labels))
	}
}

// hasLabels refuses labels that this node does not have.
func (c *clusterNodes) hasLabels(labels []string) error {
	if len(labels) == 0 {
		return nil
	}
	if c == nil {
		return tool.Refuse(tool.CodeInvalidArguments,
			"labels: this host is no node of a cluster, so that there is no choice of nodes")
	}
	_, err := packages.ChooseNode(c.Nodes()[:1], labels, "", noLoad)
	return err
}

// hasGPU reports whether the machine has a device that programs can compute with.
func hasGPU() bool {
	for _, pattern := range []string{"/dev/dri/renderD*", "/dev/nvidia[0-9]*", "/dev/kfd"} {
		if all, _ := filepath.Glob(pattern); len(all) > 0 {
			return true
		}
	}
	_, err := os.Stat("/dev/dxg") // of Windows, below WSL
	return err == nil
}

// placed returns the packages that have their places on nodes, by node.
func (a *App) placed() map[string][]string {
	if a.manager == nil {
		return nil
	}
	return a.manager.Placed()
}

// needsServer are the tools about packages that are for the node on which the package's server runs.
var needsServer = []string{"package_info", "package_logs", "package_start", "package_restart", "package_shell"}

// placeCall returns the node on which a call without a handle runs; "" means this one.
func (a *App) placeCall(ctx context.Context, r *bus.Request) (node string, err error) {
	wanted := a.labelsFor(r)
	switch {
	case r.Module == packageModule && a.manager != nil:
		id := a.manager.PackageOf(r.Name)
		if id == "" && slices.Contains(needsServer, r.Name) {
			raw, _ := rawjson.Get(r.Args, "id")
			id, _ = rawjson.String(raw)
		}
		if id == "" {
			return "", nil
		}
		return a.manager.Place(ctx, id, wanted)
	case r.Module == sandboxModule && r.Name == "sandbox_create":
		return a.nodes.placeSandbox(r, wanted)
	case len(wanted) > 0:
		return a.nodes.placeProgram(r, wanted)
	}
	return "", nil
}

// labelsFor returns the labels that the context of a request wants of the node that runs it; nil if the request runs no
// programs, or its context wants none.
func (a *App) labelsFor(r *bus.Request) []string {
	if r.Caller == nil || !a.runsPrograms(r.Module) {
		return nil
	}
	rules := a.views.Rules()
	if s := rules.Spec(cmp.Or(r.Caller.Context, rules.Default)); s != nil {
		return s.Labels
	}
	return nil
}

// runsPrograms reports whether calls of a module start programs: those of one that is for that, and what a context
// defines for itself.
func (a *App) runsPrograms(module string) bool {
	return strings.HasPrefix(module, contextstore.ModulePrefix) ||
		slices.ContainsFunc(a.enabled, func(m enabledModule) bool { return m.Name == module && m.runs })
}

// placeProgram returns the node on which a call runs programs for a context that wants labels: this one if it has them,
// otherwise always the same one for an owner, because what one call leaves another one finds.
func (c *clusterNodes) placeProgram(r *bus.Request, wanted []string) (string, error) {
	nodes := c.Nodes()
	labels := slices.Clone(wanted)
	if !strings.HasPrefix(r.Module, contextstore.ModulePrefix) {
		labels = append(labels, moduleLabel(r.Module))
	}
	if _, err := packages.ChooseNode(nodes[:1], labels, "", noLoad); err == nil {
		return "", nil
	}
	return packages.ChooseNode(nodes, labels, r.Caller.Owner, noLoad)
}

func noLoad(cluster.Peer) float64 { return 0 }

// stagedHere refuses a call of a staged task, which stays on this node, if its context wants labels that this node
// lacks.
func (a *App) stagedHere(r *bus.Request) error {
	if wanted := a.labelsFor(r); len(wanted) > 0 {
		return a.nodes.hasLabels(wanted)
	}
	return nil
}

// placeSandbox returns the node on which a sandbox is created: this one, unless another one fits better.
func (c *clusterNodes) placeSandbox(r *bus.Request, wanted []string) (string, error) {
	if raw, ok := rawjson.Get(r.Args, "snapshot_id"); ok { // it is made where the snapshot is
		id, _ := rawjson.String(raw)
		node := id[strings.LastIndexByte(id, '_')+1:]
		if known, alive := c.Known(node); !known || node == c.ID() {
			return "", nil
		} else if !alive {
			return "", tool.Refuse(tool.CodeGone, "the snapshot is on node %s, which is not heard; nothing was run", node)
		}
		return node, nil
	}
	labels := append([]string{moduleLabel(sandboxModule)}, wanted...)
	if raw, ok := rawjson.Get(r.Args, "labels"); ok {
		for one := range rawjson.Elements(raw) {
			label, _ := rawjson.String(one)
			labels = append(labels, label)
		}
	}
	if raw, ok := rawjson.Get(r.Args, "driver"); ok {
		if driver, _ := rawjson.String(raw); driver != "" {
			labels = append(labels, "driver="+driver)
		}
	}
	load := func(n cluster.Peer) float64 { return n.Load }
	if m := c.app.manager; m != nil {
		load = m.LoadOf()
	}
	node, err := packages.ChooseNode(c.Nodes(), labels, "", func(n cluster.Peer) float64 {
		if n.ID == c.ID() {
			return load(n) - sandboxesHere
		}
		return load(n)
	})
	if node == c.ID() {
		return "", err
	}
	return node, err
}

// sandboxesHere is by how much the load of this node may be above that of another one for a sandbox to be made here:
// calls of a sandbox on another node cost more.
const sandboxesHere = 8

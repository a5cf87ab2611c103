package app

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/notify"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/exec/shield"
	"gatehouse/internal/maintenance/backup"
	"gatehouse/internal/mcp/protocol"
	packagemodule "gatehouse/internal/modules/packages"
	"gatehouse/internal/modules/standard"
	"gatehouse/internal/packages"
	"gatehouse/internal/packages/catalog"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/namespaces"
	"gatehouse/internal/server/httpserver"
	"gatehouse/internal/state"
	"gatehouse/tool"
)

const packageModule = "package"

// packageRecordsAt is where the records of packages are stored.
const packageRecordsAt = "/private/packages"

// openPackages opens the packages of this host, once for all modules that use them. It returns nil if nothing is
// stored on disk, or without the module of packages.
func (a *App) openPackages() (*packages.Manager, error) {
	if a.manager != nil || a.opts.Private || a.opts.Alone != nil || a.cfg.Folders.Data == "" ||
		!a.hasModule(packageModule) {
		return a.manager, nil
	}
	o := a.packageOptions()
	if a.nodes != nil {
		shared, err := a.nodes.packageCluster()
		if err != nil {
			return nil, err
		}
		o.Cluster = shared
		if o.SettingsFile != "" {
			o.SettingsFile = a.nodes.ID() + ":" + o.SettingsFile
		}
	} else if sharesPackages(a.cfg.Folders) {
		if o.Lazy {
			a.log.Info("the packages belong to all nodes of a cluster, and this host is none: it serves none of them")
			return nil, nil
		}
		return nil, fmt.Errorf("the packages in %s belong to all nodes of a cluster: use the host that is the node, or "+
			"stop it and run gatehouse cluster leave", o.Folder)
	}
	manager, err := packages.Open(o)
	if err != nil {
		return nil, err
	}
	a.manager = manager
	manager.Declare(a.cfg.Packages)
	a.addPackages(manager)
	return manager, a.nodes.servePackages(manager)
}

// settingsFile returns the absolute path of the file of the settings, or "".
func (a *App) settingsFile() string {
	if a.opts.Settings == "" {
		return ""
	}
	path, err := filepath.Abs(a.opts.Settings)
	if err != nil {
		return a.opts.Settings
	}
	return path
}

// packageOptions returns the options of the packages of this host.
func (a *App) packageOptions() packages.Options {
	o := packages.Options{
		Folder: filepath.Join(a.cfg.Folders.Data, packagesFolder), Records: a.tree.packageRecords, Log: a.log,
		SettingsFile: a.settingsFile(),
		Name:         introduce(a.opts.Info).Name, Version: Version, Taken: a.takenNames, Show: a.tree.showPackage,
		Settings: a.cfg.Modules.Package, Manual: a.opts.OneCall,
		Lazy: slices.ContainsFunc(a.enabled,
			func(g enabledModule) bool { return g.Name == packageModule && g.implicit }),
		Broken: a.notifyBroken, Relisted: a.notifyRelisted,
		Restored: restoredPackages(filepath.Join(a.cfg.Folders.Data, packagesFolder)),
		Share:    !a.cfg.Children.HostFiles && shield.Possible() != shield.None,
		Watches:  a.claimWatch(), Waiting: a.waitingPackages, Unapplied: a.notifyUnapplied,
		Calls: a.cfg.Limits.Calls,
		Completed: func(session string, params json.RawMessage) {
			a.engine.ElicitationComplete(session, params)
		},
		Changed: func() {
			if f := a.packagesChanged.Load(); f != nil {
				(*f)()
			}
		},
	}
	o.Confinement = cmp.Or(o.Confinement, packages.Sandboxed)
	o.Sandboxes = func() (sandbox.Driver, error) { return namespaces.New(namespaces.Options{Log: a.log}) }
	o.Egress, o.Images = a.publishEgress, a.packageImages
	if a.stage != nil {
		o.CannotStage, o.TaskOpen, o.SecretsUsed = a.stage.CannotStage, a.stage.IsOpen, a.publishSecrets
	}
	o.TrustedRoot, o.ClientDocument = a.trustedRoot, clientID(&a.cfg)
	if o.Message == 0 {
		o.Message = int64(min(a.cfg.Limits.Message, 16<<20)) // no more than a listener accepts
	}
	o.Secrets, o.Administrator = a.fillSecrets(), a.rules
	if a.cfg.Folders.Config != "" {
		o.Logins = secret.Logins(a.cfg.Folders.Config, a.cfg.Secrets.KeyFile).Share(a.nodes.sharedFiles())
	}
	return o
}

// clientID returns the https address at which authorization servers find the document that describes this host; "" if
// its settings name no address at which others reach it.
func clientID(cfg *config.Config) string {
	all := []string{cfg.Auth.Server, cfg.Auth.Login.Server, cfg.Auth.OAuth.Resource}
	for _, domain := range cfg.Listen.HTTP.TLS.ACME.Domains {
		all = append(all, "https://"+domain)
	}
	for _, address := range all {
		u, err := url.Parse(address)
		if err != nil || u.Scheme != "https" || u.Host == "" || u.Hostname() == "localhost" {
			continue
		}
		if at, err := netip.ParseAddr(u.Hostname()); err == nil && (at.IsLoopback() || at.IsPrivate()) {
			continue // no authorization server could fetch it there
		}
		return "https://" + u.Host + httpserver.ClientPath
	}
	return ""
}

// clientDocument returns the document at clientID, nil if there is no such address.
func (a *App) clientDocument() ([]byte, error) {
	id := clientID(&a.cfg)
	if id == "" || !a.cfg.Listen.HTTP.Open {
		return nil, nil
	}
	return packages.ClientDocument(id, introduce(a.opts.Info).Title)
}

// publishEgress records in the ledger what a confined package reaches or tries to reach.
func (a *App) publishEgress(id string, d sandbox.Decision) {
	a.publish("package.network", struct {
		Package string `json:"package"`
		Allowed bool   `json:"allowed"`
		Method  string `json:"method"`
		Target  string `json:"target"`
		Address string `json:"address,omitempty"`
		Rule    string `json:"rule,omitempty"`
		Reason  string `json:"reason"`
	}{id, d.Allowed, d.Method, d.Target, d.Address, d.Rule, d.Reason})
}

// addPackages adds the parts that run packages.
func (a *App) addPackages(m *packages.Manager) {
	a.addPart("packages", m.Run)
	a.addPart("sessions of packages", func(ctx context.Context) error {
		a.followSessions(ctx, m)
		return nil
	})
	a.addPart("commands", func(ctx context.Context) error {
		a.serveCommands(ctx, m)
		<-ctx.Done() // the host ends with each of its parts, and it does not need this one
		return nil
	})
}

// PackageSocket returns the path of the Unix socket at which the host that runs the packages of a data folder serves
// the commands of its user, whichever listeners its settings name; "" if there is no folder for it. Its name is
// short, because paths of sockets are.
func PackageSocket(f config.Folders) string {
	if f.Runtime == "" || f.Data == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(filepath.Clean(f.Data)))
	return filepath.Join(f.Runtime, "packages-"+hex.EncodeToString(sum[:4])+".sock")
}

// serveCommands serves PackageSocket from the time that this host has the packages until ctx is done. It is no
// listener of the settings: the host ends with its last client as it would without it.
func (a *App) serveCommands(ctx context.Context, m *packages.Manager) {
	path := PackageSocket(a.cfg.Folders)
	if path == "" {
		return
	}
	select {
	case <-m.Acquired():
	case <-ctx.Done():
		return
	}
	l, err := a.OpenUnix(ctx, path)
	if err == nil {
		err = l.Serve(ctx)
	}
	if err != nil && ctx.Err() == nil {
		a.log.Warn("commands such as gatehouse package list cannot reach this host", "socket", path, "err", err)
	}
}

// followSessions tells the packages what happens to sessions until ctx is done.
func (a *App) followSessions(ctx context.Context, m *packages.Manager) {
	var both sync.WaitGroup
	both.Go(func() {
		for ended := range (sessions{a}).Ended(ctx) {
			m.EndSessions(ended)
		}
	})
	if a.nodes != nil {
		both.Go(func() {
			for e, of := range protocol.SessionEnded.FollowAll(ctx, a.bus, endings) {
				if e.Node != "" && !of.Moved { // what runs here for a session of another node, which names it so
					m.EndSessions(func(id string) bool { return id == cmp.Or(of.Session, of.Connection) })
				}
			}
		})
	}
	both.Go(func() {
		for _, of := range protocol.RootsChanged.Follow(ctx, a.bus, endings) {
			m.RootsChanged(cmp.Or(of.Session, of.Connection))
		}
	})
	both.Wait()
}

// restoredPackages returns a function that reads the records of packages that a restore has put in place.
func restoredPackages(folder string) func() (map[string]packages.Record, func() error, error) {
	return func() (map[string]packages.Record, func() error, error) {
		raw, done, err := backup.ReadRestored(folder)
		if err != nil {
			return nil, nil, err
		}
		records := map[string]packages.Record{}
		for id, text := range raw {
			var r packages.Record
			if err := json.Unmarshal(text, &r); err != nil {
				return nil, nil, fmt.Errorf("the restored record of package %s: %w", id, err)
			}
			records[id] = r
		}
		return records, done, nil
	}
}

// waitingPackages returns the packages that a restore is to bring back while this host runs.
func (a *App) waitingPackages() (ids []string, put func() error, err error) {
	f := BackedUp(a.cfg)
	ids, err = backup.PackagesWaiting(f)
	return ids, func() error {
		done, err := backup.PutPackages(f)
		if done != nil && err == nil {
			a.log.Info("packages of a backup were restored", "backup", done.Backup, "packages", done.Packages)
			a.publish("config.restored", done)
		}
		return err
	}, err
}

// putPackages restores packages of a backup at once. now is false if this host does not run the packages; then the
// restore waits.
func (a *App) putPackages() (now bool, err error) {
	if a.manager == nil {
		return false, nil
	}
	switch _, err = a.manager.PutRestored(); {
	case err == nil:
		return true, nil
	case refusedBusy(err):
		return false, nil
	}
	return false, err
}

func refusedBusy(err error) bool {
	r, ok := errors.AsType[*tool.Refusal](err)
	return ok && r.Code == tool.CodeBusy
}

// notifyBroken notifies administrators that a package is no longer restarted.
func (a *App) notifyBroken(id string, why error) {
	a.notifyOfPackage(notify.Notification{
		Code: "package.broken", Level: notify.Error, Title: "The package " + id + " keeps failing",
		Message: why.Error() + ". It is no longer started automatically: see package_logs, then call package_restart.",
	})
}

// notifyUnapplied notifies administrators that packages differ from what the settings state.
func (a *App) notifyUnapplied(why error) {
	a.notifyOfPackage(notify.Notification{
		Code: "package.unapplied", Level: notify.Error, Title: "Packages of the settings are not installed",
		Message: why.Error() + ". gatehouse package apply tries again.",
	})
}

// notifyRelisted records in the ledger, and notifies administrators, that a package's tools differ from those that
// were approved when it was installed.
func (a *App) notifyRelisted(id string, c packages.ToolChanges) {
	for _, list := range []*[]string{&c.Added, &c.Removed, &c.Changed} {
		if most := 20; len(*list) > most {
			*list = append((*list)[:most:most], fmt.Sprintf("and %d more", len(*list)-most))
		}
	}
	fact := struct {
		Package string `json:"package"`
		packages.ToolChanges
	}{id, c}
	a.publish("package.tools_changed", fact)
	var said []string
	for _, one := range []struct {
		what string
		list []string
	}{{"new", c.Added}, {"removed", c.Removed}, {"with another description or schema", c.Changed}} {
		if len(one.list) > 0 {
			said = append(said, one.what+": "+strings.Join(one.list, ", "))
		}
	}
	data, _ := json.Marshal(fact) // strings only
	a.notifyOfPackage(notify.Notification{
		Code: "package.tools_changed", Level: notify.Warning, Title: "The package " + id + " changed its tools",
		Data: data,
		Message: "Its server changed them, not an installation: " + strings.Join(said, "; ") +
			". Changed tools, and new ones unless the package allows them, are not offered until package_approve; " +
			"package_changes shows the differences.",
	})
}

func (a *App) notifyOfPackage(n notify.Notification) {
	data, err := json.Marshal(n)
	if err != nil {
		return // only strings: it cannot fail
	}
	a.bus.Publish(bus.Event{Subject: "module." + packageModule + "." + notify.Subject, At: time.Now(), Data: data})
}

// packageEvents holds the packages of a host, and publishes changes of their tools.
type packageEvents struct {
	manager         *packages.Manager // nil before it is needed, and if there are none
	packagesChanged atomic.Pointer[func()]
}

// CatalogOptions returns the options of the catalog that the settings describe.
func CatalogOptions(cfg config.Config) catalog.Options {
	o := catalog.Options{Search: cfg.Modules.Package.Search, Version: Version}
	if cfg.Folders.Cache != "" {
		o.Folder = filepath.Join(cfg.Folders.Cache, "catalog")
	}
	return o
}

// implicitPackages reports whether the module of packages is on this host without
// being named.
func (a *App) implicitPackages() bool {
	return slices.ContainsFunc(a.enabled, func(g enabledModule) bool { return g.Name == packageModule && g.implicit })
}

func (a *App) packageDeps() (c packagemodule.Config, err error) {
	c.Rules, c.Show, c.Unsynced = a.rules, a.tree.showJob, a.implicitPackages()
	o := CatalogOptions(a.cfg)
	o.Log = a.log
	if a.opts.Private {
		o.Folder = ""
	}
	c.Catalog = catalog.New(o)
	c.Changed = func(f func()) { a.packagesChanged.Store(&f) }
	c.Hosts = a.packageHosts
	c.Packages, err = a.openPackages()
	return c, err
}

// packageHosts returns the addresses at which clients reach the packages of this host.
func (a *App) packageHosts() (all []packagemodule.Host) {
	h := a.cfg.Listen.HTTP
	for _, l := range a.listeners {
		if l.Address == "" {
			continue
		}
		one := packagemodule.Host{Kind: l.Kind, Address: l.Address, TLS: strings.HasPrefix(l.Address, "https:")}
		if l.Kind == HTTP || l.Kind == HTTPS {
			one.Names = slices.Concat(a.opts.Hosts, h.Hosts, h.TLS.ACME.Domains)
		}
		all = append(all, one)
	}
	return all
}

// takenNames returns the names of modules, which packages may not use.
func (a *App) takenNames() []string {
	names := append(moduleNames(standard.Modules(standard.Deps{})), a.host.Names()...)
	return slices.DeleteFunc(
		append(names, packageModule, resourcesModule, jobModule, publicModule, contextModule, sshModule,
			views.SearchModule),
		func(n string) bool {
			return strings.ContainsAny(n, "/") // modules of contexts, which no tool is named after
		},
	)
}

// showPackage shows one package in the tree; nil removes it.
func (l *liveTree) showPackage(id string, p *packages.Public) {
	if err := state.Merge(context.Background(), l.packages, map[string]*packages.Public{id: p}); err != nil {
		l.app.log.Warn("a package is not shown", "package", id, "err", err)
	}
}

// seesPackage lets administrators see every package, and every other caller those of which it may call a tool.
func (l *liveTree) seesPackage(who tool.Caller) func(string, any) bool {
	if l.app.rules(who) {
		return func(string, any) bool { return true }
	}
	mine := sync.OnceValue(func() map[string]bool { return l.callable(who) })
	return func(id string, _ any) bool { return mine()[id] }
}

// callable returns the packages of which a caller may call a tool.
func (l *liveTree) callable(who tool.Caller) map[string]bool {
	mine, seen := map[string]bool{}, map[string]bool{}
	v, err := l.app.views.View(context.Background(), &who, l.app.views.Cut(who))
	if err != nil || l.app.manager == nil {
		return mine
	}
	for _, e := range v.Entries(views.Tools) {
		if e.Module == packageModule {
			seen[e.Name] = true
		}
	}
	for _, o := range l.app.manager.Tools() {
		if seen[o.Name] {
			mine[o.Package] = true
		}
	}
	return mine
}

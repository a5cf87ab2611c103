package app

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"gatehouse/internal/modules/server"
	"gatehouse/internal/state"
	"gatehouse/tool"
)

const (
	serverModule = "server"

	sampleEvery = 10 * time.Second       // the machine is measured for the public tree
	leaveAfter  = 300 * time.Millisecond // so that the caller who ends the host receives the answer
)

// shutdownRequest is a request to end the host.
type shutdownRequest struct {
	once  sync.Once
	asked chan struct{}
	again bool // guarded by once, and read when asked is closed
}

// hasModule reports whether this host has a module.
func (a *App) hasModule(name string) bool {
	return slices.ContainsFunc(a.enabled, func(g enabledModule) bool { return g.Name == name })
}

// keepJournal stores this host's log from now on, for the module that shows it.
func (a *App) keepJournal() {
	a.leaving.asked = make(chan struct{})
	if !a.hasModule(serverModule) {
		return
	}
	a.journal = server.NewJournal(slog.LevelInfo)
	if dir := a.cfg.Folders.State; dir != "" && !a.opts.Private {
		if err := a.journal.OpenFile(filepath.Join(dir, "journal")); err != nil {
			a.log.Warn("what this host logs cannot be read after it has ended", "folder", dir, "err", err)
		}
		a.closing("journal", func(context.Context) error { return a.journal.CloseFile() })
	}
	a.log = slog.New(slog.NewMultiHandler(a.log.Handler(), a.journal.Handler()))
}

func (a *App) serverDeps() (c server.Config, err error) {
	c.Host, c.Journal, c.Meter = hostControl{a}, a.journal, &server.Meter{}
	if _, err := os.Stat(a.cfg.Folders.Data); err == nil {
		c.Meter.Path = a.cfg.Folders.Data
	}
	a.addPart("ends when asked", func(ctx context.Context) error {
		select {
		case <-a.leaving.asked:
		case <-ctx.Done():
		}
		return nil
	})
	a.addPart("samples", func(ctx context.Context) error {
		a.tree.sample(ctx, c.Meter)
		return nil
	})
	c.Show = a.tree.showJob
	c.Packages, err = a.openPackages()
	return c, err
}

// Again reports whether this host has ended in order to be restarted.
func (a *App) Again() bool {
	select {
	case <-a.leaving.asked:
		return a.leaving.again
	default:
		return false
	}
}

// rules reports whether a caller administers this host: a user with the role, the host's own user over a Unix
// socket or with the local token, and the program that started the host and uses its standard input and output. An
// anonymous caller never administers it, even if no authentication is set up, because any process and any other
// user of this machine can be one.
func (a *App) rules(who tool.Caller) bool {
	if len(who.Scopes) > 0 || who.Child {
		return false
	}
	owner := a.who.Owner()
	return seesEverything(who) || who.Principal == owner.Name && who.Credential == owner.Credential
}

// hostControl implements server.Host.
type hostControl struct{ app *App }

// About implements server.Host.
func (h hostControl) About() server.About {
	i, _, err := h.app.tree.info.Get()
	if err != nil {
		h.app.log.Warn("what this host is cannot be read", "err", err)
	}
	return server.About{
		ID:         i.ID,
		Name:       i.Name,
		Version:    i.Version,
		Language:   i.Language,
		Started:    i.Started,
		Transports: i.Transports,
		EchoIP:     h.app.echoIP(),
	}
}

// echoIP returns the services outside that tell how this host is seen.
func (a *App) echoIP() []string {
	self, _, err := a.tree.self.Get()
	if err != nil {
		return nil
	}
	return self.EchoIP
}

// SetEchoIP implements server.Host.
func (h hostControl) SetEchoIP(ctx context.Context, urls []string) error {
	return h.saveRecord(ctx, func(self *hostRecord) { self.EchoIP = urls })
}

// Bindings implements server.Host.
func (h hostControl) Bindings() (all []server.Binding) {
	a := h.app
	t := a.cfg.Listen.HTTP.TLS.ACME
	for _, l := range a.listeners {
		b := server.Binding{Kind: l.Kind, Address: l.Address, Bind: l.bind}
		if l.Kind == HTTPS && len(t.Domains) > 0 {
			b.Names, b.ACME = t.Domains, cmp.Or(t.Directory, "Let's Encrypt")
		}
		all = append(all, b)
	}
	return all
}

// Rules implements server.Host.
func (h hostControl) Rules(who tool.Caller) bool { return h.app.rules(who) }

// SetName implements server.Host.
func (h hostControl) SetName(ctx context.Context, name string) error {
	return h.saveRecord(ctx, func(self *hostRecord) { self.Name = name })
}

// SetLanguage implements server.Host.
func (h hostControl) SetLanguage(ctx context.Context, language string) error {
	return h.saveRecord(ctx, func(self *hostRecord) { self.Language = language })
}

func (h hostControl) saveRecord(ctx context.Context, f func(*hostRecord)) error {
	t := h.app.tree
	if _, err := t.self.Update(ctx, state.Any, func(self *hostRecord) error {
		f(self)
		return nil
	}); err != nil {
		return err
	}
	return t.recall(ctx)
}

// Stop implements server.Host. The host ends when the answer has been sent.
func (h hostControl) Stop(again bool) (how string, err error) {
	a := h.app
	how = "the host ends; the program that started it can restart it"
	if again {
		if how = a.opts.Again; how == "" {
			return "", &tool.Refusal{
				Code:    tool.CodeUnsupported,
				Message: "this host cannot restart itself",
				Next:    "Only the program that started it can: end the host with server_shutdown, and start it there.",
			}
		}
	}
	a.leaving.once.Do(func() {
		a.leaving.again = again
		status := "stopping"
		if again {
			status = "restarting"
		}
		a.log.Info("the host was asked to end", "again", again)
		a.tree.status(status)
		time.AfterFunc(leaveAfter, func() { close(a.leaving.asked) })
	})
	return how, nil
}

// recall writes the stored record of this host to the tree.
func (l *liveTree) recall(ctx context.Context) error {
	self, _, err := l.self.Get()
	if err != nil {
		return err
	}
	_, err = l.info.Update(ctx, state.Any, func(i *serverInfo) error {
		if i.Name = self.Name; i.Name == "" {
			i.Name = introduce(l.app.opts.Info).Name
		}
		i.Language = self.Language
		i.Unread, err = l.notices.Unread() // read inside the change, so that the last writer has the newest count
		return err
	})
	return err
}

// recalling follows changes that other hosts of the same data folder make to the record.
func (l *liveTree) recalling(ctx context.Context) error {
	sub, _, err := l.state.Subscribe(state.Pointer{"private"}, "")
	if err != nil {
		return err
	}
	defer sub.Close()
	for {
		if err := l.recall(ctx); err != nil && ctx.Err() == nil {
			l.app.log.Warn("the public tree is older than the record of this host", "err", err)
		}
		if _, err := sub.Next(ctx); err != nil {
			return nil // the host stops
		}
	}
}

// sample measures the machine until ctx is done.
func (l *liveTree) sample(ctx context.Context, m *server.Meter) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		s, err := m.Measure(ctx)
		if err == nil {
			_, err = l.info.Update(ctx, state.Any, func(i *serverInfo) error {
				i.Metrics = &s
				return nil
			})
		}
		if err != nil && ctx.Err() == nil {
			l.app.log.Warn("what was measured of the machine is not shown", "err", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

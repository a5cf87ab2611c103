package app

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"sync"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/files/index"
	"gatehouse/internal/modules/auth"
	"gatehouse/internal/modules/brain"
	"gatehouse/internal/modules/db"
	"gatehouse/internal/modules/file"
	"gatehouse/internal/modules/network"
	"gatehouse/internal/modules/pubkey"
	"gatehouse/internal/modules/rag"
	"gatehouse/internal/modules/standard"
)

// moduleDeps returns what the modules of the binary depend on. Each function
// runs when its module is built, after the subsystems of the host.
func (a *App) moduleDeps() standard.Deps {
	texts := sync.OnceValue(a.openIndex) // rag and brain share it
	return standard.Deps{
		File:         a.fileDeps,
		Metrics:      a.metricsDeps,
		Process:      a.processDeps,
		WebSocket:    a.webSocketDeps,
		Server:       a.serverDeps,
		Update:       a.updateDeps,
		Backup:       a.backupDeps,
		Network:      a.networkDeps,
		Notification: a.notificationDeps,
		DB:           a.dbDeps,
		Auth:         func() (auth.Config, error) { return auth.Config{Service: logins{a}}, nil },
		PublicKey:    a.publicKeyDeps,
		SMTP:         a.smtpDeps,
		Packages:     a.packageDeps,
		Sandbox:      a.sandboxDeps,
		Shell:        a.shellDeps,
		RAG:          func() (rag.Config, error) { return rag.Config{Store: texts()}, nil },
		Brain:        func() (brain.Config, error) { return brain.Config{Store: texts()}, nil },
	}
}

func (a *App) fileDeps() (c file.Config, err error) {
	c.Settings = a.cfg.Modules.File
	if cache, err := os.UserCacheDir(); err == nil { // without one, removed folders cannot be restored
		c.Trash = filepath.Join(cache, "gatehouse", "trash")
	}
	return c, nil
}

// openIndex opens the store of collections and facts. The file is created by the first change.
func (a *App) openIndex() *index.Store {
	path := ""
	if !a.opts.Private {
		path = filepath.Join(a.cfg.Folders.State, "index.db")
	}
	store := index.Open(path, index.Options{})
	a.closing("index", func(context.Context) error { return store.Close() })
	return store
}

func (a *App) networkDeps() (c network.Config, err error) {
	c.Rules, c.Claim = a.rules, claims("forwards", network.MaxForwards)
	t := a.cfg.Listen.HTTP.TLS
	if !a.cfg.Listen.HTTP.Open || !t.On || len(t.ACME.Domains) == 0 {
		return c, nil
	}
	from := a.authority(t)
	c.ACME = func() network.ACME {
		out := network.ACME{
			Directory: cmp.Or(from.Directory, "Let's Encrypt"),
			Email:     from.Email,
			Domains:   from.Domains,
		}
		for _, k := range from.StoredCertificates() {
			out.Certificates = append(out.Certificates, network.Certificate(k))
		}
		return out
	}
	return c, nil
}

func (a *App) dbDeps() (db.Config, error) {
	return db.Config{Tree: a.tree.state, See: a.tree.sight.See, SeesAll: seesEverything, Rules: a.rules}, nil
}

// publicKeyDeps returns no key on a private host, which would have to store it.
func (a *App) publicKeyDeps() (c pubkey.Config, err error) {
	if !a.opts.Private && a.cfg.Folders.Config != "" {
		c.Recipient = secret.In(a.cfg.Folders.Config, a.cfg.Secrets.KeyFile).Recipient
	}
	return c, nil
}

package app

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"gatehouse/internal/dispatch/toolsearch"
	"gatehouse/internal/files/embed"
	"gatehouse/internal/files/index"
	"gatehouse/internal/files/vectorstore"
	"gatehouse/internal/modules/auth"
	"gatehouse/internal/modules/brain"
	"gatehouse/internal/modules/db"
	"gatehouse/internal/modules/file"
	"gatehouse/internal/modules/ide"
	"gatehouse/internal/modules/lsp"
	"gatehouse/internal/modules/network"
	"gatehouse/internal/modules/pubkey"
	"gatehouse/internal/modules/rag"
	"gatehouse/internal/modules/standard"
	"gatehouse/internal/modules/system"
	"gatehouse/tool"
)

// moduleDeps returns what the modules of the binary depend on. Each function
// runs when its module is built, after the subsystems of the host.
func (a *App) moduleDeps() standard.Deps {
	texts := sync.OnceValues(a.openIndex) // rag, brain and ide share it
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
		Code:         a.codeDeps,
		Shell:        a.shellDeps,
		RAG:          func() (c rag.Config, err error) { c.Store, err = texts(); return c, err },
		Build:        a.buildDeps,
		IDE:          func() (ide.Config, error) { return a.ideDeps(texts) },
		LSP:          func() (lsp.Config, error) { return lsp.Config{Settings: a.cfg.Modules.LSP}, nil },
		System:       a.systemDeps,
		Brain:        func() (c brain.Config, err error) { c.Store, err = texts(); return c, err },
		ML:           a.modelDeps,
		WebView:      a.webViewDeps,
	}
}

func (a *App) fileDeps() (c file.Config, err error) {
	c.Settings = a.cfg.Modules.File
	if cache, err := os.UserCacheDir(); err == nil { // without one, removed folders cannot be restored
		c.Trash = filepath.Join(cache, "gatehouse", "trash")
	}
	if !a.opts.Private {
		c.Journal = filepath.Join(a.cfg.Folders.State, "changes")
	}
	c.Unsaved = func(ctx context.Context, call *tool.Call, path string) (text *string, from string, known bool) {
		if unsaved := a.tree.unsaved.Load(); unsaved != nil {
			return (*unsaved)(ctx, call, path)
		}
		return nil, "", false
	}
	return c, nil
}

// openIndex opens the store of collections and facts. The file is created by the first change.
func (a *App) openIndex() (*index.Store, error) {
	path := ""
	if !a.opts.Private {
		path = filepath.Join(a.cfg.Folders.State, "index.db")
	}
	model, err := a.embedder()
	if err != nil {
		return nil, err
	}
	var o index.Options
	if model != nil {
		o.Embedder = model
	}
	if server := vectorstore.New(a.cfg.Modules.RAG.Store, a.fillSecrets()); server != nil {
		o.Vectors = server
		a.closing("store of vectors", func(context.Context) error { return server.Close() })
	}
	if r := embed.NewReranker(a.cfg.Modules.RAG.Reranker, a.fillSecrets()); r != nil {
		o.Reranker = r
	}
	store := index.Open(path, o)
	a.closing("index", func(context.Context) error { return store.Close() })
	return store, nil
}

// openEmbedder opens the model of the settings; nil means that they have none.
func (a *App) openEmbedder() (embed.Embedder, error) {
	model, err := embed.New(a.cfg.Modules.RAG.Embedder, a.fillSecrets())
	if err != nil {
		return nil, fmt.Errorf("modules.rag.embedder: %w", err)
	}
	return model, nil
}

// toolModel returns the model that tools are searched with, or nil.
func (a *App) toolModel() *toolsearch.Model {
	if a.cfg.Modules.RAG.Embedder.Kind == "" {
		return nil
	}
	o := toolsearch.ModelOptions{
		Open: func() (toolsearch.Embedder, error) { return a.embedder() }, Log: a.log,
	}
	if cache := a.cfg.Folders.Cache; cache != "" && !a.opts.Private {
		o.Path = filepath.Join(cache, "tool-vectors")
	}
	m := toolsearch.NewModel(o)
	a.closing("tool search", func(context.Context) error { m.Close(); return nil })
	return m
}

func (a *App) networkDeps() (c network.Config, err error) {
	c.Rules, c.Claim = a.rules, claims("forwards", network.MaxForwards)
	c.EchoIP = a.echoIP
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

func (a *App) systemDeps() (c system.Config, err error) {
	c.Rules = a.rules
	if dir := a.cfg.Folders.Config; dir != "" && !a.opts.Private {
		c.Secrets = a.secretStore()
		c.Folder = filepath.Join(a.cfg.Folders.State, "system")
	}
	return c, nil
}

func (a *App) dbDeps() (db.Config, error) {
	return db.Config{Tree: a.tree.state, See: a.tree.sight.See, SeesAll: seesEverything, Rules: a.rules}, nil
}

// publicKeyDeps returns no key on a private host, which would have to store it.
func (a *App) publicKeyDeps() (c pubkey.Config, err error) {
	if !a.opts.Private && a.cfg.Folders.Config != "" {
		c.Recipient = a.secretStore().Recipient
	}
	return c, nil
}

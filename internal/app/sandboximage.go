package app

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/modules/sandbox"
	"gatehouse/internal/sandbox/image"
	"gatehouse/internal/sandbox/manager"
)

// sandboxImages opens the store of images, if the settings name an image or a registry. If its folder cannot be
// opened, templates with images are left out, and a caller who asks for one receives the reason.
func (a *App) sandboxImages(c *sandbox.Config) {
	s := a.cfg.Modules.Sandbox
	named := slices.ContainsFunc(s.Templates, func(t manager.TemplateSettings) bool { return t.Image != "" })
	if !named && len(s.Registries) == 0 {
		return
	}
	for _, t := range s.Templates {
		if _, err := image.ParseRef(t.Image); t.Image != "" && err != nil {
			a.log.Warn("sandboxes of a template cannot be made", "template", t.Name, "err", err)
		}
	}
	store, err := image.New(image.Options{
		Folder: filepath.Join(
			a.cfg.Folders.Cache,
			"images",
		), Registries: s.Registries, Logins: a.registryLogins(), TotalBytes: s.ImageBytes, Log: a.log,
	})
	if err != nil {
		a.log.Warn("there are no images for sandboxes", "err", err)
		c.Image = func(context.Context, string, func(done, total int64)) (*sandbox.Image, func(), error) {
			return nil, nil, err
		}
		return
	}
	a.closing("images of sandboxes", func(context.Context) error { return store.Close() })
	c.Image = store.Get
	if s.CallersImages {
		c.MayImage = image.CheckCallersRef
	}
}

// registryLogins returns the logins for registries. A login whose secret is missing is left out.
func (a *App) registryLogins() map[string]image.Login {
	all := map[string]image.Login{}
	for _, l := range a.cfg.Modules.Sandbox.Logins {
		err := errors.New("this host keeps no secrets")
		var password secret.Text
		if a.cfg.Folders.Config != "" {
			password, err = secret.In(a.cfg.Folders.Config, a.cfg.Secrets.KeyFile).Get(l.Secret)
		}
		if err != nil {
			a.log.Warn(
				"images are pulled without logging in",
				"registry",
				l.Host,
				"err",
				fmt.Errorf("the secret %s: %w", l.Secret, err),
			)
			continue
		}
		all[l.Host] = image.Login{User: l.User, Password: password}
	}
	return all
}

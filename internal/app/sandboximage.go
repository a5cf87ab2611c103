package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/modules/sandbox"
	"gatehouse/internal/packages/attest"
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
			password, err = a.secretStore().Get(l.Secret)
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

// packageImages returns how images of packages are pulled: from registries of the settings also without TLS or in
// private networks.
func (a *App) packageImages() image.PullOptions {
	return image.PullOptions{Registries: a.cfg.Modules.Sandbox.Registries, Logins: a.registryLogins()}
}

// trustedRootFile, in the folder of the settings, replaces the authorities of attestations that this program has.
const trustedRootFile = "trusted_root.json"

// trustedRoot returns the authorities of attestations.
func (a *App) trustedRoot() (*attest.Root, error) {
	if a.cfg.Folders.Config == "" {
		return attest.BuiltIn()
	}
	path := filepath.Join(a.cfg.Folders.Config, trustedRootFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return attest.BuiltIn()
	}
	if err != nil {
		return nil, err
	}
	root, err := attest.ParseRoot(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return root, nil
}

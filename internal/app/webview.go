package app

import (
	"cmp"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/modules/webview"
	"gatehouse/tool"
)

func (a *App) webViewDeps() (webview.Config, error) {
	s := a.cfg.Modules.WebView
	c := webview.Config{
		Settings: s, Secret: a.pageSecret, Claim: claims("browsers", cmp.Or(s.Total, webview.DefaultTotal)),
	}
	if a.nodes != nil {
		c.Named = a.nodes.browsers.claim
	}
	return c, nil
}

// pageSecret returns a secret of the store if a variable of the caller's context refers to it and to no other.
func (a *App) pageSecret(who tool.Caller, name string) (secret.Text, bool, error) {
	for variable, value := range a.contexts.Variables(who.Context) {
		of, err := secret.Names(value)
		if err != nil || len(of) != 1 || of[0] != name {
			continue
		}
		env, err := a.contexts.Environment(who)
		if err != nil {
			return secret.Text{}, false, err
		}
		if text, ok := env.Secret[variable]; ok {
			return text, true, nil
		}
	}
	return secret.Text{}, false, nil
}

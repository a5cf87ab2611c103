package packages

import (
	"context"

	"gatehouse/internal/packages"
	"gatehouse/tool"
)

const loginHelp = `Call it with redirect, an address http://127.0.0.1:PORT/PATH at which the caller listens. It returns the address at which
the user approves. Then call it again with redirected: the whole address to which the browser was sent back. A login has to
be finished within 10 minutes, by the caller that began it.

A login is for all callers, and only administrators may make it, unless the package has login principal. Tokens are kept
encrypted beside the secret store of this host; they are in no result. gatehouse package login NAME does all of this.`

type loginIn struct {
	ID         string `json:"id" min:"1" max:"32"`
	Redirect   string `json:"redirect,omitempty" doc:"where the browser is sent back to: http://127.0.0.1:PORT/PATH" max:"200"`
	Redirected string `json:"redirected,omitempty" doc:"the address to which the browser was sent back" max:"16384" format:"password"`
}

type loginOut struct {
	URL      string   `json:"url,omitempty" doc:"where the user approves"`
	Redirect string   `json:"redirect,omitempty" doc:"where the browser is sent back to, which a setting of the package may have changed"`
	Issuer   string   `json:"issuer,omitempty"`
	Scopes   []string `json:"scopes,omitempty"`
	Done     bool     `json:"done" doc:"the login is finished"`
}

// packagesForLogin returns the packages if a caller may log in at one of them.
func (k *manager) packagesForLogin(c *tool.Call, id string) (*packages.Manager, error) {
	if m := k.cfg.Packages; m != nil && m.EachLogsIn(id) {
		return m, nil
	}
	return k.cfg.Packages, k.checkOperator(c)
}

func (k *manager) login(ctx context.Context, c *tool.Call, in loginIn) (loginOut, error) {
	m, err := k.packagesForLogin(c, in.ID)
	if err != nil {
		return loginOut{}, err
	}
	if in.Redirected != "" {
		if err := m.FinishLogin(ctx, in.ID, &c.Caller, in.Redirected); err != nil {
			return loginOut{}, err
		}
		k.publish("logged_in", in.ID, c)
		return loginOut{Done: true}, nil
	}
	l, err := m.BeginLogin(ctx, in.ID, &c.Caller, in.Redirect)
	if err != nil {
		return loginOut{}, err
	}
	return loginOut{URL: l.URL, Redirect: l.Redirect, Issuer: l.Issuer, Scopes: l.Scopes}, nil
}

type logoutOut struct {
	Was bool `json:"was" doc:"there was a login"`
}

func (k *manager) logout(_ context.Context, c *tool.Call, in idIn) (logoutOut, error) {
	m, err := k.packagesForLogin(c, in.ID)
	if err != nil {
		return logoutOut{}, err
	}
	was, err := m.Logout(in.ID, &c.Caller)
	if err == nil && was {
		k.publish("logged_out", in.ID, c)
	}
	return logoutOut{was}, err
}

package packages

import (
	"context"
	"fmt"
	"strings"

	"gatehouse/internal/access/confirm"
	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/packages"
	"gatehouse/tool"
)

type grantIn struct {
	ID          string          `json:"id" min:"1" max:"32"`
	Add         packages.Grants `json:"add,omitzero" doc:"what it may use from now on"`
	Remove      packages.Grants `json:"remove,omitzero" doc:"what it may use no longer; a limit that is named here becomes the default again"`
	Confinement string          `json:"confinement,omitempty" doc:"sandbox, or trusted: the rights of this host's user, in no sandbox" enum:"sandbox,trusted"`
	Confirm     string          `json:"confirm,omitempty" doc:"the id, once the user has agreed; needs the setting approvals.callers_word" max:"32"`
}

// grant changes what a package may use. Taking something away is not asked about.
func (k *manager) grant(ctx context.Context, c *tool.Call, in grantIn) (grantOut, error) {
	if err := k.checkOperator(c); err != nil {
		return grantOut{}, err
	}
	change := packages.Regrant{Add: in.Add, Remove: in.Remove, Confinement: in.Confinement}
	was, now, err := k.cfg.Packages.Change(in.ID, change)
	if err != nil {
		return grantOut{}, err
	}
	widens := !in.Add.IsZero() || now.Confinement == packages.Trusted && was.Confinement == packages.Sandboxed
	if widens {
		question := fmt.Sprintf("Change what the package %s may use? From then on: %s", in.ID,
			displaytext.Cut(strings.Join(now.Lines(), " "), 2000, "..."))
		if err := confirm.Ask(c, in.ID, question, in.Confirm); err != nil {
			return grantOut{}, err
		}
	}
	i, err := k.cfg.Packages.Grant(ctx, in.ID, change)
	if err != nil {
		return grantOut{}, withServerOutput(err)
	}
	if was.Confinement != now.Confinement || !in.Add.IsZero() || !in.Remove.IsZero() {
		k.publish("granted", in.ID, c)
	}
	return grantsOf(i), nil
}

// grantOut says what a package may use.
type grantOut struct {
	Confinement string          `json:"confinement" doc:"sandbox; trusted: as this host's user; unconfined: as trusted, installed before there was a choice; remote"`
	Grants      packages.Grants `json:"grants,omitzero"`
	May         []string        `json:"may" doc:"the same in words"`
}

func grantsOf(i packages.Info) grantOut {
	return grantOut{i.ShownConfinement(), i.Grants, i.Lines()}
}

package app

import (
	"context"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/modules/smtp"
)

// smtpDeps makes the sender of this host's mail.
func (a *App) smtpDeps() (smtp.Config, error) {
	o := smtp.Options{Mount: a.tree.mail, Secrets: &smtp.Memory{}, Name: steward{a}.name, Since: a.toldSince, Newest: a.toldLast, Log: a.log}
	if dir := a.cfg.Folders.Config; dir != "" && !a.opts.Private {
		o.Secrets = secret.In(dir, a.cfg.Secrets.KeyFile)
	}
	a.office = smtp.NewOffice(o)
	a.startNotices()
	a.room(Part{"mail", func(ctx context.Context) error {
		a.office.Run(ctx)
		return nil
	}})
	return smtp.Config{Office: a.office, Rules: a.rules}, nil
}

func (s steward) name() string { return s.About().Name }

// toldSince are notifications as the office mails them.
func (a *App) toldSince(id int64) (all []smtp.News) {
	notes, err := a.tree.shelf.Since(id)
	if err != nil {
		a.log.Warn("notifications cannot be read to be mailed", "err", err)
	}
	for _, n := range notes {
		all = append(all, smtp.News{ID: n.ID, At: n.CreatedAt, Level: string(n.Level), Title: n.Title, Message: n.Message})
	}
	return all
}

func (a *App) toldLast() int64 {
	id, err := a.tree.shelf.Newest()
	if err != nil {
		a.log.Warn("notifications cannot be read to be mailed", "err", err)
	}
	return id
}

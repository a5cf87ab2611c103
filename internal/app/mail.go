package app

import (
	"context"

	"gatehouse/internal/modules/smtp"
)

// smtpDeps returns the configuration of the module, with the Mailer of this host.
func (a *App) smtpDeps() (smtp.Config, error) {
	o := smtp.Options{
		Mount:   a.tree.mail,
		Secrets: &smtp.Memory{},
		Name:    hostControl{a}.hostName,
		Since:   a.notificationsSince,
		Newest:  a.newestNotification,
		Log:     a.log,
	}
	if dir := a.cfg.Folders.Config; dir != "" && !a.opts.Private {
		o.Secrets = a.secretStore()
	}
	a.mailer = smtp.NewMailer(o)
	a.startNotices()
	a.addPart("mail", func(ctx context.Context) error {
		a.mailer.Run(ctx)
		return nil
	})
	return smtp.Config{Mailer: a.mailer, Rules: a.rules}, nil
}

func (h hostControl) hostName() string { return h.About().Name }

// notificationsSince returns the notifications after an id in the form that the Mailer accepts.
func (a *App) notificationsSince(id int64) (all []smtp.Notification) {
	notes, err := a.tree.notices.Since(id)
	if err != nil {
		a.log.Warn("read notifications to mail them", "err", err)
	}
	for _, n := range notes {
		all = append(
			all,
			smtp.Notification{ID: n.ID, At: n.CreatedAt, Level: string(n.Level), Title: n.Title, Message: n.Message},
		)
	}
	return all
}

func (a *App) newestNotification() int64 {
	id, err := a.tree.notices.Newest()
	if err != nil {
		a.log.Warn("read notifications to mail them", "err", err)
	}
	return id
}

package smtp

import (
	"context"
	"fmt"
	"strings"
	"time"

	"gatehouse/internal/state"
)

const (
	maxAge      = 24 * time.Hour  // of a notification that is mailed
	maxListed   = 50              // notifications in one mail
	pollEvery   = time.Minute     // for notifications that other hosts published
	releaseWait = 5 * time.Second // to give a claim back after ctx is done
)

// pause returns how long to wait before a retry.
func pause(try int) time.Duration { return min(time.Minute<<min(try, 10), time.Hour) }

// Wake tells Run that there may be a new notification. It does not block.
func (m *Mailer) Wake() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Run mails notifications until ctx is done. If several hosts share the settings,
// one of them mails each notification. If that host is killed while it does, the
// mail may be lost; the notification is not.
func (m *Mailer) Run(ctx context.Context) {
	look := time.NewTicker(pollEvery)
	defer look.Stop()
	try := 0
	for {
		var again <-chan time.Time
		switch err := m.mail(ctx); {
		case ctx.Err() != nil:
			return
		case err != nil:
			m.setError(err)
			m.o.Log.Warn("notifications could not be mailed; the mailer will retry", "err", err)
			again = time.After(m.o.Pause(try))
			try++
		default:
			try = 0
		}
		select {
		case <-m.wake:
		case <-again:
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}

// mail sends the notifications since the last mail as one mail.
func (m *Mailer) mail(ctx context.Context) error {
	s, password, err := m.account()
	if err != nil || s == nil || len(s.To) == 0 {
		return err
	}
	k, _, err := m.o.Mount.Get()
	if err != nil {
		return err
	}
	all := m.o.Since(k.Mailed)
	if len(all) == 0 {
		return nil
	}
	last := all[len(all)-1].ID
	if mine, err := m.claim(ctx, k.Mailed, last); err != nil || !mine {
		return err
	}
	var due []Notification
	for _, n := range all {
		if s.mails(n.Level) && time.Since(n.At) < maxAge {
			due = append(due, n)
		}
	}
	if len(due) == 0 {
		return nil
	}
	refused, err := m.sendLetter(ctx, s, password, digest(m.hostName(), s.To, due))
	if err != nil {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWait)
		defer cancel()
		_, release := m.claim(late, last, k.Mailed)
		if release != nil {
			m.o.Log.Error("notifications could not be returned to be mailed again", "err", release)
		}
		return err
	}
	m.setError(refused)
	if refused != nil {
		m.o.Log.Warn("the server refused some recipients of notifications", "err", refused)
	}
	return nil
}

// claim marks the notifications up to an id as mailed. mine is false if another
// host has changed the mark since it was from.
func (m *Mailer) claim(ctx context.Context, from, to int64) (mine bool, err error) {
	_, err = m.o.Mount.Update(ctx, state.Any, func(k *Kept) error {
		if mine = k.Mailed == from; mine {
			k.Mailed = to
		}
		return nil
	})
	return mine, err
}

// digest returns the mail for some notifications.
func digest(host string, to []string, all []Notification) message {
	l := message{to: to, subject: "[" + host + "] " + all[0].Title}
	if more := len(all) - 1; more > 0 {
		l.subject += fmt.Sprintf(" (and %d more)", more)
	}
	var b strings.Builder
	for _, n := range all[:min(len(all), maxListed)] {
		fmt.Fprintf(&b, "%s (%s, %s)\n", oneLine(n.Title), n.Level, n.At.UTC().Format("2006-01-02 15:04 MST"))
		if n.Message != "" {
			b.WriteString(n.Message + "\n")
		}
		b.WriteString("\n")
	}
	if more := len(all) - maxListed; more > 0 {
		fmt.Fprintf(&b, "There are %d more notifications; notification_list shows them.\n\n", more)
	}
	fmt.Fprintf(&b, "-- \nThe host %s sends you this because your address is set with smtp_set.\n", host)
	l.text = b.String()
	return l
}

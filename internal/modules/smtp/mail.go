package smtp

import (
	"context"
	"fmt"
	"strings"
	"time"

	"gatehouse/internal/state"
)

const (
	mailFor   = 24 * time.Hour // from when news were told
	mailMost  = 50             // news in one mail
	mailLook  = time.Minute    // for what other hosts have told
	afterwork = 5 * time.Second
)

// pause is how long to wait before the next try.
func pause(try int) time.Duration { return min(time.Minute<<min(try, 10), time.Hour) }

// Wake says that something was told. It never blocks.
func (o *Office) Wake() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// Run mails what is told, until ctx is done. Of several hosts that share the
// settings one mails each notification; one that dies while it does may take
// the mail along, not the notification.
func (o *Office) Run(ctx context.Context) {
	look := time.NewTicker(mailLook)
	defer look.Stop()
	try := 0
	for {
		var again <-chan time.Time
		switch err := o.mail(ctx); {
		case ctx.Err() != nil:
			return
		case err != nil:
			o.failed(err)
			o.o.Log.Warn("notifications could not be mailed; they are tried again", "err", err)
			again = time.After(o.o.Pause(try))
			try++
		default:
			try = 0
		}
		select {
		case <-o.wake:
		case <-again:
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}

// mail sends what has been told since the last mail, as one.
func (o *Office) mail(ctx context.Context) error {
	s, password, err := o.whole()
	if err != nil || s == nil || len(s.To) == 0 {
		return err
	}
	k, _, err := o.o.Mount.Get()
	if err != nil {
		return err
	}
	all := o.o.Since(k.Mailed)
	if len(all) == 0 {
		return nil
	}
	last := all[len(all)-1].ID
	if mine, err := o.claim(ctx, k.Mailed, last); err != nil || !mine {
		return err
	}
	var due []News
	for _, n := range all {
		if s.matters(n.Level) && time.Since(n.At) < mailFor {
			due = append(due, n)
		}
	}
	if len(due) == 0 {
		return nil
	}
	refused, err := o.send(ctx, s, password, digest(o.name(), s.To, due))
	if err != nil {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterwork)
		defer cancel()
		_, giveBack := o.claim(late, last, k.Mailed)
		if giveBack != nil {
			o.o.Log.Error("notifications are not mailed", "err", giveBack)
		}
		return err
	}
	o.failed(refused)
	if refused != nil {
		o.o.Log.Warn("some do not get the mail of notifications", "err", refused)
	}
	return nil
}

// claim says that news up to one are dealt with, unless somebody else has.
func (o *Office) claim(ctx context.Context, from, to int64) (mine bool, err error) {
	_, err = o.o.Mount.Update(ctx, state.Any, func(k *Kept) error {
		if mine = k.Mailed == from; mine {
			k.Mailed = to
		}
		return nil
	})
	return mine, err
}

// digest is the mail that tells news.
func digest(host string, to []string, news []News) letter {
	l := letter{to: to, subject: "[" + host + "] " + news[0].Title}
	if more := len(news) - 1; more > 0 {
		l.subject += fmt.Sprintf(" (and %d more)", more)
	}
	var b strings.Builder
	for _, n := range news[:min(len(news), mailMost)] {
		fmt.Fprintf(&b, "%s (%s, %s)\n", oneLine(n.Title), n.Level, n.At.UTC().Format("2006-01-02 15:04 MST"))
		if n.Message != "" {
			b.WriteString(n.Message + "\n")
		}
		b.WriteString("\n")
	}
	if more := len(news) - mailMost; more > 0 {
		fmt.Fprintf(&b, "There are %d more; notification_list shows them.\n\n", more)
	}
	fmt.Fprintf(&b, "-- \nThe host %s mails you notifications because smtp_set says so.\n", host)
	l.text = b.String()
	return l
}

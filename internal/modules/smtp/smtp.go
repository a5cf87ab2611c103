// Package smtp is the module with which those who rule a host say by which mail
// server it writes to people, and the post office that mails them notifications.
package smtp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/mail"
	"slices"
	"strings"

	"gatehouse/internal/access/operator"
	"gatehouse/internal/access/secret"
	"gatehouse/module"
	"gatehouse/tool"
)

// Config is what the module is given.
type Config struct {
	// Office sends mail and belongs to whoever gave it; nil means one of the
	// module's own, which forgets everything with it.
	Office *Office       `json:"-"`
	Rules  operator.Func `json:"-"` // who may do what is everybody's matter; nil: nobody
}

type desk struct {
	cfg   Config
	offer module.Offer
}

// New makes the module.
func New(cfg Config) module.New {
	return func(ctx context.Context, deps module.Deps) (module.Module, error) {
		d := &desk{}
		d.cfg = cfg
		if d.cfg.Office == nil {
			var err error
			if d.cfg.Office, err = forgetful(ctx); err != nil {
				return nil, err
			}
		}
		d.offer.Tools = d.tools()
		return d, nil
	}
}

// Offer implements module.Module.
func (d *desk) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &d.offer, nil
}

// Close implements module.Module; the office is its owner's.
func (d *desk) Close(context.Context) error { return nil }

const help = `For those who rule this host. The password is kept as a secret of the host, encrypted, and is shown to nobody.

- security is starttls, which begins in the clear and goes on encrypted, or tls from the start; the server's certificate has to be good. none is for a server on this machine.
- to are those who are mailed notifications of at least a level; without them nobody is. Only what is told from then on is mailed. A mail that cannot be sent is tried again for a day.`

func (d *desk) tools() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "smtp_info", Title: "Show the mail server", Effects: tool.Reads, Task: tool.TaskNever,
			Description: "Shows by which mail server this host writes, to whom, and whether it works. Never the password.",
			Help:        help,
		}, d.info),
		tool.New(tool.Def{
			Name: "smtp_set", Title: "Set the mail server", Effects: tool.Writes | tool.Destroys | tool.Idempotent, Task: tool.TaskNever, Aliases: []string{"server.set-smtp"},
			Description: "Says by which mail server this host writes, and who is mailed its notifications.",
			Help:        help + "\n\nWithout a password the one that is kept stays, as long as host and username do.",
		}, d.set),
		tool.New(tool.Def{
			Name: "smtp_test", Title: "Send a test mail", Effects: tool.Writes | tool.OpenWorld, Task: tool.TaskNever, Aliases: []string{"server.test-smtp"},
			Description: "Sends a test mail, by the mail server that is set or by one that is given here, which is not kept.",
			Help:        help,
		}, d.test),
		tool.New(tool.Def{
			Name: "smtp_clear", Title: "Forget the mail server", Effects: tool.Writes | tool.Destroys | tool.Idempotent, Task: tool.TaskNever, Aliases: []string{"server.clear-smtp"},
			Description: "Forgets the mail server and its password. Nobody is mailed any more.",
			Help:        help,
		}, d.clear),
	}
}

func (d *desk) check(c *tool.Call) error {
	return d.cfg.Rules.Check(c, "say how it writes to people")
}

type server struct {
	Host     string `json:"host,omitempty" doc:"of the mail server" max:"255"`
	Port     int    `json:"port,omitempty" doc:"587 is usual for starttls, 465 for tls" min:"1" max:"65535"`
	From     string `json:"from,omitempty" doc:"address of the sender" max:"320"`
	Username string `json:"username,omitempty" max:"320"`
	Password string `json:"password,omitempty" max:"1024"`
	Security string `json:"security,omitempty" default:"starttls" enum:"starttls,tls,none"`
}

type setIn struct {
	server
	To    []string `json:"to,omitempty" doc:"addresses that are mailed notifications, 20 at most"`
	Level string   `json:"level,omitempty" doc:"of notifications that are mailed, at least" default:"warning" enum:"info,warning,error"`
}

type infoOut struct {
	Configured  bool     `json:"configured"`
	Host        string   `json:"host,omitempty"`
	Port        int      `json:"port,omitempty"`
	From        string   `json:"from,omitempty"`
	Username    string   `json:"username,omitempty"`
	HasPassword bool     `json:"hasPassword,omitempty"`
	Security    string   `json:"security,omitempty"`
	To          []string `json:"to,omitempty"`
	Level       string   `json:"level,omitempty"`
	Error       string   `json:"error,omitempty" doc:"why the last mail of a notification could not be sent"`
}

func (d *desk) info(_ context.Context, c *tool.Call, _ struct{}) (infoOut, error) {
	if err := d.check(c); err != nil {
		return infoOut{}, err
	}
	return d.shown()
}

func (d *desk) shown() (infoOut, error) {
	s, err := d.cfg.Office.settings()
	if err != nil || s == nil {
		return infoOut{}, err
	}
	return infoOut{true, s.Host, s.Port, s.From, s.Username, s.HasPassword, s.Security, s.To, s.Level, d.cfg.Office.trouble()}, nil
}

func (d *desk) set(ctx context.Context, c *tool.Call, in setIn) (infoOut, error) {
	if err := d.check(c); err != nil {
		return infoOut{}, err
	}
	s, err := in.settings()
	if err != nil {
		return infoOut{}, err
	}
	if len(in.To) > mostTo {
		return infoOut{}, tool.Refuse("invalid_arguments", "to has %d addresses, the most is %d", len(in.To), mostTo)
	}
	for _, to := range in.To {
		if to, err = address("to", to); err != nil {
			return infoOut{}, err
		}
		if !slices.Contains(s.To, to) {
			s.To = append(s.To, to)
		}
	}
	s.Level = in.Level
	if err := d.cfg.Office.set(ctx, s, secret.New(in.Password)); err != nil {
		return infoOut{}, err
	}
	return d.shown()
}

type testIn struct {
	To string `json:"to" doc:"address" max:"320"`
	server
}

type testOut struct {
	Sent bool   `json:"sent"`
	To   string `json:"to"`
	By   string `json:"by" doc:"the mail server"`
}

func (d *desk) test(ctx context.Context, c *tool.Call, in testIn) (testOut, error) {
	if err := d.check(c); err != nil {
		return testOut{}, err
	}
	to, err := address("to", in.To)
	if err != nil {
		return testOut{}, err
	}
	var s *Settings
	password := secret.New(in.Password)
	if in.Host == "" && in.From == "" && in.Username == "" && in.Password == "" && in.Port == 0 {
		if s, password, err = d.cfg.Office.whole(); err == nil && s == nil {
			err = &tool.Refusal{Code: "not_found", Message: "no mail server is set", Next: "Give one here, or set it with smtp_set."}
		}
	} else {
		s, err = in.settings()
	}
	if err != nil {
		return testOut{}, err
	}
	name := d.cfg.Office.name()
	refused, err := d.cfg.Office.send(ctx, s, password, letter{
		to: []string{to}, subject: "[" + name + "] Test mail",
		text: "This is the mail that somebody had " + name + " send to try its mail server.\n",
	})
	if err = cmp.Or(err, refused); err != nil {
		return testOut{}, refusal(err, s)
	}
	return testOut{true, to, fmt.Sprintf("%s:%d", s.Host, s.Port)}, nil
}

type clearOut struct {
	Cleared bool `json:"cleared" doc:"false when there was nothing"`
}

func (d *desk) clear(ctx context.Context, c *tool.Call, _ struct{}) (clearOut, error) {
	if err := d.check(c); err != nil {
		return clearOut{}, err
	}
	was, err := d.cfg.Office.forget(ctx)
	return clearOut{was}, err
}

// settings checks what somebody says of a mail server.
func (in *server) settings() (*Settings, error) {
	s := &Settings{Host: strings.TrimSpace(in.Host), Port: in.Port, Username: in.Username, Security: in.Security}
	var err error
	switch {
	case s.Host == "" || s.Port == 0 || in.From == "":
		return nil, tool.Refuse("invalid_arguments", "a mail server needs host, port and from")
	case strings.ContainsAny(s.Host, " /:@[]\r\n\t") && net.ParseIP(s.Host) == nil:
		return nil, tool.Refuse("invalid_arguments", "%q is no name of a host", s.Host)
	case in.Password != "" && in.Username == "":
		return nil, tool.Refuse("invalid_arguments", "a password needs a username")
	case strings.ContainsAny(in.Username+in.Password, "\r\n\x00"):
		return nil, tool.Refuse("invalid_arguments", "username and password are one line each")
	case s.Security == "none" && !loopback(s.Host):
		return nil, &tool.Refusal{Code: "denied", Message: "mail goes to another machine encrypted, or not at all", Next: "Choose starttls or tls; none is for a server on this machine."}
	}
	s.From, err = address("from", in.From)
	return s, err
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// address is a mail address without a name: what goes into a header cannot say
// anything else there.
func address(what, text string) (string, error) {
	a, err := mail.ParseAddress(text)
	if err != nil || strings.ContainsAny(a.Address, "\r\n <>") || !ascii(a.Address) {
		return "", &tool.Refusal{Code: "invalid_arguments", Message: fmt.Sprintf("%s: %.100q is no mail address", what, text), Next: "Give it as in ann@example.com."}
	}
	return a.Address, nil
}

func ascii(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r > 126 || r < 33 })
}

// refusal says of a mail that was not sent what to do about it.
func refusal(err error, s *Settings) error {
	if _, ok := errors.AsType[*tool.Refusal](err); ok {
		return err
	}
	next := "Check host, port and security."
	if t, ok := errors.AsType[*answered](err); ok {
		next = t.next
	}
	return &tool.Refusal{Code: "failed", Message: fmt.Sprintf("%s:%d did not take the mail: %v", s.Host, s.Port, err), Next: next}
}

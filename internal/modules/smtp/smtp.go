// Package smtp is the module that lets administrators set the mail server of a
// host, and the Mailer that sends notifications by mail.
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

// Config configures the module.
type Config struct {
	// Mailer sends mail. The module does not close it. Nil means a Mailer that
	// keeps its settings in memory.
	Mailer *Mailer       `json:"-"`
	Rules  operator.Func `json:"-"` // reports whether a caller is an administrator; nil means that no caller is
}

type service struct {
	cfg   Config
	offer module.Offer
}

// New returns a constructor of the module.
func New(cfg Config) module.New {
	return func(ctx context.Context, deps module.Deps) (module.Module, error) {
		d := &service{}
		d.cfg = cfg
		if d.cfg.Mailer == nil {
			var err error
			if d.cfg.Mailer, err = inMemory(ctx); err != nil {
				return nil, err
			}
		}
		d.offer.Tools = d.definitions()
		return d, nil
	}
}

// Offer implements module.Module.
func (d *service) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &d.offer, nil
}

// Close implements module.Module. It does not close the Mailer.
func (d *service) Close(context.Context) error { return nil }

const help = `For administrators of this host. The password is stored encrypted with the secrets of the host and is never shown.

- security is starttls, which upgrades the connection to TLS, or tls, which uses TLS from the start. Both verify the server's certificate. none is allowed only for a server on this machine.
- to lists the addresses that receive notifications of at least a level; if it is empty, no notifications are mailed. Only notifications published after that are mailed. A mail that cannot be sent is retried for a day.`

func (d *service) definitions() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name:    "smtp_info",
			Title:   "Show the mail server",
			Effects: tool.Reads,
			Task:    tool.TaskNever,
			Description: "Shows the mail server of this host, who receives its notifications, and the last error. " +
				"Never shows the password.",
			Help: help,
		}, d.settingsInfo),
		tool.New(tool.Def{
			Name:        "smtp_set",
			Title:       "Set the mail server",
			Effects:     tool.Writes | tool.Destroys | tool.Idempotent,
			Task:        tool.TaskNever,
			Aliases:     []string{"server.set-smtp"},
			Description: "Sets the mail server of this host, and the addresses that receive its notifications.",
			Help: help +
				"\n\nIf password is left out, the stored one stays as long as host and username are the same.",
		}, d.setSettings),
		tool.New(tool.Def{
			Name:    "smtp_test",
			Title:   "Send a test mail",
			Effects: tool.Writes | tool.OpenWorld,
			Task:    tool.TaskNever,
			Aliases: []string{"server.test-smtp"},
			Description: "Sends a test mail with the mail server that is set, or with one given here, " +
				"which is not stored.",
			Help: help,
		}, d.test),
		tool.New(tool.Def{
			Name:        "smtp_clear",
			Title:       "Remove the mail server",
			Effects:     tool.Writes | tool.Destroys | tool.Idempotent,
			Task:        tool.TaskNever,
			Aliases:     []string{"server.clear-smtp"},
			Description: "Removes the mail server and its password. No notifications are mailed after that.",
			Help:        help,
		}, d.clear),
	}
}

func (d *service) checkCaller(c *tool.Call) error {
	return d.cfg.Rules.Check(c, "manage its mail server")
}

type server struct {
	Host     string `json:"host,omitempty" doc:"name or address of the mail server" max:"255"`
	Port     int    `json:"port,omitempty" doc:"587 is usual for starttls, 465 for tls" min:"1" max:"65535"`
	From     string `json:"from,omitempty" doc:"mail address of the sender" max:"320"`
	Username string `json:"username,omitempty" max:"320"`
	Password string `json:"password,omitempty" max:"1024"`
	Security string `json:"security,omitempty" default:"starttls" enum:"starttls,tls,none"`
}

type setIn struct {
	server
	To    []string `json:"to,omitempty" doc:"addresses that receive notifications, 20 at most"`
	Level string   `json:"level,omitempty" doc:"lowest level of notifications that are mailed" default:"warning" enum:"info,warning,error"`
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
	Error       string   `json:"error,omitempty" doc:"why the last notification could not be mailed"`
}

func (d *service) settingsInfo(_ context.Context, c *tool.Call, _ struct{}) (infoOut, error) {
	if err := d.checkCaller(c); err != nil {
		return infoOut{}, err
	}
	return d.shown()
}

func (d *service) shown() (infoOut, error) {
	s, err := d.cfg.Mailer.settings()
	if err != nil || s == nil {
		return infoOut{}, err
	}
	return infoOut{
		Configured:  true,
		Host:        s.Host,
		Port:        s.Port,
		From:        s.From,
		Username:    s.Username,
		HasPassword: s.HasPassword,
		Security:    s.Security,
		To:          s.To,
		Level:       s.Level,
		Error:       d.cfg.Mailer.lastError(),
	}, nil
}

func (d *service) setSettings(ctx context.Context, c *tool.Call, in setIn) (infoOut, error) {
	if err := d.checkCaller(c); err != nil {
		return infoOut{}, err
	}
	s, err := in.settings()
	if err != nil {
		return infoOut{}, err
	}
	if len(in.To) > maxRecipients {
		return infoOut{}, tool.Refuse(
			tool.CodeInvalidArguments,
			"to has %d addresses; the limit is %d",
			len(in.To),
			maxRecipients,
		)
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
	if err := d.cfg.Mailer.setSettings(ctx, s, secret.New(in.Password)); err != nil {
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

func (d *service) test(ctx context.Context, c *tool.Call, in testIn) (testOut, error) {
	if err := d.checkCaller(c); err != nil {
		return testOut{}, err
	}
	to, err := address("to", in.To)
	if err != nil {
		return testOut{}, err
	}
	var s *Settings
	password := secret.New(in.Password)
	if in.Host == "" && in.From == "" && in.Username == "" && in.Password == "" && in.Port == 0 {
		if s, password, err = d.cfg.Mailer.account(); err == nil && s == nil {
			err = &tool.Refusal{
				Code:    tool.CodeNotFound,
				Message: "no mail server is set",
				Next:    "Give one here, or set one with smtp_set.",
			}
		}
	} else {
		s, err = in.settings()
	}
	if err != nil {
		return testOut{}, err
	}
	name := d.cfg.Mailer.hostName()
	refused, err := d.cfg.Mailer.sendLetter(ctx, s, password, message{
		to: []string{to}, subject: "[" + name + "] Test mail",
		text: "This is a test mail from " + name + ". An administrator sent it to test the mail server.\n",
	})
	if err = cmp.Or(err, refused); err != nil {
		return testOut{}, refusal(err, s)
	}
	return testOut{true, to, fmt.Sprintf("%s:%d", s.Host, s.Port)}, nil
}

type clearOut struct {
	Cleared bool `json:"cleared" doc:"false if no mail server was set"`
}

func (d *service) clear(ctx context.Context, c *tool.Call, _ struct{}) (clearOut, error) {
	if err := d.checkCaller(c); err != nil {
		return clearOut{}, err
	}
	was, err := d.cfg.Mailer.clear(ctx)
	return clearOut{was}, err
}

// settings returns the mail server of the arguments, or a refusal if they are invalid.
func (in *server) settings() (*Settings, error) {
	s := &Settings{Host: strings.TrimSpace(in.Host), Port: in.Port, Username: in.Username, Security: in.Security}
	var err error
	switch {
	case s.Host == "" || s.Port == 0 || in.From == "":
		return nil, tool.Refuse(tool.CodeInvalidArguments, "a mail server needs host, port and from")
	case strings.ContainsAny(s.Host, " /:@[]\r\n\t") && net.ParseIP(s.Host) == nil:
		return nil, tool.Refuse(tool.CodeInvalidArguments, "host: %q is not a host name", s.Host)
	case in.Password != "" && in.Username == "":
		return nil, tool.Refuse(tool.CodeInvalidArguments, "a password needs a username")
	case strings.ContainsAny(in.Username+in.Password, "\r\n\x00"):
		return nil, tool.Refuse(tool.CodeInvalidArguments, "username and password must not contain line breaks")
	case s.Security == "none" && !loopback(s.Host):
		return nil, &tool.Refusal{
			Code:    tool.CodeDenied,
			Message: "security none is not allowed for a mail server on another machine",
			Next:    "Choose starttls or tls.",
		}
	}
	s.From, err = address("from", in.From)
	return s, err
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// address returns the mail address in text without its display name. It refuses
// characters that could add to a header.
func address(what, text string) (string, error) {
	a, err := mail.ParseAddress(text)
	if err != nil || strings.ContainsAny(a.Address, "\r\n <>") || !ascii(a.Address) {
		return "", &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: fmt.Sprintf("%s: %.100q is not a mail address", what, text),
			Next:    "Give it as in ann@example.com.",
		}
	}
	return a.Address, nil
}

func ascii(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r > 126 || r < 33 })
}

// refusal returns the error for a mail that was not sent, with what to do about it.
func refusal(err error, s *Settings) error {
	if _, ok := errors.AsType[*tool.Refusal](err); ok {
		return err
	}
	next := "Check host, port and security."
	if t, ok := errors.AsType[*refusedStep](err); ok {
		next = t.next
	}
	return &tool.Refusal{
		Code:    tool.CodeFailed,
		Message: fmt.Sprintf("%s:%d did not accept the mail: %v", s.Host, s.Port, err),
		Next:    next,
	}
}

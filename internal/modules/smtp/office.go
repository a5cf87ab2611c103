package smtp

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/state"
)

// SecretName is under which the password is kept.
const SecretName = "smtp-password"

const mostTo = 20 // addresses

// Settings say by which server mail goes, and to whom.
type Settings struct {
	Host        string   `json:"host"`
	Port        int      `json:"port"`
	From        string   `json:"from"`
	Username    string   `json:"username,omitempty"`
	HasPassword bool     `json:"hasPassword,omitempty"` // it lies with the secrets
	Security    string   `json:"security"`              // starttls, tls or none
	To          []string `json:"to,omitempty"`          // who is mailed notifications
	Level       string   `json:"level"`                 // of notifications that are mailed, at least
}

// Kept is the value of the mount in which the settings lie.
type Kept struct {
	Settings *Settings `json:"settings,omitempty"`
	Mailed   int64     `json:"mailed,omitempty"` // the last notification that was dealt with
}

// Secrets keep the password; *secret.Store does.
type Secrets interface {
	Get(name string) (secret.Text, error)
	Set(name string, value secret.Text) error
	Remove(name string) error
}

// News is a notification that may be mailed.
type News struct {
	ID      int64
	At      time.Time
	Level   string
	Title   string
	Message string
}

// Options of an Office. Mount and Secrets are needed.
type Options struct {
	Mount   *state.Mount[Kept]
	Secrets Secrets
	Name    func() string               // of the host; nil means gatehouse
	Since   func(id int64) []News       // notifications after one, oldest first; nil means none
	Newest  func() int64                // the notification that was told last; nil means 0
	Roots   *x509.CertPool              // by whom servers are known; nil means the system's
	Pause   func(try int) time.Duration // before a mail is tried again; nil means from a minute to an hour
	Log     *slog.Logger                // nil means none
}

// Office sends the mail of a host. Safe for concurrent use.
type Office struct {
	o    Options
	wake chan struct{} // holds a token when there is something to do

	mu    sync.Mutex
	wrong string // why the last mail could not be sent
}

// NewOffice makes an office.
func NewOffice(o Options) *Office {
	if o.Since == nil {
		o.Since = func(int64) []News { return nil }
	}
	if o.Newest == nil {
		o.Newest = func() int64 { return 0 }
	}
	if o.Pause == nil {
		o.Pause = pause
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Office{o: o, wake: make(chan struct{}, 1)}
}

func (o *Office) name() string {
	if o.o.Name == nil {
		return "gatehouse"
	}
	return oneLine(o.o.Name())
}

func (o *Office) settings() (*Settings, error) {
	k, _, err := o.o.Mount.Get()
	return k.Settings, err
}

// whole is the settings with the password.
func (o *Office) whole() (*Settings, secret.Text, error) {
	s, err := o.settings()
	if err != nil || s == nil || !s.HasPassword {
		return s, secret.Text{}, err
	}
	password, err := o.o.Secrets.Get(SecretName)
	if err != nil {
		err = fmt.Errorf("the password of the mail server: %w", err)
	}
	return s, password, err
}

// set keeps settings, and a password if there is one. Otherwise the one that
// is kept stays, if it is for the same account.
func (o *Office) set(ctx context.Context, s *Settings, password secret.Text) error {
	s.HasPassword = !password.Empty()
	if s.HasPassword {
		if err := o.o.Secrets.Set(SecretName, password); err != nil {
			return fmt.Errorf("keep the password: %w", err)
		}
	}
	given := s.HasPassword
	_, err := o.o.Mount.Update(ctx, state.Any, func(k *Kept) error {
		was := k.Settings
		s.HasPassword = given || was != nil && was.HasPassword && was.Host == s.Host && was.Username == s.Username
		if was == nil || len(was.To) == 0 { // what was told before is nobody's mail
			k.Mailed = o.o.Newest()
		}
		k.Settings = s
		return nil
	})
	o.failed(nil)
	o.Wake()
	if err == nil && !s.HasPassword {
		err = o.dropPassword()
	}
	return err
}

// forget forgets the settings, and says whether there were some.
func (o *Office) forget(ctx context.Context) (was bool, err error) {
	_, err = o.o.Mount.Update(ctx, state.Any, func(k *Kept) error {
		was = k.Settings != nil
		k.Settings = nil
		return nil
	})
	o.failed(nil)
	if err == nil {
		err = o.dropPassword()
	}
	return was, err
}

func (o *Office) dropPassword() error {
	if err := o.o.Secrets.Remove(SecretName); err != nil && !errors.Is(err, secret.ErrNotFound) {
		return fmt.Errorf("forget the password: %w", err)
	}
	return nil
}

// failed remembers why a mail could not be sent; nil means that it could.
func (o *Office) failed(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.wrong = ""; err != nil {
		o.wrong = err.Error()
	}
}

func (o *Office) trouble() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.wrong
}

// forgetful is an office in memory.
func forgetful(ctx context.Context) (*Office, error) {
	m, err := state.Attach[Kept](ctx, state.New(state.Options{}), "/private/smtp", state.Live)
	return NewOffice(Options{Mount: m, Secrets: &Memory{}}), err
}

// Memory keeps secrets as long as it lasts itself. The zero value is empty.
// Safe for concurrent use.
type Memory struct {
	mu  sync.Mutex
	all map[string]secret.Text
}

// Get implements Secrets.
func (m *Memory) Get(name string) (secret.Text, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, there := m.all[name]
	if !there {
		return t, secret.ErrNotFound
	}
	return t, nil
}

// Set implements Secrets.
func (m *Memory) Set(name string, value secret.Text) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[string]secret.Text{}
	}
	m.all[name] = value
	return nil
}

// Remove implements Secrets.
func (m *Memory) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, there := m.all[name]; !there {
		return secret.ErrNotFound
	}
	delete(m.all, name)
	return nil
}

var levels = []string{"info", "warning", "error"}

// matters reports whether news of a level are mailed. Success is told as info
// is.
func (s *Settings) matters(level string) bool {
	return max(slices.Index(levels, level), 0) >= slices.Index(levels, s.Level)
}

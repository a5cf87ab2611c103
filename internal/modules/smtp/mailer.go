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

// SecretName is the name of the secret that holds the password.
const SecretName = "smtp-password"

const maxRecipients = 20 // addresses

// Settings are a mail server and the recipients of notifications.
type Settings struct {
	Host        string   `json:"host"`
	Port        int      `json:"port"`
	From        string   `json:"from"`
	Username    string   `json:"username,omitempty"`
	HasPassword bool     `json:"hasPassword,omitempty"` // in the secret SecretName
	Security    string   `json:"security"`              // starttls, tls or none
	To          []string `json:"to,omitempty"`          // recipients of notifications
	Level       string   `json:"level"`                 // lowest level of notifications that are mailed
}

// Kept is the value of the state mount that holds the settings.
type Kept struct {
	Settings *Settings `json:"settings,omitempty"`
	Mailed   int64     `json:"mailed,omitempty"` // id of the last notification that a host has claimed
}

// Secrets stores the password; *secret.Store implements it.
type Secrets interface {
	Get(name string) (secret.Text, error)
	Set(name string, value secret.Text) error
	Remove(name string) error
}

// Notification is a notification that may be mailed.
type Notification struct {
	ID      int64
	At      time.Time
	Level   string
	Title   string
	Message string
}

// Options of a Mailer. Mount and Secrets are required.
type Options struct {
	Mount   *state.Mount[Kept]
	Secrets Secrets
	Name    func() string                 // of the host; nil means gatehouse
	Since   func(id int64) []Notification // returns the notifications after an id, oldest first; nil means none
	Newest  func() int64                  // returns the id of the newest notification; nil means 0
	Roots   *x509.CertPool                // authorities of servers' certificates; nil means the system's
	Pause   func(try int) time.Duration   // before a retry; nil means from a minute to an hour
	Log     *slog.Logger                  // nil means none
}

// Mailer sends the mail of a host. It is safe for concurrent use.
type Mailer struct {
	o    Options
	wake chan struct{} // holds a token after Wake

	mu    sync.Mutex
	wrong string // the error of the last mail; "" if it was sent
}

// NewMailer returns a Mailer. Run sends the notifications.
func NewMailer(o Options) *Mailer {
	if o.Since == nil {
		o.Since = func(int64) []Notification { return nil }
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
	return &Mailer{o: o, wake: make(chan struct{}, 1)}
}

func (m *Mailer) hostName() string {
	if m.o.Name == nil {
		return "gatehouse"
	}
	return oneLine(m.o.Name())
}

func (m *Mailer) settings() (*Settings, error) {
	k, _, err := m.o.Mount.Get()
	return k.Settings, err
}

// account returns the settings with the password.
func (m *Mailer) account() (*Settings, secret.Text, error) {
	s, err := m.settings()
	if err != nil || s == nil || !s.HasPassword {
		return s, secret.Text{}, err
	}
	password, err := m.o.Secrets.Get(SecretName)
	if err != nil {
		err = fmt.Errorf("the password of the mail server: %w", err)
	}
	return s, password, err
}

// setSettings stores settings, and the password if it is not empty. Otherwise the stored
// password stays if host and username are the same.
func (m *Mailer) setSettings(ctx context.Context, s *Settings, password secret.Text) error {
	s.HasPassword = !password.Empty()
	if s.HasPassword {
		if err := m.o.Secrets.Set(SecretName, password); err != nil {
			return fmt.Errorf("store the password: %w", err)
		}
	}
	given := s.HasPassword
	_, err := m.o.Mount.Update(ctx, state.Any, func(k *Kept) error {
		was := k.Settings
		s.HasPassword = given || was != nil && was.HasPassword && was.Host == s.Host && was.Username == s.Username
		if was == nil || len(was.To) == 0 { // earlier notifications are not mailed
			k.Mailed = m.o.Newest()
		}
		k.Settings = s
		return nil
	})
	m.setError(nil)
	m.Wake()
	if err == nil && !s.HasPassword {
		err = m.dropPassword()
	}
	return err
}

// clear removes the settings and reports whether there were any.
func (m *Mailer) clear(ctx context.Context) (was bool, err error) {
	_, err = m.o.Mount.Update(ctx, state.Any, func(k *Kept) error {
		was = k.Settings != nil
		k.Settings = nil
		return nil
	})
	m.setError(nil)
	if err == nil {
		err = m.dropPassword()
	}
	return was, err
}

func (m *Mailer) dropPassword() error {
	if err := m.o.Secrets.Remove(SecretName); err != nil && !errors.Is(err, secret.ErrNotFound) {
		return fmt.Errorf("remove the password: %w", err)
	}
	return nil
}

// setError records why a mail could not be sent; nil means that it was.
func (m *Mailer) setError(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.wrong = ""; err != nil {
		m.wrong = err.Error()
	}
}

func (m *Mailer) lastError() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.wrong
}

// inMemory returns a Mailer that keeps its settings and password in memory.
func inMemory(ctx context.Context) (*Mailer, error) {
	m, err := state.Attach[Kept](ctx, state.New(state.Options{}), "/private/smtp", state.Live)
	return NewMailer(Options{Mount: m, Secrets: &Memory{}}), err
}

// Memory keeps secrets in memory. The zero value is empty. It is safe for
// concurrent use.
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

// mails reports whether notifications of a level are mailed. Success counts as
// info.
func (s *Settings) mails(level string) bool {
	return max(slices.Index(levels, level), 0) >= slices.Index(levels, s.Level)
}

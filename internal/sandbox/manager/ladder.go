package manager

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/sandbox"
)

// LadderEntry is a driver that sandboxes may be made with.
type LadderEntry struct {
	Name string
	// Open makes the driver when it is first needed. The manager closes it.
	Open func() (sandbox.Driver, error)
}

const (
	trialTime  = time.Minute // for a driver to show that it works
	trialAgain = time.Minute // until a failed driver is tried again
)

// MissingError reports that a driver does not work on this machine, with the first requirement that is
// missing.
type MissingError struct {
	Driver string
	sandbox.Finding
}

func (e *MissingError) Error() string {
	text := fmt.Sprintf("the driver %s does not work here: %s: %s", e.Driver, e.Name, e.Detail)
	if e.Remedy != "" {
		text += "; " + e.Remedy
	}
	return text
}

// NoDriverError reports that no driver meets the request.
type NoDriverError struct {
	Least sandbox.Tier
	Why   []error // the error of each candidate, in order
}

func (e *NoDriverError) Error() string {
	why := make([]string, len(e.Why))
	for i, err := range e.Why {
		why[i] = err.Error()
	}
	return fmt.Sprintf("no driver of this host makes sandboxes of tier %q or higher: %s", e.Least,
		strings.Join(why, "; "))
}

// Unwrap returns the errors of the candidates.
func (e *NoDriverError) Unwrap() []error { return e.Why }

// ErrNotOffered is returned for a driver, template or image that the host does not offer.
var ErrNotOffered = errors.New("not offered by this host")

// ladderDriver is a driver and whether it works.
type ladderDriver struct {
	LadderEntry

	mu     sync.Mutex     // held while it is opened and tried, which may take a minute
	driver sandbox.Driver // nil until it is opened
	works  bool           // it was tried successfully
	err    error          // why it does not work
	again  time.Time      // when it is tried again
}

// openOnce makes the driver if necessary.
func (l *ladderDriver) openOnce(life context.Context) (sandbox.Driver, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.opened(life)
}

// opened is open for callers that hold r.mu.
func (l *ladderDriver) opened(life context.Context) (sandbox.Driver, error) {
	if life.Err() != nil {
		return nil, errEnded
	}
	if l.driver == nil {
		d, err := l.Open()
		if err != nil {
			return nil, fmt.Errorf("open the driver %s: %w", l.Name, err)
		}
		l.driver = d
	}
	return l.driver, nil
}

// try finds out whether the driver works. The result is kept; a failure is tried again after trialAgain.
func (l *ladderDriver) try(life context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.works:
		return nil
	case l.err != nil && time.Now().Before(l.again):
		return l.err
	}
	d, err := l.opened(life)
	if err == nil {
		ctx, cancel := context.WithTimeout(life, trialTime)
		err = missing(ctx, d)
		cancel()
	}
	l.works, l.err, l.again = err == nil, err, time.Now().Add(trialAgain)
	return err
}

// missing returns the first missing requirement of a driver as a *MissingError, or nil.
func missing(ctx context.Context, d sandbox.Driver) error {
	for _, f := range d.Doctor(ctx) {
		if f.Needed && !f.OK {
			return &MissingError{d.Name(), f}
		}
	}
	return nil
}

func (l *ladderDriver) closeDriver() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.driver == nil {
		return nil
	}
	return l.driver.Close()
}

// Driver returns the driver of sandboxes for which none is requested.
func (m *Manager) Driver() (sandbox.Driver, error) {
	r, err := m.pick("", sandbox.Unknown)
	if err != nil {
		return nil, err
	}
	return r.driver, nil
}

// Drivers returns the names of the drivers that may be requested, the preferred first.
func (m *Manager) Drivers() (names []string) {
	for _, r := range m.ladder {
		names = append(names, r.Name)
	}
	return names
}

// pick returns the first driver that works and is of tier least or higher, but never below Options.Least. A
// name restricts the choice to that driver. A single candidate is not tried, because making the sandbox does
// that.
func (m *Manager) pick(name string, least sandbox.Tier) (*ladderDriver, error) {
	asked := least > m.o.Least
	least = max(least, m.o.Least)
	from := m.candidates(name, asked)
	if len(from) == 0 {
		return nil, fmt.Errorf("driver %q: %w; the drivers are: %s", name, ErrNotOffered,
			strings.Join(m.Drivers(), ", "))
	}
	none := &NoDriverError{Least: least}
	for _, r := range from {
		d, err := r.openOnce(m.life)
		if errors.Is(err, errEnded) {
			return nil, err
		}
		if err == nil && d.Capabilities().Tier < least {
			err = r.tooWeak(m.life)
		}
		if err == nil && len(from) > 1 {
			err = r.try(m.life)
		}
		if err == nil {
			return r, nil
		}
		none.Why = append(none.Why, err)
	}
	return nil, none
}

// tooWeak returns why a driver's tier is too low. A driver that does not work has no tier, so its own error is
// returned.
func (l *ladderDriver) tooWeak(life context.Context) error {
	if l.driver.Capabilities().Tier == sandbox.Unknown {
		if err := l.try(life); err != nil {
			return err
		}
	}
	return fmt.Errorf("the driver %s makes sandboxes of tier %q", l.Name, l.driver.Capabilities().Tier)
}

// candidates returns the drivers to consider, in order.
func (m *Manager) candidates(name string, asked bool) (all []*ladderDriver) {
	if name == "" && m.o.Default != "" && !asked {
		name = m.o.Default
	}
	for _, r := range m.ladder {
		switch {
		case name == "" && r.Name == m.o.Default:
			all = append([]*ladderDriver{r}, all...)
		case name == "" || r.Name == name:
			all = append(all, r)
		}
	}
	return all
}

// remedied replaces the error of a driver that was never tried by what it lacks.
func (l *ladderDriver) remedied(ctx context.Context, m *Manager, err error) error {
	if _, limit := errors.AsType[*sandbox.LimitError](err); limit || ctx.Err() != nil {
		return err
	}
	if lacks, ok := errors.AsType[*MissingError](l.try(m.life)); ok {
		return lacks
	}
	return err
}

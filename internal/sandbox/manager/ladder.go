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

// Rung is a driver that sandboxes may be made by.
type Rung struct {
	Name string
	// Open makes it when it is needed first. The manager closes it.
	Open func() (sandbox.Driver, error)
}

const (
	trialTime  = time.Minute // for a driver to show that it works
	trialAgain = time.Minute // after it did not
)

// MissingError is a driver that does not work on this machine, with the first
// thing it lacks.
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

// NoDriverError is that no driver is what was asked for.
type NoDriverError struct {
	Least sandbox.Tier
	Why   []error // of each that might have been, in order
}

func (e *NoDriverError) Error() string {
	why := make([]string, len(e.Why))
	for i, err := range e.Why {
		why[i] = err.Error()
	}
	return fmt.Sprintf("no driver of this host makes sandboxes of the tier %q or above: %s", e.Least, strings.Join(why, "; "))
}

// Unwrap gives the reasons.
func (e *NoDriverError) Unwrap() []error { return e.Why }

// ErrNotOffered is the answer to a driver, template or image that the host
// does not offer.
var ErrNotOffered = errors.New("this host does not offer it")

// rung is a driver and whether it works.
type rung struct {
	Rung

	mu     sync.Mutex     // held while it is opened and tried
	driver sandbox.Driver // nil until it is opened
	works  bool           // it was tried
	err    error          // why it does not
	again  time.Time      // when it is tried again
}

// open makes the driver, if need be.
func (r *rung) open(life context.Context) (sandbox.Driver, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.opened(life)
}

// opened is open with r.mu held.
func (r *rung) opened(life context.Context) (sandbox.Driver, error) {
	if life.Err() != nil {
		return nil, errEnded
	}
	if r.driver == nil {
		d, err := r.Open()
		if err != nil {
			return nil, fmt.Errorf("the driver %s: %w", r.Name, err)
		}
		r.driver = d
	}
	return r.driver, nil
}

// try finds out once whether the driver works. One that does not is tried
// again after a while.
func (r *rung) try(life context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.works:
		return nil
	case r.err != nil && time.Now().Before(r.again):
		return r.err
	}
	d, err := r.opened(life)
	if err == nil {
		ctx, cancel := context.WithTimeout(life, trialTime)
		err = missing(ctx, d)
		cancel()
	}
	r.works, r.err, r.again = err == nil, err, time.Now().Add(trialAgain)
	return err
}

// missing is the first thing a driver needs and has not, as a *MissingError.
func missing(ctx context.Context, d sandbox.Driver) error {
	for _, f := range d.Doctor(ctx) {
		if f.Needed && !f.OK {
			return &MissingError{d.Name(), f}
		}
	}
	return nil
}

func (r *rung) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.driver == nil {
		return nil
	}
	return r.driver.Close()
}

// Driver is the one that makes ordinary sandboxes.
func (m *Manager) Driver() (sandbox.Driver, error) {
	r, err := m.pick("", sandbox.Unknown)
	if err != nil {
		return nil, err
	}
	return r.driver, nil
}

// Drivers are the names of those that may be asked for, the preferred first.
func (m *Manager) Drivers() (names []string) {
	for _, r := range m.ladder {
		names = append(names, r.Name)
	}
	return names
}

// pick finds the first driver of the ladder that works and is strong enough;
// never one below what the host asks for. A name means that one alone. Where
// there is no choice the driver is not tried: making a sandbox does.
func (m *Manager) pick(name string, least sandbox.Tier) (*rung, error) {
	asked := least > m.o.Least
	least = max(least, m.o.Least)
	from := m.candidates(name, asked)
	if len(from) == 0 {
		return nil, fmt.Errorf("the driver %q: %w; there are: %s", name, ErrNotOffered, strings.Join(m.Drivers(), ", "))
	}
	none := &NoDriverError{Least: least}
	for _, r := range from {
		d, err := r.open(m.life)
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

// tooWeak says why a driver is not of the tier that is wanted. One that lacks
// what it needs is of none, and says what that is.
func (r *rung) tooWeak(life context.Context) error {
	if r.driver.Capabilities().Tier == sandbox.Unknown {
		if err := r.try(life); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s makes those of the tier %q", r.Name, r.driver.Capabilities().Tier)
}

// candidates are the drivers that may be meant, in the order in which they are
// tried.
func (m *Manager) candidates(name string, asked bool) (all []*rung) {
	if name == "" && m.o.Default != "" && !asked {
		name = m.o.Default
	}
	for _, r := range m.ladder {
		switch {
		case name == "" && r.Name == m.o.Default:
			all = append([]*rung{r}, all...)
		case name == "" || r.Name == name:
			all = append(all, r)
		}
	}
	return all
}

// remedied adds to the error of a driver that was never tried what it lacks.
func (r *rung) remedied(ctx context.Context, m *Manager, err error) error {
	if _, limit := errors.AsType[*sandbox.LimitError](err); limit || ctx.Err() != nil {
		return err
	}
	if lacks, ok := errors.AsType[*MissingError](r.try(m.life)); ok {
		return lacks
	}
	return err
}

package sandbox

import (
	"context"
	"fmt"
	"time"
)

// Try makes a sandbox, runs a program in it and tells how that went: the first
// thing a Doctor wants to know. within is how long it may take, and remedy says
// what to do about an error, "" when nothing is known.
func Try(ctx context.Context, d Driver, within time.Duration, remedy func(error) string) Finding {
	f := Finding{Name: "a sandbox is made and runs a program", Needed: true}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	began := time.Now()
	if err := runOne(ctx, d); err != nil {
		f.Detail, f.Remedy = err.Error(), remedy(err)
		return f
	}
	f.OK, f.Detail = true, fmt.Sprintf("in %v", time.Since(began).Round(time.Millisecond))
	return f
}

func runOne(ctx context.Context, d Driver) error {
	s, err := d.Create(ctx, Spec{})
	if err != nil {
		return err
	}
	defer s.Close()
	p, err := s.Exec(ctx, Command{Argv: []string{"/bin/sh", "-c", "exit 0"}})
	if err != nil {
		return err
	}
	r, err := p.Wait()
	if err == nil && r.Outcome != OK {
		err = fmt.Errorf("the program ended with %s, code %d, signal %d", r.Outcome, r.Code, r.Signal)
	}
	return err
}

package sandbox

import (
	"context"
	"fmt"
	"time"
)

// Try makes a sandbox, runs a program in it and reports the result, which is the most important finding of a
// Doctor. It may take as long as within; remedy returns what to do about an error, or "" if that is unknown.
func Try(ctx context.Context, d Driver, within time.Duration, remedy func(error) string) Finding {
	f := Finding{Name: "a sandbox is made and runs a program", Needed: true}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	began := time.Now()
	if err := runProbe(ctx, d); err != nil {
		f.Detail, f.Remedy = err.Error(), remedy(err)
		return f
	}
	f.OK, f.Detail = true, fmt.Sprintf("in %v", time.Since(began).Round(time.Millisecond))
	return f
}

func runProbe(ctx context.Context, d Driver) error {
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

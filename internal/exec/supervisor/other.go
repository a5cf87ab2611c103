//go:build !linux || (!amd64 && !arm64)

package supervisor

import "context"

// Available reports whether lines can be supervised on this machine.
func Available(context.Context) error { return ErrNone }

// New prepares a line.
func New(Spec) (*Line, error) { return nil, ErrNone }

// Started is called when the process of the line was started, or could not be.
func (l *Line) Started() {}

// Close waits for the rest of the report.
func (l *Line) Close() Report { return l.report }

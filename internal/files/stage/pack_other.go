//go:build !linux || portable

package stage

import (
	"context"
	"errors"
	"os"
)

func (t *Task) pack(context.Context, string) error { return errors.ErrUnsupported }
func unpack(*os.Root, string) error                { return errors.ErrUnsupported }

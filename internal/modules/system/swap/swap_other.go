//go:build !linux

package swap

import "errors"

func On(string, int) error { return errors.ErrUnsupported }
func Off(string) error     { return errors.ErrUnsupported }

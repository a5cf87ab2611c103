//go:build !linux

package killtest

import "os/exec"

func before(*exec.Cmd, int) (bool, error) { return false, ErrUnsupported }

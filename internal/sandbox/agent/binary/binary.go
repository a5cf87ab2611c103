//go:build linux && (amd64 || arm64)

// Package binary carries the built agent, so that building the host needs
// nothing but Go and starting a sandbox need not start the whole host again.
// The files are made by go generate, which changes nothing unless the agent did.
package binary

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
)

//go:generate go run ./generate

const largest = 16 << 20 // bytes of an agent

// Agent unpacks the program for this machine.
func Agent() ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("unpack the agent: %w", err)
	}
	b, err := io.ReadAll(io.LimitReader(r, largest))
	if err != nil {
		return nil, fmt.Errorf("unpack the agent: %w", err)
	}
	return b, nil
}

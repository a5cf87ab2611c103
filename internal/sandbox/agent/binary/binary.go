//go:build linux && (amd64 || arm64)

// Package binary embeds the compiled agent, so that building the host requires nothing but Go, and starting a
// sandbox does not start the whole host program again. go generate builds the files; it leaves them unchanged
// if the agent is.
package binary

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
)

//go:generate go run ./generate

const maxSize = 16 << 20 // bytes of an agent

// Agent returns the agent's executable for this machine.
func Agent() ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("unpack the agent: %w", err)
	}
	b, err := io.ReadAll(io.LimitReader(r, maxSize))
	if err != nil {
		return nil, fmt.Errorf("unpack the agent: %w", err)
	}
	return b, nil
}

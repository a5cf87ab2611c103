//go:build linux && (amd64 || arm64)

package bundle

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// Patience is how long the program of a container runtime may take for what is
// done in a moment: saying its version, removing what is left.
const Patience = 10 * time.Second

// VersionOf is what such a program says of itself, in one line.
func VersionOf(ctx context.Context, program string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", program, err)
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line, nil
}

// mostWords is how much of what a program said is passed on, in bytes.
const mostWords = 2 << 10

// Words are what such a program said, in one line and not too long.
func Words(s string) string { return strings.Join(strings.Fields(s[:min(len(s), mostWords)]), " ") }

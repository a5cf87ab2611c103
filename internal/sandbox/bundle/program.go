//go:build linux && (amd64 || arm64)

package bundle

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// Patience is how long a container runtime may take for short operations such as printing its version or
// removing remains.
const Patience = 10 * time.Second

// VersionOf returns the first line of a program's --version.
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

// maxOneLine is how many bytes of a program's output are kept.
const maxOneLine = 2 << 10

// OneLine returns a program's output in one line, truncated.
func OneLine(s string) string { return strings.Join(strings.Fields(s[:min(len(s), maxOneLine)]), " ") }

package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gatehouse/internal/config"
	"gatehouse/internal/exec/proc"
	"gatehouse/internal/maintenance/update"
	making "gatehouse/internal/modules/update"
)

// NewUpdater returns an updater of a program, "" for this one. If the settings
// name no source of releases, it can only roll back.
func NewUpdater(cfg config.Update, program string) (*update.Updater, error) {
	var key update.Key
	var err error
	if cfg.Source != "" {
		if key, err = update.ParseKey(cfg.Key); err != nil {
			return nil, &SettingError{err}
		}
	}
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	return update.New(
		update.Options{Source: cfg.Source, Key: key, Current: Version, Program: program, Try: versionOf},
	), nil
}

const (
	tryWait   = 30 * time.Second // for a program to print its version
	tryOutput = 4 << 10          // bytes of it that are read
)

// versionOf runs a program and returns the version that it prints.
func versionOf(ctx context.Context, program string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, tryWait)
	defer cancel()
	out := &limitedBuffer{}
	p, err := proc.Start(
		ctx,
		proc.Spec{Path: program, Args: []string{"version"}, Stdout: out, Own: []string{filepath.Dir(program)}},
	)
	if err != nil {
		return "", err
	}
	end, err := p.Wait()
	if err != nil || end.Code != 0 {
		return "", errors.Join(err, fmt.Errorf("it ended with code %d", end.Code))
	}
	line, _, _ := strings.Cut(out.String(), "\n")
	words := strings.Fields(line)
	if len(words) < 2 || words[0] != "gatehouse" {
		return "", fmt.Errorf("it prints %.60q, but its version was expected", line)
	}
	return words[1], nil
}

// limitedBuffer keeps the beginning of what is written to it.
type limitedBuffer struct{ bytes.Buffer }

func (l *limitedBuffer) Write(p []byte) (int, error) {
	l.Buffer.Write(p[:min(len(p), max(tryOutput-l.Len(), 0))])
	return len(p), nil
}

// updateDeps returns the configuration of the module that replaces the program.
func (a *App) updateDeps() (c making.Config, err error) {
	c.Current, c.Rules, c.Show = Version, a.rules, a.tree.showJob
	c.Updater, err = NewUpdater(a.cfg.Update, "")
	return c, err
}

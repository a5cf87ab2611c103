package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/files/atomicfile"
	"gatehouse/internal/modules/administration"
)

// settingsEditor implements administration.Settings for the settings that a command has read.
type settingsEditor struct {
	getenv func(string) string
	load   func() (*config.Loaded, error) // reads the settings with the flags of the command
	// apply applies the present settings to the running host; nil means that none runs here.
	apply func() (live, restart []string, err error)
	// force returns the settings in force; nil means those that load returns.
	force func() config.Config
}

// Show implements administration.Settings.
func (e *settingsEditor) Show(context.Context) (out administration.SettingsShown, err error) {
	l, err := e.load()
	if err != nil {
		return out, err
	}
	out.File, out.Settings = l.File, l.List()
	if e.force != nil {
		live, restart := config.Differences(e.force(), l.Config)
		out.Restart = append(live, restart...)
	}
	return out, nil
}

// Check implements administration.Settings.
func (e *settingsEditor) Check(ctx context.Context, text string) (out administration.SettingsChecked, err error) {
	var l *config.Loaded
	if text == "" {
		l, err = e.load()
	} else {
		l, err = config.Parse(e.getenv, config.FileName, []byte(text))
	}
	if err == nil {
		err = checked(l)
	}
	if usage, ok := errors.AsType[*usageError](err); ok {
		err = usage.err
	}
	out.Problems = config.Problems(err)
	if out.OK = err == nil; out.OK {
		out.Warnings = app.RuleWarnings(ctx, l.Config, nil)
	}
	return out, nil
}

// Set implements administration.Settings.
func (e *settingsEditor) Set(
	_ context.Context, path string, value json.RawMessage,
) (out administration.SettingChanged, err error) {
	if err := config.Changeable(path); err != nil {
		return out, &administration.Invalid{Err: err}
	}
	was, err := e.load()
	if err != nil {
		return out, &administration.Invalid{Err: err}
	}
	file := was.File
	if file == "" {
		file = filepath.Join(was.Folders.Config, config.FileName)
	}
	if err := e.replace(file, path, value); err != nil {
		return out, err
	}
	out.Path, out.Before = path, valueAt(was, path)
	now, err := e.load()
	if err != nil {
		return out, err
	}
	out.After = valueAt(now, path)
	if e.apply == nil {
		return out, nil
	}
	out.Live, out.Restart, err = e.apply()
	return out, err
}

// replace writes the settings file with another value of one setting, if the settings are valid then.
func (e *settingsEditor) replace(file, path string, value json.RawMessage) error {
	return e.edit(file, func(text []byte) ([]byte, error) { return config.Edit(text, path, value) })
}

// edit writes the settings file with what change makes of its text, if the settings are valid then.
func (e *settingsEditor) edit(file string, change func(text []byte) ([]byte, error)) error {
	if target, err := filepath.EvalSymlinks(file); err == nil {
		file = target
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	unlock, err := atomicfile.Lock(file + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	mode := fs.FileMode(0o600)
	text, err := os.ReadFile(file)
	if info, statErr := os.Stat(file); statErr == nil {
		mode = info.Mode().Perm()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	next, err := change(text)
	if err != nil {
		return &administration.Invalid{Err: err}
	}
	l, err := config.Parse(e.getenv, file, next)
	if err == nil {
		err = checked(l)
	}
	if err != nil {
		return &administration.Invalid{Err: fmt.Errorf("nothing was changed: %w", err)}
	}
	return atomicfile.Replace(file, next, mode, func() error {
		if now, err := os.ReadFile(file); err == nil && !bytes.Equal(now, text) {
			return errors.New("the settings file was changed meanwhile; nothing was changed")
		}
		return nil
	})
}

// valueAt returns the value of one setting; nil if it is not set.
func valueAt(l *config.Loaded, path string) json.RawMessage {
	for _, s := range l.List() {
		if s.Path == path {
			return s.Value
		}
	}
	return nil
}

package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
)

// FileName is what the settings' file is called in the config folder.
const FileName = "gatehouse.yaml"

// Loaded are settings that remember where each was said.
type Loaded struct {
	Config
	File string // that was read; "" when there is none
	said map[string]Place
}

// Load is Default with what the file and the environment say; the
// environment goes first. file "" means gatehouse.yaml in the config folder,
// or what GATEHOUSE_CONFIG names; the former need not exist. What is returned
// beside an error is what could be read: enough to find a host that runs, not
// to start one.
func Load(getenv func(string) string, file string) (*Loaded, error) {
	l := &Loaded{Config: Default(), said: map[string]Place{}}
	e := envReader{getenv: getenv, into: &l.Config, said: l.said}
	l.Folders = platformFolders(getenv, e.setFrom)
	if file == "" {
		file = getenv(EnvConfig)
	}
	text, name, err := readFile(file, l.Folders.Config)
	if name != "" {
		l.File = name
		var said map[string]Place
		said, err = decodeFile(name, homeFolder(getenv), text, &l.Config)
		maps.Copy(l.said, said)
	}
	e.readAll()
	return l, errors.Join(append(e.wrong, err)...)
}

// WithoutFile is Load if there were no file.
func WithoutFile(getenv func(string) string) (*Loaded, error) {
	l := &Loaded{Config: Default(), said: map[string]Place{}}
	e := envReader{getenv: getenv, into: &l.Config, said: l.said}
	l.Folders = platformFolders(getenv, e.setFrom)
	e.readAll()
	return l, errors.Join(e.wrong...)
}

// readFile reads the settings' file. name is "" when there is none and none
// was asked for.
func readFile(file, folder string) (text []byte, name string, err error) {
	asked := file != ""
	if !asked {
		if folder == "" {
			return nil, "", nil
		}
		file = filepath.Join(folder, FileName)
	}
	f, err := os.Open(file)
	if err != nil {
		if !asked && (errors.Is(err, fs.ErrNotExist) || !hasFolder(folder)) {
			return nil, "", nil
		}
		return nil, "", fmt.Errorf("settings: %w", err)
	}
	defer f.Close()
	text, err = io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, "", fmt.Errorf("settings: %w", err)
	}
	return text, file, nil
}

// hasFolder reports whether there can be a file in the config folder at all.
func hasFolder(folder string) bool {
	info, err := os.Stat(folder)
	return err == nil && info.IsDir()
}

// By notes that a flag or something else said a setting.
func (l *Loaded) By(path, who string) { l.said[path] = Place{By: who} }

// From reports whether a setting was read from a variable.
func (l *Loaded) From(variable string) bool {
	for _, at := range l.said {
		if at.By == variable {
			return true
		}
	}
	return false
}

// Where is where a setting was said; what is zero was not, and holds its
// default.
func (l *Loaded) Where(path string) Place { return l.said[path] }

// Validate is Config.Validate; mistakes in the file are *Misplaced.
func (l *Loaded) Validate() error { return l.Explain(l.Config.Validate()) }

// Explain adds to each *Mistake in an error where its setting was said, if
// that was in a file.
func (l *Loaded) Explain(err error) error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range joined.Unwrap() {
			all = append(all, l.Explain(e))
		}
		return errors.Join(all...)
	}
	m, ok := errors.AsType[*SettingProblem](err)
	if !ok {
		return err
	}
	if at := l.near(m.Path); at.File != "" {
		return &PositionError{at, m.Path, m.Err}
	}
	return err
}

// near is where a setting was said, or the section it is in.
func (l *Loaded) near(path string) Place {
	for path != "" {
		if at, ok := l.said[path]; ok {
			return at
		}
		cut := max(strings.LastIndexByte(path, '.'), strings.LastIndexByte(path, '['))
		path = path[:max(cut, 0)]
	}
	return Place{}
}

// Environment is the variables that made these settings what they are, with
// their values, for a program that is to start with the same ones. Left out are
// secrets, and what concerns listeners and logins: GATEHOUSE_TRANSPORT, listen,
// daemon and auth.
func (l *Loaded) Environment(getenv func(string) string) map[string]string {
	found := map[string]string{}
	take := func(name string) {
		if v := getenv(name); name != "" && v != "" {
			found[name] = v
		}
	}
	take(EnvConfig)
	for _, p := range platform(runtime.GOOS) {
		take(p.ours)
	}
	l.environment(reflect.TypeFor[Config](), "", take)
	return found
}

func (l *Loaded) environment(t reflect.Type, path string, take func(string)) {
	for _, s := range settingsIn(t, path) {
		switch {
		case path == "" && slices.Contains([]string{"listen", "daemon", "auth"}, s.path):
		case s.section():
			l.environment(s.typ, s.path, take)
		case !s.secret() && s.typ != secretType && l.said[s.path].By == s.variable():
			take(s.variable())
		}
	}
}

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

// FileName is the name of the settings file in the config folder.
const FileName = "gatehouse.yaml"

// Loaded holds settings and the position at which each was set.
type Loaded struct {
	Config
	File string // the file that was read; "" if there is none
	said map[string]Place
}

// Load returns Default with the values of the file and of the environment, which overrides the file. An empty file
// means the one that GATEHOUSE_CONFIG names, or else gatehouse.yaml in the config folder, which need not exist.
// The settings returned with an error hold what could be read: enough to find a running host, but not to start
// one.
func Load(getenv func(string) string, file string) (*Loaded, error) {
	l := &Loaded{Config: Default(), said: map[string]Place{}}
	e := envReader{getenv: getenv, into: &l.Config, said: l.said}
	e.folders()
	if file == "" {
		file = getenv(EnvConfig)
	}
	text, name, err := readFile(file, l.Folders.Config)
	if name != "" {
		err = l.decode(getenv, name, text)
	}
	e.readAll()
	return l, errors.Join(append(e.wrong, err)...)
}

// Parse is Load with the text of a file that need not exist.
func Parse(getenv func(string) string, name string, text []byte) (*Loaded, error) {
	l := &Loaded{Config: Default(), said: map[string]Place{}}
	e := envReader{getenv: getenv, into: &l.Config, said: l.said}
	e.folders()
	err := l.decode(getenv, name, text)
	e.readAll()
	return l, errors.Join(append(e.wrong, err)...)
}

// decode reads the text of a file over the settings.
func (l *Loaded) decode(getenv func(string) string, name string, text []byte) error {
	l.File = name
	said, err := decodeFile(name, homeFolder(getenv), text, &l.Config)
	maps.Copy(l.said, said)
	return err
}

// WithoutFile returns what Load returns if there is no file.
func WithoutFile(getenv func(string) string) (*Loaded, error) {
	l := &Loaded{Config: Default(), said: map[string]Place{}}
	e := envReader{getenv: getenv, into: &l.Config, said: l.said}
	e.folders()
	e.readAll()
	return l, errors.Join(e.wrong...)
}

// readFile reads the settings file. name is "" if there is none and the caller named none.
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

// By records that a flag or another source set a setting.
func (l *Loaded) By(path, source string) { l.said[path] = Place{By: source} }

// From reports whether a setting was read from a variable.
func (l *Loaded) From(variable string) bool {
	for _, at := range l.said {
		if at.By == variable {
			return true
		}
	}
	return false
}

// Where returns the position at which a setting was set; the zero Place means that it holds its default.
func (l *Loaded) Where(path string) Place { return l.said[path] }

// Validate is Config.Validate; mistakes in the file are *PositionError.
func (l *Loaded) Validate() error { return l.Explain(l.Config.Validate()) }

// Explain adds to each *SettingProblem in an error the position at which its setting was set, if that was in a
// file.
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

// near returns the position of a setting, or of the section that contains it.
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

// Environment returns the variables that set these settings, with their values, for a program that is started with
// the same settings. It leaves out secrets, and the settings of listeners and authentication: GATEHOUSE_TRANSPORT,
// listen, daemon and auth.
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
	l.readEnvironment(reflect.TypeFor[Config](), "", take)
	return found
}

func (l *Loaded) readEnvironment(t reflect.Type, path string, take func(string)) {
	for _, s := range settingsIn(t, path) {
		switch {
		case path == "" && slices.Contains([]string{"listen", "daemon", "auth"}, s.path):
		case s.section():
			l.readEnvironment(s.typ, s.path, take)
		case !s.secret() && s.typ != secretType && l.said[s.path].By == s.variable():
			take(s.variable())
		}
	}
}

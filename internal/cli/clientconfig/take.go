package clientconfig

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Source is a file of a client whose servers can be taken over.
type Source struct {
	Client *Client
	Scope  Scope
	File   string
}

// SourceOf finds out which client a file belongs to: by its path, or else by its
// form.
func (m Machine) SourceOf(path string) (Source, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return Source{}, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return Source{}, err
	}
	for _, c := range Clients {
		for _, s := range []Scope{User, Project} {
			if known, err := os.Stat(m.Path(c, s)); err == nil && os.SameFile(known, info) {
				return Source{c, s, path}, nil
			}
		}
	}
	text, err := readLimited(path, maxJSON)
	if err != nil {
		return Source{}, err
	}
	return Source{form(path, text), Project, path}, nil
}

// form returns a client that writes servers as a text does.
func form(path string, text []byte) *Client {
	guesses := []string{"zed", "amp", "opencode", "vscode"} // by their own keys
	switch strings.ToLower(filepath.Ext(path)) {
	case ".toml":
		return FindClient("codex")
	case ".yaml", ".yml":
		guesses = []string{"goose"}
	}
	for _, id := range guesses {
		c := FindClient(id)
		if all, err := c.Servers(text); err == nil && len(all) > 0 {
			return c
		}
	}
	if c := FindClient("continue"); len(guesses) == 1 {
		return c
	}
	return FindClient("cursor") // mcpServers, with comments
}

// openSource reads the file of a source.
func (m Machine) openSource(from Source, name string) (*Change, error) {
	if from.File == m.Path(from.Client, from.Scope) {
		return m.openConfig(from.Client, from.Scope, name)
	}
	return openFile(from.Client, from.Scope, from.File, name)
}

// ReadServers returns the servers of a source.
func (m Machine) ReadServers(from Source) ([]Server, error) {
	ch, err := m.openSource(from, "")
	if err != nil {
		return nil, err
	}
	if !ch.Existed {
		return nil, nil
	}
	if at := invalidUTF8(ch.Before); at >= 0 {
		return nil, &FileError{from.File, syntaxAt(ch.Before, at, "expected UTF-8")}
	}
	if len(strings.TrimSpace(string(withoutBOM(ch.Before)))) == 0 {
		return nil, nil
	}
	all, err := from.Client.Servers(ch.Before)
	if err != nil {
		return nil, &FileError{from.File, err}
	}
	return all, nil
}

// PlanTake works out how a server takes the place of others in a file.
func (m Machine) PlanTake(from Source, others []string, server Server) (*Change, error) {
	ch, err := m.openSource(from, server.Name)
	if err != nil {
		return nil, err
	}
	ch.After = ch.Before
	for _, name := range others {
		if name == server.Name {
			return nil, fmt.Errorf("%s: %q is the name of this host's own entry", from.File, name)
		}
		if ch.After, err = from.Client.Remove(ch.After, name, false); err != nil {
			return nil, &FileError{from.File, err}
		}
	}
	if ch.After, err = from.Client.Put(ch.After, server); err != nil {
		return nil, &FileError{from.File, err}
	}
	return ch, nil
}

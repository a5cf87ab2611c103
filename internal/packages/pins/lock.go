package pins

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"gatehouse/internal/packages/attest"
)

// LockVersion is the version of the form of a lock file.
const LockVersion = 1

const maxLock = 32 << 20 // bytes

// Lock is a lock file: packages as they were approved on one host, for others. It has no times and no
// values of secrets, and is the same for the same packages.
type Lock struct {
	Version  int      `json:"gatehouse_lock"`
	Packages []Locked `json:"packages"` // sorted by name
}

// Locked is a package of a lock file. What it has in common with a declaration of the settings is
// called as there.
type Locked struct {
	Name        string            `json:"name"`
	Source      string            `json:"source"` // in one version
	Version     string            `json:"version,omitempty"`
	Digest      string            `json:"digest,omitempty"`
	Command     string            `json:"command,omitempty"`
	Args        []string          `json:"args,omitempty"`
	Env         map[string]string `json:"env,omitempty"`     // values that look like secrets refer to one
	Headers     map[string]string `json:"headers,omitempty"` // likewise
	PassHeaders []string          `json:"pass_headers,omitempty"`
	Start       string            `json:"start,omitempty"`
	Results     string            `json:"results,omitempty"`
	Instances   string            `json:"instances,omitempty"`
	Timeout     string            `json:"timeout,omitempty"`
	TrustHints  bool              `json:"trust_hints,omitempty"`
	NewTools    string            `json:"new_tools,omitempty"`
	Title       string            `json:"title,omitempty"`
	Off         []string          `json:"off,omitempty"`
	Image       json.RawMessage   `json:"image,omitempty"` // what is changed of the configuration of an image

	Attested *attest.Identity `json:"attested,omitempty"` // where the program was built

	Tools   map[string]string `json:"tools,omitempty"` // approved hashes by the server's own names
	Prompts map[string]string `json:"prompts,omitempty"`

	// NPMLock is npm's lock file without the addresses of registries, so that the same versions of all
	// that the package needs are installed.
	NPMLock json.RawMessage `json:"npm_lock,omitempty"`
	// PyPILock are requirements of a package of PyPI and all it needs, each with its version and hashes.
	PyPILock []string `json:"pypi_lock,omitempty"`
}

// Pins returns what a lock file approves.
func (l *Locked) Pins(by Pin) *Pins {
	p := &Pins{Version: l.Version, Digest: l.Digest, Attested: l.Attested}
	for name, hash := range l.Tools {
		by.Hash = hash
		p.Approve(Tool, name, by)
	}
	for name, hash := range l.Prompts {
		by.Hash = hash
		p.Approve(Prompt, name, by)
	}
	return p
}

// SetPins puts approvals into an entry of a lock file.
func (l *Locked) SetPins(p *Pins) {
	if p == nil {
		return
	}
	l.Digest, l.Attested = p.Digest, p.Attested
	l.Tools, l.Prompts = hashes(p.Tools), hashes(p.Prompts)
}

func hashes(of map[string]Pin) map[string]string {
	all := map[string]string{}
	for name, pin := range of {
		all[name] = pin.Hash
	}
	return all
}

// Encode returns the text of a lock file.
func (l *Lock) Encode() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(l)
	return b.Bytes(), err
}

// Decode reads a lock file. Members that it does not know are an error, because they may say what may
// not be installed.
func Decode(text []byte) (l Lock, err error) {
	if len(text) > maxLock {
		return l, fmt.Errorf("the lock file has %d bytes; at most %d", len(text), maxLock)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return l, fmt.Errorf("decode the lock file: %w", err)
	}
	if l.Version != LockVersion {
		return l, fmt.Errorf("the lock file has gatehouse_lock %d, and this version of gatehouse reads %d", l.Version,
			LockVersion)
	}
	seen := map[string]bool{}
	for _, p := range l.Packages {
		if p.Name == "" || seen[p.Name] {
			return l, fmt.Errorf("the lock file has package %q twice or without a name", p.Name)
		}
		seen[p.Name] = true
	}
	return l, nil
}

// Select returns a lock file with the named packages alone; all without names.
func (l Lock) Select(names []string) (Lock, error) {
	if len(names) == 0 {
		return l, nil
	}
	out := Lock{Version: l.Version}
	var missing []string
	for _, name := range names {
		i := slices.IndexFunc(l.Packages, func(p Locked) bool { return p.Name == name })
		if i < 0 {
			missing = append(missing, name)
			continue
		}
		out.Packages = append(out.Packages, l.Packages[i])
	}
	if len(missing) > 0 {
		return out, fmt.Errorf("the lock file has no package %s", strings.Join(missing, ", "))
	}
	return out, nil
}

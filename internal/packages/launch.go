package packages

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/exec/proc"
	"gatehouse/tool"
)

// launch starts a server, agrees with it on a revision and asks for its tools.
// After an error it has ended. The error holds what it last said.
func (p *pack) launch(ctx context.Context, r *Record) (u *upstream, entries []json.RawMessage, err error) {
	since := p.journal.now()
	defer func() {
		if err == nil {
			return
		}
		if u != nil {
			u.kill(err)
			<-u.gone // and with it what it printed is there
		}
		err = withWords(err, p.journal.tail(since, 10))
		u = nil
	}()
	if err := os.MkdirAll(p.data(), 0o700); err != nil {
		return nil, nil, err
	}
	command, args, err := p.command(r)
	if err != nil {
		return nil, nil, err
	}
	env, hider, err := p.environment(r)
	if err != nil {
		return nil, nil, err
	}
	words := &printed{to: &p.journal}
	u, err = talk(p.house.ctx, int(p.house.opts.Message), &p.journal, hider, func(f *frames) (*proc.Process, error) {
		return proc.Start(p.house.ctx, proc.Spec{
			Path: command, Args: args, Dir: p.data(), Env: env, Input: true,
			Stdout: f, Stderr: flushed{hider.Writer(words), words}, Grace: stopGrace, Whole: true, Processes: mostProcesses,
			Own: []string{p.folder()},
		})
	})
	if err != nil {
		return nil, nil, err
	}
	soon, cancel := context.WithTimeoutCause(ctx, p.house.opts.Begin, fmt.Errorf("it was not ready within %v", p.house.opts.Begin))
	defer cancel()
	if err := u.introduce(soon, p.house.opts.Name, p.house.opts.Version); err != nil {
		return u, nil, err
	}
	entries, err = u.list(soon)
	return u, entries, err
}

// mostProcesses is how many processes and threads a package's server, or npm while
// it installs one, may be at once. A server on Node is about a dozen.
const mostProcesses = 512

// flushed flushes both of two writers, one behind the other.
type flushed struct {
	*secret.HidingWriter
	behind *printed
}

func (f flushed) Flush() error { return errors.Join(f.HidingWriter.Flush(), f.behind.Flush()) }

// spoken is an error with what a program said before it.
type spoken struct {
	error
	said string
}

func (e *spoken) Unwrap() error { return e.error }

func withWords(err error, said string) error {
	if _, ok := errors.AsType[*tool.Refusal](err); ok || said == "" {
		return err
	}
	return &spoken{err, said}
}

// Words are what a server said before it failed; "" when it said nothing.
func Words(err error) string {
	if s, ok := errors.AsType[*spoken](err); ok {
		return s.said
	}
	return ""
}

// environment is what a server finds in its own: what every program needs, a
// home that is its data, and what the record says, with the secrets.
func (p *pack) environment(r *Record) (env []string, h secret.Hider, err error) {
	env = slices.DeleteFunc(proc.BaseEnv(), func(kv string) bool { return strings.HasPrefix(kv, "HOME=") })
	env = append(env, "HOME="+p.data(), "GATEHOUSE_PACKAGE_DATA="+p.data())
	if len(r.Env) == 0 {
		return env, h, nil
	}
	expanded := map[string]string{}
	for name, value := range r.Env {
		expanded[name] = p.expand(r, value)
	}
	fill := p.house.opts.Secrets
	if fill == nil {
		fill = noSecrets
	}
	filled, err := fill(expanded)
	if err != nil {
		return nil, h, fmt.Errorf("environment: %w", err)
	}
	var hidden []secret.Text
	for _, name := range slices.Sorted(maps.Keys(filled)) {
		env = append(env, name+"="+filled[name].Reveal())
		if refers, _ := secret.Names(r.Env[name]); len(refers) > 0 {
			hidden = append(hidden, filled[name])
		}
	}
	return env, secret.NewHider(hidden...), nil
}

func noSecrets(settings map[string]string) (map[string]secret.Text, error) {
	all := map[string]secret.Text{}
	for name, value := range settings {
		if refers, err := secret.Names(value); err != nil || len(refers) > 0 {
			return nil, fmt.Errorf("%s: this host keeps no secrets", name)
		}
		all[name] = secret.New(value)
	}
	return all, nil
}

// expand puts the package's folders into a text.
func (p *pack) expand(r *Record, text string) string {
	return strings.NewReplacer("${data}", p.data(), "${program}", r.program(p.folder())).Replace(text)
}

// command is what is started.
func (p *pack) command(r *Record) (command string, args []string, err error) {
	for _, a := range r.Args {
		args = append(args, p.expand(r, a))
	}
	if command = p.expand(r, r.Command); command == "" {
		command, first, err := p.named(r)
		return command, append(first, args...), err
	}
	if local, ok := strings.CutPrefix(command, "./"); ok && r.Program != "" {
		if !filepath.IsLocal(local) {
			return "", nil, invalid("command %q leads out of the program's folder", r.Command)
		}
		command = filepath.Join(r.program(p.folder()), local)
	}
	return command, args, nil
}

// named is the program that a package.json names.
func (p *pack) named(r *Record) (command string, args []string, err error) {
	root, err := os.OpenRoot(r.program(p.folder()))
	if err != nil {
		return "", nil, err
	}
	defer root.Close()
	in := "."
	if r.Source.Kind == NPM {
		in = "node_modules/" + npmPackage(r.Source.From)
	}
	m, err := readManifest(root, in)
	if err != nil {
		return "", nil, &tool.Refusal{Code: "invalid_arguments", Message: fmt.Sprintf("what is to be started is not known: %v", err), Next: "Say it as command; ./name is in the program's folder."}
	}
	entry, err := m.entry()
	if err != nil {
		return "", nil, err
	}
	entry = path.Join(in, entry)
	script, err := isScript(root, entry)
	if err != nil {
		return "", nil, err
	}
	full := filepath.Join(root.Name(), filepath.FromSlash(entry))
	if script {
		return "node", []string{full}, nil
	}
	return full, nil, nil
}

// manifest is what is read of a package.json.
type manifest struct {
	Name    string          `json:"name"`
	Version string          `json:"version"`
	Bin     json.RawMessage `json:"bin"`
}

const mostManifest = 1 << 20 // bytes

func readManifest(root *os.Root, in string) (m manifest, err error) {
	f, err := root.Open(path.Join(in, "package.json"))
	if err != nil {
		return m, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, mostManifest))
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	return m, err
}

// entry is the program that the package is about: the only one, or the one of
// its name.
func (m manifest) entry() (string, error) {
	var one string
	var many map[string]string
	switch {
	case json.Unmarshal(m.Bin, &one) == nil:
	case json.Unmarshal(m.Bin, &many) == nil && len(many) == 1:
		for _, one = range many {
		}
	default:
		one = many[path.Base(m.Name)]
	}
	if one = path.Clean(one); one == "." || !filepath.IsLocal(filepath.FromSlash(one)) {
		return "", &tool.Refusal{Code: "invalid_arguments", Message: fmt.Sprintf("package.json names %d programs, and none as what is to be started", len(many)), Next: "Say it as command, such as node with ${program}/index.js as its first argument."}
	}
	return one, nil
}

// isScript reports whether a file is for Node.
func isScript(root *os.Root, name string) (bool, error) {
	switch path.Ext(name) {
	case ".js", ".mjs", ".cjs":
		return true, nil
	}
	f, err := root.Open(name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	line, _ := bufio.NewReader(io.LimitReader(f, 256)).ReadBytes('\n')
	return bytes.HasPrefix(line, []byte("#!")) && bytes.Contains(line, []byte("node")), nil
}

// npmPackage is a name without its version.
func npmPackage(from string) string {
	if i := strings.LastIndexByte(from, '@'); i > 0 {
		return from[:i]
	}
	return from
}

// callParams are those of tools/call: the server's own name for the tool, the
// arguments, and what of the caller's _meta is not between the caller and this
// host.
func callParams(own string, args, meta json.RawMessage) json.RawMessage {
	b := appendMember([]byte{'{'}, "name", quote(own))
	if len(args) > 0 {
		b = appendMember(b, "arguments", args)
	}
	if kept := foreign(meta); kept != nil {
		b = appendMember(b, "_meta", kept)
	}
	return append(b, '}')
}

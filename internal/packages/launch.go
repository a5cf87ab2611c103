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
	"gatehouse/internal/mcp/client"
	"gatehouse/tool"
)

// launchServer starts a server, performs the handshake and, with list, lists its tools. If it fails the
// server has exited, and the error contains its last output.
func (p *managedPackage) launchServer(
	ctx context.Context, r *Record, o client.ConnOptions, list bool,
) (u *upstream, l listing, err error) {
	since := p.journal.endOffset()
	defer func() {
		if err == nil {
			return
		}
		if u != nil {
			u.killProcess(err)
			<-u.gone // its output is complete then
		}
		if u != nil && p.confines(r) && ctx.Err() == nil {
			p.journal.writeLine(
				"[host] it ran in a sandbox, with the programs of this machine and what it was granted; " +
					"gatehouse package grant grants more",
			)
		}
		err = withOutput(err, p.journal.tail(since, 10))
		u = nil
	}()
	if r.Source.IsRemote() {
		u, err = p.connectRemote(ctx, r, o)
	} else if r.Source.Kind == OpenAPI {
		u, err = p.connectOpenAPI(ctx, r, o)
	} else {
		u, err = p.startChild(r, o)
	}
	if err != nil {
		return nil, l, err
	}
	soon, cancel := context.WithTimeoutCause(
		ctx,
		p.manager.opts.Begin,
		fmt.Errorf("it was not ready within %v (modules.package.begin in the settings)", p.manager.opts.Begin),
	)
	defer cancel()
	if err := u.connectServer(soon, r.Server.Protocol); err != nil {
		return u, l, err
	}
	if list {
		p.manager.opts.Alone.describeConnection(u.conn)
	}
	if list {
		l, err = u.listUpstream(soon)
	}
	return u, l, err
}

// startChild starts a server as a child process.
func (p *managedPackage) startChild(r *Record, o client.ConnOptions) (*upstream, error) {
	if err := os.MkdirAll(p.data(), 0o700); err != nil {
		return nil, err
	}
	if r.staged != nil {
		if err := p.copyData(r); err != nil {
			return nil, err
		}
	}
	r, command, args, err := p.startCommand(r)
	if err != nil {
		return nil, err
	}
	env, hider, err := p.launchEnvironment(r)
	if err != nil {
		return nil, err
	}
	words := &lineWriter{journal: &p.journal}
	stderr := flushBoth{hider.Writer(words), words}
	return connectUpstream(
		int(p.manager.opts.Message),
		p,
		hider,
		o,
		func(f io.Writer) (child, error) { return p.startProgram(r, command, args, env, f, stderr) },
	)
}

// startProgram starts a program of a package as its server is started: in its sandbox, or with access to its own
// folders.
func (p *managedPackage) startProgram(
	r *Record, command string, args, env []string, stdout, stderr io.Writer,
) (child, error) {
	if r.Source.Kind == OCI && !p.confines(r) {
		return nil, invalid("an image runs only in a sandbox; package %s has none", p.id)
	}
	if p.confines(r) {
		return notNil(p.startServer(r, command, args, env, stdout, stderr))
	}
	dir := p.data()
	if a := p.manager.opts.Alone; a != nil {
		dir = a.Dir
	}
	return notNil(proc.Start(p.manager.ctx, proc.Spec{
		Path: command, Args: args, Dir: dir, Env: env, Input: true,
		Stdout: stdout, Stderr: stderr, Grace: stopGrace, Whole: true,
		Processes: maxProcesses,
		Own:       p.ownFolders(r), OwnReadOnly: p.readOnlyFolders(r),
	}))
}

// notNil returns a child that was started, and no interface of a nil pointer if it was not.
func notNil[C child](c C, err error) (child, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

// ownFolders are the folders that a server may write.
func (p *managedPackage) ownFolders(r *Record) []string {
	if !r.Shared {
		return []string{p.folder()}
	}
	return []string{p.data()}
}

// readOnlyFolders are those that it may read: its program, whose files other packages
// may have too.
func (p *managedPackage) readOnlyFolders(r *Record) []string {
	if !r.Shared {
		return nil
	}
	return []string{filepath.Join(p.folder(), programTop(r.Program))}
}

// maxProcesses is how many processes and threads a package's server, or npm while
// it installs one, may be at once. A server on Node is about a dozen.
const maxProcesses = 512

// flushBoth flushes two writers, one after the other.
type flushBoth struct {
	*secret.HidingWriter
	behind *lineWriter
}

func (f flushBoth) Flush() error { return errors.Join(f.HidingWriter.Flush(), f.behind.Flush()) }

// outputError is an error with the output of the program before it.
type outputError struct {
	error
	output string
}

func (e *outputError) Unwrap() error { return e.error }

func withOutput(err error, said string) error {
	if _, ok := errors.AsType[*tool.Refusal](err); ok || said == "" {
		return err
	}
	return &outputError{err, said}
}

// Words are what a server said before it failed; "" when it said nothing.
func Words(err error) string {
	if s, ok := errors.AsType[*outputError](err); ok {
		return s.output
	}
	return ""
}

// launchEnvironment returns the environment of a server: the basic variables, a home that is
// its data folder, and the variables of the record with their secrets.
func (p *managedPackage) launchEnvironment(r *Record) (env []string, h secret.Hider, err error) {
	env = slices.DeleteFunc(proc.BaseEnv(), func(kv string) bool { return strings.HasPrefix(kv, "HOME=") })
	env = append(env, "HOME="+p.data())
	if p.confines(r) {
		if err := makeHome(p.dataOf(r)); err != nil {
			return nil, h, err
		}
		env = confinedEnvironment(p.data())
	}
	data := p.data()
	if r.Source.Kind == OCI { // PATH and what else its programs expect come from the image
		data = imageHome
		env = []string{"HOME=" + data, "TMPDIR=/tmp", "XDG_RUNTIME_DIR=/tmp"}
	}
	if a := p.manager.opts.Alone; a != nil {
		env = a.aloneEnvironment()
	}
	env = append(env, "GATEHOUSE_PACKAGE_DATA="+data)
	if len(r.Env) == 0 {
		return env, h, nil
	}
	expanded := map[string]string{}
	for name, value := range r.Env {
		expanded[name] = p.expand(r, value)
	}
	fill := p.manager.opts.Secrets
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

// expand replaces ${data} and ${program} by the package's folders, as its server sees them.
func (p *managedPackage) expand(r *Record, text string) string {
	if r.Source.Kind == OCI {
		return strings.NewReplacer("${data}", imageHome, "${program}", "").Replace(text)
	}
	return strings.NewReplacer("${data}", p.data(), "${program}", r.program(p.folder())).Replace(text)
}

// startCommand returns the program to start and its arguments, and the record with the variables
// that the program itself says.
func (p *managedPackage) startCommand(r *Record) (with *Record, command string, args []string, err error) {
	if r.Source.Kind == OCI {
		command, args, err = p.imageCommand(r)
		return r, command, args, err
	}
	for _, a := range r.Args {
		args = append(args, p.expand(r, a))
	}
	command = p.expand(r, r.Command)
	if first, own, err := p.ownProgram(r); own {
		return r.withVariables(first.env), first.command, append(first.args, args...), err
	}
	if local, ok := strings.CutPrefix(command, "./"); ok && r.Program != "" {
		if !filepath.IsLocal(local) {
			return nil, "", nil, invalid("command %q leads out of the program's folder", r.Command)
		}
		command = filepath.Join(r.program(p.folder()), local)
	}
	return r, command, args, nil
}

// withVariables returns the record with further variables, which do not replace its own.
func (r *Record) withVariables(env map[string]string) *Record {
	if len(env) == 0 {
		return r
	}
	with := *r
	with.Env = maps.Clone(env)
	maps.Copy(with.Env, r.Env)
	return &with
}

// starting is a program, its first arguments and its variables.
type starting struct {
	command string
	args    []string
	env     map[string]string
}

// ownProgram returns the program of the package to start. own is false if the record's command is another one.
func (p *managedPackage) ownProgram(r *Record) (s starting, own bool, err error) {
	named := r.Command == "" || programName().MatchString(r.Command) // one of its programs
	switch {
	case r.Source.Kind == PyPI && named:
		s.command, s.args, err = p.pypiCommand(r)
	case (r.Source.Kind == Crate || r.Source.Kind == Go || r.Source.Kind == Binary) && named:
		s, err = p.builtStart(r)
	case r.Source.Kind == Bundle:
		s, err = p.bundleStart(r)
	case r.Command == "" && r.Source.Kind != Command:
		s.command, s.args, err = p.manifestCommand(r)
	default:
		return s, false, nil
	}
	return s, true, err
}

// manifestCommand returns the program that package.json names.
func (p *managedPackage) manifestCommand(r *Record) (command string, args []string, err error) {
	root, err := os.OpenRoot(r.program(p.folder()))
	if err != nil {
		return "", nil, err
	}
	defer root.Close()
	in := "."
	if r.Source.Kind == NPM {
		in = "node_modules/" + npmPackage(r.Source.From)
	}
	return startManifest(root, in)
}

// startManifest returns the program that the package.json in a folder names.
func startManifest(root *os.Root, in string) (command string, args []string, err error) {
	m, err := readManifest(root, in)
	if err != nil {
		return "", nil, &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: fmt.Sprintf("the program to start is unknown: %v", err),
			Next:    "Set command; ./name is in the program's folder.",
		}
	}
	entry, err := m.startFile()
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

// manifest is the part of a package.json that is used.
type manifest struct {
	Name    string          `json:"name"`
	Version string          `json:"version"`
	Bin     json.RawMessage `json:"bin"`
}

const maxManifest = 1 << 20 // bytes

func readManifest(root *os.Root, in string) (m manifest, err error) {
	f, err := root.Open(path.Join(in, "package.json"))
	if err != nil {
		return m, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxManifest))
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	return m, err
}

// startFile returns the program of the package: the only one, or the one with the package's
// name.
func (m manifest) startFile() (string, error) {
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
		return "", &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: fmt.Sprintf("package.json names %d programs, and none as the one to start", len(many)),
			Next:    "Set command, such as node with ${program}/index.js as its first argument.",
		}
	}
	return one, nil
}

// isScript reports whether a file is a Node script.
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

// NPMName returns the name of an npm package without its version.
func NPMName(from string) string { return npmPackage(from) }

// npmPackage returns a package name without its version.
func npmPackage(from string) string {
	if i := strings.LastIndexByte(from, '@'); i > 0 {
		return from[:i]
	}
	return from
}

// callParams encodes the params of tools/call: the server's name for the tool, the
// arguments, and the caller's _meta without the keys that concern only this host.
func callParams(own string, args, meta json.RawMessage) json.RawMessage {
	b := appendMember([]byte{'{'}, "name", quote(own))
	if len(args) > 0 {
		b = appendMember(b, "arguments", args)
	}
	if kept := withoutReserved(meta); kept != nil {
		b = appendMember(b, "_meta", kept)
	}
	return append(b, '}')
}

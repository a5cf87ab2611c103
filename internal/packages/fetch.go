package packages

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"gatehouse/internal/exec/proc"
	"gatehouse/tool"
)

const (
	mostFiles = 200_000
	mostBytes = 2 << 30 // of one program
)

// fetch fills the folder of a new program.
func (p *managedPackage) fetch(
	ctx context.Context, r *Record, plan Plan, say func(done, total int64, units string),
) error {
	dir := filepath.Join(p.folder(), r.Program)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if r.Source.Kind == OCI {
		return p.fetchImage(ctx, r, &plan, dir, say)
	}
	if r.Source.fromRegistry() {
		defer reportSize(ctx, dir, func(size int64) { say(size, 0, "bytes") })()
		if plan.locked != nil {
			if err := writeLocks(dir, r, plan.locked); err != nil {
				return err
			}
		}
		return p.fetchPackage(ctx, r, dir, plan.fresh)
	}
	if r.Source.Kind == OpenAPI {
		return p.fetchDocument(ctx, r, &plan, dir)
	}
	from, name, err := plan.openSource()
	if r.Source.FromAddress() {
		var remove func()
		if from, name, remove, err = p.download(ctx, r, dir, plan.fresh, say); err == nil {
			defer remove()
		}
	}
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	defer from.Close()
	to, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer to.Close()
	c := &copying{ctx: ctx, to: to, report: say}
	switch r.Source.Kind {
	case Folder:
		err = c.folder(from, name)
	case Binary:
		err = c.program(from, name, programOf(r.Source.From))
	case Bundle:
		if err = c.archive(from, name); err == nil {
			err = p.prepareBundle(ctx, r, dir)
		}
	default:
		if err = c.archive(from, name); err == nil {
			r.Program, err = onlyFolder(to, r.Program)
		}
	}
	if err != nil || r.Source.Kind == Bundle {
		return err
	}
	return r.adopt(filepath.Join(p.folder(), r.Program), ".")
}

func (plan *Plan) openSource() (*os.Root, string, error) {
	if plan.Source.FromAddress() {
		return nil, "", nil
	}
	if plan.Open != nil {
		return plan.Open()
	}
	full, err := filepath.Abs(plan.Source.From)
	if err != nil {
		return nil, "", err
	}
	root, err := os.OpenRoot(filepath.Dir(full))
	return root, filepath.Base(full), err
}

// adopt takes title and version from a package.json, if there is one and the
// record says nothing.
func (r *Record) adopt(dir, in string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if m, err := readManifest(root, in); err == nil && r.Version == "" {
		r.Version = shorten(m.Version, 100)
	}
	return nil
}

// fetchPackage installs a package of a registry.
func (p *managedPackage) fetchPackage(ctx context.Context, r *Record, dir string, fresh bool) error {
	switch r.Source.Kind {
	case NPM:
		return p.npm(ctx, r, dir, fresh)
	case PyPI:
		return p.pypi(ctx, r, dir, fresh)
	case Crate:
		return p.crate(ctx, r, dir, fresh)
	case Go:
		return p.goProgram(ctx, r, dir, fresh)
	}
	return invalid("source %s: packages of this kind cannot be installed", r.Source)
}

// npm has the host's npm install the package with what it needs. Scripts of
// packages do not run. A version that was installed before is installed by its
// lock file.
func (p *managedPackage) npm(ctx context.Context, r *Record, dir string, fresh bool) error {
	args := []string{"install", "--save-exact", r.Source.From}
	was, locked := p.installedBefore(r, fresh)
	if _, err := os.Stat(filepath.Join(dir, npmLock)); err == nil { // by writeLocks
		args = []string{"ci"}
	} else if locked && copyFiles(was, dir, "package.json", "package-lock.json") == nil {
		args = []string{"ci"}
	} else if err := os.WriteFile(filepath.Join(dir, "package.json"),
		[]byte(`{"private":true}`+"\n"), 0o600); err != nil {
		return err
	}
	err := p.buildPackage(ctx, r, BuildStep{
		Path: "npm", Dir: dir, Env: registryEnv("npm_config_"), Hosts: npmHosts,
		Args: append(args, "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier",
			"--loglevel=error"),
	}, "Have Node with npm installed by the system's package manager, or give the program as command, "+
		"folder or archive.")
	if failed, ok := errors.AsType[*buildError](err); ok {
		return npmFailure(r.Source.From, failed.code, failed.printed)
	}
	if err != nil {
		return err
	}
	return r.adopt(dir, "node_modules/"+npmPackage(r.Source.From))
}

// npmHosts returns the registries that npm's configuration names.
func npmHosts(ctx context.Context) (hosts []string, err error) {
	all, err := npmRegistries(ctx)
	for _, one := range all {
		if u, err := url.Parse(one.address); err == nil && u.Host != "" {
			hosts = append(hosts, u.Host)
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts), err
}

// npmRegistryOf is a registry: of all packages if its name is registry, or of those of a scope.
type npmRegistryOf struct{ name, address string }

// npmRegistries returns the registries that npm's configuration names. npm is asked, because it knows where that is.
func npmRegistries(ctx context.Context) (all []npmRegistryOf, err error) {
	var out bytes.Buffer
	child, err := proc.Start(ctx, proc.Spec{
		Path: "npm", Args: []string{"config", "ls", "--json"}, Stdout: &out, Whole: true, Processes: maxProcesses,
		Env: append(proc.BaseEnv(), registryEnv("npm_config_")...),
	})
	if err != nil {
		return nil, err
	}
	if _, err := child.Wait(); err != nil {
		return nil, err
	}
	var config map[string]any
	if err := json.Unmarshal(out.Bytes(), &config); err != nil {
		return nil, fmt.Errorf("the configuration of npm: %w", err)
	}
	for name, value := range config {
		if name != "registry" && !strings.HasSuffix(name, ":registry") {
			continue
		}
		if address, _ := value.(string); address != "" {
			all = append(all, npmRegistryOf{name, address})
		}
	}
	return all, nil
}

// copying fills a folder with files, within limits.
type copying struct {
	// ctx is that of the one installation that copies.
	ctx    context.Context
	to     *os.Root
	report func(done, total int64, units string)
	files  int
	bytes  int64
}

// folder copies what is below a folder. Links and what is no file are left out.
func (c *copying) folder(from *os.Root, name string) error {
	sub, err := from.OpenRoot(name)
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	defer sub.Close()
	return fs.WalkDir(sub.FS(), ".", func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return c.dir(at)
		}
		info, err := d.Info()
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err := sub.Open(filepath.FromSlash(at))
		if err != nil {
			return err
		}
		defer f.Close()
		return c.file(at, info.Mode(), f)
	})
}

func (c *copying) dir(at string) error {
	if at == "." {
		return nil
	}
	if c.files++; c.files > mostFiles {
		return tooMany()
	}
	return c.to.MkdirAll(filepath.FromSlash(at), 0o700)
}

func tooMany() error {
	return tool.Refuse(
		tool.CodeTooLarge,
		"a program has at most %d files and folders, and %d bytes",
		mostFiles,
		int64(mostBytes),
	)
}

func (c *copying) file(at string, mode fs.FileMode, from io.Reader) error {
	if c.files++; c.files > mostFiles {
		return tooMany()
	}
	f, err := c.to.OpenFile(filepath.FromSlash(at), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600|mode.Perm()&0o100)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(reading{c.ctx, from}, mostBytes-c.bytes+1))
	c.bytes += n
	if c.bytes > mostBytes {
		err = tooMany()
	}
	c.report(c.bytes, 0, "bytes")
	return errors.Join(err, f.Close())
}

// reading ends with its context.
type reading struct {
	// ctx is there because io.Reader has none.
	ctx context.Context
	io.Reader
}

func (r reading) Read(b []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.Reader.Read(b)
}

// program copies one program.
func (c *copying) program(from *os.Root, name, as string) error {
	f, err := from.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return invalid("source: %s is no file", name)
	}
	if err := c.dir(binFolder); err != nil {
		return err
	}
	return c.file(path.Join(binFolder, as), 0o700, f)
}

// programOf is the name that the program of a path or an address gets.
func programOf(from string) string {
	if u, err := url.Parse(from); err == nil && isAddress(from) {
		from = u.Path
	}
	if name := filepath.Base(from); programName().MatchString(name) {
		return name
	}
	return "server"
}

// archive unpacks files and folders. Links and everything else are left out;
// a name that leads elsewhere is refused.
func (c *copying) archive(from *os.Root, name string) error {
	f, err := from.Open(name)
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	head := make([]byte, 4)
	n, _ := f.ReadAt(head, 0)
	switch head = head[:n]; {
	case !info.Mode().IsRegular():
		return invalid("source: %s is no file", name)
	case bytes.HasPrefix(head, []byte("PK")):
		return c.zip(f, info.Size())
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(f)
		if err != nil {
			return err
		}
		return c.tar(z)
	}
	return c.tar(f)
}

func (c *copying) tar(from io.Reader) error {
	for t := tar.NewReader(reading{c.ctx, from}); ; {
		head, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("archive: %w", err)
		}
		if err := c.entry(head.Name, head.FileInfo().Mode(),
			func() (io.ReadCloser, error) { return io.NopCloser(t), nil }); err != nil {
			return err
		}
	}
}

func (c *copying) zip(from io.ReaderAt, size int64) error {
	z, err := zip.NewReader(from, size)
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	for _, f := range z.File {
		if err := c.entry(f.Name, f.Mode(), f.Open); err != nil {
			return err
		}
	}
	return nil
}

func (c *copying) entry(name string, mode fs.FileMode, open func() (io.ReadCloser, error)) error {
	at := path.Clean(name)
	if !filepath.IsLocal(filepath.FromSlash(at)) {
		return invalid("archive: %q leads out of it", shorten(name, 200))
	}
	if mode.IsDir() {
		return c.dir(at)
	}
	if !mode.IsRegular() {
		return nil
	}
	if err := c.to.MkdirAll(filepath.FromSlash(path.Dir(at)), 0o700); err != nil {
		return err
	}
	r, err := open()
	if err != nil {
		return err
	}
	defer r.Close()
	return c.file(at, mode, r)
}

// onlyFolder steps into a folder that is all there is: archives often have
// one.
func onlyFolder(root *os.Root, program string) (string, error) {
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil || len(entries) != 1 || !entries[0].IsDir() {
		return program, err
	}
	return filepath.Join(program, entries[0].Name()), nil
}

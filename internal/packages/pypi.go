package packages

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"gatehouse/internal/exec/proc"
	"gatehouse/tool"
)

// Names in the folder of a program from PyPI.
const (
	wantedFile = "requirements.in"  // what the source names
	pypiLock   = "requirements.txt" // what was resolved, each with its version and hashes
	venvFolder = "venv"
)

// InstallUV is the command line that installs uv from PyPI.
const InstallUV = "python3 -m pip install --user uv"

// missingPython is what to do if neither uv nor Python is there.
const missingPython = "Install Python 3 with venv by the system's package manager, or uv (" + InstallUV +
	"), or give the program as command, folder or archive."

// pypi installs a package of PyPI with what it needs, in a virtual environment of its own: by uv if the host has it,
// otherwise by pip. What is resolved is kept as a lock file with hashes. Only wheels are installed, because the build
// of anything else runs its code. A version that was installed before is installed by its lock file.
func (p *managedPackage) pypi(ctx context.Context, r *Record, dir string, fresh bool) error {
	_, err := os.Stat(filepath.Join(dir, pypiLock)) // by writeLocks
	locked := err == nil
	if was, ok := p.installedBefore(r, fresh); ok && !locked {
		locked = copyFiles(was, dir, wantedFile, pypiLock) == nil
	}
	if !locked {
		if err := os.WriteFile(filepath.Join(dir, wantedFile),
			[]byte(requirementLines(r.Source.From)), 0o600); err != nil {
			return err
		}
	}
	install := p.pypiByPip
	if _, err := exec.LookPath("uv"); err == nil {
		install = p.pypiByUV
	}
	err = install(ctx, r, dir, locked)
	if failed, ok := errors.AsType[*buildError](err); ok {
		return withOutput(
			fmt.Errorf("%s cannot install %s%s", failed.program, r.Source.From, pypiReason(failed.printed)),
			failed.lastLines(10),
		)
	}
	if err != nil {
		return err
	}
	info, err := findDistribution(dir, r.Source.Name())
	if err == nil && r.Version == "" {
		r.Version = shorten(info.version, 100)
	}
	return err
}

// installedBefore returns the folder of the program if it was installed from the same source.
func (p *managedPackage) installedBefore(r *Record, fresh bool) (dir string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rec.program(p.folder()), !fresh && p.rec.Program != "" && p.rec.Source == r.Source
}

// requirementLines are the requirements of a source, a line each.
func requirementLines(from string) string {
	var lines strings.Builder
	for more := true; more; {
		var first string
		first, from, more = cutRequirement(from)
		lines.WriteString(first + "\n")
	}
	return lines.String()
}

// newerPython finds in what uv printed which Python a package requires.
var newerPython = lazy(`Python\s*(>=?\s?3\.\d+(?:\.\d+)?)`)

func (p *managedPackage) pypiByUV(ctx context.Context, r *Record, dir string, locked bool) error {
	read, env := toolchain("uv", "python3"), []string{}
	if file, prefix := hostPython(ctx, "python3"); file != "" {
		read, env = append(read, prefix), []string{"UV_PYTHON=" + file}
	}
	uv := func(args ...string) error {
		return p.buildPackage(ctx, r, BuildStep{
			Path: "uv", Args: append(args, "--no-progress", "--quiet"), Dir: dir,
			// The files are links to those of other packages later, with another time.
			Env: slices.Concat(env, registryEnv("uv_"), []string{"PYC_INVALIDATION_MODE=CHECKED_HASH",
				"UV_PYTHON_INSTALL_DIR=" + filepath.Join(dir, "python")}),
			Read: read, Hosts: pypiHosts,
		}, missingPython)
	}
	if err := uv("venv", "--no-project", venvFolder); err != nil {
		return err
	}
	if !locked {
		resolve := []string{"pip", "compile", "--no-header", "--generate-hashes", "--only-binary", ":all:",
			"--python", venvFolder, "--output-file", pypiLock, wantedFile}
		err := uv(resolve...)
		if failed, ok := errors.AsType[*buildError](err); ok {
			// The first Python in PATH can be too old while another one is not.
			needs := newerPython().FindAllStringSubmatch(failed.printed, -1)
			if needs == nil {
				return err
			}
			newest := needs[len(needs)-1][1]
			if err := uv("venv", "--no-project", "--clear", "--python", newest, venvFolder); err != nil {
				return err
			}
			err = uv(resolve...)
		}
		if err != nil {
			return err
		}
	}
	return uv("pip", "install", "--python", venvFolder, "--require-hashes", "--only-binary", ":all:",
		"--link-mode", "copy", "--compile-bytecode", "--requirement", pypiLock)
}

func (p *managedPackage) pypiByPip(ctx context.Context, r *Record, dir string, locked bool) error {
	python := "python3"
	if runtime.GOOS == "windows" {
		python = "python"
	}
	step := BuildStep{Dir: dir, Env: registryEnv("pip_", "pyenv_"), Read: toolchain(python), Hosts: pypiHosts}
	if file, prefix := hostPython(ctx, python); file != "" {
		python, step.Read = file, append(step.Read, prefix)
	}
	step.Path, step.Args = python, []string{"-m", "venv", venvFolder}
	if err := p.buildPackage(ctx, r, step, missingPython); err != nil {
		return err
	}
	pip := func(args ...string) error {
		step.Path = venvPython(dir)
		step.Args = append([]string{"-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", "install",
			"--only-binary", ":all:"}, args...)
		return p.buildPackage(ctx, r, step, missingPython)
	}
	if !locked {
		const report = "resolved.json"
		if err := pip("--dry-run", "--ignore-installed", "--report", report, "--requirement", wantedFile); err != nil {
			return err
		}
		if err := lockOfReport(filepath.Join(dir, report), filepath.Join(dir, pypiLock)); err != nil {
			return err
		}
	}
	return pip("--require-hashes", "--no-deps", "--requirement", pypiLock)
}

// hostPython returns the file and the installation of the Python that a name in PATH stands for; "" if it is one of the
// system's, or cannot be asked. The name may be that of a script, such as pyenv's, which no sandbox can run.
func hostPython(ctx context.Context, name string) (file, prefix string) {
	ctx, cancel := context.WithTimeout(ctx, lookUpTime)
	defer cancel()
	var out bytes.Buffer
	child, err := proc.Start(ctx, proc.Spec{
		Path: name, Args: []string{"-I", "-c", "import sys; print(sys.executable); print(sys.base_prefix)"},
		Stdout: &out,
		Whole:  true, Processes: maxProcesses,
	})
	if err != nil {
		return "", ""
	}
	if end, err := child.Wait(); err != nil || end.Code != 0 || end.Stopped != nil {
		return "", ""
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !filepath.IsAbs(lines[0]) || !isToolchain(lines[1]) {
		return "", ""
	}
	return lines[0], lines[1]
}

// pypiHosts are the hosts of the index that uv or pip use.
func pypiHosts(context.Context) (hosts []string, err error) {
	for _, name := range []string{"UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "PIP_INDEX_URL",
		"PIP_EXTRA_INDEX_URL"} {
		for one := range strings.FieldsSeq(os.Getenv(name)) {
			if u, err := url.Parse(one); err == nil && u.Host != "" {
				hosts = append(hosts, u.Host)
			}
		}
	}
	for _, one := range []string{PublicPyPI, PublicPyPIFiles} {
		hosts = append(hosts, strings.TrimPrefix(one, "https://"))
	}
	return hosts, nil
}

// lockOfReport writes what pip resolved as a lock file.
func lockOfReport(report, lock string) error {
	f, err := os.Open(report)
	if err != nil {
		return err
	}
	defer f.Close()
	var resolved struct {
		Install []struct {
			Download struct {
				Archive struct {
					Hashes map[string]string `json:"hashes"`
				} `json:"archive_info"`
			} `json:"download_info"`
			Metadata struct {
				Name    string `json:"name"`
				Version string `json:"version"`
			} `json:"metadata"`
		} `json:"install"`
	}
	if err := json.NewDecoder(io.LimitReader(f, maxReport)).Decode(&resolved); err != nil {
		return fmt.Errorf("decode what pip resolved: %w", err)
	}
	var lines strings.Builder
	for _, one := range resolved.Install {
		hash := one.Download.Archive.Hashes["sha256"]
		line := one.Metadata.Name + "==" + one.Metadata.Version
		if !pypiName().MatchString(line) || hash == "" {
			return fmt.Errorf("pip resolved %q without a name, a version or a hash", shorten(line, 100))
		}
		fmt.Fprintf(&lines, "%s --hash=sha256:%s\n", line, hash)
	}
	return errors.Join(os.WriteFile(lock, []byte(lines.String()), 0o600), os.Remove(report))
}

const maxReport = 64 << 20 // bytes of what pip says of what it resolved

// pypiReason is what stands behind an error of uv or pip, "" if it is not known.
func pypiReason(printed string) string {
	text := strings.ToLower(printed)
	has := func(any ...string) bool {
		return slices.ContainsFunc(any, func(one string) bool { return strings.Contains(text, one) })
	}
	switch {
	case has("no usable wheels", "has no wheels", "no wheels with a matching", "no matching wheels"):
		return ": it, or something that it needs, has no wheel for this machine and this Python, and nothing is " +
			"built from source"
	case has("not found in the package registry", "no matching distribution", "there is no version of",
		"could not find a version"):
		return ": PyPI has no wheel of this name and version for this machine; check both"
	case has("requires a different python", "requires-python", "does not satisfy python"):
		return ": it needs another version of Python"
	case has("no interpreter found"):
		return ": it needs a version of Python that this machine does not have"
	case has("failed to fetch", "connection error", "max retries exceeded", "dns error"):
		return ": the registry cannot be reached; check the network, the proxy settings and the index in the " +
			"configuration of uv or pip"
	case has("hash mismatch", "do not match the hashes"):
		return ": what the registry sent is not what the lock file says; do not trust it"
	}
	return ""
}

// venvBin is the folder of programs of a virtual environment.
func venvBin(dir string) string {
	if runtime.GOOS == "windows" {
		return filepath.Join(dir, venvFolder, "Scripts")
	}
	return filepath.Join(dir, venvFolder, "bin")
}

func venvPython(dir string) string {
	if runtime.GOOS == "windows" {
		return filepath.Join(venvBin(dir), "python.exe")
	}
	return filepath.Join(venvBin(dir), "python")
}

// distribution is an installed package of PyPI.
type distribution struct {
	version  string
	programs []string
}

var notOfDistributions = lazy(`[-_.]+`)

// normalName is the name of a package of PyPI as packages are compared.
func normalName(name string) string {
	name, _, _ = strings.Cut(name, "[")
	return strings.ToLower(notOfDistributions().ReplaceAllString(name, "_"))
}

// findDistribution finds an installed package in the program of a package.
func findDistribution(dir, name string) (d distribution, err error) {
	pattern := filepath.Join(dir, venvFolder, "lib", "python*", "site-packages", "*.dist-info")
	if runtime.GOOS == "windows" {
		pattern = filepath.Join(dir, venvFolder, "Lib", "site-packages", "*.dist-info")
	}
	all, err := filepath.Glob(pattern)
	if err != nil {
		return d, err
	}
	for _, at := range all {
		named, version, _ := strings.Cut(strings.TrimSuffix(filepath.Base(at), ".dist-info"), "-")
		if normalName(named) != normalName(name) {
			continue
		}
		d.version = version
		d.programs, err = consoleScripts(filepath.Join(at, "entry_points.txt"))
		return d, err
	}
	return d, fmt.Errorf("%s is not among what was installed", name)
}

// consoleScripts are the names of the programs that a file of entry points declares.
func consoleScripts(file string) (names []string, err error) {
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	in := ""
	lines := bufio.NewScanner(io.LimitReader(f, maxManifest))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(line, "[") {
			in = strings.Trim(line, "[]")
			continue
		}
		name, _, ok := strings.Cut(line, "=")
		if name = strings.TrimSpace(name); ok && in == "console_scripts" && programName().MatchString(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, lines.Err()
}

// programName is the name of an installed program: no path.
var programName = lazy(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$`)

// pypiCommand returns the command that starts a program of PyPI. Python is given the script, because the first line of
// a script names a path that a restored backup need not have.
func (p *managedPackage) pypiCommand(r *Record) (command string, args []string, err error) {
	dir := r.program(p.folder())
	name := r.Command
	if name == "" {
		d, err := findDistribution(dir, r.Source.Name())
		if err != nil {
			return "", nil, err
		}
		if name, err = chooseProgram(d.programs, r.Source.Name()); err != nil {
			return "", nil, err
		}
	}
	script := filepath.Join(venvBin(dir), name)
	if runtime.GOOS == "windows" {
		return script + ".exe", nil, nil
	}
	if _, err := os.Stat(script); err != nil {
		return "", nil, invalid("command %q: the package has no program of this name", shorten(name, 100))
	}
	return venvPython(dir), []string{script}, nil
}

// chooseProgram returns the only program, or the one with the package's name.
func chooseProgram(programs []string, name string) (string, error) {
	if len(programs) == 1 {
		return programs[0], nil
	}
	for _, one := range programs {
		if normalName(one) == normalName(name) {
			return one, nil
		}
	}
	if len(programs) == 0 {
		return "", &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: fmt.Sprintf("%s has no program to start", shorten(name, 100)),
			Next:    "Check the name; a library is not an MCP server.",
		}
	}
	return "", &tool.Refusal{
		Code: tool.CodeInvalidArguments,
		Message: fmt.Sprintf("%s has several programs, and none with its name: %s", shorten(name, 100),
			shorten(strings.Join(programs, ", "), 500)),
		Next: "Set command to the one to start.",
	}
}

// copyFiles copies files from one folder to another.
func copyFiles(from, to string, names ...string) error {
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), b, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

package packages

import (
	"archive/zip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"gatehouse/internal/access/secret"
	"gatehouse/tool"
)

// BundleManifest is the part of the manifest.json of an MCP bundle that is used.
type BundleManifest struct {
	Name        string `json:"name"`
	DisplayName string `json:"display_name"`
	Version     string `json:"version"`
	Server      struct {
		Type   string        `json:"type"` // node, python, binary or uv
		Entry  string        `json:"entry_point"`
		Config bundleCommand `json:"mcp_config"`
	} `json:"server"`
	Fields        map[string]BundleField `json:"user_config"`
	Compatibility struct {
		Platforms []string `json:"platforms"`
	} `json:"compatibility"`
}

// bundleCommand is how the server of a bundle is started.
type bundleCommand struct {
	Command   string                   `json:"command"`
	Args      []string                 `json:"args"`
	Env       map[string]string        `json:"env"`
	Platforms map[string]bundleCommand `json:"platform_overrides"`
}

// BundleField is one thing that the user of a bundle configures.
type BundleField struct {
	Type        string          `json:"type"` // string, number, boolean, directory or file
	Title       string          `json:"title"`
	Description string          `json:"description"`
	Required    bool            `json:"required"`
	Sensitive   bool            `json:"sensitive"`
	Multiple    bool            `json:"multiple"`
	Default     json.RawMessage `json:"default"`
	Min         *float64        `json:"min"`
	Max         *float64        `json:"max"`
}

const (
	bundleManifest = "manifest.json"
	mostFields     = 100 // of the configuration of a bundle
)

var fieldName = lazy(`^[A-Za-z_][A-Za-z0-9_.-]{0,63}$`)

// ReadBundle reads the manifest of a bundle, a zip file.
func ReadBundle(file string) (m BundleManifest, err error) {
	z, err := zip.OpenReader(file)
	if err != nil {
		return m, fmt.Errorf("%s is not a bundle: %w", file, err)
	}
	defer z.Close()
	f, err := z.Open(bundleManifest)
	if err != nil {
		return m, fmt.Errorf("%s is not a bundle: %w", file, err)
	}
	defer f.Close()
	return parseBundle(f)
}

func readBundleFolder(dir string) (m BundleManifest, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return m, err
	}
	defer root.Close()
	f, err := root.Open(bundleManifest)
	if err != nil {
		return m, fmt.Errorf("the bundle has no manifest: %w", err)
	}
	defer f.Close()
	return parseBundle(f)
}

// parseBundle reads a manifest, and applies what it says of this platform.
func parseBundle(from io.Reader) (m BundleManifest, err error) {
	b, err := io.ReadAll(io.LimitReader(from, maxManifest+1))
	switch {
	case err != nil:
		return m, err
	case len(b) > maxManifest:
		return m, invalid("bundle: %s has more than %d bytes", bundleManifest, maxManifest)
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, invalid("bundle: %s: %v", bundleManifest, err)
	}
	if len(m.Fields) > mostFields {
		return m, invalid("bundle: user_config has more than %d fields", mostFields)
	}
	for name := range m.Fields {
		if !fieldName().MatchString(name) {
			return m, invalid("bundle: user_config: %q is no name of a field", shorten(name, 100))
		}
	}
	here := map[string]string{"windows": "win32"}[runtime.GOOS]
	if here == "" {
		here = runtime.GOOS
	}
	if all := m.Compatibility.Platforms; len(all) > 0 && !slices.Contains(all, here) {
		return m, invalid("bundle: it is for %s, and this machine is %s", shorten(strings.Join(all, ", "), 100), here)
	}
	c := &m.Server.Config
	if own, ok := c.Platforms[here]; ok {
		if own.Command != "" {
			c.Command = own.Command
		}
		if own.Args != nil {
			c.Args = own.Args
		}
		env := maps.Clone(own.Env)
		for name, value := range c.Env {
			if _, there := env[name]; !there {
				if env == nil {
					env = map[string]string{}
				}
				env[name] = value
			}
		}
		c.Env = env
	}
	return m, m.check()
}

func (m *BundleManifest) check() error {
	entry := filepath.FromSlash(m.Server.Entry)
	switch {
	case !slices.Contains([]string{"node", "python", "binary", "uv"}, m.Server.Type):
		return invalid("bundle: server.type is %q: expected node, python, binary or uv", shorten(m.Server.Type, 50))
	case m.Server.Entry != "" && !filepath.IsLocal(entry):
		return invalid("bundle: server.entry_point %q leads out of it", shorten(m.Server.Entry, 100))
	case m.Server.Entry == "" && (m.Server.Type == "uv" || m.Server.Config.Command == ""):
		return invalid("bundle: server.entry_point is missing")
	case m.refersToSecrets():
		return invalid("bundle: it refers to secrets of this host by name, which no bundle may")
	case slices.Contains([]string{"npx", "uvx", "bunx", "pipx"}, m.Server.Config.Command):
		return &tool.Refusal{
			Code: tool.CodeUnsupported,
			Message: fmt.Sprintf("the bundle has %s fetch its server at each start: %s %s", m.Server.Config.Command,
				m.Server.Config.Command, shorten(strings.Join(m.Server.Config.Args, " "), 200)),
			Next: "Add the package itself, such as npm:NAME or pypi:NAME, which is fetched once.",
		}
	}
	return nil
}

// refersToSecrets reports whether the manifest has references to secrets of the host in what is started.
func (m *BundleManifest) refersToSecrets() bool {
	c := m.Server.Config
	texts := slices.Concat([]string{c.Command}, c.Args, slices.Collect(maps.Values(c.Env)))
	for _, f := range m.Fields {
		texts = append(texts, f.defaults()...)
	}
	return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, "${secret") })
}

// CheckValues checks the values of a bundle's configuration against its fields. The error names the fields that are
// missing.
func (m *BundleManifest) CheckValues(values map[string][]string) error {
	for name, all := range values {
		f, ok := m.Fields[name]
		if !ok {
			return invalid("config %s: the bundle has %s", shorten(name, 100), m.fieldList())
		}
		if len(all) != 1 && !f.Multiple {
			return invalid("config %s: expected one value, got %d", name, len(all))
		}
		for _, one := range all {
			if err := f.checkValue(one); err != nil {
				return invalid("config %s: %v", name, err)
			}
		}
	}
	if missing := m.Missing(values); len(missing) > 0 {
		return &tool.Refusal{
			Code: tool.CodeInvalidArguments,
			Message: fmt.Sprintf("the bundle requires values of its configuration: %s",
				shorten(strings.Join(missing, ", "), 500)),
			Next: "Give them in config; gatehouse package add asks for them, or takes --set NAME=VALUE.",
		}
	}
	return nil
}

// Missing returns the required fields that have neither a value nor a default, sorted.
func (m *BundleManifest) Missing(values map[string][]string) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(m.Fields)) {
		f := m.Fields[name]
		if _, given := values[name]; f.Required && !given && len(f.defaults()) == 0 {
			names = append(names, name)
		}
	}
	return names
}

func (m *BundleManifest) fieldList() string {
	if len(m.Fields) == 0 {
		return "nothing to configure"
	}
	return "only " + shorten(strings.Join(slices.Sorted(maps.Keys(m.Fields)), ", "), 500)
}

func (f BundleField) checkValue(value string) error {
	refers, err := secret.Names(value)
	switch {
	case err != nil:
		return err
	case f.Sensitive && len(refers) == 0:
		return errors.New("it is sensitive: store the value with gatehouse secret set NAME, and give ${secret:NAME}")
	case len(refers) > 0:
		return nil
	case strings.ContainsRune(value, 0):
		return errors.New("a zero byte")
	}
	switch f.Type {
	case "number":
		n, err := strconv.ParseFloat(value, 64)
		if err != nil || f.Min != nil && n < *f.Min || f.Max != nil && n > *f.Max {
			return fmt.Errorf("%q: expected a number%s", shorten(value, 50), f.between())
		}
	case "boolean":
		if value != "true" && value != "false" {
			return fmt.Errorf("%q: expected true or false", shorten(value, 50))
		}
	case "directory", "file":
		if !filepath.IsAbs(value) && !strings.HasPrefix(value, "${data}") {
			return fmt.Errorf("%q: expected an absolute path, or one below ${data}", shorten(value, 200))
		}
	}
	return nil
}

func (f BundleField) between() string {
	var text string
	if f.Min != nil {
		text += fmt.Sprintf(", at least %v", *f.Min)
	}
	if f.Max != nil {
		text += fmt.Sprintf(", at most %v", *f.Max)
	}
	return text
}

// defaults are the values of a field that has none.
func (f BundleField) defaults() (all []string) {
	var many []any
	if json.Unmarshal(f.Default, &many) != nil {
		var one any
		if len(f.Default) == 0 || json.Unmarshal(f.Default, &one) != nil || one == nil {
			return nil
		}
		many = []any{one}
	}
	for _, one := range many {
		switch one := one.(type) {
		case string:
			if one != "" {
				all = append(all, one)
			}
		case bool:
			all = append(all, strconv.FormatBool(one))
		case float64:
			all = append(all, strconv.FormatFloat(one, 'f', -1, 64))
		}
	}
	return all
}

// prepareBundle completes an unpacked bundle: it checks the configuration, makes the program executable, and has uv
// install what a server of type uv needs.
func (p *managedPackage) prepareBundle(ctx context.Context, r *Record, dir string) error {
	m, err := readBundleFolder(dir)
	if err != nil {
		return err
	}
	if err := m.CheckValues(r.Config); err != nil {
		return err
	}
	if r.Version == "" {
		r.Version = shorten(m.Version, 100)
	}
	if r.Title == "" {
		r.Title = shorten(m.DisplayName, maxTitle)
	}
	switch m.Server.Type {
	case "binary":
		root, err := os.OpenRoot(dir)
		if err != nil {
			return err
		}
		defer root.Close()
		if m.Server.Entry != "" {
			err = root.Chmod(filepath.FromSlash(m.Server.Entry), 0o700) // zip files of Windows have no modes
		}
		return err
	case "uv":
		err := p.buildPackage(ctx, r, BuildStep{
			Path: "uv", Dir: dir, Args: []string{"sync", "--no-dev", "--no-install-project", "--link-mode", "copy",
				"--compile-bytecode", "--no-progress", "--quiet", "--no-build"},
			Env: append(registryEnv("uv_"), "PYC_INVALIDATION_MODE=CHECKED_HASH", "UV_PROJECT_ENVIRONMENT="+venvFolder,
				"UV_PYTHON_INSTALL_DIR="+filepath.Join(dir, "python")),
			Read: toolchain("uv", "python3"), Hosts: pypiHosts,
		}, "Install uv: "+InstallUV)
		if failed, ok := errors.AsType[*buildError](err); ok {
			return withOutput(fmt.Errorf("uv cannot install what the bundle needs%s", pypiReason(failed.printed)),
				failed.lastLines(10))
		}
		return err
	}
	return nil
}

// bundleStart returns the program of a bundle and its variables. Values of the record's configuration that refer to
// secrets are only in variables.
func (p *managedPackage) bundleStart(r *Record) (s starting, err error) {
	dir := r.program(p.folder())
	m, err := readBundleFolder(dir)
	if err != nil {
		return s, err
	}
	values := map[string][]string{}
	fixed := p.bundleVariables(dir)
	for name, f := range m.Fields {
		if given, ok := r.Config[name]; ok {
			for _, one := range given {
				values[name] = append(values[name], p.expand(r, one))
			}
			continue
		}
		for _, one := range f.defaults() {
			values[name] = append(values[name], fixed.Replace(one))
		}
	}
	c := m.Server.Config
	for _, a := range c.Args {
		all, err := bundleArgument(a, values, fixed)
		if err != nil {
			return s, err
		}
		s.args = append(s.args, all...)
	}
	s.env = map[string]string{}
	for name, value := range c.Env {
		if !envForm().MatchString(name) {
			return s, invalid("bundle: env: %q is no variable", shorten(name, 100))
		}
		if text, some := replaceFields(value, values); some {
			s.env[name] = fixed.Replace(text)
		}
		// Parts of a manifest together must not become a reference either.
		refers, err := secret.Names(s.env[name])
		if err != nil || slices.ContainsFunc(refers, func(one string) bool { return !r.configures(one) }) {
			return s, invalid("bundle: env %s refers to a secret that its configuration does not name", name)
		}
	}
	s.command, s.args, err = m.program(dir, fixed.Replace(c.Command), s.args)
	return s, err
}

// configures reports whether a value of the record's configuration refers to a secret.
func (r *Record) configures(name string) bool {
	for _, all := range r.Config {
		for _, one := range all {
			if refers, err := secret.Names(one); err == nil && slices.Contains(refers, name) {
				return true
			}
		}
	}
	return false
}

// program returns the command of a bundle by the type of its server.
func (m *BundleManifest) program(dir, command string, args []string) (string, []string, error) {
	entry := filepath.Join(dir, filepath.FromSlash(m.Server.Entry))
	switch {
	case m.Server.Type == "uv":
		// What stands behind the entry point are its arguments; what stands before it is for uv.
		after := []string{}
		for i, a := range args {
			if a == entry || filepath.Clean(a) == filepath.FromSlash(m.Server.Entry) {
				after = args[i+1:]
			}
		}
		return venvPython(dir), append([]string{entry}, after...), nil
	case command == "":
		switch m.Server.Type {
		case "node":
			return "node", []string{entry}, nil
		case "python":
			return pythonProgram(), []string{entry}, nil
		}
		return entry, nil, nil
	case command == "python" || command == "python3":
		return pythonProgram(), args, nil
	}
	local := filepath.FromSlash(command)
	switch {
	case filepath.IsAbs(local):
		if in, err := filepath.Rel(dir, local); err != nil || !filepath.IsLocal(in) {
			return "", nil, invalid("bundle: its command %q is not in it", shorten(command, 200))
		}
	case strings.ContainsRune(local, filepath.Separator):
		if !filepath.IsLocal(local) {
			return "", nil, invalid("bundle: its command %q leads out of it", shorten(command, 200))
		}
		local = filepath.Join(dir, local)
	default:
		return command, args, nil // a program of the machine, such as node
	}
	if runtime.GOOS == "windows" && filepath.Ext(local) == "" {
		local += ".exe"
	}
	return local, args, nil
}

// pythonProgram is the name of Python on this machine.
func pythonProgram() string {
	for _, name := range []string{"python3", "python"} {
		if _, err := exec.LookPath(name); err == nil {
			return name
		}
	}
	return "python3"
}

// bundleVariables replaces the variables of bundles that do not depend on their configuration.
func (p *managedPackage) bundleVariables(dir string) *strings.Replacer {
	home, err := os.UserHomeDir()
	if err != nil {
		home = p.data()
	}
	separator := string(filepath.Separator)
	return strings.NewReplacer("${__dirname}", dir, "${HOME}", home, "${DESKTOP}", filepath.Join(home, "Desktop"),
		"${DOCUMENTS}", filepath.Join(home, "Documents"), "${DOWNLOADS}", filepath.Join(home, "Downloads"),
		"${pathSeparator}", separator, "${/}", separator)
}

var fieldReference = lazy(`\$\{user_config\.([A-Za-z_][A-Za-z0-9_.-]{0,63})\}`)

// bundleArgument replaces the variables of an argument. One that is a field alone becomes one argument for each of
// its values, and none without a value.
func bundleArgument(text string, values map[string][]string, fixed *strings.Replacer) (all []string, err error) {
	for _, m := range fieldReference().FindAllStringSubmatch(text, -1) {
		for _, one := range values[m[1]] {
			if refers, err := secret.Names(one); err != nil || len(refers) > 0 {
				return nil, invalid("bundle: it wants the secret %s as an argument, which every user of the machine "+
					"could see", m[1])
			}
		}
		if m[0] == text {
			return values[m[1]], nil
		}
	}
	text, some := replaceFields(text, values)
	if !some {
		return nil, nil
	}
	return []string{fixed.Replace(text)}, nil
}

// replaceFields replaces references to fields; several values are separated by commas. some is false if it has
// references, and all of them to fields without values.
func replaceFields(text string, values map[string][]string) (replaced string, some bool) {
	references := 0
	replaced = fieldReference().ReplaceAllStringFunc(text, func(reference string) string {
		references++
		all := values[fieldReference().FindStringSubmatch(reference)[1]]
		some = some || len(all) > 0
		return strings.Join(all, ",")
	})
	return replaced, some || references == 0
}

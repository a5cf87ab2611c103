package catalog

import (
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/packages"
)

// The forms of packages that a server.json names, beside those of the sources of a search.
const (
	imageType  = "oci"
	bundleType = "mcpb"
	crateType  = "cargo"
)

// installers are the programs that install a kind of package, of which one is enough; none is needed for the others.
var installers = map[string][]string{NPM: {"npm"}, PyPI: {"uv", "python3", "python"}, crateType: {"cargo"}}

// Installable returns the form of a server that this machine can install, and what is
// missing if there is none. found reports whether a program is on this machine; nil
// looks for it in PATH.
func (e *Entry) Installable(found func(string) bool) (*Package, error) {
	if found == nil {
		found = func(name string) bool { _, err := exec.LookPath(name); return err == nil }
	}
	var missing []string
	for _, kind := range []string{NPM, PyPI, bundleType, imageType, crateType} {
		for i := range e.Packages {
			p := &e.Packages[i]
			if p.Type != kind || p.Transport != "" && p.Transport != "stdio" {
				continue
			}
			needs := installers[kind]
			if len(needs) == 0 || slices.ContainsFunc(needs, found) {
				return p, nil
			}
			missing = append(missing, fmt.Sprintf("%s %s needs %s", p.Type, p.Name, strings.Join(needs, " or ")))
		}
	}
	switch {
	case len(missing) > 0:
	case len(e.Packages) > 0:
		for _, p := range e.Packages {
			missing = append(missing, fmt.Sprintf("a %s package over %s cannot be installed", clean(p.Type, 20),
				clean(p.Transport, 20)))
		}
	case len(e.Remotes) > 0:
		missing = append(missing, "it runs at "+e.Remotes[0]+" alone")
	default:
		missing = append(missing, "it names no package")
	}
	return nil, fmt.Errorf("%s: %s", e.Name, strings.Join(missing, "; "))
}

// Answer gives the values of an input: plain, several of one that is repeated, or one as a secret. It returns false to
// leave an input out that is not required.
type Answer func(in Input) (plain []string, sealed secret.Text, given bool, err error)

// wishing makes a package of an entry.
type wishing struct {
	packages.Wish
	ask Answer
}

// Wish makes a package of an entry under an id: of its form p, or without one of the first address
// at which it runs. ask is called for inputs without a fixed value.
func (e *Entry) Wish(id string, p *Package, ask Answer) (packages.Wish, error) {
	w := wishing{ask: ask}
	w.ID, w.Title, w.Start = id, e.Title, packages.OnDemand
	var err error
	switch {
	case p != nil:
		err = w.local(p)
	case len(e.endpoints) > 0:
		err = w.remote(e.endpoints[0])
	case len(e.Remotes) > 0:
		w.Source, err = packages.ParseSource(packages.URL + ":" + e.Remotes[0])
	default:
		err = fmt.Errorf("%s names no package", e.Name)
	}
	return w.Wish, err
}

func (w *wishing) local(p *Package) (err error) {
	if err := p.checkBase(); err != nil {
		return err
	}
	run, err := w.runtime(p)
	if err != nil {
		return err
	}
	if w.Args, err = w.arguments(p.Args); err != nil {
		return err
	}
	if p.Type != imageType {
		if w.Source, err = p.source(run); err != nil {
			return err
		}
	}
	for _, in := range p.Env {
		if err := w.variable(&w.Env, in); err != nil {
			return err
		}
	}
	for name, value := range run.Env {
		if _, there := w.Env[name]; !there {
			if w.Env == nil {
				w.Env = map[string]string{}
			}
			w.Env[name] = value
		}
	}
	if p.Type == imageType {
		return w.container(p, run)
	}
	return nil
}

// container is an image, which runs in a sandbox here.
func (w *wishing) container(p *Package, run packages.ImageRun) error {
	name, err := packages.ImageName(p.Name, hostOf(p.Base), p.Version)
	if err != nil {
		return err
	}
	w.Source, err = packages.ParseSource(packages.OCI + ":" + name)
	w.Image = run.Changes()
	return err
}

// remote makes a package of a running server.
func (w *wishing) remote(r Remote) error {
	in := Input{Name: "url", Value: r.URL, Variables: r.Variables, Required: true}
	values, sealed, _, err := w.inputValue(in)
	switch {
	case err != nil:
		return err
	case !sealed.Empty():
		return errors.New("the address of the server would contain a secret")
	}
	if w.Source, err = packages.ParseSource(packages.URL + ":" + values[0]); err != nil {
		return err
	}
	for _, in := range r.Headers {
		if err := w.variable(&w.Headers, in); err != nil {
			return err
		}
	}
	return nil
}

// source is where a package is installed from.
func (p *Package) source(run packages.ImageRun) (s packages.Source, err error) {
	version := func(before string) string {
		if p.Version == "" {
			return ""
		}
		return before + p.Version
	}
	switch p.Type {
	case NPM:
		return packages.ParseSource(packages.NPM + ":" + p.Name + version("@"))
	case PyPI:
		var from strings.Builder
		from.WriteString(p.Name + version("=="))
		for _, also := range run.With {
			from.WriteString("," + also)
		}
		return packages.ParseSource(packages.PyPI + ":" + from.String())
	case crateType:
		return packages.ParseSource(packages.Crate + ":" + p.Name + version("@"))
	case bundleType:
		if p.Hash == "" {
			return s, fmt.Errorf("the bundle %s has no fileSha256, which is required", clean(p.Name, longestField))
		}
		return packages.ParseSource(packages.Bundle + ":" + p.Name + "#sha256=" + strings.ToLower(p.Hash))
	}
	return s, fmt.Errorf("a %s package cannot be installed", clean(p.Type, 20))
}

// checkBase refuses a package of another registry than that which its installer asks.
func (p *Package) checkBase() error {
	usual := map[string][]string{
		NPM: {packages.PublicNPM}, PyPI: {packages.PublicPyPI}, crateType: {packages.PublicCrates},
	}[p.Type]
	if p.Base == "" || usual == nil || slices.Contains(usual, strings.TrimRight(p.Base, "/")) {
		return nil
	}
	return fmt.Errorf("registryBaseUrl of %s is %s: only the public registry can be named, because another could have "+
		"another package of that name; configure it on this machine, and add the package itself", clean(p.Name, 100),
		clean(p.Base, 200))
}

// arguments are the words of a command line.
func (w *wishing) arguments(all []Input) (words []string, err error) {
	for _, in := range all {
		values, sealed, given, err := w.inputValue(in)
		switch {
		case err != nil:
			return nil, err
		case !sealed.Empty():
			return nil, fmt.Errorf(
				"argument %s is a secret, which every user of the machine could see in a command line",
				clean(in.Label(), 100),
			)
		case !given:
			continue
		}
		for _, value := range values {
			switch {
			case in.Name != "" && value == "":
				words = append(words, in.Name)
			case in.Name != "":
				words = append(words, in.Name+"="+value)
			default:
				words = append(words, value)
			}
		}
	}
	return words, nil
}

// variable adds a variable or a header.
func (w *wishing) variable(to *map[string]string, in Input) error {
	values, sealed, given, err := w.inputValue(in)
	if err != nil || !given {
		return err
	}
	if *to == nil {
		*to = map[string]string{}
	}
	if sealed.Empty() {
		(*to)[in.Name] = strings.Join(values, ",")
		return nil
	}
	name := packages.SecretName(w.ID, in.Name)
	if w.Secrets == nil {
		w.Secrets = map[string]secret.Text{}
	}
	w.Secrets[name], (*to)[in.Name] = sealed, packages.SecretReference(name)
	return nil
}

// inputValue returns the values of an input. Those that its publisher wrote may not refer to secrets of the host.
func (w *wishing) inputValue(in Input) (plain []string, sealed secret.Text, given bool, err error) {
	for _, text := range []string{in.Value, in.Default} {
		if strings.Contains(text, "${") {
			return nil, sealed, false, fmt.Errorf("%s refers to variables of this host, which no server.json may",
				clean(in.Label(), 100))
		}
	}
	switch {
	case len(in.Variables) > 0 && in.Value != "":
		return w.template(in)
	case in.Value != "" || in.Name != "" && in.Format == "" && in.flag():
		return []string{in.Value}, sealed, true, nil
	}
	plain, sealed, given, err = w.ask(in)
	switch {
	case err != nil:
		return nil, sealed, false, err
	case given:
		return plain, sealed, true, in.check(plain)
	case in.Default != "":
		return []string{in.Default}, secret.Text{}, true, nil
	case in.Required:
		return nil, secret.Text{}, false, fmt.Errorf("%s is required: %s", clean(in.Label(), 100),
			clean(in.Description, 200))
	}
	return nil, secret.Text{}, false, nil
}

// flag reports whether an input is an option without a value.
func (i Input) flag() bool {
	return strings.HasPrefix(i.Name, "-") && i.Required && i.Default == "" && i.Choices == nil && !i.Secret &&
		i.Hint == "" &&
		i.Description == ""
}

var braced = regexp.MustCompile(`\{[A-Za-z_][A-Za-z0-9_-]*\}`)

// template fills in the variables of a value. It is left out if one of them has no value and is not required, and is a
// secret if one of them is.
func (w *wishing) template(in Input) (plain []string, sealed secret.Text, given bool, err error) {
	by, secretly := map[string]string{}, in.Secret
	for _, v := range in.Variables {
		values, hidden, given, err := w.inputValue(v)
		switch {
		case err != nil:
			return nil, sealed, false, fmt.Errorf("%s: %w", clean(in.Label(), 100), err)
		case !given && in.Required:
			return nil, sealed, false, fmt.Errorf("%s of %s is required", clean(v.Name, 100), clean(in.Label(), 100))
		case !given:
			return nil, sealed, false, nil
		case !hidden.Empty():
			by[v.Name], secretly = hidden.Reveal(), true
		default:
			by[v.Name] = strings.Join(values, ",")
		}
	}
	text := braced.ReplaceAllStringFunc(in.Value, func(name string) string {
		if value, ok := by[name[1:len(name)-1]]; ok {
			return value
		}
		return name
	})
	if secretly {
		return nil, secret.New(text), true, nil
	}
	return []string{text}, sealed, true, nil
}

// check validates plain values of an input.
func (i Input) check(values []string) error {
	if len(values) > 1 && !i.Repeated {
		return fmt.Errorf("%s: expected one value, got %d", clean(i.Label(), 100), len(values))
	}
	for _, value := range values {
		_, notNumber := strconv.ParseFloat(value, 64)
		switch {
		case value == "":
		case len(i.Choices) > 0 && !slices.Contains(i.Choices, value):
			return fmt.Errorf("%s: %q: expected one of %s", clean(i.Label(), 100), clean(value, 100),
				clean(strings.Join(i.Choices, ", "), longestField))
		case i.Format == "number" && notNumber != nil:
			return fmt.Errorf("%s: %q: expected a number", clean(i.Label(), 100), clean(value, 100))
		case i.Format == "boolean" && value != "true" && value != "false":
			return fmt.Errorf("%s: %q: expected true or false", clean(i.Label(), 100), clean(value, 100))
		}
	}
	return nil
}

// runtime translates the arguments of the program that would start a package, such as docker. One that is not known is
// refused.
func (w *wishing) runtime(p *Package) (run packages.ImageRun, err error) {
	var words []string
	for _, in := range p.Runtime {
		values, sealed, given, err := w.inputValue(in)
		switch {
		case err != nil:
			return run, err
		case !given:
			continue
		case !sealed.Empty():
			// docker -e NAME=SECRET is the only one with a use.
			name, value, ok := strings.Cut(sealed.Reveal(), "=")
			if p.Type != imageType || in.Name != "-e" && in.Name != "--env" || !ok {
				return run, fmt.Errorf("runtimeArguments: %s is a secret, which only -e NAME=VALUE of an image can be",
					clean(in.Label(), 100))
			}
			stored := packages.SecretName(w.ID, name)
			if w.Secrets == nil {
				w.Secrets = map[string]secret.Text{}
			}
			w.Secrets[stored], values = secret.New(value), []string{name + "=" + packages.SecretReference(stored)}
		}
		for _, value := range values {
			if in.Name != "" {
				words = append(words, in.Name)
			}
			if value != "" {
				words = append(words, value)
			}
		}
	}
	switch p.Type {
	case imageType:
		run, err = packages.ParseImageOptions(words)
	case NPM:
		err = onlyWords(words, "-y", "--yes", "-q", "--quiet")
	case PyPI:
		run.With, err = packages.ParseUVXOptions(words, p.Name)
	default:
		err = onlyWords(words)
	}
	if err != nil {
		return run, fmt.Errorf("runtimeArguments: %w", err)
	}
	maps.DeleteFunc(run.Env, func(name, _ string) bool {
		return slices.ContainsFunc(p.Env, func(in Input) bool { return in.Name == name })
	})
	return run, nil
}

func onlyWords(words []string, known ...string) error {
	for _, word := range words {
		if !slices.Contains(known, word) {
			return fmt.Errorf("%s has no counterpart here", clean(word, 100))
		}
	}
	return nil
}

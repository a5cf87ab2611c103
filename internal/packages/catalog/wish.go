package catalog

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/packages"
)

// Installable returns the form of a server that this machine can install, and what is
// missing if there is none. found reports whether a program is on this machine; nil
// looks for it in PATH.
func (e *Entry) Installable(found func(string) bool) (*Package, error) {
	if found == nil {
		found = func(name string) bool { _, err := exec.LookPath(name); return err == nil }
	}
	var missing []string
	for _, kind := range []string{NPM, PyPI, "oci"} {
		for i := range e.Packages {
			p := &e.Packages[i]
			if p.Type != kind || p.Transport != "" && p.Transport != "stdio" {
				continue
			}
			if program := p.runner(found); program != "" {
				return p, nil
			}
			missing = append(missing, fmt.Sprintf("%s %s needs %s", p.Type, p.Name,
				strings.Join(runners[kind], " or ")))
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
		missing = append(missing, "it runs at "+e.Remotes[0]+" alone, and servers at an address are not packages")
	default:
		missing = append(missing, "it names no package")
	}
	return nil, fmt.Errorf("%s: %s", e.Name, strings.Join(missing, "; "))
}

// runners are the programs that install or run a kind of package.
var runners = map[string][]string{NPM: {"npm"}, PyPI: {"uvx", "pipx"}, "oci": {"docker", "podman"}}

func (p *Package) runner(found func(string) bool) string {
	i := slices.IndexFunc(runners[p.Type], found)
	if i < 0 {
		return ""
	}
	return runners[p.Type][i]
}

// Answer gives the value of an input: plain, or as a secret. It returns false to leave
// an input out that is not required.
type Answer func(in Input) (plain string, sealed secret.Text, given bool, err error)

// Wish makes a package of an entry under an id. ask is called for inputs without a
// fixed value.
func (e *Entry) Wish(id string, p *Package, found func(string) bool, ask Answer) (w packages.Wish, err error) {
	if found == nil {
		found = func(name string) bool { _, err := exec.LookPath(name); return err == nil }
	}
	w.ID, w.Title, w.Start = id, e.Title, packages.OnDemand
	var args []string
	for _, in := range p.Args {
		value, _, given, err := value(in, ask)
		if err != nil {
			return w, err
		}
		switch {
		case !given:
		case in.Name != "" && value == "":
			args = append(args, in.Name)
		case in.Name != "":
			args = append(args, in.Name+"="+value)
		default:
			args = append(args, value)
		}
	}
	env := map[string]string{}
	for _, in := range p.Env {
		plain, sealed, given, err := value(in, ask)
		switch {
		case err != nil:
			return w, err
		case !given:
		case !sealed.Empty():
			name := packages.SecretName(id, in.Name)
			if w.Secrets == nil {
				w.Secrets = map[string]secret.Text{}
			}
			w.Secrets[name], env[in.Name] = sealed, packages.SecretReference(name)
		default:
			env[in.Name] = plain
		}
	}
	if len(env) > 0 {
		w.Env = env
	}
	switch runner := p.runner(found); p.Type {
	case NPM:
		if w.Source, err = packages.ParseSource(packages.NPM + ":" + p.Name + versionSuffix(p.Version)); err != nil {
			return w, err
		}
		w.Args = args
	case PyPI:
		if !pypiWord.MatchString(p.Name) {
			return w, fmt.Errorf("%q is not a name of PyPI", clean(p.Name, 100))
		}
		w.Source, w.Command = packages.Source{Kind: packages.Command}, runner
		target := p.Name
		if p.Version != "" {
			target += "==" + p.Version
		}
		if runner == "pipx" {
			w.Args = append([]string{"run", target}, args...)
		} else {
			w.Args = append([]string{target}, args...)
		}
	case "oci":
		if strings.HasPrefix(p.Name, "-") {
			return w, fmt.Errorf("%q is not the name of an image", clean(p.Name, 100))
		}
		w.Source, w.Command = packages.Source{Kind: packages.Command}, runner
		w.Args = []string{"run", "-i", "--rm"}
		for _, in := range p.Env {
			if _, given := env[in.Name]; given {
				w.Args = append(w.Args, "-e", in.Name)
			}
		}
		w.Args = append(append(w.Args, p.Name), args...)
	default:
		return w, fmt.Errorf("a %s package cannot be installed", clean(p.Type, 20))
	}
	return w, nil
}

func value(in Input, ask Answer) (plain string, sealed secret.Text, given bool, err error) {
	if in.Value != "" {
		return in.Value, sealed, true, nil
	}
	plain, sealed, given, err = ask(in)
	if err != nil || given {
		return plain, sealed, given, err
	}
	if in.Default != "" {
		return in.Default, secret.Text{}, true, nil
	}
	if in.Required {
		return "", secret.Text{}, false, fmt.Errorf("%s is required: %s", clean(in.Label(), 100),
			clean(in.Description, 200))
	}
	return "", secret.Text{}, false, nil
}

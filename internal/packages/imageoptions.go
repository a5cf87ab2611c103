package packages

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// ImageOptions are what is changed of the configuration of an image.
type ImageOptions struct {
	// that runs it, a name or number of the image; "" for that of the image
	User       string       `json:"user,omitempty"`
	Dir        string       `json:"dir,omitempty"`        // its working folder; "" for that of the image
	Entrypoint string       `json:"entrypoint,omitempty"` // the program that it runs; "" for that of the image
	Mounts     []ImageMount `json:"mounts,omitempty"`
}

// ImageMount is a file or folder of the host in an image.
type ImageMount struct {
	From  string `json:"from"` // absolute path on this host, or ${data}/volumes/NAME
	To    string `json:"to"`   // absolute path in the image
	Write bool   `json:"write,omitempty"`
}

// ImageRun is what the options of a runner such as docker or uvx ask for.
type ImageRun struct {
	Options *ImageOptions
	Env     map[string]string
	With    []string // further packages of PyPI
}

// imageFlags are the options of docker run without a value that change nothing here. imageIgnored
// are those with a value.
var (
	imageFlags = []string{
		"-i",
		"--interactive",
		"--rm",
		"--init",
		"-t",
		"--tty",
		"-it",
		"-ti",
		"--read-only",
		"-q",
		"--quiet",
		"--interactive=true",
		"--rm=true",
		"--init=true",
	}
	imageIgnored = []string{"--name", "--pull", "-l", "--label", "--restart", "--log-driver"}
)

// ParseImageOptions parses the options of docker run or podman run. One that has no counterpart here is refused by its
// name.
func ParseImageOptions(words []string) (r ImageRun, err error) {
	for len(words) > 0 {
		if words, err = r.option(words); err != nil {
			return r, err
		}
	}
	return r, nil
}

// option parses the first option of words and returns the others.
func (r *ImageRun) option(words []string) (rest []string, err error) {
	word := words[0]
	if slices.Contains(imageFlags, word) || word == "run" {
		return words[1:], nil
	}
	name, value, inside := strings.Cut(word, "=")
	if !strings.HasPrefix(word, "--") && len(word) > 2 && !inside { // such as -eNAME
		name, value, inside = word[:2], word[2:], true
	}
	rest = words[1:]
	if !inside {
		if len(rest) == 0 {
			return nil, fmt.Errorf("the option %s has no counterpart here, or wants a value", shorten(name, 100))
		}
		value, rest = rest[0], rest[1:]
	}
	if r.Options == nil {
		r.Options = &ImageOptions{}
	}
	o := r.Options
	switch name {
	case "-e", "--env":
		variable, value, given := strings.Cut(value, "=")
		if given {
			if r.Env == nil {
				r.Env = map[string]string{}
			}
			r.Env[variable] = value
		}
	case "-v", "--volume":
		return rest, o.volume(value)
	case "--mount":
		return rest, o.mount(value)
	case "--network", "--net":
		// What is reached is a matter of grants.
		if !slices.Contains([]string{"none", "host", "bridge", "default"}, value) {
			return nil, fmt.Errorf("%s %s has no counterpart here: expected none, host or bridge", name,
				shorten(value, 100))
		}
	case "-u", "--user":
		o.User = value
	case "-w", "--workdir":
		o.Dir = value
	case "--entrypoint":
		o.Entrypoint = value
	case "--platform":
		if !strings.HasPrefix(value, "linux") {
			return nil, fmt.Errorf("--platform %s: images of linux alone can be run", shorten(value, 50))
		}
	default:
		if !slices.Contains(imageIgnored, name) {
			return nil, fmt.Errorf("the option %s has no counterpart here", shorten(name, 100))
		}
	}
	return rest, nil
}

// volume adds FROM:TO[:OPTIONS]. A FROM that is no path names a folder in the package's data.
func (o *ImageOptions) volume(text string) error {
	parts := strings.Split(text, ":")
	if len(parts) == 1 {
		parts = []string{"unnamed" + strings.ReplaceAll(parts[0], "/", "-"), parts[0]}
	}
	m := ImageMount{From: parts[0], To: path.Clean(parts[1]), Write: true}
	for _, option := range parts[2:] {
		for one := range strings.SplitSeq(option, ",") {
			switch one {
			case "ro":
				m.Write = false
			case "rw", "z", "Z", "cached", "delegated":
			default:
				return fmt.Errorf("-v %s: the option %q has no counterpart here", shorten(text, 200), shorten(one, 50))
			}
		}
	}
	if !path.IsAbs(m.From) {
		if !programName().MatchString(m.From) {
			return fmt.Errorf("-v %s: expected an absolute path, or the name of a volume", shorten(text, 200))
		}
		m.From = "${data}/volumes/" + m.From
	}
	o.Mounts = append(o.Mounts, m)
	return nil
}

// mount adds type=bind,source=FROM,target=TO[,readonly].
func (o *ImageOptions) mount(text string) error {
	m, kind := ImageMount{Write: true}, "volume"
	for one := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(one, "=")
		switch name {
		case "type":
			kind = value
		case "source", "src":
			m.From = value
		case "target", "dst", "destination":
			m.To = path.Clean(value)
		case "readonly", "ro":
			m.Write = value == "false" || value == "0"
		default:
			return fmt.Errorf("--mount: %q has no counterpart here", shorten(name, 50))
		}
	}
	switch {
	case kind == "bind" && path.IsAbs(m.From):
	case kind == "volume" && programName().MatchString(m.From):
		m.From = "${data}/volumes/" + m.From
	default:
		return fmt.Errorf("--mount %s: expected type=bind with an absolute source, or type=volume with a name",
			shorten(text, 200))
	}
	o.Mounts = append(o.Mounts, m)
	return nil
}

// ImageName returns the whole name of an image by its name as docker writes it. The registry is the
// one in the name, or base, or Docker's; the tag is the one in the name, or version, or latest.
func ImageName(name, base, version string) (string, error) {
	host, _, found := strings.Cut(name, "/")
	if !found || !strings.ContainsAny(host, ".:") && host != "localhost" {
		if base == "" {
			base = dockerRegistry
		}
		if base == dockerRegistry && !strings.Contains(name, "/") {
			name = "library/" + name
		}
		name = base + "/" + name
	}
	last := name[strings.LastIndexByte(name, '/')+1:]
	switch {
	case strings.ContainsAny(last, ":@"):
	case strings.HasPrefix(version, "sha256:"):
		name += "@" + version
	case version != "":
		name += ":" + version
	default:
		name += ":latest"
	}
	if !isImage(name) {
		return "", fmt.Errorf("%q is not the name of an image", shorten(name, 200))
	}
	return name, nil
}

const dockerRegistry = "docker.io"

// Changes returns what a run changes of the configuration of its image; nil if it changes nothing.
func (r ImageRun) Changes() *ImageOptions {
	o := r.Options
	if o == nil || o.User == "" && o.Dir == "" && o.Entrypoint == "" && len(o.Mounts) == 0 {
		return nil
	}
	return o
}

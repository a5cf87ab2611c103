package packages

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// ran is what the command line of a runner such as npx starts.
type ran struct {
	source  Source
	image   *ImageOptions
	env     map[string]string
	command string   // one of the package's programs; "" for the one with its name
	args    []string // of the program
}

// runnerPackage finds the package that a runner's command line starts, such as npx -y NAME ARGS. ok is false if the
// words start something else. The error says which option of a runner cannot be had here.
func runnerPackage(words []string) (r ran, ok bool, err error) {
	program := strings.ToLower(filepath.Base(words[0]))
	program = strings.TrimSuffix(strings.TrimSuffix(program, ".cmd"), ".exe")
	rest := words[1:]
	is := func(words ...string) bool { return len(rest) > 0 && slices.Contains(words, rest[0]) }
	switch program {
	case "cmd": // clients on Windows need it to start npx
		if len(rest) > 2 && strings.EqualFold(rest[0], "/c") {
			return runnerPackage(rest[1:])
		}
	case "docker", "podman":
		if is("run") {
			return imagePackage(rest[1:])
		}
	case "npx", "bunx":
		return npxPackage(rest)
	case "npm", "pnpm", "yarn", "bun":
		if is("exec", "dlx", "x") {
			return npxPackage(rest[1:])
		}
	case "uvx":
		return uvxPackage(rest)
	case "uv":
		if len(rest) > 1 && rest[0] == "tool" && rest[1] == "run" {
			return uvxPackage(rest[2:])
		}
	case "pipx":
		if is("run") {
			return uvxPackage(rest[1:])
		}
	}
	return r, false, nil
}

func npxPackage(words []string) (r ran, ok bool, err error) {
	for len(words) > 0 {
		switch word := words[0]; {
		case slices.Contains([]string{"-y", "--yes", "-q", "--quiet", "--bun", "--"}, word):
			words = words[1:]
		case strings.HasPrefix(word, "-"), !npmName().MatchString(word):
			return r, false, nil // an option that says something else is for the runner itself
		default:
			return ran{source: Source{NPM, word}, args: words[1:]}, true, nil
		}
	}
	return r, false, nil
}

// ParseUVXOptions parses the options of uvx before the name of a package. It returns the packages
// that are installed with it.
func ParseUVXOptions(words []string, name string) (with []string, err error) {
	r, _, err := uvxPackage(append(slices.Clone(words), name))
	if err != nil {
		return nil, err
	}
	first, rest, more := cutRequirement(r.source.From)
	if r.command != "" && normalName(first) != normalName(name) {
		return nil, fmt.Errorf("--from names %s, which is another package", shorten(first, 100))
	}
	for more {
		first, rest, more = cutRequirement(rest)
		with = append(with, first)
	}
	return with, nil
}

// uvxPackage is what uvx, uv tool run or pipx run start.
func uvxPackage(words []string) (r ran, ok bool, err error) {
	from, also := "", []string{}
	for ; len(words) > 0 && strings.HasPrefix(words[0], "-"); words = words[1:] {
		option, value, inside := strings.Cut(words[0], "=")
		needs := slices.Contains([]string{"--from", "--spec", "--with", "-w", "--python", "-p"}, option)
		if needs && !inside {
			if len(words) < 2 {
				return r, false, fmt.Errorf("%s wants a value", option)
			}
			value, words = words[1], words[1:]
		}
		switch option {
		case "--from", "--spec":
			from = value
		case "--with", "-w":
			also = append(also, strings.Split(value, ",")...)
		case "-q",
			"--quiet",
			"-y",
			"--yes",
			"--no-progress",
			"--isolated",
			"--refresh",
			"--no-cache",
			"-n",
			"--python",
			"-p":
			// One environment is made, and kept; its Python is one that the package accepts.
		default:
			return r, false, fmt.Errorf(
				"the option %s of uvx has no counterpart here: give the package as pypi:NAME, or put the "+
					"word command first to have uvx itself started each time",
				option,
			)
		}
	}
	if len(words) == 0 {
		return r, false, fmt.Errorf("uvx wants the name of a package")
	}
	if r.args = words[1:]; from == "" {
		from = words[0]
	} else {
		r.command = words[0]
	}
	// uvx writes versions also with @.
	if name, version, versioned := strings.Cut(from, "@"); versioned {
		if from = name; version != "latest" {
			from += "==" + version
		}
	}
	if r.source, err = ParseSource(PyPI + ":" + strings.Join(append([]string{from}, also...), ",")); err != nil {
		return r, false, fmt.Errorf("uvx: %w; put the word command first to have uvx itself started each time", err)
	}
	if r.command != "" && !programName().MatchString(r.command) {
		return r, false, fmt.Errorf("uvx: %q is not the name of a program", shorten(r.command, 100))
	}
	return r, true, nil
}

// imagePackage is what docker run or podman run start.
func imagePackage(words []string) (r ran, ok bool, err error) {
	var run ImageRun
	for len(words) > 0 && strings.HasPrefix(words[0], "-") {
		if words, err = run.option(words); err != nil {
			return r, false, fmt.Errorf(
				"%w; put the word command first to have docker or podman itself started each time",
				err,
			)
		}
	}
	if len(words) == 0 {
		return r, false, fmt.Errorf("docker run wants the name of an image")
	}
	name, err := ImageName(words[0], "", "")
	if err != nil {
		return r, false, err
	}
	return ran{source: Source{OCI, name}, args: words[1:], image: run.Changes(), env: run.Env}, true, nil
}

// with returns the variables of a runner's command line, and those of its environment, which override them.
func (r ran) with(env map[string]string) map[string]string {
	if len(r.env) == 0 {
		return env
	}
	all := maps.Clone(r.env)
	maps.Copy(all, env)
	return all
}

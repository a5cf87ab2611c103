// Package builds knows the tools that build projects: how to recognise and call them, and where the errors and the
// tests are in what they print.
package builds

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Tool is a build tool of a project, with the command lines that build and test it. A nil command means that the tool
// cannot do that.
type Tool struct {
	Name        string
	Build, Test []string
}

// Names are the names of the tools that Detect knows.
var Names = []string{"go", "cargo", "maven", "gradle", "npm", "pytest", "tsc", "make"}

const maxManifest = 1 << 20 // bytes of a file that is read to recognise a project

// Detect returns the tools of the project in a folder, the most specific first. It reads names and manifests alone and
// runs nothing.
func Detect(dir fs.FS) []Tool {
	has := func(names ...string) string {
		for _, n := range names {
			if info, err := fs.Stat(dir, n); err == nil && !info.IsDir() {
				return n
			}
		}
		return ""
	}
	var all []Tool
	if has("go.mod", "go.work") != "" {
		all = append(all, Tool{"go", []string{"go", "build", "./..."}, []string{"go", "test", "-v", "./..."}})
	}
	if has("Cargo.toml") != "" {
		all = append(all, Tool{"cargo", []string{"cargo", "build"}, []string{"cargo", "test"}})
	}
	if has("pom.xml") != "" {
		mvn := wrapper(has("mvnw"), "mvn")
		all = append(all, Tool{"maven", []string{mvn, "-B", "compile"}, []string{mvn, "-B", "test"}})
	}
	if has("build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts") != "" {
		gradle := wrapper(has("gradlew"), "gradle")
		all = append(
			all,
			Tool{
				"gradle",
				[]string{gradle, "--console=plain", "assemble"},
				[]string{gradle, "--console=plain", "test"},
			},
		)
	}
	if has("package.json") != "" {
		if t, ok := npm(dir); ok {
			all = append(all, t)
		}
	}
	if pytest(dir, has) {
		all = append(all, Tool{"pytest", nil, []string{python(), "-m", "pytest", "-v"}})
	}
	if has("tsconfig.json") != "" {
		tsc := "tsc"
		if has("node_modules/.bin/tsc") != "" {
			tsc = "node_modules/.bin/tsc"
		}
		all = append(all, Tool{"tsc", []string{tsc, "-p", ".", "--noEmit", "--pretty", "false"}, nil})
	}
	if has("GNUmakefile", "makefile", "Makefile") != "" {
		all = append(all, Tool{"make", []string{"make"}, []string{"make", "test"}})
	}
	return all
}

func wrapper(found, program string) string {
	if found == "" || runtime.GOOS == "windows" {
		return program
	}
	return "./" + found
}

func python() string {
	if runtime.GOOS == "windows" {
		return "python"
	}
	return "python3"
}

func npm(dir fs.FS) (Tool, bool) {
	var manifest struct {
		Scripts map[string]string `json:"scripts"`
	}
	b, err := readSmall(dir, "package.json")
	if err != nil || json.Unmarshal(b, &manifest) != nil {
		return Tool{}, false
	}
	t := Tool{Name: "npm"}
	if manifest.Scripts["build"] != "" {
		t.Build = []string{"npm", "run", "build"}
	}
	if manifest.Scripts["test"] != "" {
		t.Test = []string{"npm", "test"}
	}
	return t, t.Build != nil || t.Test != nil
}

func pytest(dir fs.FS, has func(...string) string) bool {
	if has("pytest.ini", "conftest.py", "tests/conftest.py") != "" {
		return true
	}
	for _, name := range []string{"pyproject.toml", "setup.cfg", "tox.ini"} {
		if b, err := readSmall(dir, name); err == nil && strings.Contains(string(b), "pytest") {
			return true
		}
	}
	for _, pattern := range []string{"test_*.py", "*_test.py", "tests/test_*.py"} {
		if found, err := fs.Glob(dir, pattern); err == nil && len(found) > 0 {
			return true
		}
	}
	return false
}

func readSmall(dir fs.FS, name string) ([]byte, error) {
	info, err := fs.Stat(dir, name)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxManifest {
		return nil, fs.ErrInvalid
	}
	return fs.ReadFile(dir, name)
}

// Find returns a tool by its name.
func Find(all []Tool, name string) (Tool, bool) {
	i := slices.IndexFunc(all, func(t Tool) bool { return t.Name == name })
	if i < 0 {
		return Tool{}, false
	}
	return all[i], true
}

// Branch returns the branch of the git work tree in a folder, or "".
func Branch(dir string) string {
	b, err := os.ReadFile(filepath.Join(dir, ".git", "HEAD"))
	if err != nil {
		return ""
	}
	branch, ok := strings.CutPrefix(strings.TrimSpace(string(b)), "ref: refs/heads/")
	if !ok {
		return ""
	}
	return branch
}

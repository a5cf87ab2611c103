package packages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gatehouse/tool"
)

// buildError says that a step ended with an exit code other than 0.
type buildError struct {
	program string
	code    int
	printed string // the last lines
}

func (e *buildError) Error() string { return fmt.Sprintf("%s ended with code %d", e.program, e.code) }

// buildPackage runs a step. missing is what to do if its program cannot be started. The error of a step that fails is a
// *buildError.
func (p *managedPackage) buildPackage(ctx context.Context, r *Record, s BuildStep, missing string) error {
	code, printed, err := p.runStep(ctx, r, s, buildLines)
	if refused, ok := errors.AsType[*tool.Refusal](err); ok && missing != "" {
		return &tool.Refusal{Code: refused.Code, Message: refused.Message, Next: missing}
	}
	switch {
	case err != nil:
		return withOutput(err, lastLines(printed, 10))
	case code != 0:
		return &buildError{s.Path, code, printed}
	}
	return nil
}

// toolchain returns the folders of programs that lie in the home of the host's user, which steps do not see otherwise.
func toolchain(programs ...string) (folders []string) {
	for _, name := range programs {
		path, err := lookPath(name)
		if err != nil {
			continue
		}
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			continue
		}
		for _, one := range []string{filepath.Dir(path), filepath.Dir(real)} {
			if !strings.HasPrefix(one, "/usr/") && !strings.HasPrefix(one, "/bin") && !slices.Contains(folders, one) {
				folders = append(folders, one)
			}
		}
	}
	return folders
}

// buildLines is how much of what a step printed is looked through: npm's reason comes before a stack of calls.
const buildLines = 200

// lastLines are the last lines of what a step printed that are not empty.
func (e *buildError) lastLines(n int) string {
	lines := slices.DeleteFunc(strings.Split(e.printed, "\n"),
		func(l string) bool { return strings.TrimSpace(l) == "" })
	return lastLines(strings.Join(lines, "\n"), n)
}

// userFolders are the variables of the tools of installations that name folders of the host's user, in lower case. A
// sandbox does not have those, but the ones that a step sets itself.
var userFolders = []string{
	"npm_config_cache", "npm_config_globalconfig", "npm_config_logs_dir", "npm_config_prefix", "npm_config_store_dir",
	"npm_config_tmp", "npm_config_userconfig", "gobin", "gocache", "gocoverdir", "goenv", "gomodcache", "gopath",
	"gotmpdir",
	"cargo_home", "pip_cache_dir", "pip_src", "pip_target", "uv_cache_dir", "uv_project_environment", "uv_tool_dir",
}

// withoutUserFolders returns the variables of a step that mean something in a sandbox.
func withoutUserFolders(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, value, _ := strings.Cut(kv, "=")
		return slices.Contains(userFolders, strings.ToLower(name)) && value == os.Getenv(name)
	})
}

// registryEnv returns the variables of the host that lead a step to its registry: those of proxies and certificates,
// and those whose names begin with one of the prefixes, in lower case.
func registryEnv(prefixes ...string) (env []string) {
	always := []string{"node_extra_ca_certs", "ssl_cert_file", "ssl_cert_dir", "requests_ca_bundle", "curl_ca_bundle"}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		name = strings.ToLower(name)
		begins := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
		if slices.ContainsFunc(prefixes, begins) || strings.HasSuffix(name, "_proxy") || slices.Contains(always, name) {
			env = append(env, kv)
		}
	}
	return env
}

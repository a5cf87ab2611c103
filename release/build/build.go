// Package build compiles the programs of a release and writes their manual pages,
// with the go command and nothing else.
package build

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/go-git/go-git/v5"

	"gatehouse/release/product"
)

// Go runs the go command in a folder and returns what it prints. Variables that
// would change what it builds are not passed on.
func Go(dir string, env []string, args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(name, "GO") || passedOn[name] {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "CGO_ENABLED=0", "GOWORK=off", "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=-trimpath",
		"PWD="+dir)
	cmd.Env = append(cmd.Env, env...)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, problems.Bytes())
	}
	return strings.TrimSpace(out.String()), nil
}

var passedOn = map[string]bool{
	"GOPATH": true, "GOCACHE": true, "GOMODCACHE": true, "GOPROXY": true, "GONOPROXY": true, "GOPRIVATE": true,
	"GOSUMDB": true, "GONOSUMDB": true, "GOTMPDIR": true, "GOTOOLCHAIN": true, "GOINSECURE": true, "GOROOT": true,
}

// Identify fills in what the source says of the release: its module, version, commit and
// time. It returns an error if files differ from the commit, unless dirty is true.
func Identify(r *product.Release, dirty bool) error {
	mod, err := os.ReadFile(filepath.Join(r.Source, "go.mod"))
	if err != nil {
		return err
	}
	if r.Module, err = firstMatch(mod, `(?m)^module (\S+)$`); err != nil {
		return err
	}
	if r.Version == "" {
		app, err := os.ReadFile(filepath.Join(r.Source, "internal/app/app.go"))
		if err != nil {
			return err
		}
		if r.Version, err = firstMatch(app, `(?m)^var Version = "([^"]+)"$`); err != nil {
			return err
		}
	}
	tree, err := git.PlainOpenWithOptions(r.Source, &git.PlainOpenOptions{EnableDotGitCommonDir: true})
	if err != nil {
		return fmt.Errorf("open the repository in %s: %w", r.Source, err)
	}
	head, err := tree.Head()
	if err != nil {
		return fmt.Errorf("read the current commit: %w", err)
	}
	commit, err := tree.CommitObject(head.Hash())
	if err != nil {
		return fmt.Errorf("read the current commit: %w", err)
	}
	r.Commit, r.Time = commit.Hash.String(), commit.Committer.When.UTC()
	if dirty {
		return nil
	}
	return checkClean(tree)
}

func checkClean(tree *git.Repository) error {
	files, err := tree.Worktree()
	if err != nil {
		return err
	}
	status, err := files.StatusWithOptions(git.StatusOptions{Strategy: git.Preload})
	if err != nil {
		return fmt.Errorf("compare the files with the commit: %w", err)
	}
	for name, s := range status {
		if s.Worktree != git.Unmodified || s.Staging != git.Unmodified {
			return fmt.Errorf(
				"%s is not as it was committed; commit it, or use -dirty for a release that is not published",
				name,
			)
		}
	}
	return nil
}

func firstMatch(text []byte, pattern string) (string, error) {
	m := regexp.MustCompile(pattern).FindSubmatch(text)
	if m == nil {
		return "", fmt.Errorf("nothing matches %s", pattern)
	}
	return string(m[1]), nil
}

// Programs compiles the programs for every platform.
func Programs(r *product.Release) error {
	flags := fmt.Sprintf(
		"-s -w -buildid= -X %[1]s/internal/app.Version=%[2]s -X %[1]s/internal/server/daemon.commit=%[3]s",
		r.Module,
		r.Version,
		r.Commit,
	)
	for _, p := range r.Platforms {
		if err := Compile(r.Source, flags, r.Program(product.Name, p), p, "./cmd/gatehouse"); err != nil {
			return err
		}
		if p.OS != "linux" || !r.Helpers {
			continue
		}
		for _, h := range product.Helpers {
			if err := helper(r, h, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// helper compiles a helper for a platform.
func helper(r *product.Release, h product.Helper, p product.Platform) error {
	dir, flags := filepath.Join(r.Source, h.Folder), "-s -w -buildid="
	if h.Version != "" {
		version, err := Go(dir, nil, "list", "-m", "-f", "{{.Version}}", h.Version)
		if err != nil {
			return err
		}
		flags += " -X " + h.Version + "/runsc/version.version=" + version
	}
	return Compile(dir, flags, r.Program(h.Name, p), p, ".")
}

// Packages whose functions are not inlined, because nothing that is called often runs in them: the program is 3 MB
// smaller. Of our own they are those whose work waits for people, processes, disks, registries, daemons or other nodes.
var notInlined = []string{
	"cel.dev/cel-go/cel/...", "cel.dev/cel-go/checker/...", "cel.dev/cel-go/common/ast/...", "cel.dev/cel-go/common/cost/...",
	"cel.dev/cel-go/common/stdlib/...", "cel.dev/cel-go/parser/...",
	"go.yaml.in/...", "golang.org/x/crypto/ssh/...", "mvdan.cc/...",
	"filippo.io/...", "github.com/BurntSushi/...", "github.com/antlr4-go/...", "github.com/chromedp/...",
	"github.com/cloudsoda/...", "github.com/cpuguy83/...", "github.com/creack/...", "github.com/docker/...",
	"github.com/evanw/esbuild/...", "github.com/fsnotify/...", "github.com/getkin/...",
	"github.com/go-enry/...", "github.com/goccy/...", "github.com/godbus/...",
	"github.com/google/go-containerregistry/...", "github.com/hanwen/...", "github.com/jcmturner/...",
	"github.com/ledongthuc/...", "github.com/lib/pq/...", "github.com/minio/...", "github.com/nats-io/...",
	"github.com/oasdiff/...", "github.com/prometheus/...", "github.com/santhosh-tekuri/...",
	"github.com/shirou/...", "github.com/sigstore/...", "github.com/spf13/...", "github.com/tailscale/...",
	"github.com/vishvananda/...", "golang.org/x/text/...", "golang.zx2c4.com/...",
	"google.golang.org/protobuf/...", "gatehouse/internal/access/guardrail/...", "gatehouse/internal/app/...",
	"gatehouse/internal/cli/...", "gatehouse/internal/cluster/...", "gatehouse/internal/config/...",
	"gatehouse/internal/exec/...", "gatehouse/internal/files/extract/...",
	"gatehouse/internal/files/stage/...", "gatehouse/internal/maintenance/...",
	"gatehouse/internal/modules/administration/...", "gatehouse/internal/modules/auth/...",
	"gatehouse/internal/modules/backup/...", "gatehouse/internal/modules/brain/...",
	"gatehouse/internal/modules/build/...", "gatehouse/internal/modules/code/...",
	"gatehouse/internal/modules/contextadmin/...", "gatehouse/internal/modules/custom/...",
	"gatehouse/internal/modules/db/...", "gatehouse/internal/modules/disk/...",
	"gatehouse/internal/modules/ide/...", "gatehouse/internal/modules/job/...",
	"gatehouse/internal/modules/lang/...", "gatehouse/internal/modules/lsp/...",
	"gatehouse/internal/modules/ml/...", "gatehouse/internal/modules/network/...",
	"gatehouse/internal/modules/notification/...", "gatehouse/internal/modules/packages/...",
	"gatehouse/internal/modules/process/...", "gatehouse/internal/modules/pubkey/...",
	"gatehouse/internal/modules/rag/...", "gatehouse/internal/modules/sandbox/...",
	"gatehouse/internal/modules/server/...", "gatehouse/internal/modules/shell/...",
	"gatehouse/internal/modules/smtp/...", "gatehouse/internal/modules/sshkeys/...",
	"gatehouse/internal/modules/system/...", "gatehouse/internal/modules/update/...",
	"gatehouse/internal/modules/webview/...", "gatehouse/internal/packages/...",
	"gatehouse/internal/sandbox/...", "gatehouse/internal/server/web/...",
	"gatehouse/internal/server/websocket/...",
}

// Compile compiles the package what of the module in dir as a release does, with these flags for the linker.
func Compile(dir, flags, to string, p product.Platform, what string) error {
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags", flags}
	for _, pattern := range notInlined {
		args = append(args, "-gcflags="+pattern+"=-l")
	}
	_, err := Go(dir, []string{"GOOS=" + p.OS, "GOARCH=" + p.Arch}, append(args, "-o", to, what)...)
	return err
}

// Manual returns the folder of manual pages and completions, which it writes.
func Manual(r *product.Release) (string, error) {
	dir := filepath.Join(r.Work, "manual")
	_, err := Go(r.Source, nil,
		"run", "./internal/cli/manual", "-o", dir, "-time", strconv.FormatInt(r.Time.Unix(), 10))
	return dir, err
}

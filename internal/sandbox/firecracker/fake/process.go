//go:build linux && (amd64 || arm64)

package fake

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Version is what the stand-in says it is, unless the environment says
// otherwise.
const Version = "1.17.0"

// Variables of the environment that the stand-ins read. The jailer gives those
// on that begin so.
const (
	prefix          = "FAKE_FIRECRACKER_"
	VersionVariable = prefix + "VERSION"
	rootVariable    = prefix + "ROOT"
)

// Main is the life of a program that was started under the name firecracker or
// jailer; ok is false when its name is another one. What it has to say goes to
// says.
func Main(args []string, says io.Writer) (code int, ok bool) {
	switch filepath.Base(args[0]) {
	case "firecracker":
		return firecracker(args[1:], says), true
	case "jailer":
		return jailer(args[1:], says), true
	}
	return 0, false
}

func version() string {
	if v := os.Getenv(VersionVariable); v != "" {
		return v
	}
	return Version
}

// option is one of a command line.
type option struct{ takesValue, many bool }

var ofFirecracker = map[string]option{
	"api-sock": {takesValue: true}, "id": {takesValue: true}, "seccomp-filter": {takesValue: true},
	"no-seccomp": {}, "start-time-us": {takesValue: true},
	"start-time-cpu-us": {takesValue: true}, "parent-cpu-time-us": {takesValue: true},
	"config-file": {takesValue: true}, "metadata": {takesValue: true},
	"no-api": {}, "log-path": {takesValue: true}, "level": {takesValue: true}, "module": {takesValue: true},
	"show-level": {}, "show-log-origin": {},
	"metrics-path": {takesValue: true}, "boot-timer": {}, "version": {}, "snapshot-version": {},
	"describe-snapshot":         {takesValue: true},
	"http-api-max-payload-size": {takesValue: true}, "mmds-size-limit": {takesValue: true}, "enable-pci": {},
}

var ofJailer = map[string]option{
	"id": {takesValue: true}, "exec-file": {takesValue: true}, "uid": {takesValue: true},
	"gid": {takesValue: true}, "chroot-base-dir": {takesValue: true},
	"netns": {takesValue: true}, "daemonize": {}, "new-pid-ns": {}, "cgroup": {takesValue: true, many: true},
	"resource-limit": {takesValue: true, many: true},
	"cgroup-version": {takesValue: true}, "parent-cgroup": {takesValue: true}, "version": {},
}

// command reads a command line as both programs do.
func command(args []string, known map[string]option) (map[string][]string, []string, error) {
	all := map[string][]string{}
	for i := 0; i < len(args); i++ {
		if args[i] == "--" {
			return all, args[i+1:], nil
		}
		name, dashed := strings.CutPrefix(args[i], "--")
		name, value, joined := strings.Cut(name, "=")
		o, there := known[name]
		switch {
		case !dashed || !there:
			return nil, nil,
				refused("Found argument '%s' which wasn't expected, or isn't valid in this context.", args[i])
		case all[name] != nil && !o.many:
			return nil, nil, refused("The argument '%s' was provided more than once.", name)
		case o.takesValue && !joined && i+1 == len(args):
			return nil, nil, refused("The argument '%s' requires a value, but none was supplied.", name)
		case o.takesValue && !joined:
			i++
			value = args[i]
		}
		all[name] = append(all[name], value)
	}
	return all, nil, nil
}

func one(all map[string][]string, name, otherwise string) string {
	if v := all[name]; v != nil {
		return v[0]
	}
	return otherwise
}

func fail(says io.Writer, format string, args ...any) int {
	fmt.Fprintf(says, format+"\n", args...)
	return 1
}

func firecracker(args []string, says io.Writer) int {
	all, _, err := command(args, ofFirecracker)
	if err != nil {
		return fail(says, "Arguments parsing error: %v", err)
	}
	if all["version"] != nil {
		fmt.Fprintf(says, "Firecracker v%s\n\n", version())
		return 0
	}
	v := &VMM{
		ID:      one(all, "id", "anonymous-instance"),
		Version: version(),
		At:      func(path string) string { return path },
	}
	if root := os.Getenv(rootVariable); root != "" {
		if err := os.Chdir(root); err != nil {
			return fail(says, "%v", err)
		}
		v.At = func(path string) string { return filepath.Join(".", path) }
	}
	l, err := net.Listen("unix", v.At(one(all, "api-sock", "/run/firecracker.socket")))
	if err != nil {
		return fail(says, "RunWithApiError error: Failed to open the API socket: %v", err)
	}
	fmt.Fprintln(says, "Running Firecracker v"+version())
	server := &http.Server{ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			v.ServeHTTP(w, r)
			v.mu.Lock()
			dead := v.fatal != nil
			started := v.guest
			v.mu.Unlock()
			if started != nil {
				go func() { // a machine that ends takes the process with it
					<-started.closed
					os.Exit(0)
				}()
			}
			if dead {
				http.NewResponseController(w).Flush()
				time.AfterFunc(10*time.Millisecond, func() { os.Exit(1) })
			}
		})}
	return fail(says, "%v", server.Serve(l))
}

// jailer does what the real one does, but for the walls: the process it becomes
// is told its root instead of being held in it, and keeps its user.
func jailer(args []string, says io.Writer) int {
	all, rest, err := command(args, ofJailer)
	if err != nil {
		return fail(says, "Arguments parsing error: %v", err)
	}
	if all["version"] != nil {
		fmt.Fprintf(says, "Jailer v%s\n\n", version())
		return 0
	}
	root, program, err := jail(all)
	if err != nil {
		return fail(says, "%v", err)
	}
	if err := ownProc(); err != nil {
		return fail(says, "%v", err)
	}
	var env []string
	for _, e := range os.Environ() {
		if strings.HasPrefix(e, prefix) {
			env = append(env, e)
		}
	}
	args = append([]string{program, "--id=" + all["id"][0], "--start-time-us=1", "--start-time-cpu-us=1"}, rest...)
	err = syscall.Exec(filepath.Join(root, program), args, append(env, rootVariable+"="+root))
	return fail(says, "Failed to exec into Firecracker: %v", err)
}

// ownProc has mounts of this process's own, as the real jailer does, with the
// processes that are in here. What it becomes keeps them.
func ownProc() error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("%w: unshare(CLONE_NEWNS): %w", ErrNoAgent, err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("%w: mount(make / private): %w", ErrNoAgent, err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("%w: mount(proc): %w", ErrNoAgent, err)
	}
	return nil
}

// jail checks what was asked for and makes the folder.
func jail(all map[string][]string) (root, program string, err error) {
	for _, needed := range []string{"id", "exec-file", "uid", "gid"} {
		if all[needed] == nil {
			return "", "", refused("Failed to parse arguments: Argument '%s' required, but not found.", needed)
		}
	}
	id := all["id"][0]
	if len(id) < 1 || len(id) > 64 || strings.Trim(strings.ToLower(id), "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return "", "", refused("Invalid instance ID: Invalid char or length in %q", id)
	}
	uid, err1 := strconv.ParseUint(all["uid"][0], 10, 32)
	gid, err2 := strconv.ParseUint(all["gid"][0], 10, 32)
	if err1 != nil || err2 != nil {
		return "", "", refused("Invalid uid or gid: %v, %v", err1, err2)
	}
	program = filepath.Base(all["exec-file"][0])
	if !strings.Contains(program, "firecracker") {
		return "", "",
			refused("Invalid filename. The filename of `--exec-file` option must contain \"firecracker\": %s", program)
	}
	for _, limit := range all["resource-limit"] {
		name, value, _ := strings.Cut(limit, "=")
		if _, err := strconv.ParseUint(value, 10, 64); err != nil ||
			!slices.Contains([]string{"fsize", "no-file"}, name) {
			return "", "", refused("Invalid resource argument: %s", limit)
		}
	}
	for _, group := range all["cgroup"] {
		if file, value, _ := strings.Cut(group, "="); file == "" || value == "" || strings.Contains(file, "/") {
			return "", "", refused("Invalid format for cgroups: %s", group)
		}
	}
	root = filepath.Join(one(all, "chroot-base-dir", "/srv/jailer"), program, id, "root")
	if err := os.MkdirAll(root, 0o700); err != nil {
		return "", "", err
	}
	exe, err := filepath.EvalSymlinks(all["exec-file"][0])
	if err != nil {
		return "", "", refused("Failed to canonicalize path %s: %v", all["exec-file"][0], err)
	}
	// The real one copies. A test's program is large, and the same.
	if err := os.Symlink(exe, filepath.Join(root, program)); err != nil {
		return "", "", refused("Failed to copy: %v", err)
	}
	if os.Geteuid() == 0 {
		err = os.Chown(root, int(uid), int(gid))
	}
	return root, program, err
}

//go:build amd64 || arm64

package namespaces

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/landlock"

	"golang.org/x/sys/unix"
)

const remedyGroups = "run as root, or let the service manager delegate control groups: systemd-run --user --scope -p Delegate=yes gatehouse ..."

const trial = 20 * time.Second // for the sandbox a Doctor makes

// Doctor makes a sandbox and runs a program in it, and says what of the rest is
// here.
func (d *Driver) Doctor(ctx context.Context) []sandbox.Finding {
	findings := []sandbox.Finding{sandbox.Try(ctx, d, trial, remedy)}
	for _, c := range []string{"memory", "pids", "cpu"} {
		f := sandbox.Finding{Name: "limit of " + c + " for a whole sandbox", OK: true, Detail: string(d.groups.Held(c))}
		if d.groups.Held(c) == sandbox.NotHeld {
			f.OK = false
			f.Detail = about(c, d.groups.Notes)
			f.Remedy = remedyGroups
		}
		findings = append(findings, f)
	}
	findings = append(findings, d.pausing(), d.ownUsers(), landlocked())
	for _, program := range []string{"python3", "node", "bash"} {
		findings = append(findings, interpreter(program))
	}
	return findings
}

var groupName = regexp.MustCompile(`gatehouse-sandbox-[^ )]*`)

// about picks what was noted of one controller, without names nobody needs.
func about(controller string, notes []string) string {
	for _, n := range notes {
		if strings.Contains(n, "/"+controller) {
			return groupName.ReplaceAllString(n, "...")
		}
	}
	return groupName.ReplaceAllString(strings.Join(notes, "; "), "...")
}

func (d *Driver) pausing() sandbox.Finding {
	f := sandbox.Finding{Name: "pausing a sandbox", OK: true, Detail: "by its control group"}
	if err := d.groups.Freezes(); err != nil {
		f.OK, f.Detail, f.Remedy = false, groupName.ReplaceAllString(err.Error(), "..."), remedyGroups
	}
	return f
}

func (d *Driver) ownUsers() sandbox.Finding {
	if !d.users.One {
		return sandbox.Finding{Name: "users of its own for each sandbox", OK: true, Detail: "a range of 65,536 ids each"}
	}
	return sandbox.Finding{
		Name: "users of its own for each sandbox", Detail: "this process may use no ids but its own",
		Remedy: "run as root; without it the code in a sandbox has your own id, held back by namespaces and filters alone",
	}
}

func landlocked() sandbox.Finding {
	if v := landlock.Version(); v > 0 {
		return sandbox.Finding{Name: "Landlock", OK: true, Detail: fmt.Sprintf("version %d", v)}
	}
	return sandbox.Finding{
		Name: "Landlock", Detail: "landlock_create_ruleset: the kernel has none",
		Remedy: "boot a kernel from 5.13 on with lsm=landlock,... ; until then mounts alone keep files read-only",
	}
}

// interpreter looks where programs of a sandbox would.
func interpreter(name string) sandbox.Finding {
	for _, dir := range []string{"/usr/local/bin", "/usr/bin", "/bin"} {
		if info, err := os.Stat(dir + "/" + name); err == nil && info.Mode().IsRegular() {
			return sandbox.Finding{Name: name, OK: true, Detail: dir + "/" + name}
		}
	}
	return sandbox.Finding{Name: name, Detail: "not in /usr/local/bin, /usr/bin or /bin", Remedy: "install it with the system's package manager; what lies elsewhere a sandbox does not see"}
}

// remedied adds what to do to an error that somebody can do something about.
func remedied(err error) error {
	if r := remedy(err); r != "" {
		return fmt.Errorf("%w (%s)", err, r)
	}
	return err
}

// remedy says what to do about a sandbox that could not be made.
func remedy(err error) string {
	text := err.Error()
	denied := errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return ""
	case errors.Is(err, unix.ENOSPC) || reads("/proc/sys/user/max_user_namespaces", "0"):
		return "there may be no more user namespaces: raise sysctl user.max_user_namespaces"
	case !denied:
		return ""
	case reads("/proc/sys/kernel/unprivileged_userns_clone", "0"):
		return "the kernel refuses user namespaces to users: sysctl kernel.unprivileged_userns_clone=1, or run as root"
	case reads("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") && os.Geteuid() != 0:
		return "AppArmor refuses user namespaces to programs without a profile: give gatehouse one that says userns, or sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run as root"
	case strings.Contains(text, "mount(proc)"):
		return "the container this runs in hides parts of /proc: start it with --security-opt systempaths=unconfined"
	case strings.Contains(text, "clone(CLONE_"):
		return "the container this runs in may refuse new namespaces: start it with --security-opt seccomp=unconfined and, for mounts, --security-opt apparmor=unconfined"
	}
	return ""
}

func reads(file, want string) bool {
	b, err := os.ReadFile(file)
	return err == nil && strings.TrimSpace(string(b)) == want
}

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

const remedyGroups = "run as root, or let the service manager delegate control groups: systemd-run --user " +
	"--scope -p Delegate=yes gatehouse ..."

const tryWait = 20 * time.Second // for the sandbox that Doctor makes

// Doctor makes a sandbox and runs a program in it, and reports on what else the driver can use.
func (d *Driver) Doctor(ctx context.Context) []sandbox.Finding {
	findings := []sandbox.Finding{sandbox.Try(ctx, d, tryWait, remedy)}
	for _, c := range []string{"memory", "pids", "cpu"} {
		f := sandbox.Finding{
			Name:   "limit of " + c + " for a whole sandbox",
			OK:     true,
			Detail: string(d.groups.Enforcement(c)),
		}
		if d.groups.Enforcement(c) == sandbox.NotEnforced {
			f.OK = false
			f.Detail = notesAbout(c, d.groups.Notes)
			f.Remedy = remedyGroups
		}
		findings = append(findings, f)
	}
	findings = append(findings, d.pauseFinding(), d.usersFinding(), d.rangeFinding(), landlockFinding())
	for _, program := range []string{"python3", "node", "bash"} {
		findings = append(findings, interpreterFinding(program))
	}
	return findings
}

var groupName = regexp.MustCompile(`gatehouse-sandbox-[^ )]*`)

// notesAbout returns the notes about one controller, without the random names of groups.
func notesAbout(controller string, notes []string) string {
	for _, n := range notes {
		if strings.Contains(n, "/"+controller) {
			return groupName.ReplaceAllString(n, "...")
		}
	}
	return groupName.ReplaceAllString(strings.Join(notes, "; "), "...")
}

func (d *Driver) pauseFinding() sandbox.Finding {
	f := sandbox.Finding{Name: "pausing a sandbox", OK: true, Detail: "by its control group"}
	if err := d.groups.CanFreeze(); err != nil {
		f.OK, f.Detail, f.Remedy = false, groupName.ReplaceAllString(err.Error(), "..."), remedyGroups
	}
	return f
}

func (d *Driver) usersFinding() sandbox.Finding {
	if !d.users.Single {
		return sandbox.Finding{
			Name:   "user ids of its own for each sandbox",
			OK:     true,
			Detail: "a range of 65,536 ids each",
		}
	}
	return sandbox.Finding{
		Name: "user ids of its own for each sandbox", Detail: "this process cannot use ids other than its own",
		Remedy: "run as root; otherwise the code in a sandbox has the id of this process and is confined by " +
			"namespaces and filters alone",
	}
}

// rangeFinding says whether images can have users of their own.
func (d *Driver) rangeFinding() sandbox.Finding {
	f := sandbox.Finding{Name: "users of their own for images that need several", OK: true, Detail: "65,536 ids each"}
	if err := d.UserRange(); err != nil {
		f.OK, f.Detail, f.Remedy = false, "packages of images run as one user each", err.Error()
	}
	return f
}

func landlockFinding() sandbox.Finding {
	if v := landlock.Version(); v > 0 {
		return sandbox.Finding{Name: "Landlock", OK: true, Detail: fmt.Sprintf("version %d", v)}
	}
	return sandbox.Finding{
		Name: "Landlock", Detail: "landlock_create_ruleset: the kernel does not have it",
		Remedy: "boot a kernel from 5.13 on with lsm=landlock,... ; until then mounts alone keep files read-only",
	}
}

// interpreterFinding looks for a program where a sandbox finds programs.
func interpreterFinding(name string) sandbox.Finding {
	for _, dir := range []string{"/usr/local/bin", "/usr/bin", "/bin"} {
		if info, err := os.Stat(dir + "/" + name); err == nil && info.Mode().IsRegular() {
			return sandbox.Finding{Name: name, OK: true, Detail: dir + "/" + name}
		}
	}
	return sandbox.Finding{
		Name:   name,
		Detail: "not in /usr/local/bin, /usr/bin or /bin",
		Remedy: "install it with the system's package manager; programs in other folders are not visible in a sandbox",
	}
}

// withRemedy adds the remedy to an error that has one.
func withRemedy(err error) error {
	if r := remedy(err); r != "" {
		return fmt.Errorf("%w (%s)", err, r)
	}
	return err
}

// remedy says what to do about a sandbox that could not be made, or "" if that is unknown.
func remedy(err error) string {
	text := err.Error()
	denied := errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return ""
	case errors.Is(err, unix.ENOSPC) || fileContains("/proc/sys/user/max_user_namespaces", "0"):
		return "the limit of user namespaces may be reached: raise sysctl user.max_user_namespaces"
	case !denied:
		return ""
	case fileContains("/proc/sys/kernel/unprivileged_userns_clone", "0"):
		return "the kernel refuses user namespaces to users: sysctl kernel.unprivileged_userns_clone=1, or run as root"
	case fileContains("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") && os.Geteuid() != 0:
		return "AppArmor refuses user namespaces to programs without a profile: give gatehouse one that says " +
			"userns, or sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run as root"
	case strings.Contains(text, "mount(proc)"):
		return "the container this runs in hides parts of /proc: start it with --security-opt systempaths=unconfined"
	case strings.Contains(text, "clone(CLONE_"):
		return "the container this runs in may refuse new namespaces: start it with --security-opt " +
			"seccomp=unconfined and, for mounts, --security-opt apparmor=unconfined"
	}
	return ""
}

func fileContains(file, want string) bool {
	b, err := os.ReadFile(file)
	return err == nil && strings.TrimSpace(string(b)) == want
}

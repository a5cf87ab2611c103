//go:build linux && (amd64 || arm64)

package seccomp

import (
	"slices"

	"golang.org/x/sys/unix"
)

// Profile is a filter in the format of the OCI runtime specification.
type Profile struct {
	DefaultAction string   `json:"defaultAction"`
	Architectures []string `json:"architectures"`
	Syscalls      []Rule   `json:"syscalls"`
}

// Rule applies to calls whose arguments match all of Args.
type Rule struct {
	Names    []string `json:"names"`
	Action   string   `json:"action"`
	ErrnoRet uint     `json:"errnoRet"`
	Args     []Arg    `json:"args,omitempty"`
}

// Arg is a condition on one argument.
type Arg struct {
	Index    uint   `json:"index"`
	Value    uint64 `json:"value"`
	ValueTwo uint64 `json:"valueTwo,omitempty"`
	Op       string `json:"op"`
}

// call is a system call with its name in profiles.
type call struct {
	name string
	nr   uint32
}

// closedByName are the closed calls of every architecture with their names.
var closedByName = []call{
	{"mount", unix.SYS_MOUNT},
	{"umount2", unix.SYS_UMOUNT2},
	{"pivot_root", unix.SYS_PIVOT_ROOT},
	{"chroot", unix.SYS_CHROOT},
	{"setns", unix.SYS_SETNS},
	{"fsopen", unix.SYS_FSOPEN},
	{"fsconfig", unix.SYS_FSCONFIG},
	{"fsmount", unix.SYS_FSMOUNT},
	{"fspick", unix.SYS_FSPICK},
	{"open_tree", unix.SYS_OPEN_TREE},
	{"move_mount", unix.SYS_MOVE_MOUNT},
	{"mount_setattr", unix.SYS_MOUNT_SETATTR},
	{"ptrace", unix.SYS_PTRACE},
	{"process_vm_readv", unix.SYS_PROCESS_VM_READV},
	{"process_vm_writev", unix.SYS_PROCESS_VM_WRITEV},
	{"pidfd_getfd", unix.SYS_PIDFD_GETFD},
	{"kcmp", unix.SYS_KCMP},
	{"process_madvise", unix.SYS_PROCESS_MADVISE},
	{"bpf", unix.SYS_BPF},
	{"perf_event_open", unix.SYS_PERF_EVENT_OPEN},
	{"userfaultfd", unix.SYS_USERFAULTFD},
	{"vmsplice", unix.SYS_VMSPLICE},
	{"io_uring_setup", unix.SYS_IO_URING_SETUP},
	{"io_uring_enter", unix.SYS_IO_URING_ENTER},
	{"io_uring_register", unix.SYS_IO_URING_REGISTER},
	{"keyctl", unix.SYS_KEYCTL},
	{"add_key", unix.SYS_ADD_KEY},
	{"request_key", unix.SYS_REQUEST_KEY},
	{"name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT},
	{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT},
	{"mbind", unix.SYS_MBIND},
	{"migrate_pages", unix.SYS_MIGRATE_PAGES},
	{"move_pages", unix.SYS_MOVE_PAGES},
	{"set_mempolicy", unix.SYS_SET_MEMPOLICY},
	{"kexec_load", unix.SYS_KEXEC_LOAD},
	{"kexec_file_load", unix.SYS_KEXEC_FILE_LOAD},
	{"init_module", unix.SYS_INIT_MODULE},
	{"finit_module", unix.SYS_FINIT_MODULE},
	{"delete_module", unix.SYS_DELETE_MODULE},
	{"reboot", unix.SYS_REBOOT},
	{"swapon", unix.SYS_SWAPON},
	{"swapoff", unix.SYS_SWAPOFF},
	{"quotactl", unix.SYS_QUOTACTL},
	{"quotactl_fd", unix.SYS_QUOTACTL_FD},
	{"acct", unix.SYS_ACCT},
	{"settimeofday", unix.SYS_SETTIMEOFDAY},
	{"clock_settime", unix.SYS_CLOCK_SETTIME},
	{"clock_adjtime", unix.SYS_CLOCK_ADJTIME},
	{"adjtimex", unix.SYS_ADJTIMEX},
	{"syslog", unix.SYS_SYSLOG},
}

// agentNeeds are closed calls that the agent makes before its own filter closes them for the code.
var agentNeeds = []string{"mount", "umount2", "open_tree", "move_mount", "mount_setattr"}

// int32Of masks the bits of an int argument, because the kernel ignores the others.
const int32Of = 0xffffffff

// ForAgentStrict is ForAgent with all further known calls closed except those that Strict allows or the agent
// makes. The agent adds Strict for the code.
func ForAgentStrict() Profile {
	p := ForAgent()
	wanted := slices.Concat(open, conditional, agentNeeds, agentAlsoNeeds, []string{"clone3", "io_setup"})
	var names []string
	for _, c := range calls {
		closed := func(n call) bool { return n.name == c.name }
		if !slices.Contains(wanted, c.name) && !slices.ContainsFunc(closedByName, closed) &&
			!slices.ContainsFunc(closedByNameHere(), closed) {
			names = append(names, c.name)
		}
	}
	p.addRefusal(unix.EPERM, names)
	return p
}

// agentAlsoNeeds are calls that the agent makes and that only Strict closes.
var agentAlsoNeeds = []string{"sethostname", "unshare"}

// ForAgent returns the filter of a container whose first process is the agent: what Default closes except for
// what the agent needs. The agent adds Default for the code.
func ForAgent() Profile {
	const agents = unix.CLONE_NEWPID | unix.CLONE_NEWNS // for the launcher of each program
	p := Profile{DefaultAction: "SCMP_ACT_ALLOW", Architectures: []string{ociArch}}
	var names []string
	for _, c := range append(slices.Clone(closedByName), closedByNameHere()...) {
		if !slices.Contains(agentNeeds, c.name) {
			names = append(names, c.name)
		}
	}
	p.addRefusal(unix.EPERM, names)
	p.addRefusal(unix.ENOSYS, []string{"clone3", "io_setup"})
	for _, option := range []uint64{unix.SO_ATTACH_FILTER, unix.SO_ATTACH_BPF, unix.SO_ATTACH_REUSEPORT_CBPF,
		unix.SO_ATTACH_REUSEPORT_EBPF} {
		p.addRefusal(unix.ENOPROTOOPT, []string{"setsockopt"}, Arg{1, int32Of, unix.SOL_SOCKET, maskedEqual},
			Arg{2, int32Of, option, maskedEqual})
	}
	for bit := uint64(1); bit <= newNamespaces; bit <<= 1 {
		if bit&newNamespaces == 0 {
			continue
		}
		if bit&agents == 0 {
			p.addRefusal(unix.EPERM, []string{"clone"}, Arg{0, bit, bit, maskedEqual})
		}
		p.addRefusal(unix.EPERM, []string{"unshare"}, Arg{0, bit, bit, maskedEqual})
	}
	for _, request := range []uint64{unix.TIOCSTI, tiocLinux} {
		p.addRefusal(unix.EPERM, []string{"ioctl"}, Arg{1, int32Of, request, maskedEqual})
	}
	for family := range uint64(unix.AF_NETLINK) {
		if family != unix.AF_UNIX && family != unix.AF_INET && family != unix.AF_INET6 {
			p.addRefusal(unix.EPERM, []string{"socket"}, Arg{0, int32Of, family, maskedEqual})
		}
	}
	p.addRefusal(unix.EPERM, []string{"socket"}, Arg{Index: 0, Value: unix.AF_NETLINK, Op: "SCMP_CMP_GT"})
	p.addRefusal(unix.EPERM, []string{"socket"}, Arg{0, int32Of, unix.AF_NETLINK, maskedEqual},
		Arg{Index: 2, Value: unix.NETLINK_ROUTE, Op: "SCMP_CMP_NE"})
	return p
}

const maskedEqual = "SCMP_CMP_MASKED_EQ"

func (p *Profile) addRefusal(errno unix.Errno, names []string, args ...Arg) {
	p.Syscalls = append(p.Syscalls, Rule{Names: names, Action: "SCMP_ACT_ERRNO", ErrnoRet: uint(errno), Args: args})
}

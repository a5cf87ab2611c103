//go:build amd64 || arm64

package firecracker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/firecracker/api"
	"gatehouse/internal/sandbox/guest"

	"golang.org/x/sys/unix"
)

const (
	tryWait = 2 * time.Minute // for all tests of Doctor
	kvmFile = "/dev/kvm"
)

const (
	remedyNoKVM = "load kvm_intel or kvm_amd, and in a virtual machine enable nested virtualisation on its " +
		"host; otherwise use another driver, such as qemu"
	remedyKVMDenied = "add the user to the group of /dev/kvm (usermod -aG kvm ...) and log in again, or pass " +
		"the device into the container"
	remedyBoot = "KVM exists but runs no machine: check the kernel's log, and in a virtual machine the " +
		"settings of its host; another driver, such as qemu, works without KVM"
	remedyFolder = "name another folder by GATEHOUSE_CHROOT, on a file system in which devices and programs work"
	remedyRoot   = "name a file with an ext4, squashfs or erofs by GATEHOUSE_ROOTFS; " + guest.RemedyTools
)

// Doctor checks each requirement, and then boots a machine and runs a program in it, because KVM may exist
// without working.
func (d *Driver) Doctor(ctx context.Context) []sandbox.Finding {
	ctx, cancel := context.WithTimeout(ctx, tryWait)
	defer cancel()
	findings := append(d.programs(), kvm(d.parts.jailer != nil))
	if d.missing == nil {
		findings = append(findings, d.folderFinding(), d.kernel(ctx), d.root(ctx))
	}
	for _, f := range findings {
		if f.Needed && !f.OK {
			return findings
		}
	}
	return append(findings, sandbox.Try(ctx, d, tryWait, func(err error) string {
		return cmp.Or(remedy(err), remedyBoot)
	}))
}

// programs reports the programs that were found, and the one that is missing or unsuitable.
func (d *Driver) programs() (findings []sandbox.Finding) {
	if d.parts.vmm != nil {
		findings = append(findings, found(nameBinary, d.parts.vmm))
	}
	if d.parts.jailer != nil {
		findings = append(findings, found(nameJailer, d.parts.jailer))
	}
	if m, ok := errors.AsType[*Missing](d.missing); ok {
		f := sandbox.Finding{Name: m.What, Needed: true, Detail: m.Err.Error(), Remedy: m.Remedy}
		for i := range findings {
			if findings[i].Name == m.What {
				findings[i] = f
				return findings
			}
		}
		return append(findings, f)
	}
	if d.parts.vmm != nil && d.parts.jailer == nil {
		findings = append(findings, sandbox.Finding{
			Name: nameJailer, Detail: "machines are processes of this user, without a jail",
			Remedy: "run as root, with the jailer beside firecracker",
		})
	}
	return findings
}

func found(name string, p *program) sandbox.Finding {
	return sandbox.Finding{Name: name, Needed: true, OK: true, Detail: fmt.Sprintf("%s: %s", p.path, p.version)}
}

// kvm opens the device. In a jail the jailer creates another one.
func kvm(jailed bool) sandbox.Finding {
	f := sandbox.Finding{Name: "KVM", Needed: true}
	fd, err := unix.Open(kvmFile, unix.O_RDWR|unix.O_CLOEXEC, 0)
	switch {
	case err == nil:
		unix.Close(fd)
		f.OK, f.Detail = true, kvmFile+" can be opened"
		if jailed {
			f.Detail += ", and the jailer creates it in a jail"
		}
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		f.Detail, f.Remedy = fmt.Sprintf("open(%s): %v", kvmFile, err), remedyKVMDenied
	default:
		f.Detail, f.Remedy = fmt.Sprintf("open(%s): %v", kvmFile, err), remedyNoKVM
	}
	return f
}

// folderFinding checks that the jails' file system allows the device and the program that they contain.
func (d *Driver) folderFinding() sandbox.Finding {
	f := sandbox.Finding{Name: "a folder for jails", Needed: true, OK: true, Detail: filepath.Dir(d.folder)}
	var st unix.Statfs_t
	if err := unix.Statfs(d.folder, &st); err != nil {
		f.OK, f.Detail, f.Remedy = false, fmt.Sprintf("statfs(%s): %v", d.folder, err), remedyFolder
	}
	if against := st.Flags & (unix.ST_NODEV | unix.ST_NOEXEC); d.parts.jailer != nil && against != 0 {
		f.OK, f.Detail, f.Remedy = false, f.Detail+" is mounted nodev or noexec", remedyFolder
	}
	return f
}

func (d *Driver) kernel(ctx context.Context) sandbox.Finding {
	f := sandbox.Finding{Name: nameKernel, Needed: true}
	path, err := d.system.Vmlinux(ctx)
	if err == nil {
		_, err = d.system.Initrd(ctx)
	}
	if err != nil {
		f.Detail, f.Remedy = err.Error(),
			"name another kernel by GATEHOUSE_KERNEL, and its modules by GATEHOUSE_SANDBOX_KERNEL_MODULES"
		return f
	}
	f.OK, f.Detail = true, path
	return f
}

func (d *Driver) root(ctx context.Context) sandbox.Finding {
	f := sandbox.Finding{Name: "a root file system", Needed: true}
	disk, err := d.system.Root(ctx, nil)
	if err != nil {
		f.Detail, f.Remedy = err.Error(), remedyRoot
		return f
	}
	f.OK, f.Detail = true, disk.Path+": "+disk.Type
	return f
}

// withRemedy adds the remedy to an error that has one.
func withRemedy(err error) error {
	if r := remedy(err); r != "" {
		return fmt.Errorf("%w (%s)", err, r)
	}
	return err
}

// remedy says what to do about a sandbox that could not be made; "" if that is unknown.
func remedy(err error) string {
	_, missing := errors.AsType[*Missing](err)
	refused, ok := errors.AsType[*api.Fault](err)
	switch {
	case missing, errors.Is(err, context.Canceled), errors.Is(err, sandbox.ErrDriverClosed):
		return "" // the error says it already, or there is nothing to do
	case errors.Is(err, errSilent):
		return remedyBoot
	case ok && (refused.Path == "/actions" || refused.Path == "/snapshot/load"):
		return kvm(false).Remedy
	}
	return ""
}

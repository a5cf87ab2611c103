// Package qemu makes sandboxes that are virtual machines of QEMU: small machines without a network card, which
// give the code access to nothing but a read-only disk and a channel to the host.
//
// Machines use KVM if a machine actually boots with it; otherwise QEMU emulates the processor, which is
// slower. The first sandbox of a kind boots, its state is saved as a template, and later ones are restored
// from it in a small part of the time. The agent inside is the same as in other drivers and is the first
// process of the machine's kernel.
package qemu

import "log/slog"

// Name is the driver's name.
const Name = "qemu"

// Options are for New. The zero value is sufficient if QEMU and a kernel are installed.
type Options struct {
	Program string // QEMU's path or name; "" means the one for this architecture
	Kernel  string // path of a kernel; "" means the newest in /boot with modules
	Modules string // folder of its modules; "" means the one of its version
	// A file with an ext4, squashfs or erofs file system; "" makes one of the host's programs.
	Rootfs      string
	Folder      string       // for files that machines boot, kept between runs; "" means the user's cache folder
	DiskBytes   int64        // most bytes of these files on disk; 0 means 20 GiB
	Accelerator string       // "kvm", "tcg", or "" to use kvm if it works
	Log         *slog.Logger // nil means nothing is logged

	boot string // of tests: where a kernel is looked for
}

const remedyProgram = "install it: apt-get install qemu-system-x86 (Debian, Ubuntu), dnf install " +
	"qemu-system-x86-core (Fedora)"

// Package qemu makes sandboxes that are virtual machines of QEMU: small ones,
// without a network card or anything else that code could reach but a disk
// that is read and a line to the host.
//
// The processor is the machine's own by way of KVM where a machine really boots
// with it, else QEMU emulates one, which takes nothing but time. The first
// sandbox of a kind boots; what it is then is kept, and all that follow go on
// from there, in a small part of the time. Inside is the same agent as in other
// drivers, as the first process of a kernel of its own.
package qemu

import "log/slog"

// Name is what the driver is called.
const Name = "qemu"

// Options are for New. The zero value serves where QEMU and a kernel are
// installed.
type Options struct {
	Program     string       // QEMU's path or name; "" means that of this machine's kind
	Kernel      string       // a kernel's file; "" means the newest in /boot whose modules are there
	Modules     string       // the folder of its modules; "" means the one of its version
	Rootfs      string       // a file with an ext4, squashfs or erofs; "" makes one of the host's own programs
	Folder      string       // for what machines boot, kept from run to run; "" means the user's folder for caches
	DiskBytes   int64        // bytes that what machines boot may take on disk; 0 means 20 GiB
	Accelerator string       // "kvm", "tcg", or "" for whichever works
	Log         *slog.Logger // nil means nothing is logged

	boot string // of tests: where a kernel is looked for
}

const remedyProgram = "install it: apt-get install qemu-system-x86 (Debian, Ubuntu), dnf install qemu-system-x86-core (Fedora)"

// Package firecracker makes sandboxes that are virtual machines of Firecracker,
// each in the jail of its jailer.
//
// In the machine runs the same agent as in other sandboxes, as its first
// process; the host speaks to it through the machine's socket device. The disks
// of machines are only read, so that all share them, and what code writes is in
// the machine's memory: a snapshot of the memory is all there is to keep.
package firecracker

import "log/slog"

// Name is what the driver is called.
const Name = "firecracker"

// Options are for New. The zero value serves where everything is installed.
type Options struct {
	Binary    string       // a program's path or name; "" means firecracker in the PATH
	Jailer    string       // a program's path or name; "" means jailer beside the binary or in the PATH
	Kernel    string       // a kernel's file; "" means one that is installed, see package guest
	Modules   string       // the folder of its modules; "" means the one of its version
	Rootfs    string       // a file with an ext4, squashfs or erofs; "" makes one of the host's own programs
	Chroot    string       // a folder for jails; "" means /srv/jailer for root, else the system's place for temporary files
	Cache     string       // a folder for what is made for machines; "" means the user's folder for caches
	DiskBytes int64        // bytes that what is made for machines may take on disk, copies for jails included; 0 means 20 GiB
	Log       *slog.Logger // nil means nothing is logged
}

// Package firecracker makes sandboxes that are virtual machines of Firecracker, each in a jail of its jailer.
//
// The agent in the machine is the same as in other sandboxes and is its first process; it is connected to the
// host by the machine's vsock device. The disks are read-only, so that all machines share them, and what the
// code writes is in the machine's memory: a snapshot of the memory contains everything.
package firecracker

import "log/slog"

// Name is the driver's name.
const Name = "firecracker"

// Options are for New. The zero value is sufficient if everything is installed.
type Options struct {
	Binary  string // a program's path or name; "" means firecracker in the PATH
	Jailer  string // a program's path or name; "" means jailer beside the binary or in the PATH
	Kernel  string // path of a kernel; "" means an installed one, see package guest
	Modules string // folder of its modules; "" means the one of its version
	Rootfs  string // a file with an ext4, squashfs or erofs file system; "" makes one of the host's programs
	// Folder for jails; "" means /srv/jailer for root, else the system's folder for temporary files.
	Chroot    string
	Cache     string       // folder for files that machines boot; "" means the user's cache folder
	DiskBytes int64        // most bytes of these files on disk, including copies for jails; 0 means 20 GiB
	Log       *slog.Logger // nil means nothing is logged
}

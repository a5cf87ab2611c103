// Package machinetest runs the tests of a package in a Linux machine that is made for
// them: systemd as process 1, and the daemons of Debian packages, in namespaces.
//
// The machine shares the kernel, and the files of /usr, /etc and /var, of the machine
// that runs the tests. It writes to memory alone, has no network but loopback, and
// may neither set the clock nor load kernel modules. It ends with the tests.
package machinetest

// LoopFile begins the path of each file of the machine that is attached to a loop device:
// loop devices belong to the kernel and would outlive the machine.
const LoopFile = "/tmp/gatehouse-loop"

// FilesVariable names the variable of the environment with a folder that the machine has as
// /test/files.
const FilesVariable = "GATEHOUSE_TEST_FILES"

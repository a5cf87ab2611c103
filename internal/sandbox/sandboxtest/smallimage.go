package sandboxtest

import "testing"

// SmallImage makes a small system in a folder of the host, with a shell, a few programs, and ID=tiny in /etc/os-
// release. It skips the test if the machine lacks one of the programs.
func SmallImage(t *testing.T) (root string) { return suite{}.buildImage(t) }

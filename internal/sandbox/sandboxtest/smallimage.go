package sandboxtest

import "testing"

// SmallImage lays out a small system in a folder of the host's, with a shell, a
// few programs, and ID=tiny in /etc/os-release. A machine that lacks one of the
// programs skips the test.
func SmallImage(t *testing.T) (root string) { return suite{}.buildImage(t) }

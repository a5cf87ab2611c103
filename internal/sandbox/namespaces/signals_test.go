//go:build linux && (amd64 || arm64)

package namespaces

import (
	"bytes"
	"os"
	"testing"

	"gatehouse/internal/sandbox"
)

// What ends when its program does takes no signal of the program's, not even
// where both are of one user, and the program begins with signals that do what
// they do by default.
//
//redteam:attack Code in a sandbox is shut in several times: a program signals what would end it
func TestNoSignalReachesWhatAProgramIsEndedBy(t *testing.T) {
	d := driver(t, Options{})
	b, err := d.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	const script = `grep -E '^Sig(Ign|Blk)' /proc/self/status | tr -d '0\t' | tr '\n' ' '
for s in $(seq 1 64); do kill -$s 1 2>/dev/null; done; echo held`
	var out bytes.Buffer
	p, err := b.Exec(t.Context(), sandbox.Command{Argv: []string{"bash", "-c", script}, Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := p.Wait(); r.Outcome != sandbox.OK || out.String() != "SigBlk: SigIgn: held\n" {
		t.Errorf("%+v, %v, %q", r, err, out.String())
	}
}

// An ordinary user has no other one for the code.
func TestNoSignalReachesItOfTheSameUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the test before was run by an ordinary user already")
	}
	cmd := again(t, 65534, "^TestNoSignalReachesWhatAProgramIsEndedBy$")
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: ")) && !bytes.Contains(out, []byte("--- SKIP: ")) {
		t.Errorf("%v\n%s", err, out)
	}
	if bytes.Contains(out, []byte("--- SKIP: ")) {
		t.Skipf("nobody cannot make sandboxes here:\n%s", out)
	}
}

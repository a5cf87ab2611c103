package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestOnlyOneClaimsThePIDFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "g.pid")
	p, err := ClaimPID(path)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(path); string(b) != strconv.Itoa(os.Getpid())+"\n" {
		t.Errorf("the file holds %q", b)
	}
	_, err = ClaimPID(path)
	r, ok := errors.AsType[*Running](err)
	if !ok || r.PID != os.Getpid() {
		t.Errorf("the second claim: got %v, want that process %d runs", err, os.Getpid())
	}
	if pid, running, err := FindPID(path); pid != os.Getpid() || !running || err != nil {
		t.Errorf("found %d, %v, %v", pid, running, err)
	}
	if err := RemoveStale(path); err == nil {
		t.Error("a file that is claimed was removed as stale")
	}
	if err := p.Release(); err != nil {
		t.Fatal(err)
	}
	if pid, running, err := FindPID(path); pid != 0 || running || err != nil {
		t.Errorf("after the end: found %d, %v, %v", pid, running, err)
	}
}

// The file of a killed daemon is stale, even if another process has its number by now.
func TestStalePIDFileIsKnownAsStale(t *testing.T) {
	path := filepath.Join(t.TempDir(), "g.pid")
	if err := os.WriteFile(path, []byte(strconv.Itoa(os.Getppid())+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if pid, running, err := FindPID(path); pid != os.Getppid() || running || err != nil {
		t.Errorf("found %d, %v, %v", pid, running, err)
	}
	p, err := ClaimPID(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Release(); err != nil {
		t.Fatal(err)
	}
}

func TestAnotherFileIsNoPIDFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "g.pid")
	for _, text := range []string{"text", "-5", "1", "99999999999999999999", strings.Repeat("1", 100)} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if pid, running, err := FindPID(path); err == nil || pid != 0 || running {
			t.Errorf("%.20q: found %d, %v, %v", text, pid, running, err)
		}
		if p, err := ClaimPID(path); err == nil {
			t.Errorf("%.20q was overwritten", text)
			p.Release()
		}
	}
}

// Releasing the claim on an old file does not remove the file that replaced it.
func TestReleaseLeavesWhatIsAnothers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "g.pid")
	p, err := ClaimPID(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second, err := ClaimPID(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Release(); err != nil {
		t.Fatal(err)
	}
	if _, running, _ := FindPID(path); !running {
		t.Error("the second claim went with the first")
	}
	second.Release()
}

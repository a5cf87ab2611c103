//go:build !race

package clientconfig

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"gatehouse/internal/exec/killtest"
)

// However many calls of the kernel a command has made when it is killed, the file
// of the client holds the old text or the new one, and the command makes the
// change when it is run again.
//
//redteam:attack Files of clients lose nothing: a command is killed between any two system calls
func TestAKillBetweenAnyTwoSystemCalls(t *testing.T) {
	const old = "{\n  // mine\n  \"mcpServers\": {}\n}\n"
	now, err := FindClient("cursor").Put([]byte(old), byStdio)
	if err != nil {
		t.Fatal(err)
	}
	for name, texts := range map[string][2]string{"connect": {old, string(now)}, "disconnect": {string(now), old}} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			path := filepath.Join(home, ".cursor", "mcp.json")
			for at, done := 1, false; !done; at++ {
				writeFile(t, path, old)
				os.RemoveAll(filepath.Join(home, "book"))
				if name == "disconnect" {
					run(t, home)
				}
				var err error
				if done, err = killtest.Before(changer(home), at); errors.Is(err, killtest.ErrUnsupported) {
					t.Skip(err)
				} else if err != nil {
					t.Fatal(err)
				}
				if done && at < 20 {
					t.Fatalf("it made only %d calls", at)
				}
				got := readFile(t, path)
				if got != texts[0] && got != texts[1] {
					t.Fatalf("killed before call %d, the file holds %q", at, got)
				}
				if got == texts[0] {
					run(t, home)
				}
				if got := readFile(t, path); got != texts[1] {
					t.Fatalf("killed before call %d and run again, the file holds %q", at, got)
				}
				if left, _ := filepath.Glob(path + ".*"); len(left) > 0 && got == texts[0] {
					t.Errorf("killed before call %d and run again, %v is left", at, left)
				}
			}
		})
	}
}

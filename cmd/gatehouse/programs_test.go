package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/sandbox/namespaces"
)

// After kill -9 of the host in the middle of a program, the next host says which tools the program has called, and
// which call had begun.
func TestAKilledHostSaysWhatItsProgramsCalled(t *testing.T) {
	d, err := namespaces.New(namespaces.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range d.Doctor(t.Context()) {
		if f.Needed && !f.OK {
			t.Skipf("%s: %s; %s", f.Name, f.Detail, f.Remedy)
		}
	}
	d.Close()
	who := account{name: "root"}
	program, home := placed(t, who)
	h := newLineHostWith(t, program, home, who, "code,file,shell")
	source := `
for i in range(3):
    tools.file_write(path="n%d.txt" % i, content="x")
tools.shell_run(command="touch begun; sleep 1000")
print("never")
`
	args, _ := json.Marshal(
		map[string]any{"name": "code_run", "arguments": map[string]any{"language": "python", "code": source}},
	)
	fmt.Fprintf(h.in, `{"jsonrpc":"2.0","id":99,"method":"tools/call","params":%s}`+"\n", args)
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(home, "begun")); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the program did not get that far within a minute")
		}
	}
	h.kill()
	got := newLineHostWith(t, program, home, who, "code").call("code_list", map[string]any{})
	for _, want := range []string{"interrupted, because the host ended", "file_write x3 (line 3)",
		"shell_run (line 4) running"} {
		if !strings.Contains(got, want) {
			t.Errorf("got %s\nwant %s in it", got, want)
		}
	}
}

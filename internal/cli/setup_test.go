package cli

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/creack/pty"
)

// The first start at a terminal, without a command, leads through the setup; once
// a client is connected, it is help.
func TestFirstStart(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("terminals are made as Unix does")
	}
	home := t.TempDir()
	t.Chdir(t.TempDir())
	if err := os.Mkdir(filepath.Join(home, ".cursor"), 0o700); err != nil {
		t.Fatal(err)
	}
	at := func(typed string) string {
		ours, theirs, err := pty.Open()
		if err != nil {
			t.Skip(err)
		}
		defer theirs.Close()
		var shown bytes.Buffer
		read := make(chan struct{})
		go func() {
			defer close(read)
			io.Copy(&shown, ours) // ends with an error when the terminal is closed
		}()
		if _, err := ours.WriteString(typed); err != nil {
			t.Fatal(err)
		}
		env := map[string]string{"HOME": home, "PATH": t.TempDir()}
		w := Environment{In: theirs, Out: theirs, Err: theirs, Getenv: func(name string) string { return env[name] }}
		if code := Run(t.Context(), nil, w); code != 0 {
			t.Errorf("it ended with %d", code)
		}
		theirs.Close() // then the other end reads what is left, and an error
		<-read
		ours.Close()
		return shown.String()
	}
	first := at("\ny\n")
	for _, want := range []string{"1 of 3: Folder", "2 of 3: Clients. Found: ", "Change ",
		"3 of 3: Done. Connected: Cursor"} {
		if !strings.Contains(first, want) {
			t.Errorf("%q is not in\n%s", want, first)
		}
	}
	if second := at(""); !strings.Contains(second, "Available Commands:") || strings.Contains(second, "1 of 3") {
		t.Errorf("the second start shows\n%s", second)
	}
}

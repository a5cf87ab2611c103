package cli

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/tests/oauthtest"
)

// ownHome is a user of the command line with folders of their own.
type ownHome struct {
	dir string
	env func(string) string
}

func newHome(t *testing.T) ownHome {
	dir := t.TempDir()
	env := map[string]string{"HOME": dir, "PATH": os.Getenv("PATH"), "XDG_RUNTIME_DIR": filepath.Join(dir, "run")}
	return ownHome{dir, func(name string) string { return env[name] }}
}

// run runs a command, and returns its exit code and what it printed.
func (h ownHome) run(t *testing.T, in io.Reader, args ...string) (code int, out, said string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var o, e bytes.Buffer
	code = Run(ctx, args, Environment{In: in, Out: &o, Err: &e, Getenv: h.env})
	return code, o.String(), e.String()
}

// logIn logs in as a user does: the browser opens the address that the command prints.
func (h ownHome) logIn(t *testing.T, paste bool, name string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, outWriter := io.Pipe()
	in, inWriter := io.Pipe()
	var said bytes.Buffer
	args := []string{"package", "login", name}
	if paste {
		args = append(args, "--paste")
	}
	ended := make(chan int, 1)
	go func() {
		defer outWriter.Close()
		ended <- Run(ctx, args, Environment{In: in, Out: outWriter, Err: &said, Getenv: h.env})
	}()
	address, err := bufio.NewReader(out).ReadString('\n')
	go io.Copy(io.Discard, out)
	if err == nil {
		back := oauthtest.Approve(t, strings.TrimSpace(address), !paste)
		if paste {
			io.WriteString(inWriter, back+"\n")
		}
	}
	inWriter.Close()
	if code := <-ended; code != 0 {
		t.Fatalf("package login ends with %d: %s", code, said.String())
	}
	return said.String()
}

// A package whose server requires a login is installed without one, says so, and has its tools
// once its user has logged in. The tokens are in no file of the host in the clear.
func TestLoggingInToAPackage(t *testing.T) {
	for _, paste := range []bool{false, true} {
		t.Run(map[bool]string{false: "by a redirect", true: "by pasting"}[paste], func(t *testing.T) {
			up, h := oauthtest.NewHost(t), newHome(t)
			code, _, said := h.run(t, nil, "package", "add", "docs", up.URL, "--yes")
			if code != 0 || !strings.Contains(said, "gatehouse package login docs") {
				t.Fatalf("package add: %d %s", code, said)
			}
			if _, out, _ := h.run(t, nil, "package", "list"); !strings.Contains(out, "login") {
				t.Errorf("package list does not say that a login is needed:\n%s", out)
			}
			h.logIn(t, paste, "docs")
			if _, out, said := h.run(t, nil, "package", "tools", "docs"); !strings.Contains(out, "docs_file_read") {
				t.Errorf("package tools after the login: %s %s", out, said)
			}
			if code, out, said := h.run(t, nil, "package", "restart", "docs"); code != 0 {
				t.Errorf("package restart after the login: %d %s %s", code, out, said)
			}
			checkNoToken(t, up, h.dir)
			if code, _, said := h.run(t, nil, "package", "logout", "docs"); code != 0 ||
				!strings.Contains(said, "Logged out") {
				t.Errorf("package logout: %d %s", code, said)
			}
			code, out, said := h.run(t, nil, "package", "restart", "docs")
			if code == 0 || !strings.Contains(out+said, "login") {
				t.Errorf("package restart after the logout: %d %s %s", code, out, said)
			}
			if _, out, _ := h.run(t, nil, "package", "list"); !strings.Contains(out, "login") {
				t.Errorf("package list after the logout does not say that a login is needed:\n%s", out)
			}
		})
	}
}

// checkNoToken reports files below a folder that have a token in them that a host got.
func checkNoToken(t *testing.T, up *oauthtest.Host, dir string) {
	t.Helper()
	tokens := map[string]bool{}
	for _, r := range up.Seen() {
		if r.Token != "" {
			tokens[r.Token] = true
		}
	}
	if len(tokens) == 0 {
		t.Error("the host got no token")
	}
	files := 0
	filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		b, _ := os.ReadFile(path)
		files++
		for token := range tokens {
			if bytes.Contains(b, []byte(token)) || bytes.Contains(b, []byte(token[len(token)/2:])) {
				t.Errorf("%s has a token in it", path)
			}
		}
		return nil
	})
	if files < 3 {
		t.Errorf("only %d files were searched", files)
	}
}

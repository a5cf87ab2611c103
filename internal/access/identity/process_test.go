package identity

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMain runs this binary as another process on the same file if a variable asks for it.
func TestMain(m *testing.M) {
	if role := os.Getenv("IDENTITY_TEST_ROLE"); role != "" {
		if err := play(role, os.Getenv("IDENTITY_TEST_FILE")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func play(role, path string) error {
	s, err := Open(path, Options{})
	if err != nil {
		return err
	}
	s.pass.cost = cheap
	ctx := context.Background()
	switch role {
	case "obey":
		return obey(ctx, s)
	case "write":
		for i := 0; ; i++ {
			if err := s.AddUser(ctx, fmt.Sprint("user", i), nil, ""); err != nil {
				return err
			}
			secret, _, err := s.CreateToken(ctx, Token{User: fmt.Sprint("user", i)})
			if err != nil {
				return err
			}
			fmt.Println(secret) // acknowledged
		}
	}
	return fmt.Errorf("no role %s", role)
}

// obey runs the commands on standard input, one per line, and prints done after each.
func obey(ctx context.Context, s *Service) error {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var err error
		answer := "done"
		switch do, rest, _ := strings.Cut(in.Text(), " "); do {
		case "add":
			err = s.AddUser(ctx, rest, []string{Admin}, "correct horse")
		case "remove":
			err = s.RemoveUser(ctx, rest)
		case "roles":
			err = s.SetRoles(ctx, rest, []string{"writer"})
		case "token":
			answer, _, err = s.CreateToken(ctx, Token{User: rest})
		case "revoke":
			err = s.RevokeToken(ctx, rest)
		}
		if err != nil {
			answer = err.Error()
		}
		fmt.Println(answer)
	}
	return s.Close()
}

// other starts another process on a file; ask sends it a line and waits for the answer.
func other(t *testing.T, path string) (ask func(string) string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "IDENTITY_TEST_ROLE=obey", "IDENTITY_TEST_FILE="+path)
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	lines := bufio.NewReader(out)
	return func(line string) string {
		t.Helper()
		fmt.Fprintln(in, line)
		answer, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(answer)
	}
}

// A change by another process is effective here within a second, also if this one started without a
// file.
func TestTwoProcessesOnOneFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "identity.db")
	s := empty(t, path, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	running := make(chan error)
	go func() { running <- s.Run(ctx) }()
	defer func() { cancel(); <-running }()
	revoked := make(chan Revocation, 100)
	s.OnRevoked(func(r Revocation) { revoked <- r })
	ask := other(t, path)

	becomes := func(what, want string, headers ...string) {
		t.Helper()
		begin := time.Now()
		for {
			got := outcome(s, request("GET", "/mcp", here, headers...))
			if got == want {
				break
			}
			if time.Since(begin) > time.Minute { // one second is the promise; a busy machine may be slower
				t.Fatalf("%s: still %s, want %s", what, got, want)
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Logf("%s: after %v", what, time.Since(begin).Round(time.Millisecond))
	}
	hears := func(want Revocation) {
		t.Helper()
		select {
		case r := <-revoked:
			if r != want {
				t.Errorf("received %+v, want %+v", r, want)
			}
		case <-time.After(time.Minute):
			t.Errorf("received nothing, want %+v", want)
		}
	}

	becomes("no user", "anonymous by anonymous")
	ask("add alice")
	becomes("a user", unnamed401)
	hears(Revocation{Principal: AnonymousName}) // callers admitted before
	token := "X-API-Key: " + ask("token alice")
	becomes("a token", "alice by token", token)
	p, _ := s.HTTP(request("GET", "/mcp", here, token))
	ask("roles alice")
	hears(Revocation{Principal: "alice"})
	if p, d := s.HTTP(request("GET", "/mcp", here, token)); d != nil || p.Has(Admin) {
		t.Errorf("after the hook the roles are %v, %v", p.Roles, d)
	}
	ask("revoke " + p.Credential)
	hears(Revocation{"alice", p.Credential})
	becomes("a revoked token", invalid401, token)
	token = "X-API-Key: " + ask("token alice")
	becomes("another token", "alice by token", token)
	ask("remove alice")
	becomes("a removed user", invalid401, token)
	hears(Revocation{Principal: "alice"})

	// The other direction is immediate, because the other process reads the file.
	add(t, s, "bob", "")
	if answer := ask("add bob"); !strings.Contains(answer, "taken") {
		t.Errorf("the other process could add bob again: %s", answer)
	}
}

// Acknowledged changes are on disk after kill -9.
func TestKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "identity.db")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "IDENTITY_TEST_ROLE=write", "IDENTITY_TEST_FILE="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	var secrets []string
	for len(secrets) < 30 {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, strings.TrimSpace(line))
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(lines)
	cmd.Wait()
	for line := range strings.Lines(string(rest)) {
		if strings.HasSuffix(line, "\n") {
			secrets = append(secrets, strings.TrimSpace(line))
		}
	}
	s := empty(t, path, Options{})
	for i, secret := range secrets {
		if got, want := outcome(s, request("GET", "/mcp", away, "X-API-Key: "+secret)),
			fmt.Sprintf("user%d by token", i); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	add(t, s, "alice", "correct horse")
}

// Processes that create the file at the same moment share it.
func TestManyMakeTheFileTogether(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data", "identity.db")
	local := filepath.Join(t.TempDir(), "state", "token")
	errs := make(chan error)
	tokens := make(chan string, 6)
	for i := range 6 {
		go func() {
			s, err := Open(path, Options{LocalToken: local})
			if err != nil {
				errs <- err
				return
			}
			defer s.Close()
			tokens <- s.LocalToken()
			errs <- s.AddUser(context.Background(), fmt.Sprint("user", i), nil, "")
		}()
	}
	for range 6 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	users, err := empty(t, path, Options{}).Users(t.Context())
	if err != nil || len(users) != 6 {
		t.Errorf("there are %d users, %v", len(users), err)
	}
	close(tokens)
	for token := range tokens {
		if got, err := readLocalToken(local); err != nil || got != token {
			t.Errorf("one had the token %s, the file has %s, %v", token, got, err)
		}
	}
}

// files returns the files next to a file whose names begin with its name.
func files(t *testing.T, path string) map[string][]byte {
	t.Helper()
	all, err := filepath.Glob(path + "*")
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	contents := map[string][]byte{}
	for _, name := range all {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		contents[name] = b
	}
	return contents
}

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/audit"
)

// ledgerOf fills a ledger with three calls and a login, and returns a function that runs audit commands on it.
func ledgerOf(t *testing.T) (path string, run func(args ...string) (out, errs string, code int)) {
	t.Helper()
	data := t.TempDir()
	path = filepath.Join(data, audit.FileName)
	l := audit.Open(path, audit.Options{})
	for i, name := range []string{"file_read", "file_write", "file_delete"} {
		e := audit.Entry{
			At: time.Now().
				Add(time.Duration(i-3) * time.Hour),
			Kind: "call", Principal: "alice", Session: "the-session", Context: "default",
			Tool: name, Call: fmt.Sprint("call_", i), Outcome: audit.OK, Took: 2 * time.Millisecond,
			Args: json.RawMessage(`{"path":"a\tb","token":"s3cret"}`),
		}
		if err := l.Keep(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	l.Keep(
		t.Context(),
		audit.Entry{
			Kind:      "auth.login",
			Level:     audit.Security,
			Principal: "bob",
			Outcome:   audit.Denied,
			Reason:    "wrong password\x1b[31m",
		},
	)
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return path, func(args ...string) (string, string, int) {
		var out, errs bytes.Buffer
		env := func(name string) string {
			return map[string]string{"GATEHOUSE_DATA_DIR": data, "HOME": data}[name]
		}
		code := Run(
			t.Context(),
			append([]string{"audit"}, args...),
			Environment{In: strings.NewReader(""), Out: &out, Err: &errs, Getenv: env},
		)
		return out.String(), errs.String(), code
	}
}

func TestAuditShowsWhatWasDone(t *testing.T) {
	_, run := ledgerOf(t)
	for _, c := range []struct {
		args  string
		lines int // without the header
		has   string
	}{
		{"", 4, "file_delete"},
		{"-n 1", 1, "auth.login"},
		{"--since 90m", 2, "file_delete"},
		{"--since 1d --until 150m", 1, "file_read"},
		{"--principal bob", 1, "wrong password?[31m"},
		{"--tool file_write", 1, "2.0"},
		{"--level security", 1, "auth.login"},
		{"--outcome denied", 1, "bob"},
		{"--session the-session", 3, "alice"},
		{"--session " + audit.SessionHash("the-session"), 3, "alice"},
		{"--kind call --context default --call call_1", 1, "file_write"},
	} {
		out, errs, code := run(strings.Fields(c.args)...)
		if n := strings.Count(out, "\n") - 1; n != c.lines || !strings.Contains(out, c.has) || code != 0 ||
			strings.Contains(out, "s3cret") ||
			strings.Contains(out, "\x1b") {
			t.Errorf("%q: got %d lines, code %d, want %d with %s\n%s%s", c.args, n, code, c.lines, c.has, out, errs)
		}
	}
	out, _, _ := run("--json", "--principal", "alice")
	for text := range strings.Lines(out) {
		if line, err := audit.ParseLine([]byte(text)); err != nil || line.Principal != "alice" {
			t.Errorf("got %s, %v", text, err)
		}
	}
	if out, _, code := run("--principal", "nobody"); out != "" || code != 0 {
		t.Errorf("got %q, %d, want nothing", out, code)
	}
	for _, bad := range []string{"--since yesterday", "--level high", "--last -1", "what", "verify now"} {
		if _, errs, code := run(strings.Fields(bad)...); code != exitUsage || errs == "" {
			t.Errorf("%q: code %d, %q; want a usage error", bad, code, errs)
		}
	}
}

func TestAuditFollows(t *testing.T) {
	path, _ := ledgerOf(t)
	l := audit.Open(path, audit.Options{})
	defer l.Close(context.Background())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out := &until{want: "file_edit", reached: cancel}
	go l.Keep(ctx, audit.Entry{Kind: "call", Tool: "file_edit"})
	env := func(name string) string {
		return map[string]string{"HOME": filepath.Dir(path), "GATEHOUSE_DATA_DIR": filepath.Dir(path)}[name]
	}
	Run(ctx, []string{"audit", "--follow", "--last", "2"}, Environment{Out: out, Err: os.Stderr, Getenv: env})
	if !strings.Contains(out.String(), "file_edit") {
		t.Errorf("got %s, want what was written meanwhile", out)
	}
}

// until calls a function when a text has been written.
type until struct {
	bytes.Buffer
	want    string
	reached func()
}

func (u *until) Write(b []byte) (int, error) {
	defer func() {
		if strings.Contains(u.String(), u.want) {
			u.reached()
		}
	}()
	return u.Buffer.Write(b)
}

func TestAuditVerifies(t *testing.T) {
	path, run := ledgerOf(t)
	if out, _, code := run("verify"); code != 0 || !strings.HasPrefix(out, "true: 4 lines") ||
		!strings.Contains(out, "hash  ") {
		t.Errorf("got %d, %s", code, out)
	}
	file := filepath.Join(t.TempDir(), "out.jsonl")
	if _, errs, code := run("export", "-o", file); code != 0 {
		t.Fatal(errs)
	}
	if _, _, code := run("export", "-o", file); code == 0 {
		t.Error("an existing file is overwritten")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if out, _, _ := run("export"); out != string(text) || strings.Count(out, "\n") != 4 {
		t.Errorf("got %s", out)
	}
	if out, _, code := run("verify", "--file", file); code != 0 || !strings.HasPrefix(out, "true: 4 lines") {
		t.Errorf("got %d, %s", code, out)
	}
	if err := os.WriteFile(file,
		bytes.Replace(text, []byte("file_write"), []byte("file_wrote"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, _, code := run("verify", "--file", file); code != exitFailed ||
		!strings.Contains(out, "line 2 was altered") {
		t.Errorf("got %d, %s", code, out)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	var r audit.Report
	out, errs, code := run("verify", "--json")
	if code != exitFailed || json.Unmarshal([]byte(out), &r) != nil || r.OK || len(r.Problems) != 1 ||
		r.Problems[0].Last != 4 {
		t.Errorf("the ledger was removed: got %d, %s%s", code, out, errs)
	}
	if err := os.Remove(path + ".head"); err != nil {
		t.Fatal(err)
	}
	if out, errs, code := run("verify"); code != 0 || !strings.Contains(errs, "no ledger yet") ||
		!strings.HasPrefix(out, "true: 0 lines") {
		t.Errorf("no ledger: got %d, %s%s", code, out, errs)
	}
}

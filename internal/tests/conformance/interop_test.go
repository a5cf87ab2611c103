package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// patience limits the whole time of a foreign client.
const patience = 2 * time.Minute

// stdioEndpoint writes a program that runs the fixture on its standard streams and records both directions in a
// folder of the test. At the end of the test the fixture's messages are judged.
func (h *fixtureHost) stdioEndpoint(t *testing.T) string {
	t.Helper()
	endpoint := filepath.Join(t.TempDir(), "door")
	script := fmt.Sprintf("#!/bin/sh\ntee \"$0.$$.in\" | '%s' --stdio 2>\"$0.$$.err\" | tee \"$0.$$.out\"\n", h.bin)
	if err := os.WriteFile(endpoint, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.judgeLogs(t, endpoint) })
	return endpoint
}

func (h *fixtureHost) judgeLogs(t *testing.T, endpoint string) {
	files, err := filepath.Glob(endpoint + ".*.out")
	if err != nil || len(files) == 0 {
		t.Errorf("the client never started the fixture (%v)", err)
	}
	for _, out := range files {
		said, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		asked, err := os.ReadFile(strings.TrimSuffix(out, "out") + "in")
		if err != nil {
			t.Fatal(err)
		}
		before := h.judge.Objections()
		h.judgeLines(asked, said)
		h.holdsUp(t, before)
	}
}

// judgeLines judges the messages of one direction with those of the other.
func (h *fixtureHost) judgeLines(asked, said []byte) {
	x := &exchange{methods: map[string]string{}}
	for line := range bytes.Lines(asked) {
		x.note(line)
	}
	for line := range bytes.Lines(said) {
		var e envelope
		s := Sighting{Revision: x.revision, Message: line}
		if json.Unmarshal(line, &e) == nil && e.isResponse() {
			s.Answers = x.methods[string(e.ID)]
			if s.Answers == "initialize" && e.Result != nil {
				x.revision, s.Revision = e.Result.ProtocolVersion, e.Result.ProtocolVersion
			}
		}
		h.judge.See(s)
	}
}

// output runs a command and returns its standard output. If it fails, the test shows its standard error.
func output(t *testing.T, cmd *exec.Cmd) []byte {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", cmd, err, tail(out), tail(stderr.Bytes()))
	}
	return out
}

// The inspector's command line, in each era that it supports, over HTTP and as the parent of a stdio server.
func TestInspector(t *testing.T) {
	h := needFixture(t)
	for _, era := range []string{"legacy", "auto", "modern"} {
		for _, endpoint := range []string{"http", "stdio"} {
			t.Run(era+" "+endpoint, func(t *testing.T) {
				before := h.judge.Objections()
				h.inspect(t, era, endpoint, `"test_simple_text"`, "--method", "tools/list")
				h.inspect(
					t,
					era,
					endpoint,
					`Hello, Ada!`,
					"--method",
					"tools/call",
					"--tool-name",
					"greet",
					"--tool-arg",
					"name=Ada",
				)
				h.inspect(
					t,
					era,
					endpoint,
					`static text resource`,
					"--method",
					"resources/read",
					"--uri",
					"test://static-text",
				)
				h.inspect(
					t,
					era,
					endpoint,
					`a simple prompt`,
					"--method",
					"prompts/get",
					"--prompt-name",
					"test_simple_prompt",
				)
				h.holdsUp(t, before)
			})
		}
	}
}

func (h *fixtureHost) inspect(t *testing.T, era, endpoint, want string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	args = slices.Concat([]string{"--cli"}, args, []string{"--format", "json", "-q", "--protocol-era", era})
	if endpoint == "http" {
		args = append(args, "--transport", "http", "--server-url", h.url)
	} else {
		args = append(args, h.stdioEndpoint(t))
	}
	older, newer := h.judge.Count("2025-11-25"), h.judge.Count(modernRevision)
	script := h.tools.Script(
		"node_modules",
		"@modelcontextprotocol",
		"inspector",
		"clients",
		"launcher",
		"build",
		"index.js",
	)
	out := output(t, h.tools.Command(ctx, t.TempDir(), script, args...))
	if !bytes.Contains(out, []byte(want)) {
		t.Errorf("inspector %s printed %s, want %s in it", strings.Join(args, " "), tail(out), want)
	}
	if endpoint != "http" {
		return // the messages are judged when the test ends
	}
	if era == "legacy" && h.judge.Count("2025-11-25") == older ||
		era == "modern" && h.judge.Count(modernRevision) == newer {
		t.Errorf("no message of the %s era was seen", era)
	}
}

// The inspector accepts the schemas of all tools.
func TestInspectorFindsSchemasPortable(t *testing.T) {
	h := needFixture(t)
	h.inspect(t, "modern", "http", `"greet"`, "--method", "tools/list", "--strict")
}

// mcp-remote connects a client that only supports stdio to the HTTP listener.
func TestMCPRemote(t *testing.T) {
	h := needFixture(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	before := h.judge.Objections()
	cmd := h.tools.Command(ctx, t.TempDir(), h.tools.Script("node_modules", "mcp-remote", "dist", "proxy.js"),
		h.url, "--allow-http", "--transport", "http-only")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
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
	defer func() {
		cancel()
		_ = cmd.Wait() // killed: how it ended is of no interest
		if t.Failed() {
			t.Logf("mcp-remote: %s", tail(stderr.Bytes()))
		}
	}()
	talk := &lines{t, in, bufio.NewReader(out)}
	talk.ask(
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
		`"protocolVersion":"2025-11-25"`,
	)
	talk.writeMessage(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	talk.ask(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`, `"test_simple_text"`)
	talk.ask(
		`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"greet","arguments":{"name":"Ada"}}}`,
		`Hello, Ada!`,
	)
	talk.ask(
		`{"jsonrpc":"2.0","id":4,"method":"resources/read","params":{"uri":"test://static-text"}}`,
		`static text resource`,
	)
	h.holdsUp(t, before)
}

// lines is a conversation in which the next line is always the answer.
type lines struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Reader
}

func (l *lines) writeMessage(msg string) {
	l.t.Helper()
	if _, err := io.WriteString(l.in, msg+"\n"); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lines) ask(msg, want string) {
	l.t.Helper()
	l.writeMessage(msg)
	got, err := l.out.ReadString('\n')
	if err != nil {
		l.t.Fatalf("after %s: %v", msg, err)
	}
	if !strings.Contains(got, want) {
		l.t.Errorf("%s was answered %s, want %s in it", msg, cut(got), want)
	}
}

// report is what the two SDK clients print.
type report struct {
	Revision, Read, Prompt, Simple, Header, Elicited, Rounds, Three, Sampled, State string

	Tools, Prompts, Resources, Templates, Completed, Mixed, Forms []string

	Structured struct {
		Station string
		Celsius float64
		Dry     bool
	}
	Progress                 []float64
	Unknown                  int
	Failed, Invalid, Changed bool
}

func (r report) check(t *testing.T, revision string) {
	t.Helper()
	wanted := func(what string, got, want any) {
		t.Helper()
		if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
			t.Errorf("%s: got %s, want %s", what, g, w)
		}
	}
	has := func(what string, list []string, names ...string) {
		t.Helper()
		for _, n := range names {
			if !slices.Contains(list, n) {
				t.Errorf("%s: %s is missing in %v", what, n, list)
			}
		}
	}
	wanted("revision", r.Revision, revision)
	has("tools", r.Tools, "greet", "test_simple_text", "slow_compute")
	has("prompts", r.Prompts, "test_simple_prompt", "test_prompt_with_arguments")
	has("resources", r.Resources, "test://static-text", "test://static-binary", "test://watched-resource")
	has("templates", r.Templates, "test://template/{id}/data")
	wanted("read", r.Read, `{"id":"77","templateTest":true,"data":"Data for ID: 77"}`)
	wanted("prompt", r.Prompt, "Prompt with arguments: arg1='one', arg2='two'")
	wanted("completed", r.Completed, "[paris park party]")
	wanted("simple", r.Simple, "This is a simple text response for testing.")
	wanted("mixed", r.Mixed, "[text image resource]")
	wanted("structured", r.Structured, "{harbour 21.5 true}")
	if !strings.Contains(r.Header, "Zürich") {
		t.Errorf("header: %q does not name Zürich", r.Header)
	}
	wanted("a tool that fails is an error", r.Failed, true)
	wanted("arguments that do not fit are an error of the tool", r.Invalid, true)
	wanted("an unknown tool", r.Unknown, -32602)
	wanted("progress", r.Progress, "[0 50 100]")
	if !strings.Contains(r.Elicited, "action=accept") || !strings.Contains(r.Elicited, "typed username") {
		t.Errorf("elicited: %q", r.Elicited)
	}
	wanted("two rounds", r.Rounds, "typed name likes typed color")
	wanted("three questions", r.Three, "a completion to typed name in file:///srv/project (project)")
	wanted("sampled", r.Sampled, "LLM response: a completion")
	wanted("state", r.State, "state-ok")
	wanted(
		"forms",
		r.Forms,
		"[Who are you? Step 1: What is your name? Step 2: What is your favorite color? What is your name? Please confirm]",
	)
	wanted("told of a changed list", r.Changed, true)
}

// The official TypeScript client lists, reads, calls, answers questions and receives notifications, in each era and
// over each transport that it supports.
func TestTypeScriptClient(t *testing.T) {
	h := needFixture(t)
	revisions := map[string]string{"legacy": "2025-11-25", "auto": modernRevision, "modern": modernRevision}
	for _, mode := range []string{"legacy", "auto", "modern"} {
		for _, endpoint := range []string{"http", "stdio"} {
			t.Run(mode+" "+endpoint, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				cmd := h.tools.Command(ctx, t.TempDir(), h.tools.Script("client.mjs"), mode, endpoint,
					h.endpoint(t, endpoint))
				h.reported(t, cmd, revisions[mode])
			})
		}
	}
}

func (h *fixtureHost) endpoint(t *testing.T, endpoint string) string {
	if endpoint == "http" {
		return h.url
	}
	return h.stdioEndpoint(t)
}

func (h *fixtureHost) reported(t *testing.T, cmd *exec.Cmd, revision string) {
	t.Helper()
	before := h.judge.Objections()
	var r report
	out := output(t, cmd)
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%s printed what is no report (%v): %s", cmd, err, tail(out))
	}
	r.check(t, revision)
	h.holdsUp(t, before)
}

// The official Go SDK's client does the same. It is built as a Go module of its own.
func TestGoSDKClient(t *testing.T) {
	h := needFixture(t)
	bin := buildGoSDK(t)
	for _, revision := range []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", modernRevision} {
		for _, endpoint := range []string{"http", "stdio"} {
			t.Run(revision+" "+endpoint, func(t *testing.T) {
				if revision < "2025-06-18" {
					h.listed(t, bin, revision, endpoint)
					return
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				h.reported(t, exec.CommandContext(ctx, bin, revision, endpoint, h.endpoint(t, endpoint)), revision)
			})
		}
	}
}

func buildGoSDK(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "gosdk")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, ".")
	build.Dir = "gosdk"
	build.Env = append(os.Environ(), "GOWORK=off")
	output(t, build)
	return bin
}

// listed tests the revisions without elicitation and structured content.
func (h *fixtureHost) listed(t *testing.T, bin, revision, endpoint string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	before := h.judge.Objections()
	cmd := exec.CommandContext(ctx, bin, "-plain", revision, endpoint, h.endpoint(t, endpoint))
	var r report
	if err := json.Unmarshal(output(t, cmd), &r); err != nil {
		t.Fatal(err)
	}
	if r.Revision != revision || !slices.Contains(r.Tools, "greet") || r.Simple == "" || r.Read == "" || !r.Failed ||
		!r.Changed {
		t.Errorf("got %+v", r)
	}
	h.holdsUp(t, before)
}

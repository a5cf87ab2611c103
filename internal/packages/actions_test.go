package packages

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/access/secret"
)

func (h *home) tasks(id string) (ids []string) {
	i, err := h.Info(id)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, t := range i.Public.Tasks {
		ids = append(ids, t.ID+" "+t.Severity)
	}
	return ids
}

func TestActionsAndTasks(t *testing.T) {
	needsShell(t)
	vault := secret.In(t.TempDir(), "")
	if err := vault.Set("KEY", secret.New("a-very-secret-key")); err != nil {
		t.Fatal(err)
	}
	h := openHome(t, Options{Secrets: vault.Fill})
	r := server(t, "up", "good")
	r.Env["SECRET"] = "${secret:KEY}"
	r.Actions = []Action{
		{ID: "setup", Name: "Set up", Severity: SeverityCritical, Reason: "it has no account yet",
			Input: json.RawMessage(
				`{"type":"object","properties":{"user":{"type":"string"},"n":{"type":"integer","default":3}},"required":["user"]}`,
			),
			Command: `echo "$GATEHOUSE_ACTION_INPUT $SECRET"`},
		{ID: "say", Name: "Say", Tool: "echo", Input: json.RawMessage(`{"type":"object"}`)},
		{ID: "fail", Name: "Fail", Command: "exit 3", Severity: SeverityOptional},
		{ID: "clean", Name: "Clean", Allowed: OnlyStopped, Command: "true"},
	}
	h.install(r)
	if got := h.tasks("up"); !slices.Equal(got, []string{"action:setup critical", "action:fail optional"}) {
		t.Errorf("tasks: %v", got)
	}
	run := func(action, input string) (ActionResult, error) {
		a, _, err := h.FindAction("up", action)
		if err != nil {
			t.Fatal(err)
		}
		checked, err := a.CheckInput(json.RawMessage(input))
		if err != nil {
			return ActionResult{}, err
		}
		return h.RunAction(t.Context(), "up", a, checked)
	}
	for _, wrong := range []string{``, `{}`, `{"user":1}`, `{"user":"a","n":"x"}`, `[]`} {
		if _, err := run("setup", wrong); code(err) != "invalid_arguments" {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	if err := h.ClearTask("up", "action:setup", false); code(err) != "denied" {
		t.Errorf("a critical task was cleared: %v", err)
	}
	if got, err := run("setup", `{"user":"me"}`); err != nil || got.Failed ||
		got.Text != `{"user":"me","n":3} `+secret.Mask+"\n" {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := run("fail", ``); err != nil || !got.Failed {
		t.Errorf("got %+v, %v", got, err)
	}
	if got := h.tasks("up"); !slices.Equal(got, []string{"action:fail optional"}) {
		t.Errorf("tasks: %v", got)
	}
	if err := h.ClearTask("up", "action:fail", false); err != nil || len(h.tasks("up")) > 0 {
		t.Errorf("%v: %v", err, h.tasks("up"))
	}
	if _, err := run("clean", ``); err != nil {
		t.Errorf("while it is stopped: %v", err)
	}
	if got, err := run("say", `{"text":"hello"}`); err != nil || !strings.Contains(got.Text, "hello") {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := run("clean", ``); code(err) != "unavailable" {
		t.Errorf("while it runs: %v", err)
	}
	if _, _, err := h.FindAction("up", "none"); code(err) != "not_found" {
		t.Errorf("got %v", err)
	}
	// A tool that is not approved runs by no action either.
	if _, err := h.call("up", "rewrite", `{"text":"Other."}`); err != nil {
		t.Fatal(err)
	}
	h.eventually("it waits", func() bool { return slices.Equal(h.tasks("up"), []string{"review important"}) })
	if _, err := run("say", `{"text":"hello"}`); code(err) != "denied" {
		t.Errorf("got %v", err)
	}
	if err := vault.Remove("KEY"); err != nil {
		t.Fatal(err)
	}
	p, _ := h.findPackage("up")
	p.mu.Lock()
	p.missingAt = p.missingAt.Add(-secretsKept)
	p.mu.Unlock()
	if got := h.tasks("up"); !slices.Contains(got, "secret:KEY critical") {
		t.Errorf("tasks: %v", got)
	}
}

func TestActionsThatCannotBe(t *testing.T) {
	for _, a := range []Action{
		{ID: "A", Name: "x", Command: "x"}, {ID: "a", Command: "x"}, {ID: "a", Name: "x"},
		{ID: "a", Name: "x", Command: "x", Tool: "y"}, {ID: "a", Name: "x", Command: "x", Allowed: "never"},
		{ID: "a", Name: "x", Command: "x", Severity: "high"}, {ID: "a", Name: "x", Command: "x\x00"},
		{ID: "a", Name: "x", Command: "x", Input: json.RawMessage(`{"type":"string"}`)},
		{ID: "a", Name: "x", Command: "x", Input: json.RawMessage(`{"type":"object","properties":7}`)},
	} {
		r := server(t, "up", "good")
		r.Start, r.Actions = OnDemand, []Action{a}
		if err := r.Check(); code(err) != "invalid_arguments" {
			t.Errorf("%+v: %v", a, err)
		}
	}
}

// The connections of a package use the interface that was chosen, and no other.
func TestOutboundGateway(t *testing.T) {
	u := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {}))
	defer u.Close()
	at := strings.TrimPrefix(u.URL, "http://")
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, i := range all {
		if checkGateway(i.Name) != nil {
			continue
		}
		tried++
		r := Record{Outbound: i.Name}
		c, err := r.dialOutbound(t.Context(), "tcp", at)
		if err == nil {
			c.Close()
		}
		if loop := i.Flags&net.FlagLoopback != 0; (err == nil) != loop {
			t.Errorf("to loopback by %s: %v", i.Name, err)
		}
	}
	if tried == 0 {
		t.Skip("no interface is connected")
	}
	h := openHome(t, Options{})
	h.install(server(t, "up", "good"))
	if err := h.SetOutbound("up", "nothing0"); code(err) != "not_found" {
		t.Errorf("an interface that is not there: %v", err)
	}
	if err := h.SetOutbound("up", all[0].Name); code(err) != "unsupported" && code(err) != "unavailable" {
		t.Errorf("a package that connects itself: %v", err)
	}
}

// webVariable names the address at which this program, started again, answers "reached", until its input ends.
const webVariable = "GATEHOUSE_TEST_WEB"

func serveWeb(at string) {
	l, err := net.Listen("tcp", at)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "reached") }))
	fmt.Println(l.Addr())
	io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// What a package in a sandbox connects to is dialled by the interface that was chosen, and by no other.
func TestOutboundGatewayOfAConfinedPackage(t *testing.T) {
	h := confined(t, Options{})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self) // because no sandbox reaches a listener of this process
	cmd.Env = append(os.Environ(), webVariable+"="+net.JoinHostPort(ownAddress(t), "0"))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	at, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	at = strings.TrimSpace(at)
	r := attacker(t, "up", "good")
	r.Grants.Hosts = []string{at}
	h.install(r)
	get := func() string {
		got, err := h.call("up", "attack", fmt.Sprintf(`{"kind":"http","target":"http://%s/"}`, at))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := get(); !strings.HasPrefix(got, "done: ") {
		t.Fatalf("by the system's choice: %s", got)
	}
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		if checkGateway(i.Name) != nil {
			continue
		}
		if err := h.SetOutbound("up", i.Name); err != nil {
			t.Fatal(err)
		}
		addresses, err := i.Addrs()
		if err != nil {
			t.Fatal(err)
		}
		host, _, _ := net.SplitHostPort(at)
		owns := slices.ContainsFunc(addresses, func(a net.Addr) bool { return strings.HasPrefix(a.String(), host+"/") })
		if got := get(); strings.HasPrefix(got, "done: ") != owns {
			t.Errorf("by %s: %s", i.Name, got)
		}
	}
	if err := h.SetOutbound("up", ""); err != nil {
		t.Fatal(err)
	}
	if got := get(); !strings.HasPrefix(got, "done: ") {
		t.Errorf("by the system's choice again: %s", got)
	}
}

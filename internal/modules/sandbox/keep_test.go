package sandbox

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/manager"
	"gatehouse/internal/sandbox/namespaces"
	"gatehouse/tool"
)

// offered skips a test of what the driver here does not offer.
func (r *reception) offered(name string, in args) result {
	r.t.Helper()
	out, err := r.try(name, in)
	if f, ok := errors.AsType[*tool.Refusal](err); ok && f.Code == "unsupported" {
		r.t.Skip(f.Message)
	}
	if err != nil {
		r.t.Fatalf("%s %v: %v", name, in, err)
	}
	return out
}

func TestAPausedSandboxStandsStill(t *testing.T) {
	r := open(t, Config{Settings: with(nil)})
	in := args{"sandbox_id": r.box()}
	r.do("exec", args{
		"sandbox_id": in["sandbox_id"],
		"command":    "(while :; do echo x >>ticks; sleep 0.01; done) >/dev/null 2>&1 & sleep 0.1; exit 0",
	})
	for range 2 {
		if !r.offered("pause", in).Paused {
			t.Error("it is not paused")
		}
	}
	for name, more := range map[string]args{
		"exec":      {"command": "true"},
		"run":       {"language": "bash", "code": ""},
		"read":      {"path": "ticks"},
		"start":     {"command": "true"},
		"processes": {},
	} {
		more["sandbox_id"] = in["sandbox_id"]
		_, err := r.try(name, more)
		if f, ok := errors.AsType[*tool.Refusal](err); !ok || f.Code != "paused" ||
			!strings.Contains(f.Next, "sandbox_resume") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if l := r.do("list", nil).Sandboxes; l[0].State != "Paused" || !r.do("stats", in).Sandbox.Paused {
		t.Errorf("%+v", l)
	}
	for range 2 {
		if r.do("resume", in).Paused {
			t.Error("it is paused")
		}
	}
	if got := r.do("exec", args{"sandbox_id": in["sandbox_id"], "command": "echo on"}); got.Output != "on\n" {
		t.Errorf("%+v", got)
	}
	r.do("pause", in)
	if !r.do("destroy", in).Success {
		t.Error("one that is paused cannot be destroyed")
	}
}

func TestASandboxGoesOnFromASnapshot(t *testing.T) {
	r := open(t, Config{Settings: with(nil)})
	id := r.do("create", args{"memory_mib": 99, "env": []string{"WHO=ann"}}).SandboxID
	r.do("write", args{"sandbox_id": id, "path": "work/file", "content": "kept\n"})
	s := r.offered("snapshot", args{"sandbox_id": id, "name": "first"})
	if s.SnapshotID == "" || s.Size == 0 || s.Kept != manager.KeptFiles && s.Kept != manager.KeptMemory {
		t.Errorf("%+v", s)
	}
	r.do("write", args{"sandbox_id": id, "path": "work/file", "content": "later\n"})
	fork := r.do("fork", args{"sandbox_id": id, "name": "twin"})
	r.do("destroy", args{"sandbox_id": id})
	again := r.do("create", args{"snapshot_id": s.SnapshotID})
	for at, want := range map[string]string{again.SandboxID: "kept\nann\n", fork.SandboxID: "later\nann\n"} {
		if got := r.do("exec", args{"sandbox_id": at, "command": "cat work/file; echo $WHO"}); got.Output != want {
			t.Errorf("%q, want %q", got.Output, want)
		}
	}
	if again.From != "snapshot" || again.Kept != s.Kept || again.MemoryMiB != 99 || fork.Kept != s.Kept {
		t.Errorf("%+v, %+v", again, fork)
	}
	if got := r.code("create", args{"snapshot_id": s.SnapshotID, "memory_mib": 128}); got != "invalid_arguments" {
		t.Errorf("with other limits: %s", got)
	}
	if all := r.do("snapshots", nil).Snapshots; len(all) != 1 || all[0].Name != "first" || all[0].Sandbox != id {
		t.Errorf("%+v", all)
	}
	r.as = "bob"
	for name, in := range map[string]args{
		"create":          {"snapshot_id": s.SnapshotID},
		"snapshot_remove": {"snapshot_id": s.SnapshotID},
	} {
		if got := r.code(name, in); got != "not_found" || len(r.do("snapshots", nil).Snapshots) != 0 {
			t.Errorf("%s by somebody else: %s", name, got)
		}
	}
	r.as = "ann"
	r.do("snapshot_remove", args{"snapshot_id": s.SnapshotID})
	if got := r.code("create", args{"snapshot_id": s.SnapshotID}); got != "not_found" {
		t.Errorf("of one that is gone: %s", got)
	}
}

func TestAServerInASandboxIsReached(t *testing.T) {
	needs(t, "python3")
	r := open(t, Config{Settings: with(nil)})
	id := r.box()
	port := r.offered("expose", args{"sandbox_id": id, "port": 8000})
	r.do("start", args{"sandbox_id": id, "command": `exec python3 -c '
import socket
s = socket.create_server(("127.0.0.1", 8000))
while True:
    c, _ = s.accept()
    c.sendall(c.recv(100).upper())
    c.close()'`})
	var got string
	for end := time.Now().Add(time.Minute); got != "PING" && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		c, err := net.DialTimeout("tcp", port.Address, 30*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(30 * time.Second))
		io.WriteString(c, "ping")
		all, _ := io.ReadAll(c)
		got = string(all)
		c.Close()
	}
	if got != "PING" {
		t.Errorf("%q", got)
	}
	if ports := r.do("stats", args{"sandbox_id": id}).Sandbox.Ports; len(ports) != 1 ||
		ports[0].Address != port.Address {
		t.Errorf("%+v", ports)
	}
	r.do("unexpose", args{"sandbox_id": id, "port": 8000})
	if got := r.code("unexpose", args{"sandbox_id": id, "port": 8000}); got != "not_found" {
		t.Errorf("twice: %s", got)
	}
}

func TestPortsStayClosedWhereTheHostSaysSo(t *testing.T) {
	r := open(t, Config{Settings: with(func(s *manager.Settings) { s.Ports = false })})
	if got := r.code("expose", args{"sandbox_id": r.box(), "port": 80}); got != "denied" {
		t.Errorf("%s", got)
	}
}

// Without a sandbox a call has one of its own, of which nothing is left.
func TestACallWithoutASandboxHasOneOfItsOwn(t *testing.T) {
	r := open(t,
		Config{Settings: with(nil), Templates: map[string]manager.Template{"other": {Env: []string{"FROM=other"}}}})
	for range 2 {
		if got := r.do("run",
			args{"language": "bash", "code": "ls /home/user; echo x >file; echo done"}); got.Output != "done\n" {
			t.Errorf("%+v", got)
		}
		if got := r.do("exec", args{
			"command":  "ls /home/user; echo x >file; echo $FROM",
			"template": "other",
		}); got.Output != "other\n" {
			t.Errorf("%+v", got)
		}
	}
	if got := r.do("exec", args{"command": "sleep 1000", "timeout": 0.2}); got.Outcome != "timeout" {
		t.Errorf("%+v", got)
	}
	if all := r.do("list", nil).Sandboxes; len(all) != 0 {
		t.Errorf("there are %+v", all)
	}
	for want, in := range map[string]args{
		"invalid_arguments": {"language": "bash", "code": "", "template": "none"}, "": {"language": "bash", "code": ""},
	} {
		if got := r.code("run", in); want != "" && got != want {
			t.Errorf("%v: %s", in, got)
		}
	}
	if got := r.code("run",
		args{"language": "bash", "code": "", "context_id": "context_1"}); got != "invalid_arguments" {
		t.Errorf("in a context of no sandbox: %s", got)
	}
}

func TestASandboxIsMadeOfWhatIsAskedFor(t *testing.T) {
	ladder := []manager.LadderEntry{
		{Name: "gone", Open: func() (sandbox.Driver, error) { return nil, errors.New("it is not installed") }},
		{Name: "namespaces", Open: func() (sandbox.Driver, error) { return namespaces.New(namespaces.Options{}) }},
	}
	r := open(t, Config{Settings: with(nil), Ladder: ladder, Templates: map[string]manager.Template{
		"small": {Limits: sandbox.Limits{MemoryMiB: 77}, Env: []string{"KIND=small", "WHO=nobody"}},
	}})
	made := r.do("create", args{"template": "small", "env": []string{"WHO=ann"}})
	if made.Driver != "namespaces" || made.Template != "small" || made.MemoryMiB != 77 || made.From != "cold" {
		t.Errorf("%+v", made)
	}
	if got := r.do("exec",
		args{"sandbox_id": made.SandboxID, "command": "echo $KIND $WHO"}); got.Output != "small ann\n" {
		t.Errorf("%q", got.Output)
	}
	for _, c := range []struct {
		in         args
		code, says string
	}{
		{args{"driver": "gone"}, "unsupported", "it is not installed"},
		{args{"driver": "magic"}, "invalid_arguments", "namespaces"},
		{args{"template": "magic"}, "invalid_arguments", "small"},
		{args{"min_isolation": "machine"}, "unsupported", `"machine"`},
		{args{"driver": "namespaces", "min_isolation": "user kernel"}, "unsupported", `"user kernel"`},
	} {
		_, err := r.try("create", c.in)
		if f, ok := errors.AsType[*tool.Refusal](err); !ok || string(f.Code) != c.code ||
			!strings.Contains(f.Message, c.says) {
			t.Errorf("%v: %v, want %s and %q", c.in, err, c.code, c.says)
		}
	}
	if got := r.do("create", args{"min_isolation": "process"}).Isolation; got != "namespaces" {
		t.Errorf("less was asked for than the host asks, and it is %s", got)
	}
	if s := r.do("stats", nil); !slices.Equal(s.Drivers, []string{"gone", "namespaces"}) ||
		!slices.Equal(s.Templates, []string{"small"}) || s.Driver != "namespaces" {
		t.Errorf("%+v", s)
	}
}

func TestAFileIsGivenAsALink(t *testing.T) {
	r := open(t, Config{Settings: with(nil)})
	id := r.box()
	r.do("write", args{"sandbox_id": id, "path": "a b.csv", "content": "1,2\n"})
	got := r.do("download", args{"sandbox_id": id, "from": "a b.csv"})
	if len(got.parts) != 1 || got.parts[0].Type != "resource_link" ||
		got.parts[0].URI != "sandbox://"+id+"/home/user/a%20b.csv" || got.Size != 4 {
		t.Errorf("%+v, %+v", got, got.parts)
	}
	for from, want := range map[string]string{"none": "not_found", "/tmp": "invalid_arguments"} {
		if got := r.code("download", args{"sandbox_id": id, "from": from}); got != want {
			t.Errorf("%s: %s, want %s", from, got, want)
		}
	}
}

// A secret is used by a placeholder; it never gets into the sandbox, and only
// what the caller's context has can be named.
func TestSecretsStayOutside(t *testing.T) {
	const value = "correct horse battery"
	r := open(t, Config{Settings: with(func(s *manager.Settings) { s.Network = true }),
		Secrets: func(who tool.Caller) (map[string]manager.Secret, error) {
			switch who.Context {
			case "lab":
				return map[string]manager.Secret{"TOKEN": {Value: secret.New(value),
					Hosts: []string{"api.example.com"}}}, nil
			case "lost":
				return nil, errors.New("TOKEN: there is no such secret")
			}
			return nil, nil
		}})
	id := r.box()
	set := args{"sandbox_id": id, "action": "set", "allow": []string{"api.example.com"}, "secrets": []string{"TOKEN"}}
	for in, want := range map[string]string{"": "denied", "den": "denied", "lost": "unavailable"} {
		r.in = in
		if got := r.code("network", set); got != want {
			t.Errorf("in the context %q: %s, want %s", in, got, want)
		}
	}
	r.in = "lab"
	got := r.do("network", set)
	if len(got.Secrets) != 1 || got.Secrets[0].Name != "TOKEN" ||
		!slices.Equal(got.Secrets[0].Hosts, []string{"api.example.com"}) {
		t.Fatalf("%+v", got)
	}
	mark := got.Secrets[0].Placeholder
	if again := r.do("network", set).Secrets[0].Placeholder; again != mark || mark == value || len(mark) < 20 {
		t.Errorf("%q, then %q", mark, again)
	}
	k := r.do("context", args{"sandbox_id": id, "action": "create", "language": "bash"}).ContextID
	p := r.do("start", args{"sandbox_id": id, "command": "echo $TOKEN"}).ProcessID
	outputs := []string{
		r.do("exec", args{"sandbox_id": id, "command": "echo $TOKEN"}).Output,
		r.do("run", args{"sandbox_id": id, "language": "bash", "code": "echo $TOKEN", "context_id": k}).Output,
		r.do("output", args{"sandbox_id": id, "process_id": p, "wait": 30}).Output,
	}
	if _, err := os.Stat("/usr/bin/python3"); err == nil {
		outputs = append(outputs, r.do("run", args{
			"sandbox_id": id,
			"language":   "python",
			"code":       "import os; print(os.environ['TOKEN'])",
		}).Output)
	}
	for i, out := range outputs {
		if out != mark+"\n" {
			t.Errorf("%d: %q, want the placeholder", i, out)
		}
	}
	var told bytes.Buffer
	for _, f := range r.host.Facts() {
		told.WriteString(f.Subject + " " + string(f.Data) + "\n")
	}
	if s := told.String(); !strings.Contains(s, `"way":"secret"`) || !strings.Contains(s, `"target":"TOKEN"`) ||
		strings.Contains(s, value) {
		t.Errorf("what was told: %s", s)
	}
	if got := r.do("network", args{"sandbox_id": id, "action": "set"}).Secrets; len(got) != 0 {
		t.Errorf("afterwards there are %+v", got)
	}
	if got := r.do("exec", args{"sandbox_id": id, "command": "echo $TOKEN"}).Output; got != "\n" {
		t.Errorf("afterwards: %q", got)
	}
}

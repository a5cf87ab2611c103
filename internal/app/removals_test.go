package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/jobs"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/modules/publicstate"
	"gatehouse/internal/sandbox/namespaces"
	"gatehouse/module"
	"gatehouse/tool"
)

// longJob returns a module whose tool starts a job that runs until it is cancelled and then closes cancelled.
func longJob(cancelled chan struct{}) Module {
	return Module{"long", func(_ context.Context, d module.Deps) (module.Module, error) {
		type began struct {
			Job string `json:"job"`
		}
		def := tool.Def{Name: "long_job", Title: "Long job", Effects: tool.Writes, Description: "Starts a long job."}
		return offers{tool.New(def,
			func(_ context.Context, c *tool.Call, _ struct{}) (began, error) {
				id, err := d.Job(c, "long job", func(ctx context.Context, _ *tool.Call) (tool.Result, error) {
					<-ctx.Done()
					close(cancelled)
					return tool.Result{}, ctx.Err()
				})
				return began{id}, err
			})}, nil
	}}
}

type offers []tool.Tool

func (o offers) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &module.Offer{Tools: o}, nil
}

func (o offers) Close(context.Context) error { return nil }

// sandboxesWork reports whether this machine runs sandboxes.
func sandboxesWork(t *testing.T) bool {
	d, err := namespaces.New(namespaces.Options{})
	if err != nil {
		return false
	}
	defer d.Close()
	for _, f := range d.Doctor(t.Context()) {
		if f.Needed && !f.OK {
			return false
		}
	}
	return true
}

// A user is removed by another process, as the command does it. The host ends what belongs to the user and reports
// it. What belongs to others keeps running, even to a user whose name begins with the same letters, and the next
// user of the name owns nothing.
//
//redteam:attack What is not yours is not there: a removed user's process, forward, job and sandbox go on
func TestWhatARemovedUserOwnsIsEnded(t *testing.T) {
	cfg := settings(t)
	cfg.View.Modules = []string{"process", "net", "file"}
	boxes := sandboxesWork(t)
	if boxes {
		cfg.View.Modules = append(cfg.View.Modules, "sandbox")
		cfg.Modules.Sandbox.Pool.Enabled, cfg.Modules.Sandbox.Driver = false, "namespaces"
	}
	cancelled := make(chan struct{})
	a, client := liveOn(t, cfg, Options{Extra: []Module{longJob(cancelled)}})
	for _, name := range []string{"ann", "anna"} {
		if err := a.who.AddUser(t.Context(), name, nil, ""); err != nil {
			t.Fatal(err)
		}
	}
	ann, anna := client("ann"), client("anna")
	var process, forward, others struct{ ID, Listen string }
	var box struct {
		ID string `json:"sandbox_id"`
	}
	start := `{"command":"sleep","args":["1000"]}`
	if runtime.GOOS == "windows" {
		start = `{"command":"ping","args":["-n","1000","127.0.0.1"]}`
	}
	ann.does("process_start", start, &process)
	anna.does("process_start", start, &others)
	ann.does("net_forward_start", `{"target":"127.0.0.1:9"}`, &forward)
	ann.does(
		"file_write",
		fmt.Sprintf(`{"path":%q,"content":"x"}`, filepath.Join(cfg.Roots.Folders[0], "f")),
		&struct{}{},
	)
	var job struct{ Job string }
	ann.does("long_job", `{}`, &job)
	want := []string{"process " + process.ID, "forward " + forward.ID, "job " + job.Job, "undo of 1 changes"}
	if boxes {
		ann.does("sandbox_create", `{}`, &box)
		want = append(want, "sandbox "+box.ID)
	}

	command, err := identity.Open(filepath.Join(cfg.Folders.Data, "identity.db"), identity.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer command.Close()
	if err := command.RemoveUser(t.Context(), "ann"); err != nil {
		t.Fatal(err)
	}
	// On a loaded machine the host may act later than the command waits.
	var e identity.Endings
	eventually(t, "the host has reported", func() bool {
		e, err = command.AwaitEndings(t.Context(), "ann")
		return err != nil || e.Hosts == 1 && e.Silent == 0
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range want {
		if !slices.ContainsFunc(e.Ended, func(line string) bool { return strings.HasPrefix(line, w) }) {
			t.Errorf("%q is not in what was ended: %q", w, e.Ended)
		}
	}
	if len(e.Ended) != len(want) {
		t.Errorf("ended %q, want %d", e.Ended, len(want))
	}
	<-cancelled
	if c, err := net.Dial("tcp", forward.Listen); err == nil {
		c.Close()
		t.Error("the forward still listens")
	}
	var list struct{ Processes []struct{ ID, Status string } }
	if anna.does("process_list", `{}`, &list); len(list.Processes) != 1 || list.Processes[0].Status != "running" {
		t.Errorf("anna has %+v", list)
	}

	if err := command.AddUser(t.Context(), "ann", nil, ""); err != nil {
		t.Fatal(err)
	}
	token, _, err := command.CreateToken(t.Context(), identity.Token{User: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	next := &tenant{t: t, in: make(chan json.RawMessage, 1000)}
	p, denied := a.who.Line(t.Context(), token, netip.Addr{})
	if denied != nil {
		t.Fatal(denied)
	}
	next.pipe = a.engine.Pipe(protocol.Caller{Caller: p.Caller()}, func(m []byte) error {
		next.in <- slices.Clone(m)
		return nil
	})
	t.Cleanup(func() { next.pipe.Close(nil) })
	for _, name := range []string{"process_list", "net_forward_list", "job_list"} {
		var all map[string]any
		next.does(name, `{}`, &all)
		for member, v := range all {
			if l, is := v.([]any); is && len(l) > 0 {
				t.Errorf("the next ann has %s of %s: %v", member, name, l)
			}
		}
	}
}

// What outlives a host is ended by the next one if its user was removed meanwhile; a user of the operating system
// of that name keeps what is newer.
func TestAHostEndsAtItsStartWhatARemovedUserLeft(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("processes outlive their host on Linux only")
	}
	cfg := settings(t)
	cfg.View.Modules = []string{"process"}
	users, err := identity.Open(filepath.Join(cfg.Folders.Data, "identity.db"), identity.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer users.Close()
	if err := users.AddUser(t.Context(), "ann", nil, ""); err != nil {
		t.Fatal(err)
	}
	during := func(use func(*tenant)) {
		ctx, stop := context.WithCancel(context.Background())
		a, err := New(ctx, cfg, Options{})
		if err != nil {
			stop()
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- a.Run(ctx) }()
		defer func() {
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
		use(tenantOf(t, a, "ann"))
	}
	var was, later struct {
		ID  string
		PID int
	}
	start := `{"command":"sleep","args":["1000"],"detach":true}`
	during(func(ann *tenant) { ann.does("process_start", start, &was) })
	if !runs(was.PID) {
		t.Fatal("the process did not outlive its host")
	}
	if err := users.RemoveUser(t.Context(), "ann"); err != nil {
		t.Fatal(err)
	}
	if e, err := users.AwaitEndings(t.Context(), "ann"); err != nil || e.Hosts != 0 {
		t.Errorf("without a host: %+v, %v", e, err)
	}
	during(func(ann *tenant) {
		eventually(t, "the process has ended", func() bool { return !runs(was.PID) })
		ann.does("process_start", start, &later)
	})
	during(func(ann *tenant) {
		var list struct{ Processes []struct{ ID, Status string } }
		ann.does("process_list", `{}`, &list)
		if len(list.Processes) != 1 || list.Processes[0].ID != later.ID || list.Processes[0].Status != "running" {
			t.Errorf("there are %+v, want %s", list.Processes, later.ID)
		}
		ann.does("process_kill", fmt.Sprintf(`{"id":%q}`, later.ID), &struct{}{})
	})
}

// A detached process that outlived its host goes to the heir when the next host starts, and still belongs to the
// heir on the host after that.
func TestAHostHandsOverAtItsStart(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("processes outlive their host on Linux only")
	}
	cfg := settings(t)
	cfg.View.Modules = []string{"process"}
	users, err := identity.Open(filepath.Join(cfg.Folders.Data, "identity.db"), identity.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer users.Close()
	for _, name := range []string{"ann", "bob"} {
		if err := users.AddUser(t.Context(), name, nil, ""); err != nil {
			t.Fatal(err)
		}
	}
	during := func(name string, use func(*tenant)) {
		ctx, stop := context.WithCancel(context.Background())
		a, err := New(ctx, cfg, Options{})
		if err != nil {
			stop()
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- a.Run(ctx) }()
		defer func() {
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
		use(tenantOf(t, a, name))
	}
	var was struct {
		ID  string
		PID int
	}
	during("ann", func(ann *tenant) {
		ann.does("process_start", `{"command":"sleep","args":["1000"],"detach":true}`, &was)
	})
	if err := users.RemoveUserFor(t.Context(), "ann", "bob"); err != nil {
		t.Fatal(err)
	}
	var list struct{ Processes []struct{ ID, Status string } }
	for range 2 {
		during("bob", func(bob *tenant) {
			eventually(t, "the process is bob's", func() bool {
				bob.does("process_list", `{}`, &list)
				return len(list.Processes) == 1 && list.Processes[0].ID == was.ID &&
					list.Processes[0].Status == "running"
			})
		})
	}
	during("bob", func(bob *tenant) {
		bob.does("process_kill", fmt.Sprintf(`{"id":%q}`, was.ID), &struct{}{})
	})
	eventually(t, "the process has ended", func() bool { return !runs(was.PID) })
}

// runs reports whether a process has not ended; a zombie has ended.
func runs(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(b), ") Z ")
}

// An administrator lists what belongs to all callers, with its owner, and ends it. Other callers are refused the
// list, and cannot find what belongs to others.
func TestAdministratorsSeeAndEndWhatBelongsToOthers(t *testing.T) {
	cfg := settings(t)
	cfg.View.Modules = []string{"process", "net"}
	boxes := sandboxesWork(t)
	if boxes {
		cfg.View.Modules = append(cfg.View.Modules, "sandbox")
		cfg.Modules.Sandbox.Pool.Enabled, cfg.Modules.Sandbox.Driver = false, "namespaces"
	}
	cancelled := make(chan struct{})
	_, client := liveOn(t, cfg, Options{Extra: []Module{longJob(cancelled)}})
	ann, bob, admin := client("ann"), client("bob"), client("chief", identity.Admin)
	type thing struct{ list, id, end, arg string }
	var made struct {
		ID, Job string
		Sandbox string `json:"sandbox_id"`
	}
	start := `{"command":"sleep","args":["1000"]}`
	if runtime.GOOS == "windows" {
		start = `{"command":"ping","args":["-n","1000","127.0.0.1"]}`
	}
	ann.does("process_start", start, &made)
	all := []thing{{"process_list", made.ID, "process_kill", "id"}}
	ann.does("net_forward_start", `{"target":"127.0.0.1:9"}`, &made)
	all = append(all, thing{"net_forward_list", made.ID, "net_forward_stop", "id"})
	ann.does("long_job", `{}`, &made)
	all = append(all, thing{"job_list", made.Job, "job_cancel", "id"})
	if boxes {
		ann.does("sandbox_create", `{}`, &made)
		all = append(all, thing{"sandbox_list", made.Sandbox, "sandbox_destroy", "sandbox_id"})
	}
	for _, one := range all {
		end := fmt.Sprintf(`{%q:%q}`, one.arg, one.id)
		if r := bob.toolResult("default", one.list, `{"all":true}`); !r.IsError {
			t.Errorf("%s: bob is told of all", one.list)
		}
		if r := bob.toolResult("default", one.end, end); !r.IsError {
			t.Errorf("%s: bob ends what is ann's", one.end)
		}
		if r := admin.toolResult("default", one.list, `{}`); strings.Contains(string(r.StructuredContent), one.id) {
			t.Errorf("%s without all has what is ann's", one.list)
		}
		r := admin.toolResult("default", one.list, `{"all":true}`)
		if got := string(r.StructuredContent); !strings.Contains(got, one.id) ||
			!strings.Contains(got, `"owner":"ann/default"`) {
			t.Errorf("%s: an administrator is told %s", one.list, got)
		}
		if r := admin.toolResult("default", one.end, end); r.IsError {
			t.Errorf("%s: an administrator is refused: %s", one.end, r.StructuredContent)
		}
		var left struct{ Processes []struct{ Status string } }
		if one.list == "process_list" {
			if ann.does(one.list, `{}`, &left); len(left.Processes) != 1 || left.Processes[0].Status != "killed" {
				t.Errorf("the process is %+v", left)
			}
			continue
		}
		if r := admin.toolResult("default", one.list, `{"all":true}`); strings.Contains(
			string(r.StructuredContent),
			one.id,
		) {
			t.Errorf("%s: it keeps running", one.end)
		}
	}
	<-cancelled
}

// What a removed user owns goes to the user that the removal names, if that is possible; the rest ends. The report
// distinguishes the two, and nothing is handed over from a context that the heir may not use.
//
//redteam:attack What is not yours is not there: an heir gets what is in a context that it may not enter
func TestWhatARemovedUserOwnsIsHandedOver(t *testing.T) {
	cfg := settings(t)
	modules := []string{"process", "net", "file"}
	boxes := sandboxesWork(t)
	if boxes {
		modules = append(modules, "sandbox")
		cfg.Modules.Sandbox.Pool.Enabled, cfg.Modules.Sandbox.Driver = false, "namespaces"
	}
	cfg.View.Modules = modules
	cfg.Contexts = []config.Context{
		{Name: "default", Modules: append(modules, "long")},
		{Name: "closed", Modules: []string{"process"}, Users: []string{"ann"}},
	}
	cancelled := make(chan struct{})
	a, client := liveOn(t, cfg, Options{Extra: []Module{longJob(cancelled)}})
	for _, name := range []string{"ann", "bob"} {
		if err := a.who.AddUser(t.Context(), name, nil, ""); err != nil {
			t.Fatal(err)
		}
	}
	ann, bob := client("ann"), client("bob")
	start := `{"command":"sleep","args":["1000"]}`
	if runtime.GOOS == "windows" {
		start = `{"command":"ping","args":["-n","1000","127.0.0.1"]}`
	}
	var process, secret, forward struct{ ID, Listen string }
	ann.does("process_start", start, &process)
	var inClosed struct {
		Result struct{ StructuredContent struct{ ID string } }
	}
	if err := json.Unmarshal([]byte(ann.call("closed", "process_start", start)), &inClosed); err != nil {
		t.Fatal(err)
	}
	if secret.ID = inClosed.Result.StructuredContent.ID; secret.ID == "" {
		t.Fatal("nothing was started in the closed context")
	}
	ann.does("net_forward_start", `{"target":"127.0.0.1:9"}`, &forward)
	var job struct{ Job string }
	ann.does("long_job", `{}`, &job)
	output, err := a.spool.Put("ann/default", "text/plain", []byte("all of the output"))
	if err != nil {
		t.Fatal(err)
	}
	past, err := a.jobs.Create(t.Context(), jobs.Record{Owner: "ann/default", Title: "past"})
	if err != nil {
		t.Fatal(err)
	}
	if err := past.Finish(json.RawMessage(`{"n":1}`)); err != nil {
		t.Fatal(err)
	}
	wantHanded := []string{
		"process " + process.ID,
		"forward " + forward.ID,
		"job " + past.ID(),
		"kept output of 1 calls",
	}
	wantEnded := []string{"process " + secret.ID, "job " + job.Job}
	var box struct {
		ID string `json:"sandbox_id"`
	}
	if boxes {
		ann.does("sandbox_create", `{}`, &box)
		wantHanded = append(wantHanded, "sandbox "+box.ID)
	}

	command, err := identity.Open(filepath.Join(cfg.Folders.Data, "identity.db"), identity.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer command.Close()
	for _, heir := range []string{"carl", "ann"} {
		if err := command.RemoveUserFor(t.Context(), "ann", heir); !errors.Is(err, identity.ErrNoHeir) {
			t.Fatalf("for %s: %v", heir, err)
		}
	}
	if err := command.RemoveUserFor(t.Context(), "ann", "bob"); err != nil {
		t.Fatal(err)
	}
	var e identity.Endings
	eventually(t, "the host has reported", func() bool {
		e, err = command.AwaitEndings(t.Context(), "ann")
		return err != nil || e.Hosts == 1 && e.Silent == 0
	})
	if err != nil {
		t.Fatal(err)
	}
	<-cancelled
	for _, x := range []struct {
		what      string
		want, got []string
	}{{"handed over", wantHanded, e.Handed}, {"ended", wantEnded, e.Ended}} {
		for _, w := range x.want {
			if !slices.ContainsFunc(x.got, func(line string) bool { return strings.HasPrefix(line, w) }) {
				t.Errorf("%q is not in what was %s: %q", w, x.what, x.got)
			}
		}
		if len(x.got) != len(x.want) {
			t.Errorf("%s: %q, want %d", x.what, x.got, len(x.want))
		}
	}

	var list struct{ Processes []struct{ ID, Status string } }
	if bob.does("process_list", `{}`, &list); len(list.Processes) != 1 || list.Processes[0].ID != process.ID ||
		list.Processes[0].Status != "running" {
		t.Errorf("bob has the processes %+v", list)
	}
	if c, err := net.Dial("tcp", forward.Listen); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
	for name, id := range map[string]string{"net_forward_list": forward.ID, "job_list": past.ID(),
		"sandbox_list": box.ID} {
		if id == "" {
			continue
		}
		if got := bob.call("default", name, `{}`); !strings.Contains(got, id) {
			t.Errorf("%s of bob: %s", name, got)
		}
		if got := ann.call("default", name, `{}`); strings.Contains(got, id) {
			t.Errorf("%s of the removed user: %s", name, got)
		}
	}
	if c, err := a.spool.Read("bob/default", output, 0, 0); err != nil || string(c.Data) != "all of the output" {
		t.Errorf("bob reads %q, %v", c.Data, err)
	}
	if _, err := a.spool.Read("ann/default", output, 0, 0); err == nil {
		t.Error("the removed user's name still reads the output")
	}
	for at, id := range map[string]string{"processes": process.ID, "sandboxes": box.ID} {
		if id != "" {
			eventually(t, at+" are shown to bob", func() bool {
				v, _ := bob.readPublic("default", publicstate.PublicURI+"/"+at)
				return slices.Contains(members(v), id)
			})
		}
	}
	if boxes {
		bob.does("sandbox_destroy", fmt.Sprintf(`{"sandbox_id":%q}`, box.ID), &struct{}{})
	}
	bob.does("process_kill", fmt.Sprintf(`{"id":%q}`, process.ID), &struct{}{})
	eventually(t, "the process has ended", func() bool {
		v, _ := bob.readPublic("default", publicstate.PublicURI+"/processes")
		return len(members(v)) == 0
	})
}

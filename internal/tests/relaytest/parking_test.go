package relaytest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/packages"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

// person is a caller that can answer forms.
func person(name string) *tool.Caller {
	return &tool.Caller{Principal: name, Owner: name + "/default", Can: tool.CanElicit}
}

// ask calls the tool that asks, and returns the question's key and the state.
func ask(t *testing.T, m *packages.Manager, who, token string) tool.Input {
	t.Helper()
	_, err := m.Call(t.Context(), "up", "asks_name", token2args(token), nil, &packages.Peer{Caller: person(who)})
	asked, ok := errors.AsType[*packages.InputRequired](err)
	if !ok || len(asked.Input.Questions) != 1 {
		t.Fatalf("%s: got %v, want a question", token, err)
	}
	return asked.Input
}

func token2args(token string) json.RawMessage { return json.RawMessage(`{"token":"` + token + `"}`) }

// answer is a retry with an answer.
func answer(t *testing.T, m *packages.Manager, who, token string, in tool.Input, name string) (string, error) {
	t.Helper()
	from := &packages.Peer{Caller: person(who), State: in.State, Answers: map[string]tool.Answer{
		in.Questions[0].Key: tool.Answer(`{"action":"accept","content":{"name":"` + name + `"}}`),
	}}
	raw, err := m.Call(t.Context(), "up", "asks_name", token2args(token), nil, from)
	text, _ := rawjson.String(hosttest.Get(raw, "content", 0, "text"))
	return strings.Trim(text, `"`), err
}

func refusedWith(err error, code tool.Code, said string) bool {
	r, ok := errors.AsType[*tool.Refusal](err)
	return ok && r.Code == code && strings.Contains(r.Message, said)
}

// legacyAsker installs a legacy server that asks, as a child.
func legacyAsker(t *testing.T, s packages.Settings) (*packages.Manager, module.New) {
	return installWith(t, packages.Options{Settings: s}, askerChild(t, "legacy asker"))
}

// A retry that is sent again gets the same result, the tool runs once, and no other
// principal can answer.
//
//redteam:attack What is not yours is not there: another principal answers a question that a server asked its caller
func TestAParkedCallBelongsToItsCaller(t *testing.T) {
	m, _ := legacyAsker(t, packages.Settings{})
	in := ask(t, m, "ann", "one")
	if got, err := answer(t, m, "bob", "one", in, "Bob"); !refusedWith(err, tool.CodeTimeout, "may have run") {
		t.Errorf("another principal got %q, %v", got, err)
	}
	if got, err := answer(t, m, "ann", "two", in, "Ann"); err != nil &&
		!refusedWith(err, tool.CodeTimeout, "may have run") {
		t.Errorf("with other arguments: %q, %v", got, err)
	}
	in = ask(t, m, "ann", "one")
	for i := range 3 { // each with another answer, of which the first counts
		if got, err := answer(t, m, "ann", "one", in, fmt.Sprint("Ann", i)); err != nil || got != "one accept Ann0" {
			t.Errorf("retry %d: %q, %v", i, got, err)
		}
	}
	forged := in
	forged.State = []byte(strings.Replace(string(in.State), `"call":"`, `"call":"X`, 1))
	if got, err := answer(t, m, "ann", "one", forged, "Ann"); !refusedWith(err, tool.CodeTimeout, "may have run") {
		t.Errorf("a forged handle got %q, %v", got, err)
	}
	if _, err := m.Call(t.Context(), "up", "asks_name", token2args("one"), nil,
		&packages.Peer{Caller: person("ann"), State: []byte(`{"call":`)}); err == nil {
		t.Error("a state that is no JSON was accepted")
	}
}

// Two retries at the same time get the same result.
func TestRetriesAtOnceGetTheSameResult(t *testing.T) {
	m, _ := legacyAsker(t, packages.Settings{})
	in := ask(t, m, "ann", "one")
	var all sync.WaitGroup
	got := make([]string, 8)
	for i := range got {
		all.Go(func() {
			text, err := answer(t, m, "ann", "one", in, fmt.Sprint("Ann", i))
			if got[i] = text; err != nil {
				got[i] = err.Error()
			}
		})
	}
	all.Wait()
	for _, one := range got {
		if one != got[0] || !strings.HasPrefix(one, "one accept Ann") {
			t.Errorf("got %q", got)
			break
		}
	}
}

// A question that is not answered in time is answered with cancel, and the retry learns
// that the call may have run.
func TestAQuestionExpires(t *testing.T) {
	m, _ := legacyAsker(t, packages.Settings{Question: 300 * time.Millisecond})
	in := ask(t, m, "ann", "late")
	deadline := time.Now().Add(20 * time.Second)
	for { // until the call has been ended
		time.Sleep(500 * time.Millisecond)
		got, err := answer(t, m, "ann", "late", in, "Ann")
		if refusedWith(err, tool.CodeTimeout, "may have run") {
			break
		}
		if time.Now().After(deadline) || got != "" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	if got, err := answer(t, m, "ann", "soon", ask(t, m, "ann", "soon"), "Ann"); err != nil ||
		got != "soon accept Ann" {
		t.Errorf("afterwards: %q, %v", got, err)
	}
}

// If the server dies while a call waits for its caller, the retry says so, and the tool is
// not called again.
func TestTheServerDiesWhileACallIsParked(t *testing.T) {
	m, _ := legacyAsker(t, packages.Settings{})
	raw, err := m.Call(t.Context(), "up", "asks_pid", token2args("x"), nil, &packages.Peer{Caller: person("ann")})
	text, _ := rawjson.String(hosttest.Get(raw, "content", 0, "text"))
	pid, e := strconv.Atoi(strings.Trim(text, `"`))
	if err != nil || e != nil {
		t.Fatalf("%s %v %v", raw, err, e)
	}
	in := ask(t, m, "ann", "one")
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		_, err := answer(t, m, "ann", "one", in, "Ann")
		if r, ok := errors.AsType[*tool.Refusal](err); ok && strings.Contains(r.Message, "may have run") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("got %v", err)
		}
	}
}

// A caller can leave only some calls open, and another one can still ask.
//
//redteam:attack No principal takes the host from the others: one leaves as many questions of servers unanswered as it can
func TestParkedCallsAreCounted(t *testing.T) {
	m, _ := legacyAsker(t, packages.Settings{Parked: 6})
	parked := 0
	var err error
	for ; parked < 7; parked++ {
		_, err = m.Call(t.Context(), "up", "asks_name", token2args(fmt.Sprint(parked)), nil,
			&packages.Peer{Caller: person("ann")})
		if _, asked := errors.AsType[*packages.InputRequired](err); !asked {
			break
		}
	}
	if parked == 0 || parked >= 6 || !refusedWith(err, tool.CodeBusy, "may have run") {
		t.Errorf("%d calls are parked, then %v", parked, err)
	}
	if got, err := answer(t, m, "bob", "one", ask(t, m, "bob", "one"), "Bob"); err != nil || got != "one accept Bob" {
		t.Errorf("another principal: %q, %v", got, err)
	}
}

// Callers that can answer nothing share an instance, to which nothing is declared; others
// have instances of their own, unless the record says otherwise.
func TestInstancesServeWhomTheRecordSays(t *testing.T) {
	for mode, want := range map[string]struct{ ann, bob, mute bool }{ // whether they share the instance of mute
		"":                          {false, false, true},
		packages.SharedInstances:    {true, true, true},
		packages.PrincipalInstances: {false, false, false},
		packages.SessionInstances:   {false, false, false},
	} {
		t.Run(mode, func(t *testing.T) {
			r := askerChild(t, "legacy asker")
			r.Instances = mode
			m, _ := installWith(t, packages.Options{}, r)
			pid := func(c *tool.Caller) string {
				raw, err := m.Call(t.Context(), "up", "asks_pid", token2args("x"), nil, &packages.Peer{Caller: c})
				if err != nil {
					t.Fatal(err)
				}
				text, _ := rawjson.String(hosttest.Get(raw, "content", 0, "text"))
				return text
			}
			raw, err := m.Call(t.Context(), "up", "asks_pid", token2args("x"), nil, nil)
			shared, _ := rawjson.String(hosttest.Get(raw, "content", 0, "text"))
			if err != nil {
				t.Fatal(err)
			}
			ann, bob, mute := person("ann"), person("bob"), person("mute")
			mute.Can, ann.Session, bob.Session, mute.Session = 0, "s1", "s2", "s3"
			for _, c := range []struct {
				who  *tool.Caller
				want bool
			}{{ann, want.ann}, {bob, want.bob}, {mute, want.mute}} {
				if got := pid(c.who) == shared; got != c.want {
					t.Errorf("%s shares: %v, want %v", c.who.Principal, got, c.want)
				}
			}
			if one := pid(ann); mode == packages.SessionInstances {
				m.EndSessions(func(s string) bool { return s == "s1" })
				eventually(t, func() bool { return pid(ann) != one })
			} else if pid(ann) != one || mode != packages.SharedInstances && pid(bob) == one {
				t.Error("instances change, or two principals share one")
			}
		})
	}
}

func eventually(t *testing.T, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it never is")
		}
	}
}

// However many questions two principals answer at once, through clients of both eras, each
// gets its own.
func TestNoQuestionIsMisrouted(t *testing.T) {
	for name, r := range map[string]packages.Record{
		"child": askerChild(t, "legacy asker"),
		"http":  {Source: packages.Source{Kind: packages.URL, From: serveAsker(t, true)}},
	} {
		t.Run(name, func(t *testing.T) { interleave(t, r) })
	}
}

func interleave(t *testing.T, r packages.Record) {
	questions := 200
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" {
		questions = 10_000
	}
	_, make := install(t, r, nil)
	var misrouted, done atomic.Int64
	work := func(h hosttest.Harness, who string, n int) {
		for i := range n {
			token := fmt.Sprintf("%s-%p-%d", who, h, i)
			r := hosttest.Call(
				h,
				"up_asks_name",
				`{"token":"`+token+`"}`,
				func(_ string, params json.RawMessage) json.RawMessage {
					if message, _ := rawjson.Get(params, "message"); string(message) != `"Who is `+token+`?"` {
						misrouted.Add(1)
						t.Errorf("%s was asked %s", token, message)
					}
					return json.RawMessage(`{"action":"accept","content":{"name":"` + token + `"}}`)
				},
			)
			if got := strings.Trim(r.Text(), `"`); got == token+" accept "+token {
				done.Add(1)
			} else if strings.Contains(got, " accept ") {
				misrouted.Add(1)
			} else {
				t.Errorf("%s: %s %v", token, r.Result, r.Error)
			}
		}
	}
	var all sync.WaitGroup
	const lanes = 3 // of each principal in each era
	for _, era := range hosttest.Harnesses()[:2] {
		h := era.Make(t, hosttest.Options{Modules: map[string]module.New{"package": make}})
		for _, who := range []string{"ann", "bob"} {
			work(h.As(who), who, 1) // the host learns that the server asks
			for range lanes {
				one := h.As(who)
				all.Go(func() { work(one, who, questions/(4*lanes)) })
			}
		}
	}
	all.Wait()
	t.Logf("%d questions were answered, %d misrouted", done.Load(), misrouted.Load())
}

// The reference server of the protocol asks over its standard streams, in sessions of the
// older revisions; a client of either era answers.
func TestARealServerThatAsks(t *testing.T) {
	if os.Getenv("GATEHOUSE_TEST_ALL") == "" {
		t.Skip("installs a package of npm; make verify-relay runs it")
	}
	dir := t.TempDir()
	npm := exec.CommandContext(t.Context(), "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts",
		"--prefix", dir, "@modelcontextprotocol/server-everything@2026.8.31")
	if out, err := npm.CombinedOutput(); err != nil {
		t.Fatalf("npm: %v\n%s", err, out)
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal(err)
	}
	m, make := install(t, packages.Record{
		Source: packages.Source{Kind: packages.Command}, Command: node,
		Args: []string{
			filepath.Join(dir, "node_modules/@modelcontextprotocol/server-everything/dist/index.js"),
			"stdio",
		},
	}, nil)
	info, err := m.Info("up")
	t.Log(info.Server, info.Names, err)
	for _, era := range hosttest.Harnesses()[:2] {
		t.Run(era.Name, func(t *testing.T) {
			h := era.Make(t, hosttest.Options{Modules: map[string]module.New{"package": make}})
			var asked []string
			r := hosttest.Call(
				h,
				"up_trigger_sampling_request",
				`{"prompt":"capital of France","maxTokens":10}`,
				answerAll(&asked),
			)
			if r.Error != nil || !strings.Contains(string(r.Result), "Paris") {
				t.Errorf("sampling: %s %v, asked %v", r.Result, r.Error, asked)
			}
			r = hosttest.Call(h, "up_trigger_elicitation_request", `{}`, answerAll(&asked))
			if r.Error != nil || !strings.Contains(string(r.Result), "Ann") {
				t.Errorf("elicitation: %s %v, asked %v", r.Result, r.Error, asked)
			}
			r = hosttest.Call(h, "up_get_roots_list", `{}`, answerAll(&asked))
			if r.Error != nil || !strings.Contains(string(r.Result), "/work/here") {
				t.Errorf("roots: %s %v, asked %v", r.Result, r.Error, asked)
			}
		})
	}
}

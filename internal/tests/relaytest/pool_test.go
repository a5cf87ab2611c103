package relaytest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/packages"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/tool"
)

// progressed calls a tool for a caller who can answer forms, and returns when the call has reported progress.
func progressed(
	t *testing.T, m *packages.Manager, who, name string, args json.RawMessage,
) (cancel context.CancelFunc, outcome func() (json.RawMessage, error)) {
	t.Helper()
	type result struct {
		raw json.RawMessage
		err error
	}
	ctx, cancel := context.WithCancel(t.Context())
	begun, ended := make(chan struct{}), make(chan result, 1)
	begin := sync.OnceFunc(func() { close(begun) })
	from := &packages.Peer{Caller: person(who), Progress: func(float64, float64, string) { begin() }}
	go func() {
		raw, err := m.Call(ctx, "up", name, args, nil, from)
		ended <- result{raw, err}
	}()
	select {
	case <-begun:
	case r := <-ended:
		t.Fatalf("%s ended before it began: %s, %v", name, r.raw, r.err)
	}
	return cancel, func() (json.RawMessage, error) {
		r := <-ended
		return r.raw, r.err
	}
}

func hangs(
	t *testing.T,
	m *packages.Manager,
	who string,
) (cancel context.CancelFunc, outcome func() (json.RawMessage, error)) {
	t.Helper()
	args := append(rawjson.AppendString([]byte(`{"file":`), filepath.Join(t.TempDir(), "x")), '}')
	return progressed(t, m, who, "hang", args)
}

// A question that could be of two calls of one session waits until the other has ended, and then reaches its own.
//
//redteam:attack What is not yours is not there: a server asks while two calls of one client run
func TestAQuestionThatCouldBeOfTwoCallsWaits(t *testing.T) {
	m, _ := legacyAsker(t, packages.Settings{})
	stop, hung := hangs(t, m, "ann")
	_, asked := progressed(t, m, "ann", "test_streaming_elicitation", json.RawMessage(`{}`))
	stop()
	if raw, err := hung(); !errors.Is(err, context.Canceled) {
		t.Errorf("the call that asked nothing got %s, %v", raw, err)
	}
	raw, err := asked()
	in, ok := errors.AsType[*packages.InputRequired](err)
	if !ok {
		t.Fatalf("the call that asks got %s, %v", raw, err)
	}
	from := &packages.Peer{Caller: person("ann"), State: in.Input.State, Answers: map[string]tool.Answer{
		in.Input.Questions[0].Key: tool.Answer(`{"action":"accept","content":{"name":"Ann"}}`),
	}}
	raw, err = m.Call(t.Context(), "up", "test_streaming_elicitation", json.RawMessage(`{}`), nil, from)
	if err != nil || !strings.Contains(string(raw), "Hello, Ann!") {
		t.Errorf("answered: %s, %v", raw, err)
	}
}

// Questions that could each be of two calls are not guessed: one fails, with its call, and the
// other is then that of the call that is left. From then on the calls run one at a time, so that
// each is asked its own.
//
//redteam:attack What is not yours is not there: a server asks in two calls of one client at once
func TestAmbiguousQuestionsAreNeverGuessed(t *testing.T) {
	m, _ := legacyAsker(t, packages.Settings{})
	stop, hung := hangs(t, m, "ann") // so that neither question comes while its call is the only one
	calls := map[string]func() (json.RawMessage, error){}
	for _, token := range []string{"one", "two"} {
		_, calls[token] = progressed(t, m, "ann", "asks_name", token2args(token))
	}
	stop()
	hung()
	failed := 0
	for token, outcome := range calls {
		raw, err := outcome()
		in, asked := errors.AsType[*packages.InputRequired](err)
		if !asked {
			failed++
			if strings.Contains(string(raw), "accept") {
				t.Errorf("%s, which was not asked, got %s, %v", token, raw, err)
			}
			continue
		}
		if message, _ := rawjson.Get(in.Input.Questions[0].Params, "message"); string(
			message,
		) != `"Who is `+token+`?"` {
			t.Errorf("%s was asked %s", token, message)
		}
		if got, err := answer(t, m, "ann", token, in.Input, "Ann"); err != nil || got != token+" accept Ann" {
			t.Errorf("%s got %q, %v", token, got, err)
		}
	}
	t.Logf("%d calls failed; none does if the second call got an instance of its own", failed)
	for _, token := range []string{"x", "y"} {
		if got, err := answer(t, m, "ann", token, ask(t, m, "ann", token), "Ann"); err != nil ||
			got != token+" accept Ann" {
			t.Errorf("later: %q, %v", got, err)
		}
	}
}

// If there are too many instances of servers, the one that has been idle the longest is stopped for the next caller.
func TestTheIdlestInstanceMakesRoom(t *testing.T) {
	const most = 3
	m, _ := legacyAsker(t, packages.Settings{Instances: most})
	pid := func(who string) int {
		t.Helper()
		raw, err := m.Call(t.Context(), "up", "asks_pid", token2args("x"), nil, &packages.Peer{Caller: person(who)})
		if err != nil {
			t.Fatalf("%s: %v", who, err)
		}
		text, _ := rawjson.String(hosttest.Get(raw, "content", 0, "text"))
		n, err := strconv.Atoi(strings.Trim(text, `"`))
		if err != nil {
			t.Fatalf("%s: %s %v", who, raw, err)
		}
		return n
	}
	runs := func(pid int) bool { return syscall.Kill(pid, 0) == nil }
	var all []int
	for i := range 2 * most {
		all = append(all, pid(fmt.Sprint("caller", i)))
	}
	eventually(t, func() bool { return !runs(all[0]) && !runs(all[1]) && !runs(all[2]) })
	last := len(all) - 1
	if again := pid(fmt.Sprint("caller", last)); again != all[last] {
		t.Errorf("the newest instance was stopped: process %d, then %d", all[last], again)
	}
	if again := pid("caller0"); again == all[0] {
		t.Errorf("process %d serves a caller after its end", again)
	}
}

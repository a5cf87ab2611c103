package protocol_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

// guarded returns a host with two contexts, one of them for developers, and a function that opens a
// pipe without credentials.
func guarded(t *testing.T) (*hosttest.Host, func(who protocol.Caller) *talk) {
	t.Helper()
	p, err := permit.New(permit.Options{Default: permit.Allow, Access: []permit.Access{
		{Context: "git", Roles: []string{"dev"}, KnownTo: []string{"staff"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	h := hosttest.New(t, hosttest.Options{Policy: p, Modules: map[string]module.New{"m": offering(echo)}})
	h.Views.Set(views.Rules{Policy: p, Specs: []views.Spec{{Name: "default"}, {Name: "git"}}})
	return h, func(who protocol.Caller) *talk {
		k := &talk{t: t, in: make(chan string, 100), caps: `{}`}
		k.pipe = h.Engine.Pipe(who, func(m []byte) error { k.in <- string(m); return nil })
		t.Cleanup(func() { k.pipe.Close(nil) })
		return k
	}
}

func tokens(_ context.Context, token string) (protocol.Caller, error) {
	switch token {
	case "ann":
		return protocol.Caller{Caller: tool.Caller{Principal: "ann", Roles: []string{"dev"}, Credential: "t1"}}, nil
	case "bound":
		return protocol.Caller{
			Caller: tool.Caller{Principal: "ann", Roles: []string{"dev"}, Credential: "t2"},
			Bound:  "git",
		}, nil
	case "bo":
		return protocol.Caller{Caller: tool.Caller{Principal: "bo", Roles: []string{"staff"}}}, nil
	}
	return protocol.Caller{}, errors.New("no")
}

// sayAs sends a modern request with members of _meta that identify the caller.
func (k *talk) sayAs(meta string) string {
	caps := k.caps
	k.caps += meta
	defer func() { k.caps = caps }()
	return k.say("tools/list", "")
}

func TestWhoEntersWhichContext(t *testing.T) {
	_, dial := guarded(t)
	k := dial(protocol.Caller{Prove: tokens})
	const named = `"name":"t_echo"`
	for _, c := range []struct{ meta, want string }{
		{``, `credentials are needed`},
		{`,"gatehouse/token":"eve"`, `not valid here`},
		{`,"gatehouse/token":7`, `not valid here`},
		{`,"gatehouse/token":"ann"`, named},
		{`,"gatehouse/token":"ann","gatehouse/context":"git"`, named},
		{`,"gatehouse/token":"ann","gatehouse/context":"nowhere"`, `Context not found`},
		{`,"gatehouse/token":"bo","gatehouse/context":"git"`, `Context not allowed`},
		{`,"gatehouse/token":"bound"`, named},
		{`,"gatehouse/token":"bound","gatehouse/context":"git"`, named},
		{`,"gatehouse/token":"bound","gatehouse/context":"default"`, `Context not found`},
	} {
		if got := k.sayAs(c.meta); !strings.Contains(got, c.want) {
			t.Errorf("%s: got %s, want %s in it", c.meta, got, c.want)
		}
	}
	anon := dial(protocol.Caller{Caller: tool.Caller{Principal: "anonymous"}})
	if got := anon.sayAs(`,"gatehouse/context":"git"`); !strings.Contains(got, `Context not found`) {
		t.Errorf("a caller who may not know of a context sees it: %s", got)
	}
	if got := anon.sayAs(`,"gatehouse/token":"ann"`); !strings.Contains(got, `not valid here`) {
		t.Errorf("a token counts where none is known: %s", got)
	}
}

func TestWhatACredentialOpenedEndsWithIt(t *testing.T) {
	h, dial := guarded(t)
	k := dial(protocol.Caller{Prove: tokens})
	k.caps += `,"gatehouse/token":"ann"`
	if got := k.say("subscriptions/listen", `,"notifications":{"toolsListChanged":true}`); !strings.Contains(
		got,
		"acknowledged",
	) {
		t.Fatal(got)
	}
	h.Engine.Revoked("ann", "t2")
	h.Engine.Revoked("bo", "")
	select {
	case m := <-k.in:
		t.Fatalf("another credential's end was reported: %s", m)
	case <-time.After(20 * time.Millisecond):
	}
	h.Engine.Revoked("ann", "t1")
	if got := <-k.in; !strings.Contains(got, `"resultType":"complete"`) {
		t.Fatalf("got %s", got)
	}
}

func TestAConnectionEndsWhenItsCredentialExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, dial := guarded(t)
		k := dial(protocol.Caller{Caller: tool.Caller{Principal: "ann"}, Until: time.Now().Add(time.Hour)})
		k.pipe.Receive([]byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`))
		if got := <-k.in; !strings.Contains(got, "serverInfo") {
			t.Fatal(got)
		}
		began := time.Now()
		<-k.pipe.Done()
		if held := time.Since(began); held != time.Hour {
			t.Errorf("it was open for %v, and its credential good for an hour", held)
		}
	})
}

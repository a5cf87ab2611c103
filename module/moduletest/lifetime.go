package moduletest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/module"
	"gatehouse/tool"
)

// errCut is why the suite cancels a call.
var errCut = errors.New("the suite cancelled the call")

// bearsNoArguments runs every tool with nothing, for clients that can do
// everything and for one that can do nothing. A refusal is a good answer.
func (g *instance) bearsNoArguments(t *testing.T) {
	for _, to := range audiences {
		for _, x := range g.offer(t, to).Tools {
			for _, can := range []tool.Abilities{0, ^tool.Abilities(0)} {
				c := g.call(t, to, x.Name, can)
				res, err := runHandler(t.Context(), x.Run, c)
				if err := outcomeFault(c, res, err); err != nil {
					t.Errorf("%s with {}: %v", x.Name, err)
				}
			}
		}
	}
}

// endsWhenCancelled runs every tool in a context that has ended, and those in
// Options.Busy in one that ends while they work.
func (g *instance) endsWhenCancelled(t *testing.T) {
	cancelled, cancel := context.WithCancelCause(t.Context())
	cancel(errCut)
	tools := g.offer(t, audiences[0]).Tools
	for _, x := range tools {
		if _, err := runHandler(cancelled, x.Run, g.call(t, audiences[0], x.Name, 0)); broken(err) {
			t.Errorf("%s with {} in a context that has ended: %v", x.Name, err)
		}
	}
	for name, args := range g.o.Busy {
		i := slices.IndexFunc(tools, func(x tool.Tool) bool { return x.Name == name })
		if i < 0 {
			t.Errorf("Options.Busy names %s, which is not offered", name)
			continue
		}
		g.interrupt(t, tools[i], args)
	}
}

// interrupt cancels a call a moment after it has begun.
func (g *instance) interrupt(t *testing.T, x tool.Tool, args json.RawMessage) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	c := g.call(t, audiences[0], x.Name, 0)
	c.Args, c.Params = args, args
	time.AfterFunc(20*time.Millisecond, func() { cancel(errCut) })
	_, err := runHandler(ctx, x.Run, c)
	switch {
	case broken(err):
		t.Errorf("%s with %s, cancelled: %v", x.Name, args, err)
	case ctx.Err() == nil:
		t.Errorf(
			"%s with %s ended (%v) before it was cancelled; Options.Busy wants arguments that keep it at work",
			x.Name,
			args,
			err,
		)
	}
}

// callEverything runs every tool once and drops what it says.
func (g *instance) callEverything(t *testing.T) {
	for _, x := range g.offer(t, audiences[0]).Tools {
		if _, err := runHandler(t.Context(), x.Run, g.call(t, audiences[0], x.Name, 0)); broken(err) {
			t.Errorf("%s with {}: %v", x.Name, err)
		}
	}
}

// call makes a call without arguments and without a session.
func (g *instance) call(t testing.TB, to module.Audience, name string, can tool.Abilities) *Call {
	c := NewCall(t)
	c.Name, c.Roots = name, g.o.Roots
	c.Caller.Can = can
	if to.Principal != "" {
		c.Caller.Principal, c.Caller.Context = to.Principal, to.Context
		c.Caller.Owner = to.Principal + "/" + to.Context
	}
	return c
}

// failure is a handler that did not end as one must.
type failure struct{ text string }

func (f *failure) Error() string { return f.text }

func broken(err error) bool {
	_, ok := errors.AsType[*failure](err)
	return ok
}

type outcome struct {
	res tool.Result
	err error
}

// runHandler runs one round of a handler on a goroutine of its own and waits for its
// end, but not for ever. A panic and a handler that does not return are a
// *failure.
func runHandler(ctx context.Context, h tool.Handler, c *Call) (tool.Result, error) {
	done := make(chan outcome, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- outcome{err: &failure{fmt.Sprintf("panic: %v\n%s", p, debug.Stack())}}
			}
		}()
		c.Peer.begin()
		res, err := h(ctx, &c.Call)
		c.Peer.end()
		done <- outcome{res, err}
	}()
	// A tool without arguments may still take its time; only one that was
	// told to stop has to.
	wait := patience
	if ctx.Err() == nil {
		wait = 6 * patience
	}
	select {
	case o := <-done:
		return o.res, o.err
	case <-time.After(wait):
		return tool.Result{}, &failure{fmt.Sprintf("still runs after %v", wait)}
	}
}

// outcomeFault finds what is wrong with how a handler ended.
func outcomeFault(c *Call, res tool.Result, err error) error {
	asked := len(c.Peer.open) > 0
	switch {
	case broken(err):
		return err
	case errors.Is(err, tool.ErrAsked) && !asked:
		return errors.New("it returned ErrAsked without having asked")
	case err != nil:
		return nil
	}
	if res.Raw != nil && !isObject(res.Raw) {
		return errors.New("the raw result is no JSON object")
	}
	if _, err := json.Marshal(res); err != nil {
		return fmt.Errorf("the result has no JSON form: %w", err)
	}
	return nil
}

// twoGenerations: a module that is replaced lives on until its last call has
// ended, beside its successor.
func twoGenerations(t *testing.T, make module.New, o Options) {
	if o.Roots == nil {
		o.Roots = Folder(t) // both see the same folders, as they would
	}
	old, next := o.start(t, make), o.start(t, make)
	old.callEverything(t)
	next.callEverything(t)
	if err := old.close(); err != nil {
		t.Errorf("close of the old generation: %v", err)
	}
	next.callEverything(t)
}

// nothingIsLeft: when Close has returned, so have the module's goroutines.
func nothingIsLeft(t *testing.T, make module.New, o Options) {
	before := goroutines()
	g := o.start(t, make)
	for _, to := range audiences {
		g.offer(t, to)
	}
	g.callEverything(t)
	if err := g.close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if left := lingering(before); len(left) > 0 {
		t.Errorf("%d goroutines are left after Close:\n%s", len(left), strings.Join(left, "\n\n"))
	}
}

// lingering gives the stacks of the goroutines that were not there before and
// do not end.
func lingering(before map[string]string) []string {
	for deadline := time.Now().Add(patience / 5); ; {
		now := goroutines()
		maps.DeleteFunc(now, func(id, stack string) bool {
			_, old := before[id]
			return old || strings.Contains(stack, "created by os/signal.")
		})
		if len(now) == 0 || time.Now().After(deadline) {
			return slices.Collect(maps.Values(now))
		}
		time.Sleep(time.Millisecond)
	}
}

// goroutines are the stacks of all goroutines but this one, by their ids.
func goroutines() map[string]string {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	all := map[string]string{}
	for _, stack := range strings.Split(string(buf), "\n\n")[1:] {
		id, _, _ := strings.Cut(strings.TrimPrefix(stack, "goroutine "), " ")
		all[id] = stack
	}
	return all
}

// Folder makes an empty folder for calls to work in.
func Folder(t testing.TB) tool.Roots {
	t.Helper()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return folder{root}
}

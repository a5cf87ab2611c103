// Package db is the module that reads the state tree as a value, and keeps what
// a user interface wants to remember in it.
package db

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"gatehouse/internal/access/operator"
	"gatehouse/internal/state"
	"gatehouse/module"
	"gatehouse/tool"
)

// UI is where user interfaces keep what is theirs: a durable mount.
const UI = "/public/ui"

// Limits of what is read and kept.
const (
	mostRead  = 64 << 20  // bytes of one dump
	mostValue = 256 << 10 // bytes written at once
	mostUI    = 1 << 20   // bytes below UI
)

// Config is what the module is given.
type Config struct {
	// Tree has the mount UI and belongs to whoever gave it; nil means an empty
	// one of the module's own.
	Tree *state.Tree `json:"-"`
	// See gives a part below /public as far as a caller may see it; nil shows
	// all of it.
	See func(who tool.Caller, at state.Pointer) state.View `json:"-"`
	// Everything reports whether a caller may see the private half too; nil
	// means that nobody may.
	Everything func(who tool.Caller) bool `json:"-"`
	Rules      operator.Func              `json:"-"` // who may write what is everybody's; nil: nobody
}

type db struct {
	cfg   Config
	offer module.Offer
}

// New makes the module.
func New(cfg Config) module.New {
	return func(ctx context.Context, d module.Deps) (module.Module, error) {
		m := &db{}
		m.cfg = cfg
		if err := m.complete(ctx); err != nil {
			return nil, err
		}
		m.offer.Tools = []tool.Tool{
			tool.New(tool.Def{
				Name: "db_dump", Title: "Read the state tree", Effects: tool.Reads, Task: tool.TaskNever, Aliases: []string{"db.dump"},
				Linked:      "value",
				Description: "Shows the state tree of this host, or the part of it at a JSON Pointer, with its revision.",
				Help:        "The tree below /public is shown as far as you may see it, which is what the resources below gatehouse:///public show too. Below /private, and as a whole, it is shown to administrators alone whose credential is not limited to some scopes; secrets are in no part of it. id is opaque: two that are equal mean the same state. A value that is too large for one answer is left out, and uri is where all of the dump can be read for a while; the command line gets it whole.",
			}, m.dump),
			tool.New(tool.Def{
				Name: "db_put_ui", Title: "Write interface state", Effects: tool.Writes | tool.Destroys | tool.Idempotent, Task: tool.TaskNever, Sync: true, Aliases: []string{"db.put.ui"},
				Description: "Writes a value of a user interface below /public/ui, in place of what was there, or removes it.",
				Help:        "For those who rule this host; everybody sees what is there. pointer is what comes behind /public/ui, such as /theme/colour; empty means all of it. Objects on the way are made, a place of an array must be there or be -, which is behind the last. 256 KiB can be written at once, 1 MiB be there in all.",
			}, m.put),
		}
		return m, nil
	}
}

// complete fills in what nobody gave.
func (m *db) complete(ctx context.Context) error {
	c := &m.cfg
	if c.Tree == nil {
		c.Tree = state.New(state.Options{})
		if _, err := state.Attach[map[string]any](ctx, c.Tree, UI, state.Live); err != nil {
			return err
		}
	}
	if c.See == nil {
		c.See = func(_ tool.Caller, at state.Pointer) state.View { return c.Tree.Read(at) }
	}
	if c.Everything == nil {
		c.Everything = func(tool.Caller) bool { return false }
	}
	return nil
}

// Offer implements module.Module.
func (m *db) Offer(context.Context, module.Audience) (*module.Offer, error) { return &m.offer, nil }

// Close implements module.Module; the tree is its owner's.
func (m *db) Close(context.Context) error { return nil }

type dumpIn struct {
	Pointer string `json:"pointer,omitempty" doc:"JSON Pointer, such as /public/serverInfo" default:"/public" max:"4096"`
}

type dumpOut struct {
	ID    string          `json:"id" doc:"the revision"`
	Value json.RawMessage `json:"value,omitempty" doc:"any JSON; left out if it is too large for one answer"`
	tool.LinkedOut
}

func (m *db) dump(_ context.Context, c *tool.Call, in dumpIn) (dumpOut, error) {
	at, err := state.ParsePointer(in.Pointer)
	if err != nil {
		return dumpOut{}, &tool.Refusal{Code: "invalid_arguments", Message: err.Error(), Next: "A pointer is empty, or names that each begin with a slash; / and ~ in a name are ~1 and ~0."}
	}
	var v state.View
	switch {
	case m.cfg.Everything(c.Caller):
		v = m.cfg.Tree.Read(at)
	case len(at) > 0 && at[0] == "public":
		v = m.cfg.See(c.Caller, at)
	default:
		return dumpOut{}, &tool.Refusal{Code: "denied", Message: "what is not below /public is for administrators whose credential is not limited to some scopes", Next: "Give a pointer that begins with /public."}
	}
	if !v.Found {
		return dumpOut{}, &tool.Refusal{Code: "not_found", Message: fmt.Sprintf("there is nothing at %.300q", in.Pointer), Next: "Look at /public to see what there is."}
	}
	text, err := v.JSON()
	if err == nil && len(text) > mostRead {
		err = &tool.Refusal{Code: "too_large", Message: fmt.Sprintf("%.300q has more than %d bytes", in.Pointer, mostRead), Next: "Give a longer pointer, for a part of it."}
	}
	return dumpOut{ID: string(v.Revision), Value: text}, err
}

type putIn struct {
	Pointer string          `json:"pointer" doc:"what comes behind /public/ui: /theme; empty for all of it" max:"4096"`
	Value   json.RawMessage `json:"value,omitempty" doc:"any JSON"`
	Remove  bool            `json:"remove,omitempty" doc:"take away what is there, instead of a value"`
}

type putOut struct {
	Pointer string `json:"pointer" doc:"in the whole tree"`
	ID      string `json:"id" doc:"the revision of what is there now"`
}

func (m *db) put(ctx context.Context, c *tool.Call, in putIn) (putOut, error) {
	if err := m.cfg.Rules.Check(c, "write what user interfaces remember"); err != nil {
		return putOut{}, err
	}
	at, value, err := in.parse()
	if err != nil {
		return putOut{}, err
	}
	if _, err := m.cfg.Tree.Update(ctx, UI, state.Any, func(old any) (any, error) {
		if old == nil {
			old = map[string]any{}
		}
		now, err := placed(old, at, value, in.Remove)
		if err != nil {
			return nil, err
		}
		n, err := size(now)
		if err == nil && n > mostUI {
			err = &tool.Refusal{
				Code:    "too_large",
				Message: fmt.Sprintf("there would be %d bytes below %s, the most is %d", n, UI, mostUI),
				Next:    "Remove something first.",
			}
		}
		return now, err
	}); err != nil {
		if errors.Is(err, state.ErrValue) || errors.Is(err, state.ErrSecret) {
			err = tool.Refuse("invalid_arguments", "%v", err)
		}
		return putOut{}, err
	}
	whole := append(state.Pointer{"public", "ui"}, at...)
	return putOut{whole.String(), string(m.cfg.Tree.Read(whole).Revision)}, nil
}

// parse reads the arguments. value is as the tree has its values.
func (in *putIn) parse() (at state.Pointer, value any, err error) {
	if at, err = state.ParsePointer(in.Pointer); err != nil {
		return nil, nil, tool.Refuse("invalid_arguments", "%v", err)
	}
	switch {
	case in.Pointer == UI || strings.HasPrefix(in.Pointer, UI+"/"):
		err = &tool.Refusal{Code: "invalid_arguments", Message: "the pointer begins behind " + UI, Next: fmt.Sprintf("Leave that out: %q.", strings.TrimPrefix(in.Pointer, UI))}
	case in.Remove == (in.Value != nil):
		err = tool.Refuse("invalid_arguments", "give either a value or remove")
	case in.Remove:
	default:
		value, err = in.decode()
	}
	if _, object := value.(map[string]any); err == nil && len(at) == 0 && !in.Remove && !object {
		err = tool.Refuse("invalid_arguments", "%s itself is an object", UI)
	}
	return at, value, err
}

// decode reads the value. Its size is that of the value, however the caller
// wrote it: escapes and blanks do not count.
func (in *putIn) decode() (value any, err error) {
	d := json.NewDecoder(bytes.NewReader(in.Value))
	d.UseNumber()
	if err := d.Decode(&value); err != nil {
		return nil, err
	}
	n, err := size(value)
	if err == nil && n > mostValue {
		err = &tool.Refusal{
			Code:    "too_large",
			Message: fmt.Sprintf("the value has %d bytes, the most is %d", n, mostValue),
			Next:    "Write parts of it, each at a longer pointer.",
		}
	}
	return value, err
}

// size is how many bytes a value has as compact JSON in UTF-8, in which only
// quotes, backslashes and control characters are escaped.
func size(value any) (int, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(value)
	return b.Len() - 1, err // Encode ends with a line break
}

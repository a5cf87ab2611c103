// Package db is the module that reads the state tree as a value, and stores the
// state of user interfaces in it.
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

// UI is the path of the durable mount with the state of user interfaces.
const UI = "/public/ui"

// Limits of reads and of stored values.
const (
	maxRead  = 64 << 20  // bytes of one dump
	maxValue = 256 << 10 // bytes in one write
	maxUI    = 1 << 20   // bytes below UI
)

// Config is what the module is given.
type Config struct {
	// Tree has the mount UI. The module does not close it; nil means an empty tree
	// of the module.
	Tree *state.Tree `json:"-"`
	// See returns the part below /public that a caller may see; nil means all of
	// it.
	See func(who tool.Caller, at state.Pointer) state.View `json:"-"`
	// SeesAll reports whether a caller may also see the tree below /private; nil
	// means that no caller may.
	SeesAll func(who tool.Caller) bool `json:"-"`
	Rules   operator.Func              `json:"-"` // decides who may write below UI; nil means no caller
}

type db struct {
	cfg   Config
	offer module.Offer
}

// New returns what makes the module with a configuration.
func New(cfg Config) module.New {
	return func(ctx context.Context, d module.Deps) (module.Module, error) {
		m := &db{}
		m.cfg = cfg
		if err := m.setDefaults(ctx); err != nil {
			return nil, err
		}
		m.offer.Tools = []tool.Tool{
			tool.New(tool.Def{
				Name: "db_dump", Title: "Read the state tree", Effects: tool.Reads, Task: tool.TaskNever,
				Aliases: []string{"db.dump"},
				Linked:  "value",
				Description: "Returns the state tree of this host, or the part of it at a JSON Pointer, with its " +
					"revision.",
				Help: "Below /public it returns what you may see, like the resources below " +
					"gatehouse:///public. Only administrators whose credential is not limited to scopes can read " +
					"the whole tree, or below /private. No part of it has secrets. id is opaque: equal ids mean " +
					"equal state. A value that is too large for one answer is left out, and uri is where " +
					"all of the dump can be read for a while; the command line gets it whole.",
			}, m.dump),
			tool.New(tool.Def{
				Name: "db_put_ui", Title: "Write interface state",
				Effects: tool.Writes | tool.Destroys | tool.Idempotent, Task: tool.TaskNever, Sync: true,
				Aliases: []string{"db.put.ui"},
				Description: "Writes or removes a value of a user interface below /public/ui. It replaces the " +
					"previous value.",
				Help: "For administrators only; every caller can read the value. pointer is the part after " +
					"/public/ui, such as /theme/colour; empty means all of it. Missing objects on the way are made. " +
					"An index of an array must exist, or be - for the position after the last. One write has at " +
					"most 256 KiB, and all values together at most 1 MiB.",
			}, m.putValue),
		}
		return m, nil
	}
}

// setDefaults sets the members of the configuration that are nil.
func (m *db) setDefaults(ctx context.Context) error {
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
	if c.SeesAll == nil {
		c.SeesAll = func(tool.Caller) bool { return false }
	}
	return nil
}

// Offer implements module.Module.
func (m *db) Offer(context.Context, module.Audience) (*module.Offer, error) { return &m.offer, nil }

// Close implements module.Module. It does not close the tree.
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
		return dumpOut{}, &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: err.Error(),
			Next:    "Give an empty pointer, or names that each follow a slash; write / and ~ in a name as ~1 and ~0.",
		}
	}
	var v state.View
	switch {
	case m.cfg.SeesAll(c.Caller):
		v = m.cfg.Tree.Read(at)
	case len(at) > 0 && at[0] == "public":
		v = m.cfg.See(c.Caller, at)
	default:
		return dumpOut{}, &tool.Refusal{
			Code:    tool.CodeDenied,
			Message: "only administrators whose credential is not limited to scopes can read outside of /public",
			Next:    "Give a pointer that begins with /public.",
		}
	}
	if !v.Found {
		return dumpOut{}, &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: fmt.Sprintf("the state tree has no value at %.300q", in.Pointer),
			Next:    "Read /public to find its parts.",
		}
	}
	text, err := v.JSON()
	if err == nil && len(text) > maxRead {
		err = &tool.Refusal{
			Code:    tool.CodeTooLarge,
			Message: fmt.Sprintf("%.300q has more than %d bytes", in.Pointer, maxRead),
			Next:    "Give a longer pointer to read a part of it.",
		}
	}
	return dumpOut{ID: string(v.Revision), Value: text}, err
}

type putIn struct {
	Pointer string          `json:"pointer" doc:"the part after /public/ui, such as /theme; empty for all of it" max:"4096" example:"/theme"`
	Value   json.RawMessage `json:"value,omitempty" doc:"any JSON" example:"\"dark\""`
	Remove  bool            `json:"remove,omitempty" doc:"remove the value at pointer"`
}

type putOut struct {
	Pointer string `json:"pointer" doc:"pointer in the whole tree"`
	ID      string `json:"id" doc:"the new revision"`
}

func (m *db) putValue(ctx context.Context, c *tool.Call, in putIn) (putOut, error) {
	if err := m.cfg.Rules.Check(c, "write the state of user interfaces"); err != nil {
		return putOut{}, err
	}
	at, value, err := in.parseInput()
	if err != nil {
		return putOut{}, err
	}
	if _, err := m.cfg.Tree.Update(ctx, UI, state.Any, func(old any) (any, error) {
		if old == nil {
			old = map[string]any{}
		}
		now, err := setAt(old, at, value, in.Remove)
		if err != nil {
			return nil, err
		}
		n, err := valueSize(now)
		if err == nil && n > maxUI {
			err = &tool.Refusal{
				Code: tool.CodeTooLarge,
				Message: fmt.Sprintf("the values below %[2]s would have %[1]d bytes; at most %[3]d are allowed",
					n, UI, maxUI),
				Next: "Remove a value first.",
			}
		}
		return now, err
	}); err != nil {
		if errors.Is(err, state.ErrValue) || errors.Is(err, state.ErrSecret) {
			err = tool.Refuse(tool.CodeInvalidArguments, "%v", err)
		}
		return putOut{}, err
	}
	whole := append(state.Pointer{"public", "ui"}, at...)
	return putOut{whole.String(), string(m.cfg.Tree.Read(whole).Revision)}, nil
}

// parseInput returns the pointer and the decoded value of the arguments.
func (in *putIn) parseInput() (at state.Pointer, value any, err error) {
	if at, err = state.ParsePointer(in.Pointer); err != nil {
		return nil, nil, tool.Refuse(tool.CodeInvalidArguments, "%v", err)
	}
	switch {
	case in.Pointer == UI || strings.HasPrefix(in.Pointer, UI+"/"):
		err = &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: "pointer is relative to " + UI,
			Next:    fmt.Sprintf("Give %q.", strings.TrimPrefix(in.Pointer, UI)),
		}
	case in.Remove == (in.Value != nil):
		err = tool.Refuse(tool.CodeInvalidArguments, "give either value or remove")
	case in.Remove:
	default:
		value, err = in.decodeValue()
	}
	if _, object := value.(map[string]any); err == nil && len(at) == 0 && !in.Remove && !object {
		err = tool.Refuse(tool.CodeInvalidArguments, "the value of %s itself must be an object", UI)
	}
	return at, value, err
}

// decodeValue decodes the value and checks its size as compact JSON, so that escapes and
// blanks in the arguments do not count.
func (in *putIn) decodeValue() (value any, err error) {
	d := json.NewDecoder(bytes.NewReader(in.Value))
	d.UseNumber()
	if err := d.Decode(&value); err != nil {
		return nil, err
	}
	n, err := valueSize(value)
	if err == nil && n > maxValue {
		err = &tool.Refusal{
			Code:    tool.CodeTooLarge,
			Message: fmt.Sprintf("the value has %d bytes; at most %d can be written", n, maxValue),
			Next:    "Write it in parts, each at a longer pointer.",
		}
	}
	return value, err
}

// valueSize returns the length of a value as compact JSON in UTF-8, in which only
// quotes, backslashes and control characters are escaped.
func valueSize(value any) (int, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(value)
	return b.Len() - 1, err // Encode adds a newline
}

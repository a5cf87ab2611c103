// Package shell is the module that runs command lines. It has one tool of its own,
// and two that replace those of other servers.
//
// Lists of patterns can allow and deny commands; package supervisor documents
// what they promise and what they do not. A command has a timeout. When it ends,
// every process that it started has ended too.
package shell

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/exec/shellpolicy"
	"gatehouse/internal/mcp/schema"
	"gatehouse/internal/sandbox"
	"gatehouse/module"
	"gatehouse/tool"
)

// Config is what the module depends on. The zero value is usable.
type Config struct {
	Settings

	// Env returns the environment of commands in the caller's context; nil means
	// an empty one. If it returns an error, the call is refused.
	Env func(tool.Caller) (contextstore.Environment, error)
	// Turn waits until the caller may start a program; done is called when it runs. nil means at once.
	Turn func(ctx context.Context, c tool.Caller) (done func(), err error)
}

const (
	// MaxSeconds is the maximum timeout of a command.
	MaxSeconds     = 3600
	defaultSeconds = 30
	minOutput      = 1 << 10

	grace = 2 * time.Second // between the request to end and the kill
)

// allEffects are the possible effects of a command.
const allEffects = tool.Writes | tool.Destroys | tool.OpenWorld

// runner is the module.
type runner struct {
	offer module.Offer
	cfg   Config
	rules *shellpolicy.Rules
	hints string // why the lists are hints; "" if they are not
	log   *slog.Logger
	tell  func(subject string, fact any)

	driver sandbox.Driver // nil unless commands are confined
}

// New returns what makes the module with a configuration.
func New(cfg Config) module.New {
	return func(ctx context.Context, d module.Deps) (module.Module, error) {
		m := &runner{log: d.Log, tell: d.Publish}
		m.cfg = cfg
		if m.cfg.Turn == nil {
			m.cfg.Turn = func(context.Context, tool.Caller) (func(), error) { return func() {}, nil }
		}
		if m.tell == nil {
			m.tell = func(string, any) {}
		}
		if m.log == nil {
			m.log = slog.New(slog.DiscardHandler)
		}
		if err := m.configure(); err != nil {
			return nil, err
		}
		run := m.runTool()
		if err := m.setDefaultTimeout(&run); err != nil {
			return nil, err
		}
		if m.cfg.Confine {
			if err := m.prepareSandboxes(ctx); err != nil {
				return nil, err
			}
		}
		m.prepareLists(ctx)
		m.offer.Tools = []tool.Tool{run, m.executeTool(), m.systemTool()}
		if !m.cfg.Confine { // a sandbox shows the folders themselves
			tool.StagePrograms(m.offer.Tools)
		}
		return m, nil
	}
}

func (m *runner) configure() (err error) {
	c := &m.cfg
	if c.Timeout == 0 {
		c.Timeout = defaultSeconds * time.Second
	}
	if c.Timeout < time.Second || c.Timeout > MaxSeconds*time.Second || c.Timeout%time.Second != 0 {
		return fmt.Errorf("timeout is %v; expected whole seconds from 1 to %d", c.Timeout, MaxSeconds)
	}
	if c.Shell == "" {
		c.Shell = "/bin/sh"
	}
	if c.Output == 0 {
		c.Output = 1 << 20
	}
	if c.Processes == 0 {
		c.Processes = 512
	}
	if c.Output < minOutput || c.Processes < 1 {
		return fmt.Errorf(
			"output is %d and processes is %d: expected at least %d and 1", c.Output, c.Processes, minOutput,
		)
	}
	m.rules, err = shellpolicy.New(c.Allow, c.Deny)
	return err
}

// seconds returns the default timeout of a command in seconds.
func (m *runner) seconds() int { return int(m.cfg.Timeout / time.Second) }

// setDefaultTimeout puts the configured timeout into the schema of a tool.
func (m *runner) setDefaultTimeout(t *tool.Tool) error {
	if m.seconds() == defaultSeconds {
		return nil
	}
	in, err := schema.For(t.In)
	if err != nil {
		return err
	}
	was, is := fmt.Sprintf(`"default":%d`, defaultSeconds), fmt.Sprintf(`"default":%d`, m.seconds())
	if strings.Count(string(in), was) != 1 {
		return fmt.Errorf("the schema of %s has no default timeout", t.Name)
	}
	t.Input = json.RawMessage(strings.Replace(string(in), was, is, 1))
	return nil
}

// Offer implements module.Module.
func (m *runner) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &m.offer, nil
}

// Close implements module.Module. Commands end with their calls.
func (m *runner) Close(context.Context) error {
	if m.driver != nil {
		return m.driver.Close()
	}
	return nil
}

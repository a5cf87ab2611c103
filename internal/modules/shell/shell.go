// Package shell runs command lines: in one tool of this house, and in two that
// stand in for those of other servers.
//
// Lists of patterns can allow and deny commands; see the command room for what
// they promise and what not. A command has a deadline, and when it ends,
// everything that it started has ended with it.
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

// Config is the module's section of the configuration. The zero value is
// usable: each zero stands for the default.
type Config struct {
	Timeout    int      `json:"timeout,omitempty"`     // seconds of a command that says nothing itself; 0 means 30
	Allow      []string `json:"allow,omitempty"`       // patterns of commands that may run; none means all
	Deny       []string `json:"deny,omitempty"`        // patterns of commands that may not
	Shell      string   `json:"shell,omitempty"`       // name or path; "" means /bin/sh
	WorkingDir string   `json:"working_dir,omitempty"` // where commands begin, inside the roots; "" means the first of them
	NoStderr   bool     `json:"no_stderr,omitempty"`   // what is printed to standard error is thrown away
	Output     int      `json:"output,omitempty"`      // bytes of each stream in an answer; 0 means 1 MiB
	Processes  int      `json:"processes,omitempty"`   // what one command may become, threads included; 0 means 512
	Confine    bool     `json:"confine,omitempty"`     // run commands in sandboxes that can read the caller's folders

	// Env is what commands find in their environment in the caller's context;
	// nil means that there is nothing. Its error refuses the call.
	Env func(tool.Caller) (contextstore.Environment, error) `json:"-"`
}

const (
	// MostSeconds is the longest a command may be given.
	MaxSeconds    = 3600
	defaultSeconds = 30
	minOutput    = 1 << 10

	grace = 2 * time.Second // from the deadline until what is left is killed
)

// anything is what a command may do to the world.
const allEffects = tool.Writes | tool.Destroys | tool.OpenWorld

// runner is the module.
type runner struct {
	offer module.Offer
	cfg   Config
	rules *shellpolicy.Rules
	log   *slog.Logger

	driver sandbox.Driver // nil unless commands are confined
}

// New returns what makes the module with a configuration.
func New(cfg Config) module.New {
	return func(ctx context.Context, d module.Deps) (module.Module, error) {
		m := &runner{log: d.Log}
		m.cfg = cfg
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
		m.offer.Tools = []tool.Tool{run, m.executeTool(), m.systemTool()}
		return m, nil
	}
}

func (m *runner) configure() (err error) {
	c := &m.cfg
	if c.Timeout == 0 {
		c.Timeout = defaultSeconds
	}
	if c.Timeout < 1 || c.Timeout > MaxSeconds {
		return fmt.Errorf("timeout: %d s is not between 1 and %d", c.Timeout, MaxSeconds)
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
		return fmt.Errorf("output is %d and processes is %d: expected at least %d and 1", c.Output, c.Processes, minOutput)
	}
	m.rules, err = shellpolicy.New(c.Allow, c.Deny)
	return err
}

// advertise puts the configured timeout into the schema of shell_run.
func (m *runner) setDefaultTimeout(t *tool.Tool) error {
	if m.cfg.Timeout == defaultSeconds {
		return nil
	}
	in, err := schema.For(t.In)
	if err != nil {
		return err
	}
	was, is := fmt.Sprintf(`"default":%d`, defaultSeconds), fmt.Sprintf(`"default":%d`, m.cfg.Timeout)
	if strings.Count(string(in), was) != 1 {
		return fmt.Errorf("the schema of %s has no default of its timeout", t.Name)
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

package code

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/access/confirm"
	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/files/atomicfile"
	"gatehouse/internal/files/filelock"
	"gatehouse/internal/files/filewatch"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/schema"
	"gatehouse/module"
	"gatehouse/tool"
)

const (
	mostSaved       = 100      // programs of one context
	mostSavedSource = 16 << 10 // bytes of a program, which an approver is shown whole
	mostInput       = 16 << 10 // bytes of the schema of its arguments
	prefix          = "code_"  // of the names of tools
)

// savedProgram is a tool of a context.
type savedProgram struct {
	Context     string          `json:"context"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Language    string          `json:"language"`
	Code        string          `json:"code"`
	Input       json.RawMessage `json:"input"`
	By          string          `json:"by"` // the principal who saved it
	At          time.Time       `json:"at"`
}

// savedPrograms are the programs of all contexts, in a file that hosts share. It is safe for concurrent use.
type savedPrograms struct {
	path string // "" keeps them in memory

	mu  sync.Mutex // guards all and raw, and is held while the file is written
	all []savedProgram
	raw []byte // of the file
}

func openSaved(dir string) (*savedPrograms, error) {
	s := &savedPrograms{}
	if dir == "" {
		return s, nil
	}
	s.path = filepath.Join(dir, "saved.json")
	return s, s.read()
}

// read reads the file. s.mu is held, or no other goroutine has s.
func (s *savedPrograms) read() error {
	if s.path == "" {
		return nil
	}
	b, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var all []savedProgram
	if err := json.Unmarshal(b, &all); err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	s.all, s.raw = all, b
	return nil
}

// reread reads the file again and reports whether another host has changed it.
func (s *savedPrograms) reread() (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.raw
	err = s.read()
	return !bytes.Equal(before, s.raw), err
}

// followSaved offers what other hosts on the same folder save, as soon as they have. If the folder cannot be made or
// watched, it is offered after the next change by this host.
func (m *programs) followSaved(dir string) {
	m.watcher = filewatch.New(m.log)
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		_, err = m.watcher.Watch(dir, func() {
			changed, err := m.saved.reread()
			if err != nil {
				m.report("cannot read the saved programs", err)
			}
			if changed {
				m.deps.Changed(module.Audience{})
			}
		})
	}
	if err != nil {
		m.report("programs that other hosts save are not noticed", err)
	}
}

func (m *programs) report(what string, err error) {
	if m.log != nil {
		m.log.Warn(what, "err", err)
	}
}

// change applies f to the programs and stores them.
func (s *savedPrograms) change(ctx context.Context, f func([]savedProgram) ([]savedProgram, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.path != "" {
		if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
			return err
		}
		l, err := filelock.Wait(ctx, s.path+".lock", filelock.Exclusive)
		if err != nil {
			return err
		}
		defer l.Release()
	}
	if err := s.read(); err != nil {
		return err
	}
	next, err := f(slices.Clone(s.all))
	if err != nil {
		return err
	}
	if s.path != "" {
		b, err := json.Marshal(next)
		if err == nil {
			err = atomicfile.Write(s.path, b)
		}
		if err != nil {
			return err
		}
		s.raw = b
	}
	s.all = next
	return nil
}

// programsOf returns the programs of a context.
func (s *savedPrograms) programsOf(context string) (all []savedProgram) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.all {
		if p.Context == context {
			all = append(all, p)
		}
	}
	return all
}

func (s *savedPrograms) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all) == 0
}

// Offer implements module.Module: the module's own tools, and the programs of the caller's context.
func (m *programs) Offer(_ context.Context, to module.Audience) (*module.Offer, error) {
	if m.saved.empty() {
		return m.offer, nil
	}
	o := &module.Offer{Personal: true, Tools: slices.Clone(m.offer.Tools)}
	for _, p := range m.saved.programsOf(to.Context) {
		o.Tools = append(o.Tools, m.savedTool(p))
	}
	return o, nil
}

// savedTool returns the tool that a program is. What it does depends on the tools that it calls, so it declares no
// effects and counts as destructive.
func (m *programs) savedTool(p savedProgram) tool.Tool {
	t := tool.Tool{Def: tool.Def{
		Name: prefix + p.Name, Description: p.Description, Input: p.Input, Hosts: true, Timeout: longest,
		Help: fmt.Sprintf(
			"A program in %s, saved by %s on %s:\n\n```\n%s\n```",
			p.Language,
			p.By,
			p.At.Format(time.DateOnly),
			p.Code,
		),
	}}
	t.Run = func(ctx context.Context, c *tool.Call) (tool.Result, error) {
		if len(c.State) > 0 {
			return m.again(ctx, c)
		}
		r, err := m.start(ctx, c, languages[p.Language], p.Code, c.Args, m.cfg.Settings.Timeout)
		if err != nil {
			return tool.Result{}, err
		}
		return r.attach(ctx, c)
	}
	t.Out = reflect.TypeFor[runOut]()
	return t
}

type saveIn struct {
	Name        string         `json:"name" doc:"of the tool, which becomes code_NAME" pattern:"^[a-z][a-z0-9_]{0,39}$"`
	Description string         `json:"description" doc:"what it does, for its callers" min:"1" max:"1000"`
	Language    string         `json:"language" enum:"python,javascript,typescript"`
	Code        string         `json:"code" doc:"the program; its arguments are the object args" min:"1" max:"16384" example:"print(args)"`
	Input       map[string]any `json:"input,omitempty" doc:"JSON Schema of its arguments, an object" example:"{\"type\":\"object\"}"`
	Confirm     string         `json:"confirm,omitempty" doc:"the name, if the user has agreed and the client cannot ask"`
}

type savedOut struct {
	Tool string `json:"tool" doc:"the tool"`
}

var savedName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,39}$`)

// saveTool keeps a program as a tool of the caller's context.
func (m *programs) saveTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "code_save", Title: "Save a program", Effects: tool.Writes | tool.Destroys, Task: tool.TaskNever,
		Description: "Keeps a program as a tool of this context, for all of its callers, after the user has " +
			"approved it. It " +
			"replaces a program of that name.",
		Help: "The program gets its arguments, which are checked against the schema, as the object `args`. It runs as " +
			"code_run does, with the tools, rules and limits of its caller: saving it gives no caller further rights.",
	}, func(ctx context.Context, c *tool.Call, in saveIn) (savedOut, error) {
		p, err := in.program(c)
		if err != nil {
			return savedOut{}, err
		}
		question := fmt.Sprintf(
			"Keep this program in %s as the tool %s%s of the context %q? It says: %s\nIts arguments: %s\n%s",
			languages[in.Language].name,
			prefix,
			in.Name,
			c.Caller.Context,
			displaytext.Line(in.Description),
			displaytext.JSON(p.Input),
			displaytext.Text(in.Code),
		)
		if err := confirm.Ask(c, in.Name, question, in.Confirm); err != nil {
			return savedOut{}, err
		}
		err = m.saved.change(ctx, func(all []savedProgram) ([]savedProgram, error) {
			all = slices.DeleteFunc(all, p.replaces)
			n := 0
			for _, o := range all {
				if o.Context == p.Context {
					n++
				}
			}
			if n >= mostSaved {
				return nil, tool.Refuse(tool.CodeBusy, "this context has %d programs, which is the most", mostSaved)
			}
			return append(all, p), nil
		})
		if err != nil {
			return savedOut{}, err
		}
		m.deps.Changed(module.Audience{})
		return savedOut{prefix + in.Name}, nil
	})
}

func (p savedProgram) replaces(o savedProgram) bool {
	return o.Context == p.Context && o.Name == p.Name
}

// program checks what is to be saved.
func (in *saveIn) program(c *tool.Call) (p savedProgram, err error) {
	wrong := func(format string, args ...any) (savedProgram, error) {
		return savedProgram{}, tool.Refuse(tool.CodeInvalidArguments, format, args...)
	}
	if !savedName.MatchString(in.Name) || slices.Contains([]string{"run", "list", "save", "remove"}, in.Name) {
		return wrong("name: a tool of this module has the name %s already", in.Name)
	}
	if len(in.Code) > mostSavedSource {
		return wrong("code: a program of %d bytes; at most %d can be shown for approval", len(in.Code), mostSavedSource)
	}
	if in.Language == "typescript" {
		if _, _, err := javascriptOf(in.Code); err != nil {
			return p, err
		}
	}
	input := json.RawMessage(`{"type":"object","additionalProperties":false}`)
	if in.Input != nil {
		if input, err = json.Marshal(in.Input); err != nil {
			return p, err
		}
	}
	if kind, _ := rawjson.Get(input, "type"); string(kind) != `"object"` {
		return wrong("input: expected a JSON Schema with the type object")
	}
	if len(input) > mostInput {
		return wrong("input: a schema of %d bytes, at most %d are allowed", len(input), mostInput)
	}
	if _, err := schema.Compile(input); err != nil {
		return wrong("input: %v", err)
	}
	return savedProgram{
		Context: c.Caller.Context, Name: in.Name, Description: strings.TrimSpace(in.Description), Language: in.Language,
		Code: in.Code, Input: input, By: c.Caller.Principal, At: time.Now().UTC(),
	}, nil
}

type removeIn struct {
	Name    string `json:"name" doc:"as code_save got it" min:"1" max:"40"`
	Confirm string `json:"confirm,omitempty" doc:"the name, if the user has agreed and the client cannot ask"`
}

// removeTool removes a saved program.
func (m *programs) removeTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "code_remove", Title: "Remove a saved program", Effects: tool.Writes | tool.Destroys,
		Task:        tool.TaskNever,
		Description: "Removes a program that code_save has kept as a tool of this context, after the user has agreed.",
	}, func(ctx context.Context, c *tool.Call, in removeIn) (savedOut, error) {
		gone := savedProgram{Context: c.Caller.Context, Name: in.Name}
		if !slices.ContainsFunc(m.saved.programsOf(c.Caller.Context), gone.replaces) {
			return savedOut{}, tool.Refuse(tool.CodeNotFound, "this context has no program %s", in.Name)
		}
		question := fmt.Sprintf("Remove the tool %s%s from the context %q?", prefix, in.Name, c.Caller.Context)
		if err := confirm.Ask(c, in.Name, question, in.Confirm); err != nil {
			return savedOut{}, err
		}
		err := m.saved.change(ctx, func(all []savedProgram) ([]savedProgram, error) {
			return slices.DeleteFunc(all, gone.replaces), nil
		})
		if err != nil {
			return savedOut{}, err
		}
		m.deps.Changed(module.Audience{})
		return savedOut{prefix + in.Name}, nil
	})
}

package packages

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gatehouse/internal/access/confirm"
	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/packages"
	"gatehouse/tool"
)

type installIn struct {
	ID      string            `json:"id" doc:"what its tools begin with: a-z, 0-9 and -" min:"1" max:"32"`
	Source  string            `json:"source,omitempty" doc:"command, npm:name@version, folder:path or archive:path" default:"command" max:"4096" names:"code"`
	Command string            `json:"command,omitempty" doc:"the program; may be left out where a package.json names it" max:"4096"`
	Args    []string          `json:"args,omitempty" doc:"its arguments"`
	Env     map[string]string `json:"env,omitempty" doc:"its environment; values may refer to secrets: ${secret:NAME}"`
	Start   string            `json:"start,omitempty" doc:"demand: by the first call; always: with this host" enum:"demand,always" default:"demand"`
	Results string            `json:"results,omitempty" doc:"text: leave out structured content and output schemas, for clients that hand models one half of a result" enum:"text"`
	Title   string            `json:"title,omitempty" doc:"for people; left out, what the server says" max:"200"`
	Version string            `json:"version,omitempty" doc:"for people; left out, what the program or the server says" max:"100"`
	Confirm string            `json:"confirm,omitempty" doc:"the id, once the person has agreed; counts where the settings let a caller's word stand (approvals.callers_word)" max:"32"`
}

// installed is the result of a job that installed a package.
type installed struct {
	ID      string   `json:"id"`
	Title   string   `json:"title"`
	Version string   `json:"version,omitempty"`
	Tools   []string `json:"tools"`
	Left    []string `json:"left_out,omitempty"` // each with the reason
	// Warnings say what is wrong with the record, without values.
	Warnings []string `json:"warnings,omitempty"`
}

func (k *keeper) install(_ context.Context, c *tool.Call, in installIn) (jobOut, error) {
	if err := k.ready(c); err != nil {
		return jobOut{}, err
	}
	source, err := packages.ParseSource(in.Source)
	if err != nil {
		return jobOut{}, &tool.Refusal{Code: "invalid_arguments", Message: err.Error()}
	}
	r := packages.Record{
		ID: in.ID, Title: in.Title, Version: in.Version, Source: source, Command: in.Command,
		Args: in.Args, Env: in.Env, Start: in.Start, Results: in.Results, By: c.Caller.Principal,
	}
	if source, err = within(c, source); err != nil {
		return jobOut{}, err
	}
	asked := r.Source
	r.Source = source
	if err := k.cfg.House.Check(&packages.Plan{Record: r}); err != nil {
		return jobOut{}, err
	}
	if err := confirm.Ask(c, in.ID, question(r), in.Confirm); err != nil {
		return jobOut{}, err
	}
	return k.work(c, "installation of package "+in.ID, in.ID, func(ctx context.Context, c *tool.Call, say packages.Tell) (any, error) {
		i, err := k.cfg.House.Install(ctx, packages.Plan{Record: r, Open: opener(c, asked)}, say)
		if err != nil {
			return nil, err
		}
		k.publish("installed", r.ID, c)
		done := result(i)
		if names := r.Readable(); len(names) > 0 {
			done.Warnings = append(done.Warnings, unsealed(names))
		}
		return done, nil
	})
}

func result(i packages.Info) installed {
	return installed{ID: i.ID, Title: i.Public.Title, Version: i.Public.Version, Tools: i.Names, Left: i.Left}
}

// within finds where in the caller's folders a source lies, so that it can be
// found again.
func within(c *tool.Call, s packages.Source) (packages.Source, error) {
	if s.Kind != packages.Folder && s.Kind != packages.Archive {
		return s, nil
	}
	root, name, err := c.Roots.Resolve(s.From)
	if err != nil {
		return s, err
	}
	info, err := root.Stat(name)
	if err != nil {
		return s, &tool.Refusal{Code: "not_found", Message: fmt.Sprintf("source %s: %v", s.From, err)}
	}
	if info.IsDir() != (s.Kind == packages.Folder) {
		return s, tool.Refuse("invalid_arguments", "source %s is no %s", s.From, s.Kind)
	}
	s.From = filepath.Join(root.Name(), name)
	return s, nil
}

// opener opens a source through the folders of the call, so that the kernel
// keeps it in them. The root is a copy, which its taker closes.
func opener(c *tool.Call, s packages.Source) func() (*os.Root, string, error) {
	if s.Kind != packages.Folder && s.Kind != packages.Archive {
		return nil
	}
	return func() (*os.Root, string, error) {
		root, name, err := c.Roots.Resolve(s.From)
		if err != nil {
			return nil, "", err
		}
		own, err := root.OpenRoot(".")
		return own, name, err
	}
}

// question tells the person what would run.
func question(r packages.Record) string {
	what := r.Source.String()
	if r.Command != "" {
		what = fmt.Sprintf("%s, started as %s", what, strings.Join(append([]string{r.Command}, r.Args...), " "))
	}
	what = displaytext.Cut(what, 600, "...")
	text := fmt.Sprintf("Install the package %s (%s)? Its program runs with the rights of this host.", r.ID, what)
	if names := r.Readable(); len(names) > 0 {
		text += " Note: " + unsealed(names)
	}
	return text
}

// unsealed warns of variables that look like secrets and are written out.
func unsealed(names []string) string {
	return fmt.Sprintf("%s looks like a secret and is kept readable in the record and its backups. Keep it with gatehouse secret set NAME, "+
		"and give ${secret:NAME} instead.", strings.Join(names, ", "))
}

type rebuildIn struct {
	ID      string `json:"id" min:"1" max:"32"`
	Source  string `json:"source,omitempty" doc:"another version: npm:name@version; left out, the one it came from" max:"4096" names:"code"`
	Confirm string `json:"confirm,omitempty" doc:"the id, once the person has agreed to another source; counts where the settings let a caller's word stand (approvals.callers_word)" max:"32"`
}

func (k *keeper) rebuild(_ context.Context, c *tool.Call, in rebuildIn) (jobOut, error) {
	if err := k.ready(c); err != nil {
		return jobOut{}, err
	}
	i, err := k.cfg.House.Info(in.ID)
	if err != nil {
		return jobOut{}, err
	}
	if in.Source != "" {
		source, err := packages.ParseSource(in.Source)
		if err != nil {
			return jobOut{}, &tool.Refusal{Code: "invalid_arguments", Message: err.Error()}
		}
		if source, err = within(c, source); err != nil {
			return jobOut{}, err
		}
		in.Source = source.String()
		question := fmt.Sprintf("Install the package %s from %s, where it came from %s before?", in.ID, in.Source, i.Source)
		if err := confirm.Ask(c, in.ID, question, in.Confirm); err != nil {
			return jobOut{}, err
		}
	}
	return k.work(c, "rebuild of package "+in.ID, in.ID, func(ctx context.Context, c *tool.Call, say packages.Tell) (any, error) {
		i, err := k.cfg.House.Rebuild(ctx, in.ID, in.Source, say)
		if err != nil {
			return nil, err
		}
		k.publish("rebuilt", in.ID, c)
		return result(i), nil
	})
}

type removeIn struct {
	ID       string `json:"id" min:"1" max:"32"`
	KeepData bool   `json:"keep_data,omitempty" doc:"leave its data for the next package of that id"`
	Confirm  string `json:"confirm,omitempty" doc:"the id, once the person has agreed; counts where the settings let a caller's word stand (approvals.callers_word)" max:"32"`
}

type removeOut struct {
	Removed string `json:"removed"`
}

func (k *keeper) remove(_ context.Context, c *tool.Call, in removeIn) (removeOut, error) {
	if err := k.ready(c); err != nil {
		return removeOut{}, err
	}
	i, err := k.cfg.House.Info(in.ID)
	if err != nil {
		return removeOut{}, err
	}
	question := fmt.Sprintf("Remove the package %s (%s) with all its data?", in.ID, i.Public.Title)
	if in.KeepData {
		question = fmt.Sprintf("Remove the package %s (%s)? Its data stay.", in.ID, i.Public.Title)
	}
	if err := confirm.Ask(c, in.ID, question, in.Confirm); err != nil {
		return removeOut{}, err
	}
	if err := k.cfg.House.Remove(in.ID, in.KeepData); err != nil {
		return removeOut{}, err
	}
	k.publish("removed", in.ID, c)
	return removeOut{in.ID}, nil
}

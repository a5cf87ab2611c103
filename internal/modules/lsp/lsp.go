// Package lsp is the module that answers questions about code with language servers: definitions, references, types,
// symbols, diagnostics, renaming and the actions of an editor.
//
// There is one server for each folder and language, for all callers. It is started by the first call that needs it,
// stopped when it is idle, and replaced when it crashes, hangs or uses too much memory; the call is then repeated.
// Changes are made with the tool file_edit_all through the caller's own view, so that permissions, protected names,
// undo and watches hold as for every change of a file.
package lsp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"gatehouse/internal/exec/rpc"
	"gatehouse/internal/exec/supervisor"
	"gatehouse/internal/files/filewatch"
	"gatehouse/internal/files/roots"
	"gatehouse/module"
	"gatehouse/tool"
)

// Config is what the module depends on. The zero value is usable.
type Config struct{ Settings }

const (
	maxFile  = 8 << 20 // bytes of a file that a server is given
	pageSize = 3600    // bytes of the text of one page
	lineText = 160     // bytes of the text of a line
)

// service is the module.
type service struct {
	kinds []serverKind
	pool  *pool
	deps  module.Deps
	offer module.Offer
}

// New returns what makes the module with a configuration.
func New(cfg Config) module.New {
	return func(ctx context.Context, d module.Deps) (module.Module, error) {
		m := &service{deps: d}
		var err error
		if m.kinds, err = withSettings(cfg.Servers); err != nil {
			return nil, err
		}
		log := d.Log
		if log == nil {
			log = slog.New(slog.DiscardHandler)
		}
		writable := make([]string, len(cfg.Writable))
		for i, w := range cfg.Writable {
			writable[i] = roots.Expand(w)
		}
		m.pool = &pool{
			log: log, most: cmp.Or(cfg.Most, defaultMost), memory: cmp.Or(cfg.Memory, defaultMemory),
			idle: cmp.Or(cfg.Idle, defaultIdle), writable: writableFolders(writable),
			watcher: filewatch.New(log), servers: map[key]*server{},
		}
		m.pool.tryConfine = supervisor.Available
		m.pool.ctx, m.pool.cancel = context.WithCancel(context.WithoutCancel(ctx))
		m.offer.Tools = []tool.Tool{
			m.definitionTool(), m.referencesTool(), m.hoverTool(), m.symbolsTool(), m.diagnosticsTool(), m.renameTool(),
			m.actionTool(),
		}
		tool.StagePrograms(m.offer.Tools) // what they change goes through file_edit_all
		return m, nil
	}
}

// Offer implements module.Module.
func (m *service) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &m.offer, nil
}

// Close implements module.Module.
func (m *service) Close(context.Context) error {
	m.pool.close()
	return m.pool.watcher.Close()
}

// target is a position in a file, as a caller gives it.
type target struct {
	Path   string `json:"path" names:"path"`
	Line   int    `json:"line,omitempty" min:"0" doc:"from 1"`
	Column int    `json:"column,omitempty" min:"0" doc:"from 1, in characters"`
	Symbol string `json:"symbol,omitempty" max:"1000" doc:"instead of column: a name on that line; without line, the first in the file"`
}

// file is a file of a call, with the content that the caller would see.
type file struct {
	place roots.Place
	path  string // absolute, without links
	*text
	etag string
}

// openFile reads a file of a call.
func (m *service) openFile(c *tool.Call, path string) (*file, error) {
	p, err := roots.Locate(c.Roots, path)
	if err != nil {
		return nil, err
	}
	if p, err = p.Followed(true); err != nil {
		return nil, err
	}
	f, info, err := p.Regular()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info.Size() > maxFile {
		return nil, tool.Refuse(tool.CodeTooLarge, "%s has %d bytes; a language server is given at most %d", path,
			info.Size(), maxFile)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, p.Refuse(err)
	}
	return &file{p, filepath.Join(p.Folder(), p.Name), newText(string(b)), roots.ETag(info, b)}, nil
}

// rootOf returns the folder of the server for a file: the folder of the call, or below the whole file system the
// project that the file belongs to.
func rootOf(f *file) string {
	root := f.place.Folder()
	if filepath.Dir(root) != root {
		return root
	}
	dir := filepath.Dir(f.path)
	for d := dir; filepath.Dir(d) != d; d = filepath.Dir(d) {
		for _, mark := range []string{"go.work", "go.mod", "package.json", "tsconfig.json", "pyproject.toml",
			"Cargo.toml",
			"pom.xml", "Makefile", ".git"} {
			if _, err := os.Lstat(filepath.Join(d, mark)); err == nil {
				return d
			}
		}
	}
	return dir
}

// query opens a file and runs f with a server that has its content.
func (m *service) query(ctx context.Context, c *tool.Call, path string, f func(*server, *file) error) error {
	doc, err := m.openFile(c, path)
	if err != nil {
		return err
	}
	kind, err := m.kindOf(doc.path)
	if err != nil {
		return err
	}
	var in *view
	if w := roots.ViewOf(c.Roots); w != nil {
		in = &view{task: c.Task, root: doc.place.Root, space: w.Space}
	} else if l := doc.place.Layer(); l != nil {
		in = &view{task: c.Task, layer: l}
	}
	err = m.pool.with(ctx, rootOf(doc), kind, in, func(s *server) error {
		if _, _, err := s.sync(ctx, in, doc.path, doc.content); err != nil {
			return err
		}
		return f(s, doc)
	})
	return refuse(err)
}

// refuse words what a server answered for the caller.
func refuse(err error) error {
	if e, ok := errors.AsType[*rpc.Error](err); ok {
		return &tool.Refusal{
			Code: tool.CodeFailed, Message: "the language server refused: " + e.Message,
			Next: "Check line, column and symbol.",
		}
	}
	return err
}

// at returns the position that a target names in a file.
func (t target) at(s *server, f *file) (at, error) {
	line, column := t.Line, max(t.Column, 1)
	if t.Symbol != "" {
		var ok bool
		if line, column, ok = f.findWord(t.Symbol, t.Line); !ok {
			where := "the file"
			if t.Line > 0 {
				where = fmt.Sprintf("line %d: %s", t.Line, cutText(f.line(t.Line-1)))
			}
			return at{}, tool.Refuse(tool.CodeNotFound, "symbol %q is not a word in %s", t.Symbol, where)
		}
	}
	if line < 1 || line > len(f.lines) {
		return at{}, tool.Refuse(tool.CodeInvalidArguments, "line is %d; expected 1 to %d, or symbol", line,
			len(f.lines))
	}
	return at{textDocument{URI: uriOf(f.path)}, f.at(line, column, s.encoding)}, nil
}

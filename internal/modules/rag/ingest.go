package rag

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/files/extract"
	"gatehouse/internal/files/index"
	"gatehouse/internal/files/language"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/files/walk"
	"gatehouse/tool"
)

const ingestHelp = `Makes the files below a directory, or one file, searchable with rag_query. path is relative to your first root.

- Text and code in every language, Markdown, HTML, PDF, Word, PowerPoint, Excel, EPUB, mail (eml) and notebooks are
  read. Other files, binary
  files and files over 8 MB (documents over 32 MB) are skipped. Files that .gitignore excludes are skipped unless all
  is set. glob selects: *.md,!vendor/**
- Called again, it reads only files whose size or time changed, stores those whose content changed, removes those
  that are gone, and follows renames. With glob nothing is removed.
- An ingest that was interrupted continues where it was when it is called again.
- recreate deletes the collection first; it is needed after a change of the embedder.
- shared lets the other callers of your context query the collection. They see files that they may read themselves.
- background returns a job at once: follow it with job_wait. Otherwise the call ends with the ingest.
- watch returns a job that ingests, and again after each change below path, until job_cancel ends it. It ends with the
  host, too: call again then, which reads only what has changed.`

// Limits of one ingest.
const (
	maxFiles       = 500_000
	convertTimeout = 20 * time.Second // for one document
)

type ingestIn struct {
	Path       string `json:"path" doc:"directory or file" names:"path"`
	Collection string `json:"collection,omitempty" default:"documents" min:"1" max:"100"`
	Recreate   bool   `json:"recreate,omitempty" doc:"delete the collection first"`
	Glob       string `json:"glob,omitempty" doc:"such as *.md,!vendor/**"`
	All        bool   `json:"all,omitempty" doc:"also files ignored by .gitignore"`
	Shared     *bool  `json:"shared,omitempty" doc:"let the callers of this context query it"`
	Background bool   `json:"background,omitempty" doc:"return a job at once"`
	Watch      bool   `json:"watch,omitempty" doc:"return a job that follows the changes below path until it is cancelled"`
}

type ingestOut struct {
	Success    bool     `json:"success"`
	Path       string   `json:"path"`
	Collection string   `json:"collection"`
	Chunks     int      `json:"chunks" doc:"written by this call"`
	Message    string   `json:"message,omitempty"`
	Files      int      `json:"files"`
	Added      int      `json:"added,omitempty"`
	Changed    int      `json:"changed,omitempty"`
	Unchanged  int      `json:"unchanged,omitempty"`
	Renamed    int      `json:"renamed,omitempty"`
	Removed    int      `json:"removed,omitempty"`
	Skipped    int      `json:"skipped,omitempty" doc:"without text"`
	Failed     int      `json:"failed,omitempty"`
	Problems   []string `json:"problems,omitempty" doc:"of the first files that failed"`
	Job        string   `json:"job,omitempty"`
}

func (k *knowledge) ingest(ctx context.Context, c *tool.Call, in ingestIn) (ingestOut, error) {
	if in.Watch {
		return k.startFollowing(c, in)
	}
	if !in.Background || k.deps.Job == nil {
		return k.runIngest(ctx, c, in, fileProgress(c))
	}
	id, err := k.deps.Job(c, "ingest "+in.Path, func(ctx context.Context, c *tool.Call) (tool.Result, error) {
		out, err := k.runIngest(ctx, c, in, fileProgress(c))
		if err != nil {
			return tool.Result{}, err
		}
		return tool.Typed(out), nil
	})
	if err != nil {
		return ingestOut{}, err
	}
	return ingestOut{Success: true, Path: in.Path, Collection: in.Collection, Job: id, Message: "it has begun"}, nil
}

// fileProgress returns a function that reports the files of an ingest as the progress of its call.
func fileProgress(c *tool.Call) func(done, total int, note string) {
	return func(done, total int, note string) { c.Peer.Progress(float64(done), float64(total), note) }
}

func (k *knowledge) runIngest(
	ctx context.Context, c *tool.Call, in ingestIn, progress func(done, total int, note string),
) (ingestOut, error) {
	src, err := newSource(c, in)
	if err != nil {
		return ingestOut{}, err
	}
	if err := src.list(ctx); err != nil {
		return ingestOut{}, src.place.Refuse(err)
	}
	if len(src.items) == 0 && (in.Recreate || in.Glob != "") {
		return ingestOut{}, &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: fmt.Sprintf("no files are selected below %q; the collection is unchanged", in.Path),
			Next:    "Check path and glob, or set all for files that .gitignore excludes.",
		}
	}
	r, col, err := k.store.Ingest(ctx, index.Ingest{
		Owner: c.Caller.Owner, Name: in.Collection, Below: src.below, Items: src.items,
		Partial: in.Glob != "" || src.incomplete, Recreate: in.Recreate,
		Read:     func(ctx context.Context, it index.Item) (index.Document, error) { return k.read(ctx, src, it) },
		Progress: progress,
	})
	if err != nil {
		return ingestOut{}, refuse(in.Collection, err)
	}
	if in.Shared != nil {
		with := ""
		if *in.Shared {
			with = c.Caller.Context
		}
		if err := k.store.Share(ctx, col, with); err != nil {
			return ingestOut{}, err
		}
	}
	return newIngestOut(in, r, k.store.Durable(), src), nil
}

func newIngestOut(in ingestIn, r index.Report, durable bool, src *source) ingestOut {
	out := ingestOut{
		Success: r.Failed == 0, Path: in.Path, Collection: in.Collection, Chunks: r.Chunks, Files: r.Files,
		Added: r.Added, Changed: r.Changed, Unchanged: r.Unchanged, Renamed: r.Renamed, Removed: r.Removed,
		Skipped: r.Skipped, Failed: r.Failed, Problems: r.Problems,
	}
	var notes []string
	if r.Failed > 0 {
		notes = append(notes, fmt.Sprintf("%d files could not be read; what was stored of them stays", r.Failed))
	}
	if src.incomplete {
		notes = append(notes, "some directories could not be read, so that nothing was removed")
	}
	if !durable {
		notes = append(notes, "this host has no data folder; the collection is lost when the host stops")
	}
	out.Message = strings.Join(notes, "; ")
	return out
}

// source is the files of one ingest, through the roots of its call.
type source struct {
	place      roots.Place
	below      string // absolute
	globs      walk.Globs
	all        bool
	single     bool // place is a file
	incomplete bool

	mu    sync.Mutex
	items []index.Item
}

func newSource(c *tool.Call, in ingestIn) (*source, error) {
	p, err := roots.Locate(c.Roots, in.Path)
	if err != nil {
		return nil, err
	}
	if p, err = p.Followed(true); err != nil {
		return nil, err
	}
	info, err := p.Stat()
	if err != nil {
		return nil, err
	}
	s := &source{place: p, all: in.All, below: filepath.Join(p.Folder(), p.Name)}
	if s.globs, err = walk.ParseGlobs(walk.SplitGlobs(in.Glob)); err != nil {
		return nil, &tool.Refusal{Code: tool.CodeInvalidArguments, Message: err.Error()}
	}
	if info.IsDir() {
		return s, nil
	}
	s.single = true
	return s, p.MustBeRegular(info)
}

var errTooManyFiles = &tool.Refusal{
	Code:    tool.CodeTooMany,
	Message: fmt.Sprintf("there are more than %d files", maxFiles),
	Next:    "Ingest a directory below it, or select files with glob.",
}

// list finds the files.
func (s *source) list(ctx context.Context) error {
	if s.single {
		f, info, err := s.place.Regular()
		if err != nil {
			return err
		}
		s.items = []index.Item{{Path: s.below, Size: info.Size(), Modified: info.ModTime()}}
		return f.Close()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	options := walk.Options{Root: s.place.Tree(), Start: filepath.ToSlash(s.place.Name), All: s.all}
	stats, err := walk.Walk(ctx, options, func(_ int, d *walk.Dir, entries []walk.Entry) {
		for _, e := range entries {
			rel := d.Join(e.Name)
			if !e.Type.IsRegular() || !s.globs.Match(rel, e.Name) || s.place.Refuses(rel) {
				continue
			}
			info, err := e.Info()
			if err != nil {
				continue // it was removed meanwhile
			}
			s.mu.Lock()
			s.items = append(s.items, index.Item{
				Path: filepath.Join(s.below, filepath.FromSlash(rel)), Size: info.Size(), Modified: info.ModTime(),
			})
			if len(s.items) > maxFiles {
				cancel(errTooManyFiles)
			}
			s.mu.Unlock()
		}
	})
	s.incomplete = stats.Unreadable > 0
	slices.SortFunc(s.items, func(a, b index.Item) int { return strings.Compare(a.Path, b.Path) })
	return err
}

// open opens a file that list found, again through the root, because it may have been replaced since.
func (s *source) open(path string) (*os.File, os.FileInfo, error) {
	p := s.place
	if !s.single {
		rel, err := filepath.Rel(s.below, path)
		if err != nil {
			return nil, nil, err
		}
		p.Name, p.Path = filepath.Join(p.Name, rel), path
	}
	return p.Regular()
}

// read returns the text of a file.
func (k *knowledge) read(ctx context.Context, s *source, it index.Item) (d index.Document, err error) {
	f, info, err := s.open(it.Path)
	if err != nil {
		return d, err
	}
	defer f.Close()
	head := make([]byte, language.HeadSize)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return d, err
	}
	head = head[:n]
	kind := extract.KindOf(it.Path, head)
	most := int64(index.MaxText)
	if kind != "" {
		most = extract.MostIn
	}
	if info.Size() > most {
		return d, nil // its hash stays zero: without text it is not stored
	}
	if kind == "" && isBinary(head) {
		return d, nil
	}
	content, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return d, err
	}
	d.Hash = sha256.Sum256(content)
	switch w, wide := extract.WideOf(head); {
	case kind != "":
		d.Text, err = convert(ctx, kind, content)
		if d.Language = "plaintext"; kind.Marked() {
			d.Language = "markdown"
		}
	case wide:
		d.Text, _ = w.Decode(content[len(w.Mark):])
		d.Language, _ = language.Detect(it.Path, d.Text)
	default:
		d.Text = content
		d.Language, _ = language.Detect(it.Path, head)
	}
	return d, err
}

// isBinary reports whether the beginning of a file is not text.
func isBinary(head []byte) bool {
	return !extract.IsWide(head) && bytes.IndexByte(head, 0) >= 0
}

// convert reads a document as text.
func convert(ctx context.Context, kind extract.Kind, content []byte) ([]byte, error) {
	text, _, err := extract.Text(ctx, convertTimeout, kind, bytes.NewReader(content), int64(len(content)))
	if err != nil {
		return nil, fmt.Errorf("it cannot be read as %s: %w", kind, err)
	}
	return []byte(text), nil
}

// Package rag is the module with which agents search documents and code by meaning and by words, and get passages
// that they can cite.
package rag

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gatehouse/internal/files/embed"
	"gatehouse/internal/files/filewatch"
	"gatehouse/internal/files/index"
	"gatehouse/internal/files/vectorstore"
	"gatehouse/module"
	"gatehouse/tool"
)

// Settings are the settings of the module, which the configuration of a host embeds.
type Settings struct {
	Embedder embed.Settings         `doc:"The model that makes the vectors of texts and questions. Collections that another one made are refused until they are made again. The search for tools uses it too."`
	Store    vectorstore.Settings   `doc:"A server that keeps the vectors of the embedder, for more than one machine holds. Words and texts stay on this host."`
	Reranker embed.RerankerSettings `doc:"A cross-encoder that orders the best 30 passages of each question once more. They are sent to its server."`
}

// Validate returns what is wrong with the settings, and where.
func (s Settings) Validate() (where string, err error) {
	if err := s.Embedder.Validate(); err != nil {
		return "embedder", err
	}
	if s.Store.Kind != "" && s.Embedder.Kind == "" {
		return "store", errors.New("it keeps the vectors of an embedder; expected modules.rag.embedder, too")
	}
	if err := s.Store.Validate(); err != nil {
		return "store", err
	}
	return "reranker", s.Reranker.Validate()
}

// Config is what the module is given.
type Config struct {
	// Store has the collections. The module does not close it; nil means a store in memory.
	Store *index.Store `json:"-"`
}

type knowledge struct {
	store *index.Store
	own   bool // the store is closed with the module
	deps  module.Deps
	offer module.Offer

	watcher *filewatch.Watcher
	ctx     context.Context // ends with the module, and with it the jobs that follow folders
	cancel  context.CancelFunc
}

// ingestTimeout is the limit of one ingest.
const ingestTimeout = 6 * time.Hour

// New returns what makes the module with a configuration.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		k := &knowledge{store: cfg.Store, deps: d, watcher: filewatch.New(d.Log)}
		k.ctx, k.cancel = context.WithCancel(context.Background())
		if k.store == nil {
			k.store, k.own = index.Open("", index.Options{}), true
		}
		k.offer.Tools = []tool.Tool{
			tool.New(tool.Def{
				Name: "rag_query", Title: "Search documents", Effects: tool.Reads, Budget: -1,
				Aliases: []string{"rag_search", "rag_retrieve"},
				Description: "Finds passages in ingested files that answer a question. Cites path and lines, and says " +
					"when the evidence is weak or a file has changed.",
				Help: queryHelp,
			}, k.query),
			tool.New(tool.Def{
				Name: "rag_ingest", Title: "Ingest documents", Effects: tool.Reads | tool.Writes | tool.Idempotent,
				Timeout: ingestTimeout, Aliases: []string{"rag_index"},
				Description: "Makes the files below a path searchable with rag_query. Repeat it to bring the " +
					"collection up to date: only changed files are read.",
				Help: ingestHelp,
			}, k.ingest),
			tool.New(tool.Def{
				Name: "rag_collections", Title: "List collections", Effects: tool.Reads,
				Description: "Lists your collections of ingested files, and those shared with you.",
			}, k.collections),
			tool.New(tool.Def{
				Name: "rag_delete", Title: "Delete a collection",
				Effects:     tool.Writes | tool.Destroys | tool.Idempotent,
				Description: "Deletes one of your collections. The files themselves stay.",
			}, k.remove),
			tool.New(tool.Def{
				Name: "rag_export", Title: "Export a collection", Effects: tool.Reads | tool.Writes,
				Timeout: ingestTimeout,
				Description: "Writes the chunks of a collection to a file, one JSON object per line, with path, lines " +
					"and headings.",
			}, k.export),
		}
		return k, nil
	}
}

// Offer implements module.Module.
func (k *knowledge) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &k.offer, nil
}

// Close implements module.Module.
func (k *knowledge) Close(context.Context) error {
	k.cancel()
	err := k.watcher.Close()
	if k.own {
		err = errors.Join(err, k.store.Close())
	}
	return err
}

// EndOwned implements module.Owned: it deletes the collections of removed owners.
func (k *knowledge) EndOwned(ctx context.Context, match func(owner string, made time.Time) bool) (ended []string) {
	err := k.store.Owned(ctx, func(c index.Collection) (string, bool) {
		if !match(c.Owner, c.Made) {
			return "", false
		}
		ended = append(ended, "collection "+c.Name)
		return "", true
	})
	k.report("cannot delete the collections of a removed user", err)
	return ended
}

// HandOver implements module.Transferable.
func (k *knowledge) HandOver(ctx context.Context, heir module.Heir) (handed []string) {
	err := k.store.Owned(ctx, func(c index.Collection) (string, bool) {
		to := heir(c.Owner, c.Made)
		if to != "" {
			handed = append(handed, "collection "+c.Name)
		}
		return to, false
	})
	k.report("cannot hand over collections", err)
	return handed
}

func (k *knowledge) report(what string, err error) {
	if err != nil && k.deps.Log != nil {
		k.deps.Log.Error(what, "err", err)
	}
}

// refuse makes a refusal of an error of the store.
func refuse(name string, err error) error {
	pinned, isPinned := errors.AsType[*index.Pinned](err)
	switch {
	case isPinned:
		return &tool.Refusal{
			Code:    tool.CodeUnsupported,
			Message: pinned.Error(),
			Next: "Vectors of different kinds cannot be compared: call rag_ingest with recreate, " +
				"or use another collection.",
		}
	case errors.Is(err, index.ErrNotFound):
		return &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: fmt.Sprintf("there is no collection %q", name),
			Next:    "rag_collections lists those that exist; rag_ingest makes one.",
		}
	case errors.Is(err, index.ErrBusy):
		return &tool.Refusal{
			Code:    tool.CodeBusy,
			Message: fmt.Sprintf("collection %q is being changed by another call", name),
			Next:    "Call again when that has ended. rag_query can be used meanwhile.",
		}
	case errors.Is(err, index.ErrTooMany):
		return &tool.Refusal{Code: tool.CodeTooMany, Message: err.Error(), Next: "Delete one with rag_delete."}
	}
	return err
}

type collectionsIn struct {
	Stats bool `json:"show_stats,omitempty" doc:"count files and chunks"`
}

type collectionsOut struct {
	Collections []collectionOut `json:"collections"`
}

type collectionOut struct {
	Name     string        `json:"name"`
	Points   int           `json:"points_count" doc:"chunks"`
	Status   string        `json:"status" doc:"green; yellow if rag_ingest has to be called with recreate"`
	Files    int           `json:"files,omitempty"`
	Bytes    int64         `json:"bytes,omitempty"`
	Embedder string        `json:"embedder,omitempty"`
	Changed  string        `json:"changed,omitempty"`
	Shared   bool          `json:"shared,omitempty" doc:"the callers of this context can query it"`
	Foreign  bool          `json:"foreign,omitempty" doc:"it belongs to another caller"`
	Tuned    *index.Tuning `json:"tuned,omitempty" doc:"how words and vectors are combined, and how well it finds its own headings"`
}

func (k *knowledge) collections(ctx context.Context, c *tool.Call, in collectionsIn) (collectionsOut, error) {
	out := collectionsOut{Collections: []collectionOut{}}
	all, err := k.store.List(ctx, c.Caller.Owner, c.Caller.Context)
	if err != nil {
		return out, err
	}
	for _, col := range all {
		o := collectionOut{Name: col.Name, Shared: col.Shared != "", Foreign: col.Owner != c.Caller.Owner}
		if in.Stats {
			if err := k.store.Stats(ctx, &col); err != nil {
				return out, err
			}
			o.Points, o.Files, o.Bytes, o.Embedder, o.Tuned = col.Chunks, col.Files, col.Bytes, col.Embedder, col.Tuned
			o.Changed = col.Changed.Format(time.RFC3339)
			if o.Status = "green"; k.store.Matches(col) != nil {
				o.Status = "yellow"
			}
		}
		out.Collections = append(out.Collections, o)
	}
	return out, nil
}

type removeIn struct {
	Collection string `json:"collection" min:"1" max:"100"`
}

type removeOut struct {
	Success    bool   `json:"success"`
	Collection string `json:"collection"`
}

func (k *knowledge) remove(ctx context.Context, c *tool.Call, in removeIn) (removeOut, error) {
	col, err := k.store.Find(ctx, c.Caller.Owner, "", in.Collection)
	if err == nil {
		err = k.store.Delete(ctx, col)
	}
	if err != nil {
		return removeOut{}, refuse(in.Collection, err)
	}
	return removeOut{true, in.Collection}, nil
}

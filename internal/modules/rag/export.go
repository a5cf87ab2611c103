package rag

import (
	"bufio"
	"context"
	"encoding/json"
	"os"

	"gatehouse/internal/files/index"
	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

type exportIn struct {
	Collection string `json:"collection,omitempty" default:"documents" min:"1" max:"100"`
	Path       string `json:"path" doc:"of the file to write, which must not exist" names:"path"`
}

type exportOut struct {
	Success    bool   `json:"success"`
	Path       string `json:"path"`
	Collection string `json:"collection"`
	Chunks     int    `json:"chunks"`
}

type exported struct {
	Source  string `json:"source"`
	Line    int    `json:"line"`
	Last    int    `json:"last"`
	Page    int    `json:"page,omitempty"`
	Section string `json:"section,omitempty"`
	Chunk   int    `json:"chunkIndex"`
	Text    string `json:"text"`
}

func (k *knowledge) export(ctx context.Context, c *tool.Call, in exportIn) (out exportOut, err error) {
	col, err := k.store.Find(ctx, c.Caller.Owner, c.Caller.Context, in.Collection)
	if err != nil {
		return out, refuse(in.Collection, err)
	}
	p, err := roots.Locate(c.Roots, in.Path)
	if err != nil {
		return out, err
	}
	f, err := p.Open(os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return out, err
	}
	v := newViewer(c, col)
	allowed := map[string]bool{}
	w := bufio.NewWriter(f)
	encode := json.NewEncoder(w)
	out = exportOut{Path: in.Path, Collection: in.Collection}
	err = k.store.Each(ctx, col, func(h index.Hit) error {
		ok, known := allowed[h.File.Path]
		if !known {
			ok = v.allow(h.File)
			allowed[h.File.Path] = ok
		}
		if !ok {
			return nil
		}
		out.Chunks++
		return encode.Encode(exported{v.shown(h.File.Path), h.Line, h.Last, h.Page, h.Heading, h.Chunk, h.Text})
	})
	if err == nil {
		err = w.Flush()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return exportOut{}, p.Refuse(err)
	}
	out.Success = true
	return out, nil
}

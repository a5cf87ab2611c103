// Package notes is a module that keeps short notes: two tools, and a resource for each note that clients can follow.
//
// A program gives it to a host with gatehouse.WithModule("notes", notes.New). Notes are kept in memory and end with
// the module.
package notes

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"

	"gatehouse/module"
	"gatehouse/tool"
)

// Config is the section that a program gives by gatehouse.WithModuleConfig.
type Config struct {
	Most int `json:"most"` // how many notes are kept; 0 means 100
}

// scheme begins the URI of each note.
const scheme = "notes://"

type notes struct {
	most    int
	changed func(module.Audience)

	mu       sync.Mutex
	texts    map[string]string
	watchers map[int]watcher
	last     int // number of the newest watcher
}

type watcher struct {
	uri     string
	changed func(json.RawMessage)
}

// New makes the module. It implements module.New.
func New(_ context.Context, d module.Deps) (module.Module, error) {
	var c Config
	if err := d.Config(&c); err != nil {
		return nil, err
	}
	if c.Most == 0 {
		c.Most = 100
	}
	return &notes{
		most: c.Most, changed: d.Changed, texts: map[string]string{}, watchers: map[int]watcher{},
	}, nil
}

type write struct {
	Name string `json:"name" doc:"name of the note" pattern:"^[a-z0-9-]{1,40}$"`
	Text string `json:"text" doc:"what it says; an empty text removes the note" max:"10000"`
}

type written struct {
	URI string `json:"uri"`
}

type find struct {
	Word string `json:"word" doc:"word that the note contains" min:"1"`
}

type found struct {
	Names []string `json:"names"`
}

// Offer implements module.Module. The list of resources follows the notes.
func (n *notes) Offer(context.Context, module.Audience) (*module.Offer, error) {
	o := &module.Offer{Tools: []tool.Tool{
		tool.New(tool.Def{
			Name:        "note_write",
			Description: "Writes a note, or removes it if the text is empty.",
			Effects:     tool.Reads | tool.Writes | tool.Destroys | tool.Idempotent,
		}, n.write),
		tool.New(tool.Def{
			Name:        "note_find",
			Description: "Lists the notes that contain a word.",
			Effects:     tool.Reads,
		}, n.find),
	}}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(n.texts)) {
		o.Resources = append(o.Resources, module.Resource{
			URI: scheme + name, Name: name, Read: n.read, Watch: n.watch,
		})
	}
	return o, nil
}

// Close implements module.Module.
func (n *notes) Close(context.Context) error { return nil }

func (n *notes) write(_ context.Context, _ *tool.Call, in write) (written, error) {
	uri := scheme + in.Name
	n.mu.Lock()
	_, existed := n.texts[in.Name]
	switch {
	case in.Text == "":
		delete(n.texts, in.Name)
	case !existed && len(n.texts) >= n.most:
		n.mu.Unlock()
		return written{}, &tool.Refusal{
			Code: tool.CodeTooMany, Message: "there are as many notes as may be kept",
			Next: "Remove one: write it with an empty text.",
		}
	default:
		n.texts[in.Name] = in.Text
	}
	listed := existed != (in.Text != "")
	var follow []func(json.RawMessage)
	for _, w := range n.watchers {
		if w.uri == uri {
			follow = append(follow, w.changed)
		}
	}
	n.mu.Unlock()
	for _, changed := range follow {
		changed(nil)
	}
	if listed {
		n.changed(module.Audience{})
	}
	return written{uri}, nil
}

func (n *notes) find(_ context.Context, _ *tool.Call, in find) (found, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := found{Names: []string{}}
	for _, name := range slices.Sorted(maps.Keys(n.texts)) {
		if strings.Contains(n.texts[name], in.Word) {
			all.Names = append(all.Names, name)
		}
	}
	return all, nil
}

func (n *notes) read(_ context.Context, c *tool.Call) (tool.Result, error) {
	n.mu.Lock()
	text, ok := n.texts[strings.TrimPrefix(c.Name, scheme)]
	n.mu.Unlock()
	if !ok {
		return tool.Result{}, tool.Refuse(tool.CodeNotFound, "there is no note %s", c.Name)
	}
	return tool.Result{Content: []tool.Content{tool.TextResource(c.Name, "text/plain", text)}}, nil
}

// watch implements module.Watch.
func (n *notes) watch(_ tool.Caller, uri string, changed func(json.RawMessage)) (stop func(), err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	id := n.last
	n.watchers[id] = watcher{uri, changed}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.watchers, id)
	}, nil
}

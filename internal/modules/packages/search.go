package packages

import (
	"context"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/packages/catalog"
	"gatehouse/tool"
)

type searchIn struct {
	Word    string   `json:"word" doc:"words that must occur in the name, title or description" min:"1" max:"200"`
	Limit   int      `json:"limit,omitempty" doc:"maximum of hits" default:"10" min:"1" max:"100"`
	Sources []string `json:"sources,omitempty" doc:"registry, docker, files, npm, pypi, crates; default: all" max:"6"`
	Offline bool     `json:"offline,omitempty" doc:"ask no server; answer from the cache"`
}

type searchOut struct {
	Hits    []hitOut    `json:"hits" doc:"best first"`
	Sources []sourceOut `json:"sources"`
}

type hitOut struct {
	Name        string   `json:"name"`
	Title       string   `json:"title,omitempty"`
	Description string   `json:"description,omitempty"`
	Version     string   `json:"version,omitempty"`
	Found       string   `json:"found" doc:"kind of the source"`
	Downloads   int64    `json:"downloads,omitempty" doc:"in a month"`
	Facts       []string `json:"facts" doc:"publisher, source, age, what it asks for"`
	Source      string   `json:"source,omitempty" doc:"for package_install"`
	Command     []string `json:"command,omitempty" doc:"program and arguments, for package_install"`
	Missing     string   `json:"missing,omitempty" doc:"why this host cannot install it"`
}

type sourceOut struct {
	Kind    string `json:"kind"`
	From    string `json:"from"`
	Hits    int    `json:"hits"`
	Offline bool   `json:"offline,omitempty" doc:"the answer is from the cache"`
	At      string `json:"at,omitempty" doc:"time of the cached listing"`
	Error   string `json:"error,omitempty"`
	Note    string `json:"note,omitempty" doc:"what the source could not be asked, such as a word where it only knows names"`
}

func (k *manager) search(ctx context.Context, c *tool.Call, in searchIn) (searchOut, error) {
	out := searchOut{Hits: []hitOut{}, Sources: []sourceOut{}}
	if err := k.checkOperator(c); err != nil {
		return out, err
	}
	if k.cfg.Catalog == nil {
		return out, tool.Refuse(tool.CodeUnsupported, "this host has no catalog to search")
	}
	q := catalog.Query{Word: in.Word, Limit: in.Limit, Kinds: in.Sources, Offline: in.Offline}
	r, err := k.cfg.Catalog.Search(ctx, q)
	if err != nil {
		return out, &tool.Refusal{Code: tool.CodeInvalidArguments, Message: err.Error()}
	}
	now := time.Now()
	for _, e := range r.Entries {
		out.Hits = append(out.Hits, hit(e, now))
	}
	for _, s := range r.Sources {
		out.Sources = append(out.Sources, sourceOut{s.Kind, s.From, s.Found, s.Offline, stamp(s.At), s.Error, s.Note})
	}
	return out, nil
}

// hit shows an entry. Inputs that the user has to give are left out of its command.
func hit(e catalog.Entry, now time.Time) hitOut {
	out := hitOut{
		Name: e.Name, Title: e.Title, Description: e.Description, Version: e.Version, Found: e.Kind,
		Downloads: e.Downloads,
	}
	p, err := e.Installable(nil)
	out.Facts = e.Facts(p, now)
	if err != nil {
		out.Missing = err.Error()
		return out
	}
	without := func(in catalog.Input) ([]string, secret.Text, bool, error) {
		if in.Required && len(in.Choices) > 0 {
			return in.Choices[:1], secret.Text{}, true, nil
		}
		return []string{""}, secret.Text{}, in.Required, nil
	}
	w, err := e.Wish("x", p, without)
	if err != nil {
		out.Missing = err.Error()
		return out
	}
	out.Source = w.Source.String()
	if w.Command != "" {
		out.Command = append([]string{w.Command}, w.Args...)
	}
	return out
}

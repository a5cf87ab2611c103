package catalog

import (
	"encoding/json"
	"errors"
	"time"
)

// serverJSON is a server.json: the part of a registry's entry that its publisher writes.
type serverJSON struct {
	Name        string `json:"name"`
	Title       string `json:"title"`
	Description string `json:"description"`
	Version     string `json:"version"`
	Status      string `json:"status"` // of older schemas
	WebsiteURL  string `json:"websiteUrl"`
	Repository  struct {
		URL string `json:"url"`
	} `json:"repository"`
	Packages []packageJSON `json:"packages"`
	Remotes  []struct {
		URL string `json:"url"`
	} `json:"remotes"`
}

type packageJSON struct {
	RegistryType    string `json:"registryType"`
	OldRegistryType string `json:"registry_type"` // of older schemas
	RegistryBaseURL string `json:"registryBaseUrl"`
	Identifier      string `json:"identifier"`
	Version         string `json:"version"`
	FileSHA256      string `json:"fileSha256"`
	Transport       struct {
		Type string `json:"type"`
	} `json:"transport"`
	PackageArguments     []inputJSON `json:"packageArguments"`
	EnvironmentVariables []inputJSON `json:"environmentVariables"`
}

type inputJSON struct {
	Type        string   `json:"type"`
	Name        string   `json:"name"`
	ValueHint   string   `json:"valueHint"`
	Description string   `json:"description"`
	Format      string   `json:"format"`
	Value       string   `json:"value"`
	Default     string   `json:"default"`
	Choices     []string `json:"choices"`
	IsRequired  bool     `json:"isRequired"`
	IsSecret    bool     `json:"isSecret"`
	Variables   map[string]struct {
		Default    string `json:"default"`
		IsSecret   bool   `json:"isSecret"`
		IsRequired bool   `json:"isRequired"`
		Format     string `json:"format"`
	} `json:"variables"`
}

// official is what a registry adds to an entry.
type official struct {
	Meta struct {
		Official struct {
			Status        string    `json:"status"`
			StatusMessage string    `json:"statusMessage"`
			PublishedAt   time.Time `json:"publishedAt"`
			UpdatedAt     time.Time `json:"updatedAt"`
			IsLatest      *bool     `json:"isLatest"`
		} `json:"io.modelcontextprotocol.registry/official"`
	} `json:"_meta"`
}

var errNoName = errors.New("the entry has no name")

// parseServer reads a server.json, or an entry of a registry with one in it.
func parseServer(raw json.RawMessage) (e Entry, err error) {
	var wrapped struct {
		Server json.RawMessage `json:"server"`
		official
	}
	if err := json.Unmarshal(raw, &wrapped); err != nil {
		return e, err
	}
	if len(wrapped.Server) > 0 {
		raw = wrapped.Server
	}
	var s serverJSON
	if err := json.Unmarshal(raw, &s); err != nil {
		return e, err
	}
	if s.Name == "" {
		return e, errNoName
	}
	o := wrapped.Meta.Official
	e = Entry{
		Name: s.Name, Title: s.Title, Description: s.Description, Version: s.Version, Status: s.Status,
		Website: s.WebsiteURL, Repository: s.Repository.URL, Publisher: publisherOf(s.Name),
		StatusNote: o.StatusMessage, Published: o.PublishedAt, Updated: o.UpdatedAt,
	}
	if o.Status != "" {
		e.Status = o.Status
	}
	for _, p := range s.Packages {
		e.Packages = append(e.Packages, p.parse())
	}
	for _, r := range s.Remotes {
		e.Remotes = append(e.Remotes, clean(r.URL, longestField))
	}
	e.limit()
	return e, nil
}

func (p packageJSON) parse() Package {
	out := Package{
		Type: p.RegistryType, Name: p.Identifier, Version: p.Version, Base: p.RegistryBaseURL, Hash: p.FileSHA256,
		Transport: p.Transport.Type,
	}
	if out.Type == "" {
		out.Type = p.OldRegistryType
	}
	for _, a := range p.PackageArguments {
		in := a.parse()
		if a.Type == "positional" {
			in.Name = ""
		}
		out.Args = append(out.Args, in)
	}
	for _, v := range p.EnvironmentVariables {
		out.Env = append(out.Env, v.parse())
	}
	return out
}

func (i inputJSON) parse() Input {
	in := Input{
		Name: i.Name, Hint: i.ValueHint, Description: i.Description, Value: i.Value, Default: i.Default,
		Choices: i.Choices, Required: i.IsRequired, Secret: i.IsSecret, Path: i.Format == "filepath",
	}
	for name, v := range i.Variables {
		// A value with a variable in it is for the user to give.
		if v.Default != "" {
			in.Value = replaceVariable(in.Value, name, v.Default)
			continue
		}
		in.Default, in.Value = "", ""
		in.Required = in.Required || v.IsRequired
		in.Secret, in.Path = in.Secret || v.IsSecret, in.Path || v.Format == "filepath"
	}
	return in
}

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
	Remotes  []remoteJSON  `json:"remotes"`
}

type packageJSON struct {
	RegistryType         string      `json:"registryType"`
	OldRegistryType      string      `json:"registry_type"` // of older schemas
	RegistryBaseURL      string      `json:"registryBaseUrl"`
	Identifier           string      `json:"identifier"`
	Version              string      `json:"version"`
	FileSHA256           string      `json:"fileSha256"`
	Transport            remoteJSON  `json:"transport"`
	RuntimeHint          string      `json:"runtimeHint"`
	RuntimeArguments     []inputJSON `json:"runtimeArguments"`
	PackageArguments     []inputJSON `json:"packageArguments"`
	EnvironmentVariables []inputJSON `json:"environmentVariables"`
}

type remoteJSON struct {
	Type      string               `json:"type"`
	URL       string               `json:"url"`
	Headers   []inputJSON          `json:"headers"`
	Variables map[string]inputJSON `json:"variables"`
}

type inputJSON struct {
	Type        string               `json:"type"`
	Name        string               `json:"name"`
	ValueHint   string               `json:"valueHint"`
	Description string               `json:"description"`
	Format      string               `json:"format"`
	Value       string               `json:"value"`
	Default     string               `json:"default"`
	Placeholder string               `json:"placeholder"`
	Choices     []string             `json:"choices"`
	IsRequired  bool                 `json:"isRequired"`
	IsSecret    bool                 `json:"isSecret"`
	IsRepeated  bool                 `json:"isRepeated"`
	Variables   map[string]inputJSON `json:"variables"`
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
		remote := Remote{Type: r.Type, URL: r.URL, Headers: parseInputs(r.Headers)}
		for name, v := range r.Variables {
			in := v.parse(0)
			in.Name = name
			remote.Variables = append(remote.Variables, in)
		}
		e.endpoints = append(e.endpoints, remote)
	}
	e.limit()
	return e, nil
}

func (p packageJSON) parse() Package {
	out := Package{
		Type: p.RegistryType, Name: p.Identifier, Version: p.Version, Base: p.RegistryBaseURL, Hash: p.FileSHA256,
		Transport: p.Transport.Type, Args: parseInputs(p.PackageArguments), Env: parseInputs(p.EnvironmentVariables),
		Runtime: parseInputs(p.RuntimeArguments),
	}
	if out.Type == "" {
		out.Type = p.OldRegistryType
	}
	return out
}

func parseInputs(all []inputJSON) (out []Input) {
	for _, one := range all {
		in := one.parse(0)
		if one.Type == "positional" {
			in.Name = ""
		}
		out = append(out, in)
	}
	return out
}

// parse reads an input. Variables of variables are not read: the schema has none.
func (i inputJSON) parse(depth int) Input {
	in := Input{
		Name: i.Name, Hint: i.ValueHint, Description: i.Description, Value: i.Value, Default: i.Default,
		Choices: i.Choices, Required: i.IsRequired, Secret: i.IsSecret, Path: i.Format == "filepath",
		Format: i.Format, Repeated: i.IsRepeated,
	}
	if in.Description == "" {
		in.Description = i.Placeholder
	}
	if depth > 0 {
		return in
	}
	for name, v := range i.Variables {
		variable := v.parse(depth + 1)
		variable.Name = name
		in.Secret, in.Path = in.Secret || variable.Secret, in.Path || variable.Path
		in.Variables = append(in.Variables, variable)
	}
	sortInputs(in.Variables)
	return in
}

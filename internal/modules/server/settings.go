package server

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"gatehouse/internal/access/confirm"
	"gatehouse/tool"
)

type nameIn struct {
	Name     *string `json:"name,omitempty" doc:"display name; empty for the default" max:"64"`
	Clear    bool    `json:"clear,omitempty" doc:"restore the default name"`
	Hostname string  `json:"hostname,omitempty" doc:"network name of the machine: lower-case letters, digits and -" max:"63"`
	Confirm  string  `json:"confirm,omitempty" doc:"the hostname, once the user has agreed; needs the setting approvals.callers_word" max:"63"`
}

type nameOut struct {
	Name     string `json:"name"`
	Hostname string `json:"hostname,omitempty" doc:"the network name that was set"`
}

var isHostname = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

const hostnameTool = "system_set_hostname"

// setHostname sets the network name of the machine by the tool of another module, whose rules hold. The user is asked
// here, because a call within another cannot ask.
func (s *server) setHostname(ctx context.Context, c *tool.Call, name, word string) error {
	if !isHostname.MatchString(name) {
		return tool.Refuse(tool.CodeInvalidArguments,
			"hostname is %q; expected lower-case letters, digits and -, without - at the ends", name)
	}
	if s.deps.Call == nil {
		return tool.Refuse(tool.CodeUnsupported, "this program has no tool that names its machine")
	}
	args, err := json.Marshal(map[string]string{"hostname": name})
	if err != nil {
		return err
	}
	if err := confirm.Ask(c, name, fmt.Sprintf("Set the network name of this machine to %q?", name), word); err != nil {
		return err
	}
	res, err := s.deps.Call(confirm.WithAgreed(ctx, hostnameTool, args), c, hostnameTool, args)
	if err != nil {
		return fmt.Errorf("%s, which names the machine: %w", hostnameTool, err)
	}
	if res.IsError && len(res.Content) > 0 {
		return tool.Refuse(tool.CodeFailed, "the machine was not named: %s", res.Content[0].Text)
	}
	return nil
}

func (s *server) setName(ctx context.Context, c *tool.Call, in nameIn) (nameOut, error) {
	if err := s.rules.Check(c, "set its name"); err != nil {
		return nameOut{}, err
	}
	if in.Clear && in.Name != nil ||
		!in.Clear && in.Name == nil && in.Hostname == "" { // no arguments must not erase the name
		return nameOut{}, &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: "expected either name or clear, or hostname",
			Next:    "Give the name, or clear as true to restore the host's default name.",
		}
	}
	if in.Hostname != "" {
		if err := s.setHostname(ctx, c, in.Hostname, in.Confirm); err != nil {
			return nameOut{}, err
		}
		if in.Name == nil && !in.Clear {
			return nameOut{s.cfg.Host.About().Name, in.Hostname}, nil
		}
	}
	name := ""
	if in.Name != nil {
		name = strings.TrimSpace(*in.Name)
	}
	if !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return nameOut{}, tool.Refuse(tool.CodeInvalidArguments, "a name must be one line of printable characters")
	}
	if err := s.cfg.Host.SetName(ctx, name); err != nil {
		return nameOut{}, err
	}
	return nameOut{s.cfg.Host.About().Name, in.Hostname}, nil
}

type languageIn struct {
	Language string `json:"language,omitempty" doc:"such as en_US or de; without it nothing is changed" max:"32"`
	Clear    bool   `json:"clear,omitempty" doc:"remove the setting"`
}

type languageOut struct {
	Language string `json:"language" doc:"empty if not set"`
}

// locale matches a language in the form of POSIX or the web: en, en_US, zh-Hant-TW.
var locale = regexp.MustCompile(
	`^([a-z]{2,3})(?:[_-]([A-Z][a-z]{3}))?(?:[_-]([A-Z]{2}|[0-9]{3}))?(?:\.[Uu][Tt][Ff]-?8)?$`,
)

func (s *server) language(ctx context.Context, c *tool.Call, in languageIn) (languageOut, error) {
	if in.Language == "" && !in.Clear {
		return languageOut{s.cfg.Host.About().Language}, nil
	}
	if err := s.rules.Check(c, "set its language"); err != nil {
		return languageOut{}, err
	}
	parts := locale.FindStringSubmatch(in.Language)
	switch {
	case in.Clear && in.Language != "":
		return languageOut{}, tool.Refuse(tool.CodeInvalidArguments, "language and clear exclude each other")
	case !in.Clear && parts == nil:
		return languageOut{}, &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: in.Language + " is not a language",
			Next:    "Give a language such as en_US, de or zh_Hant_TW.",
		}
	}
	language := ""
	for _, part := range parts[min(1, len(parts)):] {
		if part != "" {
			language = strings.TrimPrefix(language+"_"+part, "_")
		}
	}
	if err := s.cfg.Host.SetLanguage(ctx, language); err != nil {
		return languageOut{}, err
	}
	return languageOut{s.cfg.Host.About().Language}, nil
}

package administration

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"gatehouse/internal/access/confirm"
	"gatehouse/tool"
)

// Settings reads and changes the settings of a host. It is safe for concurrent use.
type Settings interface {
	// Show returns all settings, without the values of secrets.
	Show(ctx context.Context) (SettingsShown, error)
	// Check returns what is wrong with the text of a settings file, or with the present file for "".
	Check(ctx context.Context, text string) (SettingsChecked, error)
	// Set changes one setting in the file, and applies it if a running host can. nil removes it from the file, so
	// that its default or another source holds. Nothing changes if the settings would be invalid: then the error
	// is an *Invalid.
	Set(ctx context.Context, path string, value json.RawMessage) (SettingChanged, error)
}

// SettingsShown is the settings in force.
type SettingsShown struct {
	File     string    `json:"file" doc:"the settings file; empty if there is none"`
	Settings []Setting `json:"settings" doc:"those with a value of their own, in the order of the documentation"`
	Restart  []string  `json:"restart,omitempty" doc:"settings that differ from those in force until the host is restarted"`
}

// Setting is one setting.
type Setting struct {
	Path   string          `json:"path" doc:"such as listen.http.port"`
	Value  json.RawMessage `json:"value,omitempty" doc:"missing if it is not set, and for secrets"`
	Type   string          `json:"type" doc:"of the value: string, integer, number, boolean, array or object"`
	Enum   []string        `json:"enum,omitempty" doc:"all values that it may have"`
	Source string          `json:"source" doc:"default, a variable, a flag, or the place in the file"`
	Live   bool            `json:"live,omitempty" doc:"a change applies to a running host"`
	Secret bool            `json:"secret,omitempty" doc:"its value is never shown"`
	Doc    string          `json:"doc"`
}

// SettingsChecked is what is wrong with settings.
type SettingsChecked struct {
	OK       bool              `json:"ok"`
	Problems []SettingsProblem `json:"problems"`
	Warnings []string          `json:"warnings"`
}

// SettingsProblem is one mistake. Line and column are from 1; 0 means that it has no place in the file.
type SettingsProblem struct {
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Path    string `json:"path"`
	Message string `json:"message"`
}

// SettingChanged is a changed setting.
type SettingChanged struct {
	Path    string          `json:"path"`
	Before  json.RawMessage `json:"before,omitempty" doc:"missing if it was not set"`
	After   json.RawMessage `json:"after,omitempty" doc:"missing if it is not set now"`
	Live    []string        `json:"live" doc:"settings that now hold in the running host"`
	Restart []string        `json:"restart" doc:"settings that hold after a restart"`
}

// guarded are the sections whose change a person has to agree to, because they decide what the callers may do.
var guarded = []string{"auth", "approvals", "rules", "listen", "children", "contexts", "audit"}

type checkIn struct {
	Text string `json:"text,omitempty" doc:"a settings file; default: the present one" max:"1048576"`
}

type setIn struct {
	Path    string          `json:"path" doc:"the setting, such as log.level" min:"1"`
	Value   json.RawMessage `json:"value,omitempty" doc:"its value; left out, the setting is removed from the file"`
	Confirm string          `json:"confirm,omitempty" doc:"the path again, if the client cannot ask its user and the host accepts that"`
}

func configTools(c Config) []tool.Tool {
	return []tool.Tool{
		operation(c, "see the settings", tool.Def{
			Name: "config_show", Title: "Show the settings", Effects: tool.Reads,
			Description: "Returns the settings of this host and where each comes from, without secrets.",
		}, func(ctx context.Context, _ *tool.Call, _ struct{}) (SettingsShown, error) {
			if c.Settings == nil {
				return SettingsShown{}, errAbsent
			}
			return c.Settings.Show(ctx)
		}),
		operation(c, "check settings", tool.Def{
			Name: "config_check", Title: "Check settings", Effects: tool.Reads,
			Description: "Returns the mistakes in a settings file with line and column, and what was expected.",
		}, func(ctx context.Context, _ *tool.Call, in checkIn) (SettingsChecked, error) {
			if c.Settings == nil {
				return SettingsChecked{}, errAbsent
			}
			return c.Settings.Check(ctx, in.Text)
		}),
		operation(c, "change settings", tool.Def{
			Name: "config_set", Title: "Change a setting", Effects: tool.Writes | tool.Destroys,
			Description: "Changes one setting in the settings file. It applies at once if a running host can apply it.",
			Help: "Comments and the order of the file stay. If the settings would be invalid, nothing changes. " +
				"A change of " +
				strings.Join(guarded, ", ") + " asks the user. Secrets are not set here.",
		}, func(ctx context.Context, call *tool.Call, in setIn) (SettingChanged, error) {
			if c.Settings == nil {
				return SettingChanged{}, errAbsent
			}
			section, _, _ := strings.Cut(in.Path, ".")
			section, _, _ = strings.Cut(section, "[")
			if slices.Contains(guarded, section) {
				question := fmt.Sprintf("Set %.128q of this host to %.512s?", in.Path, orUnset(in.Value))
				if err := confirm.Ask(call, in.Path, question, in.Confirm); err != nil {
					return SettingChanged{}, err
				}
			}
			return c.Settings.Set(ctx, in.Path, in.Value)
		}),
	}
}

func orUnset(v json.RawMessage) string {
	if len(v) == 0 {
		return "its default"
	}
	return string(v)
}

package secret

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// opening begins a reference to a secret in a setting: ${secret:NAME}.
const opening = "${secret:"

// Names returns the secrets that a setting refers to. The error describes an invalid reference. Other
// variables stay unchanged.
func Names(setting string) (names []string, err error) {
	_, err = replace(setting, func(name string) (string, error) {
		names = append(names, name)
		return "", nil
	})
	return names, err
}

// replace replaces references to secrets by values.
func replace(setting string, value func(name string) (string, error)) (string, error) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(setting, opening)
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed {
			return "", fmt.Errorf("%s is not closed; expected %sNAME}", opening, opening)
		}
		if err := CheckName(name); err != nil {
			return "", err
		}
		v, err := value(name)
		if err != nil {
			return "", err
		}
		b.WriteString(v)
		setting = after
	}
}

// Fill returns settings, by name, with the secrets that they refer to. Settings without references are
// returned as secrets as well, so that callers need not distinguish.
func (s *Store) Fill(settings map[string]string) (map[string]Text, error) {
	var all map[string]record
	filled := make(map[string]Text, len(settings))
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		text, err := replace(settings[key], func(name string) (string, error) {
			if all == nil {
				var err error
				if all, err = s.readRecords(); err != nil {
					return "", err
				}
			}
			r, there := all[name]
			if !there {
				return "", fmt.Errorf("%s: %w; set it with gatehouse secret set %s", name, ErrNotFound, name)
			}
			return r.Value, nil
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		filled[key] = New(text)
	}
	return filled, nil
}

package secret

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// opening is how a setting refers to a secret: ${secret:NAME}.
const opening = "${secret:"

// Names are the secrets that a setting refers to. The error says what is
// wrong with a reference. Whatever else looks like a variable stays text.
func Names(setting string) (names []string, err error) {
	_, err = replace(setting, func(name string) (string, error) {
		names = append(names, name)
		return "", nil
	})
	return names, err
}

// replace puts values where secrets are referred to.
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

// Fill gives settings, by their names, with the secrets they refer to. What
// refers to none is returned as a secret as well, so that callers need not distinguish.
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

package config

import (
	releases "gatehouse/internal/maintenance/update"
)

// Update configures where newer releases of this program are found. Without a Source updates are off.
type Update struct {
	Source string `doc:"Location of releases: an absolute folder, or a URL that begins with https://. It holds manifest.json, its signature manifest.json.minisig, and the programs."`
	Key    string `doc:"The minisign public key that releases are signed with. No other signature is accepted."`
}

func (u Update) validate(w *problems) {
	if u.Source != "" {
		if err := releases.CheckSource(u.Source); err != nil {
			w.addf("update.source", "update.source: %w", err)
		}
		if u.Key == "" {
			w.addf(
				"update.key",
				"update.key is empty: expected the public key of minisign that releases are signed with",
			)
		}
	}
	if u.Key != "" {
		if _, err := releases.ParseKey(u.Key); err != nil {
			w.addf("update.key", "update.key %.80q: %w", u.Key, err)
		}
	}
}

package licence

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/licenseclassifier/v2/assets"
)

// known returns the text of a licence.
func known(t *testing.T, name string) string {
	t.Helper()
	text, err := assets.ReadLicenseFile("License/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A module without a licence, with an unknown one, or with one that is not allowed is refused.
func TestUnknownLicences(t *testing.T) {
	mit, gpl := known(t, "MIT/a.txt"), known(t, "GPL-3.0/license.txt")
	for name, c := range map[string]struct {
		files map[string]string
		says  string // part of the error, "" for none
	}{
		"one that is allowed": {map[string]string{"LICENSE": mit}, ""},
		"with a notice":       {map[string]string{"LICENSE": mit, "NOTICE": "Made by us."}, ""},
		"none":                {map[string]string{"README": "Free for all."}, "no licence was found"},
		"an unknown one": {map[string]string{"LICENSE": "You may use this on Tuesdays."},
			"not the text of a known licence"},
		"one that is not allowed": {map[string]string{"COPYING": gpl}, "not among those that are allowed"},
		"a second, not allowed": {map[string]string{"LICENSE": mit, "LICENSE.lib": gpl},
			"not among those that are allowed"},
	} {
		dir := t.TempDir()
		for file, text := range c.files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		m := Module{Path: "example.org/a"}
		err := m.identify(dir)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
		if c.says == "" && (len(m.IDs) != 1 || m.IDs[0] != "MIT" || !strings.Contains(m.Text, "WITHOUT WARRANTY")) {
			t.Errorf("%s: %v", name, m)
		}
	}
}

package config

import (
	"strings"
	"testing"
)

func TestReleasesNeedASourceAndAKey(t *testing.T) {
	const key = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3"
	for want, u := range map[string]Update{
		"":                            {Source: "https://example.com/releases", Key: key},
		"expected an absolute folder": {Source: "http://example.com", Key: key},
		"update.key is empty":         {Source: "https://example.com"},
		"begins with RW":              {Source: "https://example.com", Key: "nonsense"},
	} {
		c := Default()
		c.Update = u
		err := c.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: got %v, want %q", u, err, want)
		}
	}
}

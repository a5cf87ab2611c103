package cli

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A link is printed only for a host that has proved to be one.
func TestUIRefusesOtherPrograms(t *testing.T) {
	run := home(t)
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	for line, want := range map[string]string{
		"ui --print --url " + other.URL:            "is not a host with this data folder",
		"ui --print --url http://192.0.2.1:3000":   "a login needs https",
		"ui --print --url gopher://x":              "is not an address",
		"ui --print --user eve --url " + other.URL: "there is no such user",
		"ui --print --url http://127.0.0.1:1":      "no host answers at http://127.0.0.1:1 (dial tcp ",
	} {
		code, out, said := run("", strings.Fields(line)...)
		if code == 0 || out != "" || !strings.Contains(said, want) {
			t.Errorf("%s: %d %q %q", line, code, out, said)
		}
	}
}

package cli

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"gatehouse/internal/config"
)

func TestVariablesOfOtherServersNameWhatReplacesThem(t *testing.T) {
	settings, err := os.ReadFile("../../docs/settings.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range foreign {
		var said bytes.Buffer
		warnForeign(&said, func(name string) string {
			if name == f.name {
				return "x"
			}
			return ""
		}, &config.Loaded{})
		if got := said.String(); !strings.HasPrefix(got, "[gatehouse] "+f.name+" is set") ||
			strings.Count(got, "\n") != 1 {
			t.Errorf("%s: %q", f.name, got)
		}
		// GATEHOUSE_TRANSPORT belongs to no setting, because it opens several listeners.
		for _, name := range regexp.MustCompile(`GATEHOUSE_\w+`).FindAllString(f.instead, -1) {
			if name != "GATEHOUSE_TRANSPORT" && !strings.Contains(string(settings), "`"+name+"`") {
				t.Errorf("%s: docs/settings.md has no %s", f.name, name)
			}
		}
	}
	var said bytes.Buffer
	if warnForeign(&said, func(string) string { return "" }, &config.Loaded{}); said.Len() > 0 {
		t.Errorf("without such variables: %q", said.String())
	}
}

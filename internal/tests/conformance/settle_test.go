package conformance

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func unsettled() Column {
	bad := Scenario{Name: "tools-list", Checks: []Check{{ID: "too-slow", Status: "WARNING"}}}
	return Column{Want: 1, Scenarios: []Scenario{bad}}
}

func TestWhatWasSlowOnceIsRunAgainAndSaidSo(t *testing.T) {
	h := needFixture(t)
	c := unsettled()
	if err := Suites()[1].settle(t.Context(), h.tools, new(turns), h.url, t.TempDir(), &c,
		func(*Column) {}); err != nil {
		t.Fatal(err)
	}
	if wrong := c.Clean(); len(wrong) > 0 {
		t.Error(wrong)
	}
	if len(c.Again) != 1 || c.Again[0] != "tools-list: too-slow" {
		t.Errorf("run again: %q, want the scenario and the check that was the reason", c.Again)
	}
}

func TestADefectStaysHoweverOftenItIsRun(t *testing.T) {
	h := needFixture(t)
	broken := httptest.NewServer(http.NotFoundHandler())
	defer broken.Close()
	c := unsettled()
	if err := Suites()[1].settle(t.Context(), h.tools, new(turns), broken.URL+"/mcp", t.TempDir(), &c,
		func(*Column) {}); err != nil {
		t.Fatal(err)
	}
	if len(c.Clean()) == 0 {
		t.Error("a server that knows no method passed")
	}
	if len(c.Again) != tries-1 {
		t.Errorf("run again %d times, want %d", len(c.Again), tries-1)
	}
}

package page

import (
	"archive/zip"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
)

const leastAnswered = 27 // of the saved pages

// asked is a question on a saved page; see testdata/layouts/README.md.
type asked struct {
	Page     string
	Question string
	Answer   []string // texts that are the answer
	Act      string   // regular expression of the role and name of the element to act on
	Line     string   // a text in the line of that element; "" means any line
}

// missing returns what a snapshot lacks to answer the question and to act.
func (q asked) missing(t *testing.T, text string) string {
	for _, want := range q.Answer {
		if !strings.Contains(text, want) {
			return "the answer " + want
		}
	}
	act, err := regexp.Compile(`\[e\d+ ` + q.Act)
	if err != nil {
		t.Fatal(err)
	}
	if q.Line == "" && act.MatchString(text) {
		return ""
	}
	for line := range strings.Lines(text) {
		if q.Line != "" && strings.Contains(line, q.Line) && act.MatchString(line) {
			return ""
		}
	}
	return "the element " + q.Act
}

// The default snapshot of pages as they are found on the web answers what a user asks on them.
func TestSavedPagesAreAnswered(t *testing.T) {
	b, err := os.ReadFile("testdata/layouts/questions.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []asked
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	pages, err := zip.OpenReader("testdata/layouts/pages.zip")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pages.Close() })
	s := httptest.NewServer(http.FileServerFS(pages))
	t.Cleanup(s.Close)
	browser := open(t)
	answered, most := 0, 0
	for _, q := range all {
		tab := goTo(t, browser, s.URL+"/"+q.Page+".html")
		got := shot(t, tab, SnapshotOptions{})
		most = max(most, len(got.Text))
		if what := q.missing(t, got.Text); what != "" {
			t.Logf("%s: %s: %d of %d lines lack %s", q.Page, q.Question, got.Shown, got.Lines, what)
			if dir := os.Getenv("GATEHOUSE_SNAPSHOTS"); dir != "" {
				os.WriteFile(dir+"/"+q.Page+".txt", []byte(got.Text), 0o644)
			}
			continue
		}
		answered++
	}
	t.Logf("%d of %d pages are answered, in %d bytes at most", answered, len(all), most)
	if answered < leastAnswered || len(all) != 30 {
		t.Errorf("%d of %d saved pages are answered, want %d of 30", answered, len(all), leastAnswered)
	}
	if most > defaultTokens*bytesPerToken {
		t.Errorf("a snapshot has %d bytes", most)
	}
}

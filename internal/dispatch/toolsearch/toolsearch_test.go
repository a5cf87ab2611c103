package toolsearch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTerms(t *testing.T) {
	for text, want := range map[string]string{
		"readFile HTTPServer_v2 get-users": "read file http server v 2 user",
		"Deletes the directories":          "delet directori",
		"ÄÖÜ straße 東京":                    "äöü straße 東京",
		strings.Repeat("x", 50):            "",
		"":                                 "",
	} {
		if got := strings.Join(terms(text), " "); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// Words in names count more than words in details, related words are found, and the order does not depend on chance.
func TestRanking(t *testing.T) {
	x := New([]Document{
		{Name: "mail_send", Description: "Sends an email to a person."},
		{Name: "file_remove", Description: "Removes a file."},
		{Name: "file_read", Description: "Returns the content.", Parameters: []string{"path", "encoding"}},
		{Name: "note_add", Description: "Adds a note.", Details: "the text, which may come from an email or a file"},
	})
	for query, want := range map[string]string{
		"email":                         "mail_send",
		"delete a document":             "file_remove",
		"which encoding":                "file_read",
		"zzz":                           "",
		"the of and":                    "",
		strings.Repeat("encoding ", 99): "file_read",
	} {
		for range 5 {
			var got []string
			for _, h := range x.Search(query, 10, nil) {
				got = append(got, [...]string{"mail_send", "file_remove", "file_read", "note_add"}[h.Document])
			}
			// Tools of similar meaning may follow those that have the words.
			if text := strings.Join(got, " "); text != want && (want == "" || !strings.HasPrefix(text, want+" ")) {
				t.Errorf("%q: got %q, want %q", query, got, want)
			}
		}
	}
	first := x.Search("file", 1, func(d int) float64 { return map[int]float64{2: 9}[d] + 1 })
	if len(first) != 1 || first[0].Document != 2 {
		t.Errorf("a boost gives %v", first)
	}
	if got := New(nil).Search("file", 5, nil); len(got) != 0 {
		t.Errorf("an empty index finds %v", got)
	}
}

// A query over 10,000 tools takes little more than reading what contains its words.
func BenchmarkSearch(b *testing.B) {
	var all []Document
	verbs := strings.Fields("read write list delete create update send search copy move start stop")
	for i := range 10_000 {
		verb := verbs[i%len(verbs)]
		all = append(all, Document{
			Name: fmt.Sprintf("pkg%d_%s_item%d", i/50, verb, i%97), Package: fmt.Sprintf("pkg%d", i/50),
			Description: "Can " + verb + " an item of the workspace, with all of its attachments and comments.",
			Parameters:  []string{"id", "workspace", "limit"},
		})
	}
	x := New(all)
	var took []time.Duration
	for b.Loop() {
		begin := time.Now()
		x.Search("remove an item from my workspace", 5, nil)
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*95/100].Microseconds())/1000, "ms/p95")
}

func FuzzSearch(f *testing.F) {
	f.Add("read a file", "file_read", "Reads \xff a file.")
	f.Fuzz(func(t *testing.T, query, name, description string) {
		x := New(
			[]Document{{Name: name, Description: description}, {Name: "other", Description: "Does another thing."}},
		)
		for _, h := range x.Search(query, 5, nil) {
			if h.Document < 0 || h.Document > 1 || !(h.Score > 0) {
				t.Errorf("got %+v", h)
			}
		}
	})
}

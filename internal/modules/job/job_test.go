package job

import (
	"encoding/json"
	"testing"

	"gatehouse/internal/dispatch/jobs"
	"gatehouse/tool"
)

// A job whose tool has failed is listed as failed, whatever its
// record says.
func TestAListTellsWhatHasFailed(t *testing.T) {
	j, err := jobs.Open("", jobs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close(t.Context())
	for title, result := range map[string]string{"completed": `{"content":[]}`,
		"failed": `{"content":[],"isError":true}`} {
		run, err := j.Create(t.Context(), jobs.Record{Owner: "ann", Title: title})
		if err != nil {
			t.Fatal(err)
		}
		if err := run.Finish(json.RawMessage(result)); err != nil {
			t.Fatal(err)
		}
	}
	f := &jobModule{jobs: j}
	got, err := f.listJobs(t.Context(), &tool.Call{Caller: tool.Caller{Owner: "ann"}}, listIn{})
	if err != nil || len(got.Jobs) != 2 {
		t.Fatalf("got %v, %v; want two jobs", got, err)
	}
	for _, one := range got.Jobs {
		if one.Status != one.Title {
			t.Errorf("a job that has %s is listed as %s", one.Title, one.Status)
		}
	}
}

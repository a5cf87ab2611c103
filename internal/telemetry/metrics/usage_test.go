package metrics

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func usageAt(t *testing.T, path string, now *time.Time) *Usage {
	u := OpenUsage(path, UsageOptions{
		Now: func() time.Time { return *now },
		PackageOf: func(tool string) string {
			name, _, _ := strings.Cut(tool, "_")
			return map[string]string{"mail": "mail"}[name]
		},
	})
	t.Cleanup(func() { u.Close() })
	return u
}

// Sums outlive the program, and each kind has its own.
func TestUsageIsSummedByMinuteHourAndDayAndKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "usage.db")
	now := time.Date(2026, 3, 4, 10, 0, 30, 0, time.UTC)
	u := usageAt(t, path, &now)
	for i := range 100 {
		u.Count(
			Call{
				Tool:      "file_read",
				Principal: "ann",
				Took:      time.Duration(i+1) * time.Millisecond,
				In:        10,
				Out:       30,
				Failed:    i < 5,
			},
		)
	}
	u.Count(Call{Tool: "mail_send", Principal: "bob", Took: 2 * time.Second, In: 4, Out: 4})
	if err := u.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Minute)
	u.Count(Call{Tool: "file_read", Principal: "ann", Took: time.Millisecond})
	if err := u.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	u.Close()
	u = usageAt(t, path, &now)
	for _, c := range []struct {
		kind, name string
		step       time.Duration
		want       string
	}{
		{ByTool, "file_read", time.Minute, "file_read:100/5/4000/1000 file_read:1/0/0/0 "},
		{ByTool, "", time.Hour, "file_read:101/5/4000/1000 mail_send:1/0/8/2 "},
		{ByPrincipal, "", day, "ann:101/5/4000/1000 bob:1/0/8/2 "},
		{ByPackage, "", day, "mail:1/0/8/2 "},
		{Total, "", day, ":102/5/4008/1002 "},
	} {
		all, more, err := u.Series(t.Context(),
			UsageQuery{Kind: c.kind, Name: c.name, Since: now.Add(-time.Hour), Step: c.step})
		var got strings.Builder
		for _, s := range all {
			for _, p := range s.Points {
				got.WriteString(fmt.Sprintf("%s:%d/%d/%d/%d ", s.Name, p.Calls, p.Failed, p.In+p.Out, p.Tokens))
			}
		}
		if err != nil || more != 0 || got.String() != c.want {
			t.Errorf("%s %s by %v: got %q, %d, %v, want %q", c.kind, c.name, c.step, got.String(), more, err, c.want)
		}
	}
}

func TestQuantilesAreWithinAFifth(t *testing.T) {
	now := time.Now()
	u := usageAt(t, "", &now)
	for i := range 1000 {
		u.Count(Call{Tool: "t", Principal: "p", Took: time.Duration(i+1) * time.Millisecond})
	}
	all, _, err := u.Series(t.Context(),
		UsageQuery{Kind: Total, Name: "", Since: now.Add(-time.Minute), Step: time.Minute})
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	for _, p := range all[0].Points {
		for want, got := range map[float64]float64{500: p.P50, 950: p.P95, 990: p.P99} {
			if got < want*0.8 || got > want*1.2 {
				t.Errorf("got %v, want about %v", got, want)
			}
		}
	}
}

// However many names and minutes there are, the file has a limit.
func TestUsageIsBounded(t *testing.T) {
	now := time.Date(2026, 3, 4, 10, 0, 0, 0, time.UTC)
	u := OpenUsage("", UsageOptions{Now: func() time.Time { return now }, MaxRows: 100})
	defer u.Close()
	for i := range MaxUsageNames + 100 {
		u.Count(Call{Tool: fmt.Sprintf("t%d", i), Principal: "p"})
	}
	all, more, err := u.Series(t.Context(), UsageQuery{Kind: ByTool, Name: "", Since: now.Add(-time.Hour), Step: day})
	if err != nil || len(all) != maxUsageSeries || all[0].Name != Other || all[0].Calls != 100 ||
		more != MaxUsageNames+1-maxUsageSeries {
		t.Errorf("got %d series and %d more, %v", len(all), more, err)
	}
	now = now.Add(2 * time.Hour)
	u.Count(Call{Tool: "late", Principal: "p"})
	if err := u.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	db, err := u.file.DB()
	if err != nil {
		t.Fatal(err)
	}
	var minutes int
	if err := db.QueryRow("SELECT count(*) FROM usage WHERE width = 60").Scan(&minutes); err != nil || minutes > 100 {
		t.Errorf("%d rows of minutes, %v", minutes, err)
	}
	now = now.Add(91 * day)
	u.Count(Call{Tool: "last", Principal: "p"})
	if all, _, err := u.Series(t.Context(),
		UsageQuery{Kind: ByTool, Name: "", Since: now.Add(-200 * day), Step: day}); err != nil ||
		len(all) != 1 {
		t.Errorf("after 91 days: %v, %v", all, err)
	}
	for _, bad := range []UsageQuery{
		{Kind: "colour", Since: now, Step: day}, {Kind: ByTool, Since: now, Step: time.Second},
		{Kind: ByTool, Since: now.Add(-90 * day), Step: time.Minute},
	} {
		if _, _, err := u.Series(t.Context(), bad); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

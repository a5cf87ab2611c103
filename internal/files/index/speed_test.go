package index

import (
	"context"
	"crypto/sha256"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestSpeed measures an ingest, a change of one file in a hundred, and queries. It runs if GATEHOUSE_SPEED is a folder
// of Go sources, which it reads; make verify-knowledge sets it to GOROOT/src.
func TestSpeed(t *testing.T) {
	folder := os.Getenv("GATEHOUSE_SPEED")
	if folder == "" {
		t.Skip("GATEHOUSE_SPEED is not set")
	}
	var items []Item
	texts := map[string][]byte{}
	size := 0
	filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || filepath.Ext(path) != ".go" {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil || len(b) > MaxText {
			return nil
		}
		texts[path] = b
		size += len(b)
		items = append(items, Item{Path: path, Size: int64(len(b)), Modified: time.Unix(1, 0)})
		return nil
	})
	s := Open(filepath.Join(t.TempDir(), "i.db"), Options{})
	defer s.Close()
	in := Ingest{
		Owner: "ann/lab",
		Name:  "go",
		Below: folder,
		Items: items,
		Read: func(_ context.Context, it Item) (Document, error) {
			b := texts[it.Path]
			return Document{Text: b, Language: "go", Hash: sha256.Sum256(b)}, nil
		},
	}
	before, begin := processorTime(), time.Now()
	r, c, err := s.Ingest(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	took, used := time.Since(begin), processorTime()-before
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	mb := float64(size) / 1e6
	t.Logf("ingest: %d files, %d chunks, %.1f MB in %.1f s: %.2f MB/s; %.1f s of processors", r.Files, r.Chunks, mb,
		took.Seconds(), mb/took.Seconds(), used.Seconds())
	t.Logf("heap %d MB, %.0f MB of it the texts of this test", m.HeapSys>>20, mb)
	for i := range items {
		if i%100 == 0 {
			texts[items[i].Path] = append(slices.Clone(texts[items[i].Path]), "\n// A zebra changed this file.\n"...)
			items[i].Modified = time.Unix(2, 0)
			items[i].Size++
		}
	}
	queries := func(part int) (all []time.Duration) {
		for i, it := range items {
			if i%(len(items)/100+1) != 0 {
				continue
			}
			words := strings.Fields(string(texts[it.Path]))
			at := len(words) / part
			question := strings.Join(words[at:min(len(words), at+12)], " ")
			begin := time.Now()
			if _, err := s.Query(t.Context(), c, Query{Text: question}); err != nil {
				t.Fatal(err)
			}
			all = append(all, time.Since(begin))
		}
		return all
	}
	first := queries(2)[0]
	before = processorTime()
	all := queries(3) // other questions, so that nothing is remembered of them
	used = processorTime() - before
	slices.Sort(all)
	t.Logf("%d queries: first %v, then p50 %v, p95 %v; %v of processors each", len(all), first, all[len(all)/2],
		all[len(all)*95/100], used/time.Duration(len(all)))
	begin = time.Now()
	if r, _, err = s.Ingest(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	mid := time.Since(begin)
	a, err := s.Query(t.Context(), c, Query{Text: "zebra changed this file"})
	if err != nil || len(a.Hits) == 0 || !strings.Contains(a.Hits[0].Text, "zebra") {
		t.Errorf("the change is not found: %v", err)
	}
	t.Logf("1 %% changed (%d files): stored after %v, searchable after %v", r.Changed, mid, time.Since(begin))
}

// processorTime returns how long this process has used processors, which other processes do not change; 0 where the
// system has no /proc.
func processorTime() time.Duration {
	b, _ := os.ReadFile("/proc/self/stat")
	_, after, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(after)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11]) // hundredths of a second
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

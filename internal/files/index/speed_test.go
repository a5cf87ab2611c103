package index

import (
	"context"
	"crypto/sha256"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// maxResident is the bar for the memory of an ingest.
const maxResident = 400 << 20

// TestSpeed measures an ingest, a change of one file in a hundred, and queries. It runs if GATEHOUSE_SPEED is a list of
// folders of Go sources, which it reads; make verify-knowledge sets it to GOROOT/src, or to SPEED. Of the bars it holds
// that of memory, which does not depend on what else the machine does.
func TestSpeed(t *testing.T) {
	folders := filepath.SplitList(os.Getenv("GATEHOUSE_SPEED"))
	if len(folders) == 0 {
		t.Skip("GATEHOUSE_SPEED is not set")
	}
	var items []Item
	size := 0
	for _, folder := range folders {
		filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || filepath.Ext(path) != ".go" {
				return nil
			}
			info, err := d.Info()
			if err != nil || info.Size() > MaxText {
				return nil
			}
			size += int(info.Size())
			items = append(items, Item{Path: path, Size: info.Size(), Modified: time.Unix(1, 0)})
			return nil
		})
	}
	changed := map[string]bool{}
	textOf := func(path string) ([]byte, error) {
		b, err := os.ReadFile(path)
		if changed[path] {
			b = append(b, "\n// A zebra changed this file.\n"...)
		}
		return b, err
	}
	s := Open(filepath.Join(t.TempDir(), "i.db"), Options{})
	defer s.Close()
	in := Ingest{
		Owner: "ann/lab",
		Name:  "go",
		Below: string(filepath.Separator),
		Items: items,
		Read: func(_ context.Context, it Item) (Document, error) {
			b, err := textOf(it.Path)
			return Document{Text: b, Language: "go", Hash: sha256.Sum256(b)}, err
		},
	}
	before, begin := processorTime(), time.Now()
	r, c, err := s.Ingest(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	took, used := time.Since(begin), processorTime()-before
	mb := float64(size) / 1e6
	t.Logf("ingest: %d files, %d chunks, %.1f MB in %.1f s: %.2f MB/s; %.1f s of processors", r.Files, r.Chunks, mb,
		took.Seconds(), mb/took.Seconds(), used.Seconds())
	resident := mostResident()
	t.Logf("at most %d MB resident", resident>>20)
	if resident > maxResident {
		t.Errorf("%d MB were resident; the bar is %d MB", resident>>20, maxResident>>20)
	}
	for i := range items {
		if i%100 == 0 {
			changed[items[i].Path] = true
			items[i].Modified = time.Unix(2, 0)
			items[i].Size++
		}
	}
	queries := func(part int) (all []time.Duration) {
		for i, it := range items {
			if i%(len(items)/100+1) != 0 {
				continue
			}
			text, err := textOf(it.Path)
			if err != nil {
				t.Fatal(err)
			}
			words := strings.Fields(string(text))
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
	measureLists(t, s, c)
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

// measureLists compares the inverted file of a collection with all its vectors: what it finds, and what it costs.
func measureLists(t *testing.T, s *Store, c Collection) {
	loaded, err := s.loadVectors(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	s.inverting.Wait()
	v := &vectors{dims: loaded.dims, ids: loaded.ids, data: loaded.data, scale: loaded.scale, signs: loaded.signs}
	questions := func() func() []float32 { // a chunk that is moved towards another, as a question's vector is
		n := 0
		return func() []float32 {
			n++
			a, b := v.float(n*7919%len(v.ids)), v.float(n*104729%len(v.ids))
			for d := range a {
				a[d] += b[d] / 2
			}
			return normalise(a)
		}
	}
	timed := func() time.Duration {
		another, begin := questions(), time.Now()
		for range 100 {
			q, scale := quantise(another())
			v.nearest(q, scale, candidates)
		}
		return time.Since(begin) / 100
	}
	signs, took := recallOf(v, 100, questions()), timed()
	begin := time.Now()
	x := newInverted(t.Context(), v, nil)
	made := time.Since(begin)
	v.lists.Store(x)
	t.Logf("%d lists of %d vectors in %v; recall@50 of 100 is %.4f in %v, by the signs of all %.4f in %v",
		len(x.centroids.ids), len(v.ids), made, recallOf(v, 100, questions()), timed(), signs, took)
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

// mostResident returns the most memory that this process has had resident, in bytes; 0 where the system has no /proc.
func mostResident() int {
	b, _ := os.ReadFile("/proc/self/status")
	_, after, _ := strings.Cut(string(b), "VmHWM:")
	fields := strings.Fields(after)
	if len(fields) == 0 {
		return 0
	}
	kilobytes, _ := strconv.Atoi(fields[0])
	return kilobytes << 10
}

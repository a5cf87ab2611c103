package lang

import (
	"cmp"
	"context"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/files/language"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/files/walk"
)

const (
	surveyTime  = 10 * time.Second
	surveyFiles = 200_000
	surveyHeads = 2_000 // files that are opened because their name says too little
	sharesShown = 20
	leastSure   = 0.5 // a language told by words alone counts from here on
)

// share is what one language has of a directory.
type share struct {
	Language string  `json:"language"`
	Bytes    int64   `json:"bytes"`
	Files    int     `json:"files"`
	Share    float64 `json:"share"`
}

// tally adds up files from several goroutines.
type tally struct {
	place roots.Place
	stop  context.CancelCauseFunc

	mu    sync.Mutex
	by    map[string]*share
	files int
	heads int // files that were opened
}

// errEnough ends a walk that has seen as many files as it may.
var errEnough = errors.New("enough files")

// survey adds up the languages below a directory. Files whose language is not
// known, pictures for instance, do not count.
func survey(ctx context.Context, p roots.Place) (detectOut, error) {
	at, err := p.Followed(true)
	if err != nil {
		return detectOut{}, err
	}
	start := filepath.ToSlash(at.Name)
	if start == "." {
		start = ""
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	timed, cancel := context.WithTimeout(ctx, surveyTime)
	defer cancel()
	t := &tally{place: p, stop: stop, by: make(map[string]*share)}
	_, err = walk.Walk(timed, walk.Options{Root: at.Root, Start: start}, t.visit)
	note := ""
	switch {
	case err == nil:
	case errors.Is(err, errEnough), errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		note = "stopped early: there are more files than were counted"
	default:
		return detectOut{}, p.Refuse(err)
	}
	return t.result(p.Path, note), nil
}

func (t *tally) visit(_ int, d *walk.Dir, entries []walk.Entry) {
	for _, e := range entries {
		if !e.Type.IsRegular() {
			continue
		}
		info, err := e.Info()
		if err != nil || info.Size() == 0 {
			continue
		}
		t.add(t.judge(d, e.Name), info.Size())
	}
}

// judge opens a file only if its name says too little, and no more of those
// than it may.
func (t *tally) judge(d *walk.Dir, name string) string {
	if v := language.Judge(name, nil); v.Method == "name" {
		return v.ID
	}
	t.mu.Lock()
	t.heads++
	most := t.heads > surveyHeads
	t.mu.Unlock()
	if most || t.place.Refuses(d.Join(name)) {
		return language.ByName(name)
	}
	f, err := d.Open(name)
	if err != nil {
		return language.ByName(name)
	}
	defer f.Close()
	v := language.Judge(name, headFrom(f))
	if v.Method == "words" && v.Confidence < leastSure {
		return language.Unknown
	}
	return v.ID
}

func (t *tally) add(id string, size int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.files++; t.files >= surveyFiles {
		t.stop(errEnough)
	}
	if id == language.Unknown {
		return
	}
	s := t.by[id]
	if s == nil {
		s = &share{Language: id}
		t.by[id] = s
	}
	s.Files++
	s.Bytes += size
}

func (t *tally) result(path, note string) detectOut {
	out := detectOut{Language: language.Unknown, Path: path, Method: "shares", Files: t.files, Note: note}
	all := int64(0)
	shares := make([]share, 0, len(t.by))
	for _, s := range t.by {
		all += s.Bytes
		shares = append(shares, *s)
	}
	slices.SortFunc(shares, func(a, b share) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), strings.Compare(a.Language, b.Language))
	})
	for i := range shares {
		shares[i].Share = math.Round(float64(shares[i].Bytes)/float64(all)*1e4) / 1e4
	}
	if len(shares) > 0 {
		out.Language, out.Confidence = shares[0].Language, shares[0].Share
	}
	out.Shares = shares[:min(len(shares), sharesShown)]
	return out
}

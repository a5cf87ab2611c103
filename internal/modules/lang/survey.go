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
	surveyTime    = 10 * time.Second
	surveyFiles   = 200_000
	maxHeads      = 2_000 // files that are opened because their name is ambiguous
	sharesShown   = 20
	minConfidence = 0.5 // minimum confidence of a language that was detected by words
)

// share is the share of one language in a directory.
type share struct {
	Language string  `json:"language"`
	Bytes    int64   `json:"bytes"`
	Files    int     `json:"files"`
	Share    float64 `json:"share"`
}

// tally adds up files. It is safe for concurrent use.
type tally struct {
	place roots.Place
	stop  context.CancelCauseFunc

	mu     sync.Mutex
	shares map[string]*share
	files  int
	heads  int // files that were opened
}

// errLimit stops a walk that has reached the limit of files.
var errLimit = errors.New("enough files")

// survey adds up the languages below a directory. Files of unknown language, such
// as images, do not count.
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
	t := &tally{place: p, stop: stop, shares: make(map[string]*share)}
	_, err = walk.Walk(timed, walk.Options{Root: at.Tree(), Start: start}, t.visit)
	note := ""
	switch {
	case err == nil:
	case errors.Is(err, errLimit), errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		note = "stopped early: not all files were counted"
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
		t.addFile(t.detect(d, e.Name), info.Size())
	}
}

// detect returns the language of a file. It opens the file only if the name is
// ambiguous, and opens at most maxHeads files.
func (t *tally) detect(d *walk.Dir, name string) string {
	if v := language.Judge(name, nil); v.Method == "name" {
		return v.ID
	}
	t.mu.Lock()
	t.heads++
	most := t.heads > maxHeads
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
	if v.Method == "words" && v.Confidence < minConfidence {
		return language.Unknown
	}
	return v.ID
}

func (t *tally) addFile(id string, size int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.files++; t.files >= surveyFiles {
		t.stop(errLimit)
	}
	if id == language.Unknown {
		return
	}
	s := t.shares[id]
	if s == nil {
		s = &share{Language: id}
		t.shares[id] = s
	}
	s.Files++
	s.Bytes += size
}

func (t *tally) result(path, note string) detectOut {
	out := detectOut{Language: language.Unknown, Path: path, Method: "shares", Files: t.files, Note: note}
	all := int64(0)
	shares := make([]share, 0, len(t.shares))
	for _, s := range t.shares {
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

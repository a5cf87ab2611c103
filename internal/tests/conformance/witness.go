package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Sighting is one message that the server has sent.
type Sighting struct {
	Revision string // "" when the conversation has not settled on one
	Answers  string // the method of the request a response is for, if known
	Message  []byte // valid only during the call
}

// Witness sees the messages that the server sends. Its methods may be called concurrently.
type Witness interface{ See(Sighting) }

// Judge is a Witness that validates every message with the schema of its revision. The zero value has no schemas;
// NewJudge returns one with schemas.
type Judge struct {
	schemas map[string]*schemas

	mu      sync.Mutex // guards what follows
	seen    map[string]int
	objects []string
}

// NewJudge reads the schemas from the pinned suite and stores them in dir.
func NewJudge(ctx context.Context, t Tools, dir string) (*Judge, error) {
	cmd := t.Command(ctx, dir, t.Script("schemas.mjs"), dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("extract the schemas: %w: %s", err, out)
	}
	j := &Judge{schemas: map[string]*schemas{}, seen: map[string]int{}}
	for _, revision := range []string{"2025-03-26", "2025-06-18", "2025-11-25", modernRevision} {
		s, err := readSchemas(dir, revision)
		if err != nil {
			return nil, err
		}
		j.schemas[revision] = s
	}
	// No package contains the first revision's schema. What a server sends in it is a subset of the second's.
	j.schemas["2024-11-05"] = j.schemas["2025-03-26"]
	return j, nil
}

// See validates a message. A conversation without a revision is validated with the newest of its era.
func (j *Judge) See(s Sighting) {
	revision := s.Revision
	if j.schemas[revision] == nil {
		revision = "2025-11-25"
		if s.Revision > revision {
			revision = modernRevision
		}
	}
	kind, err := j.schemas[revision].judge(s.Message, s.Answers)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seen[revision+" "+kind]++
	if err != nil && len(j.objects) < 100 {
		j.objects = append(j.objects, fmt.Sprintf("%s %s: %v: %s", revision, kind, err, cut(string(s.Message))))
	}
}

// Objections returns the errors found, without repetitions.
func (j *Judge) Objections() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := slices.Clone(j.objects)
	slices.Sort(all)
	return slices.Compact(all)
}

// Count returns how many messages of a revision were validated; for "", of all.
func (j *Judge) Count(revision string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := 0
	for kind, times := range j.seen {
		if strings.HasPrefix(kind, revision) {
			n += times
		}
	}
	return n
}

// Kinds returns the definitions with which messages were validated.
func (j *Judge) Kinds() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var all []string
	for kind, times := range j.seen {
		all = append(all, fmt.Sprintf("%s x%d", kind, times))
	}
	slices.Sort(all)
	return all
}

// judge returns the definition of a message and its errors.
func (s *schemas) judge(msg []byte, answers string) (kind string, err error) {
	msg = bytes.TrimSpace(msg)
	if len(msg) > 0 && msg[0] == '[' {
		return s.judgeBatch(msg)
	}
	var e envelope
	if err := json.Unmarshal(msg, &e); err != nil {
		return "message", err
	}
	kind = s.kind(e, answers)
	if err := s.validate(kind, msg); err != nil {
		return kind, err
	}
	if e.Result == nil {
		return kind, nil
	}
	inner := s.resultKind(e, answers)
	if inner == "" {
		return kind, nil
	}
	var r struct{ Result json.RawMessage }
	if err := json.Unmarshal(msg, &r); err != nil {
		return inner, err
	}
	return inner, s.validate(inner, r.Result)
}

// judgeBatch validates a batch, which one revision has.
func (s *schemas) judgeBatch(msg []byte) (string, error) {
	if s.revision != "2025-03-26" {
		return "batch", fmt.Errorf("revision %s has no batches", s.revision)
	}
	var all []json.RawMessage
	if err := json.Unmarshal(msg, &all); err != nil {
		return "batch", err
	}
	for _, one := range all {
		if _, err := s.judge(one, ""); err != nil {
			return "batch", err
		}
	}
	return "batch", nil
}

package index

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Limits of what an owner can have remembered.
const (
	MaxFacts    = 5000
	MaxFactText = 4000 // bytes
)

// ErrFull means that an owner has MaxFacts.
var ErrFull = fmt.Errorf("there are already %d facts", MaxFacts)

// Fact is something that an owner wants to know later.
type Fact struct {
	ID      int64
	Owner   string
	Shared  string // the context whose callers may recall it; "" means the owner alone
	Kind    string
	Subject string // what it is about; "" means nothing in particular
	Text    string
	Source  string // where it is known from
	Made    time.Time
	Used    time.Time     // when it was last recalled
	Expires time.Time     // zero means never
	Halves  time.Duration // the time after which it counts half; 0 means never
}

// Recalled is a fact with how well it answers a question.
type Recalled struct {
	Fact
	Score float64 // 0 to 1
	// Contradicts are the ids of other facts of the same kind and subject that say something else.
	Contradicts []int64
}

const factColumns = "id, owner, shared, kind, subject, text, source, made, expires, halves"

func scanFact(row interface{ Scan(...any) error }) (f Fact, err error) {
	var made, expires, halves int64
	err = row.Scan(&f.ID, &f.Owner, &f.Shared, &f.Kind, &f.Subject, &f.Text, &f.Source, &made, &expires, &halves)
	f.Made, f.Halves = time.UnixMilli(made).UTC(), time.Duration(halves)*time.Second
	if expires > 0 {
		f.Expires = time.UnixMilli(expires).UTC()
	}
	return f, err
}

// Remember stores a fact, which is on disk when it returns, and returns its id. The same text of the same kind and
// subject is stored once: its time becomes now. contradicts are the ids of the owner's other facts about the subject.
func (s *Store) Remember(ctx context.Context, f Fact) (id int64, contradicts []int64, err error) {
	db, err := s.file.DB()
	if err != nil {
		return 0, nil, err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, nil, err
	}
	defer tx.Rollback()
	now := time.Now().UnixMilli()
	var expires int64
	if !f.Expires.IsZero() {
		expires = f.Expires.UnixMilli()
	}
	if _, err := tx.ExecContext(ctx, "DELETE FROM fact WHERE owner = ? AND expires > 0 AND expires <= ?",
		f.Owner, now); err != nil {
		return 0, nil, err
	}
	err = tx.QueryRowContext(ctx, "SELECT id FROM fact WHERE owner = ? AND kind = ? AND subject = ? AND text = ?",
		f.Owner, f.Kind, f.Subject, f.Text).Scan(&id)
	switch {
	case err == nil:
		_, err = tx.ExecContext(ctx,
			"UPDATE fact SET shared = ?, source = ?, made = ?, expires = ?, halves = ? WHERE id = ?", f.Shared,
			f.Source, now, expires, int64(f.Halves/time.Second), id)
	case errors.Is(err, sql.ErrNoRows):
		id, err = insertFact(ctx, tx, f, now, expires)
	}
	if err != nil {
		return 0, nil, err
	}
	if f.Subject != "" {
		contradicts, err = ids(ctx, tx, `SELECT id FROM fact
			WHERE owner = ? AND kind = ? AND subject = ? AND id <> ? ORDER BY id LIMIT 20`, f.Owner, f.Kind, f.Subject, id)
		if err != nil {
			return 0, nil, err
		}
	}
	return id, contradicts, tx.Commit()
}

func insertFact(ctx context.Context, tx *sql.Tx, f Fact, now, expires int64) (id int64, err error) {
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM fact WHERE owner = ?", f.Owner).Scan(&n); err != nil {
		return 0, err
	}
	if n >= MaxFacts {
		return 0, ErrFull
	}
	res, err := tx.ExecContext(
		ctx,
		`INSERT INTO fact (owner, shared, kind, subject, text, source, made, expires, halves)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		f.Owner,
		f.Shared,
		f.Kind,
		f.Subject,
		f.Text,
		f.Source,
		now,
		expires,
		int64(f.Halves/time.Second),
	)
	if err != nil {
		return 0, err
	}
	return res.LastInsertId()
}

func ids(ctx context.Context, tx *sql.Tx, query string, args ...any) (all []int64, err error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		all = append(all, id)
	}
	return all, rows.Err()
}

// Facts returns the facts of an owner, and those shared with a context, the newest first. kind and subject select;
// "" selects all.
func (s *Store) Facts(ctx context.Context, owner, shared, kind, subject string) (all []Fact, err error) {
	db, err := s.file.Reader()
	if err != nil || db == nil {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, "SELECT "+factColumns+` FROM fact
		WHERE (owner = ?1 OR shared <> '' AND shared = ?2) AND (?3 = '' OR kind = ?3) AND (?4 = '' OR subject = ?4)
		AND (expires = 0 OR expires > ?5) ORDER BY made DESC, id DESC LIMIT ?6`,
		owner, shared, kind, subject, time.Now().UnixMilli(), 2*MaxFacts)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		f, err := scanFact(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, rows.Err()
}

// Recall returns the facts that answer a question, the best first. A fact counts by the share of the question's words
// that it has, rare ones more, and by its age: after Halves it counts half.
func (s *Store) Recall(ctx context.Context, owner, shared, kind, question string, most int) ([]Recalled, error) {
	all, err := s.Facts(ctx, owner, shared, kind, "")
	if err != nil {
		return nil, err
	}
	found := rankFacts(all, question, time.Now())
	found = found[:min(len(found), most)]
	for i := range found {
		found[i].Contradicts = contradictions(all, found[i].Fact)
	}
	return found, nil
}

func rankFacts(all []Fact, question string, now time.Time) (found []Recalled) {
	have := make([]map[string]bool, len(all))
	df := map[string]int{}
	for i, f := range all {
		have[i] = map[string]bool{}
		words(f.Subject+" "+f.Text+" "+names(f.Subject+" "+f.Text), func(w string) { have[i][stem(w)] = true })
		for w := range have[i] {
			df[w]++
		}
	}
	var sum float64
	weights := map[string]float64{}
	for _, t := range terms(question) {
		st := stem(t)
		weights[st] = math.Log(1 + float64(len(all)+1)/float64(df[st]+1))
	}
	for _, w := range weights {
		sum += w
	}
	for i, f := range all {
		var score float64
		for t, w := range weights {
			if have[i][t] {
				score += w / sum
			}
		}
		if age := now.Sub(f.Made); f.Halves > 0 && age > 0 {
			score *= math.Exp2(-age.Seconds() / f.Halves.Seconds())
		}
		if score > 0 {
			found = append(found, Recalled{Fact: f, Score: score})
		}
	}
	slices.SortStableFunc(found, func(a, b Recalled) int {
		return cmp.Or(cmp.Compare(math.Round(b.Score*1e6), math.Round(a.Score*1e6)), b.Made.Compare(a.Made))
	})
	return found
}

func contradictions(all []Fact, f Fact) (other []int64) {
	if f.Subject == "" {
		return nil
	}
	for _, g := range all {
		if g.ID != f.ID && g.Kind == f.Kind && strings.EqualFold(g.Subject, f.Subject) && g.Text != f.Text {
			other = append(other, g.ID)
		}
	}
	return other
}

// Forget removes facts of an owner by their ids, or all of a subject, and returns how many there were.
func (s *Store) Forget(ctx context.Context, owner string, id int64, subject string) (int64, error) {
	db, err := s.file.DB()
	if err != nil {
		return 0, err
	}
	res, err := db.ExecContext(ctx, "DELETE FROM fact WHERE owner = ?1 AND (id = ?2 OR ?3 <> '' AND subject = ?3)",
		owner, id, subject)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// OwnedFacts gives the facts of each owner to the one that f returns, or removes them if drop is set. It returns
// how many f decided about.
func (s *Store) OwnedFacts(ctx context.Context, f func(Fact) (heir string, drop bool)) (n int, err error) {
	db, err := s.file.Reader()
	if err != nil || db == nil {
		return 0, err
	}
	rows, err := db.QueryContext(ctx, "SELECT "+factColumns+" FROM fact ORDER BY id")
	if err != nil {
		return 0, err
	}
	var all []Fact
	for rows.Next() {
		one, err := scanFact(rows)
		if err != nil {
			rows.Close()
			return 0, err
		}
		all = append(all, one)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return 0, err
	}
	write, err := s.file.DB()
	if err != nil {
		return 0, err
	}
	for _, one := range all {
		switch heir, drop := f(one); {
		case drop:
			_, err = write.ExecContext(ctx, "DELETE FROM fact WHERE id = ?", one.ID)
		case heir != "" && heir != one.Owner:
			_, err = write.ExecContext(ctx, "UPDATE fact SET owner = ? WHERE id = ?", heir, one.ID)
		default:
			continue
		}
		if err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

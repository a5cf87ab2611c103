package metrics

import (
	"context"
	"database/sql"
	"encoding/json"
	"maps"
	"math"
	"time"
)

// batch is one transaction of Record. Store.mu must be held.
type batch struct {
	s *Store
	// ctx is that of the one Record that a batch belongs to.
	ctx    context.Context
	tx     *sql.Tx
	scope  string
	insert *sql.Stmt     // of an event; nil before the first
	sum    *sql.Stmt     // adds to a sum; nil before the first
	made   map[key]int64 // series that exist once the transaction is committed
	folded bool
	swept  bool
}

// countSeries counts the series of a scope that this Store has not written to yet.
func (b *batch) countSeries() error {
	if _, ok := b.s.of[b.scope]; ok {
		return nil
	}
	var n int
	err := b.tx.QueryRowContext(b.ctx, "SELECT count(*) FROM series WHERE scope = ?", b.scope).Scan(&n)
	if err == nil {
		b.s.of[b.scope] = n
	}
	return err
}

func (b *batch) addEvent(e *Event) error {
	k := key{b.scope, e.Type, e.Repo, e.Agent}
	id, err := b.findSeries(k)
	if err != nil {
		return err
	}
	at := e.At
	if at.IsZero() {
		at = b.s.o.Now()
	}
	r := rowOf(e)
	var labels any
	if len(e.Labels) > 0 {
		text, err := json.Marshal(e.Labels)
		if err != nil {
			return err
		}
		labels = string(text)
	}
	var data any
	if len(e.Data) > 0 {
		data = []byte(e.Data)
	}
	err = b.exec(&b.insert, insertEvent, id, b.scope, at.UnixMilli(), r.n, r.valued, r.sum, r.min, r.max, labels, data)
	if err != nil {
		return err
	}
	for _, width := range []time.Duration{hour, day} {
		for _, series := range []int64{id, whole} {
			if err := b.addUp(width, at, series, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// whole stands for all series of a scope together.
const whole = 0

func (b *batch) addUp(width time.Duration, at time.Time, series int64, r sums) error {
	return b.exec(
		&b.sum,
		addToSum,
		b.scope,
		int64(width/time.Second),
		at.Truncate(width).UnixMilli(),
		series,
		r.n,
		r.valued,
		r.sum,
		r.min,
		r.max,
	)
}

const (
	insertEvent = "INSERT INTO event (series, scope, at, n, valued, sum, min, max, labels, " +
		"data) VALUES (?,?,?,?,?,?,?,?,?,?)"
	addToSum = `INSERT INTO sums (scope, width, at, series, n, valued, sum, min, max) VALUES (?,?,?,?,?,?,?,?,?)
		ON CONFLICT DO UPDATE SET n = n + excluded.n, sum = sum + excluded.sum,
			min = CASE WHEN valued = 0 THEN excluded.min WHEN excluded.valued = 0 THEN min ELSE min(min, excluded.min) END,
			max = CASE WHEN valued = 0 THEN excluded.max WHEN excluded.valued = 0 THEN max ELSE max(max, excluded.max) END,
			valued = valued + excluded.valued`
)

// exec executes a statement that is prepared once for all events of the
// batch, and closed with the transaction.
func (b *batch) exec(prepared **sql.Stmt, statement string, args ...any) (err error) {
	if *prepared == nil {
		if *prepared, err = b.tx.PrepareContext(b.ctx, statement); err != nil {
			return err
		}
	}
	_, err = (*prepared).ExecContext(b.ctx, args...)
	return err
}

func rowOf(e *Event) sums {
	r := sums{n: max(e.Count, 1)}
	if e.Value == nil {
		return r
	}
	r.valued, r.sum, r.min, r.max = r.n, *e.Value, *e.Value, *e.Value
	if e.Count > 1 {
		r.min, r.max = e.Min, e.Max
	}
	return r
}

// findSeries returns the row of a series, and creates it if necessary. A series above the limit is counted as
// Other: first its agent and repository, and then all of it.
func (b *batch) findSeries(k key) (id int64, err error) {
	for _, try := range []struct {
		key  key
		room int
	}{
		{k, b.s.o.Most},
		{key{k.scope, k.kind, Other, Other}, 2 * b.s.o.Most},
		{key{k.scope, Other, Other, Other}, math.MaxInt},
	} {
		if id, err = b.lookUp(try.key); err != sql.ErrNoRows {
			return id, err
		}
		if b.s.of[b.scope]+len(b.made) < try.room {
			return b.insertKey(try.key)
		}
		b.folded = true
	}
	return id, err
}

func (b *batch) lookUp(k key) (id int64, err error) {
	if id, ok := b.s.series[k]; ok {
		return id, nil
	}
	if id, ok := b.made[k]; ok {
		return id, nil
	}
	err = b.tx.QueryRowContext(b.ctx, "SELECT id FROM series WHERE scope = ? AND kind = ? AND repo = ? AND agent = ?",
		k.scope, k.kind, k.repo, k.agent).
		Scan(&id)
	if err == nil {
		b.s.series[k] = id // it existed before, so it stays even if this transaction is rolled back
	}
	return id, err
}

func (b *batch) insertKey(k key) (int64, error) {
	res, err := b.tx.ExecContext(
		b.ctx,
		"INSERT INTO series (scope, kind, repo, agent) VALUES (?,?,?,?)",
		k.scope,
		k.kind,
		k.repo,
		k.agent,
	)
	if err != nil {
		return 0, err
	}
	id, err := res.LastInsertId()
	b.made[k] = id
	return id, err
}

// prune removes old events, once a day.
func (b *batch) prune() error {
	now := b.s.o.Now()
	if now.Sub(b.s.pruned) < day {
		return nil
	}
	b.swept = true
	keep := b.s.o.Keep
	for _, step := range []struct {
		statement string
		before    time.Time
	}{
		{"DELETE FROM event WHERE at < ?", now.Add(-keep)},
		{"DELETE FROM sums WHERE width = 3600 AND at < ?", now.Add(-keep)},
		{"DELETE FROM sums WHERE width = 86400 AND at < ?", now.Add(-10 * keep)},
	} {
		if _, err := b.tx.ExecContext(b.ctx, step.statement, step.before.UnixMilli()); err != nil {
			return err
		}
	}
	return nil
}

// remember keeps the series that the transaction created.
func (b *batch) remember() {
	maps.Copy(b.s.series, b.made)
	b.s.of[b.scope] += len(b.made)
	if b.swept {
		b.s.pruned = b.s.o.Now()
	}
	if len(b.s.series) > 4*MaxSeries {
		clear(b.s.series) // series of scopes that are no longer written to
	}
}

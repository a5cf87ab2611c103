package metrics

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// MaxSteps is how many steps a series over time may have.
const MaxSteps = 500

// Query selects the events of a scope from a time until now.
type Query struct {
	Scope string
	Since time.Time
	Type  string        // pattern of a type, such as call.*; "" is every type but those of Not
	Not   string        // beginning of types that are left out where Type is ""; "" leaves out none
	Group string        // type, repo, agent_id, or the name of a label; "" is none
	Step  time.Duration // of the series over time; 0 is no such series
	Last  int           // how many single events, the newest first
}

// Sum is the sum of events.
type Sum struct {
	Count         int64
	Valued        int64 // how many had a value
	Sum, Min, Max float64
}

// sums is a Sum in its stored form.
type sums struct {
	n, valued     int64
	sum, min, max float64
}

func (s *Sum) accumulate(o sums) {
	s.Count += o.n
	if o.valued == 0 {
		return
	}
	if s.Valued == 0 {
		s.Min, s.Max = o.min, o.max
	}
	s.Min, s.Max = min(s.Min, o.min), max(s.Max, o.max)
	s.Valued += o.valued
	s.Sum += o.sum
}

// Named is a Sum of all events with a common name.
type Named struct {
	Name string
	Sum
}

// Step is a Sum over one step of time; Group is "" without grouping.
type Step struct {
	At    time.Time
	Group string
	Sum
}

// Answer is the result of a Query. The Named are sorted by count, the largest first; Steps by time.
type Answer struct {
	Sum
	Types, Repos, Agents, Groups []Named
	Steps                        []Step
	Events                       []Event
}

// Query sums events. It reads daily and hourly sums if they are fine enough; only grouping by a label, and steps
// that are not whole hours, read every event.
func (s *Store) Query(ctx context.Context, q Query) (Answer, error) {
	if err := q.validate(s.o.Now()); err != nil {
		return Answer{}, err
	}
	db, err := s.exists()
	if errors.Is(err, fs.ErrNotExist) {
		return Answer{}, nil
	}
	if err != nil {
		return Answer{}, err
	}
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return Answer{}, err
	}
	defer tx.Rollback()
	r := &reader{
		ctx:    ctx,
		tx:     tx,
		q:      q,
		types:  map[string]*Sum{},
		repos:  map[string]*Sum{},
		agents: map[string]*Sum{},
		groups: map[string]*Sum{},
		steps:  map[place]*Sum{},
	}
	if err := r.readPoints(s.o.Now()); err != nil {
		return Answer{}, err
	}
	return r.buildAnswer(), nil
}

func (q *Query) validate(now time.Time) error {
	if _, err := path.Match(q.Type, ""); err != nil {
		return invalid("type: %q is not a pattern", q.Type)
	}
	if q.Step < 0 || q.Step > 0 && q.Step < time.Second {
		return invalid("step is at least 1s")
	}
	if q.Step > 0 && now.Sub(q.Since)/q.Step > MaxSteps {
		return invalid("step makes more than %d steps of that time; take a longer one", MaxSteps)
	}
	return nil
}

// reader executes one query.
type reader struct {
	// ctx is that of the one query.
	ctx    context.Context
	tx     *sql.Tx
	q      Query
	series map[int64]key // the selected series
	only   string        // and an SQL condition that selects them

	all                          Sum
	types, repos, agents, groups map[string]*Sum
	steps                        map[place]*Sum
	events                       []Event
}

type place struct {
	at    int64
	group string
}

func (r *reader) readPoints(now time.Time) error {
	if err := r.readSeries(); err != nil {
		return err
	}
	for _, p := range r.plan(now, 0) {
		if err := r.readTotals(p); err != nil {
			return err
		}
	}
	if r.q.Step > 0 {
		for _, p := range r.plan(now, r.q.Step) {
			if err := r.readSteps(p); err != nil {
				return err
			}
		}
	}
	return r.readEvents()
}

// part is a range of time and what is read for it: sums of a width, or events.
type part struct {
	from, to time.Time
	width    time.Duration // 0: events
}

// plan divides the time: whole days, before them whole hours, before them events. The sum of a day or hour that is
// not over contains its events so far.
func (r *reader) plan(now time.Time, step time.Duration) []part {
	end := now.Add(100 * 365 * day) // clocks differ, so events in the future are included
	if r.byLabel() || step%hour != 0 {
		return []part{{r.q.Since, end, 0}}
	}
	hours, days := ceil(r.q.Since, hour), ceil(r.q.Since, day)
	if step%day != 0 {
		days = end
	}
	return []part{{r.q.Since, hours, 0}, {hours, days, hour}, {days, end, day}}
}

func (r *reader) byLabel() bool {
	return !slices.Contains([]string{"", "type", "repo", "agent_id"}, r.q.Group)
}

func ceil(t time.Time, d time.Duration) time.Time {
	if c := t.Truncate(d); c.Before(t) {
		return c.Add(d)
	}
	return t
}

func (r *reader) readSeries() error {
	rows, err := r.tx.QueryContext(r.ctx, "SELECT id, kind, repo, agent FROM series WHERE scope = ?", r.q.Scope)
	if err != nil {
		return err
	}
	defer rows.Close()
	r.series = map[int64]key{}
	for rows.Next() {
		var id int64
		var k key
		if err := rows.Scan(&id, &k.kind, &k.repo, &k.agent); err != nil {
			return err
		}
		if ok, _ := path.Match(r.q.Type, k.kind); ok ||
			r.q.Type == "" && (r.q.Not == "" || !strings.HasPrefix(k.kind, r.q.Not)) {
			r.series[id] = k
		}
	}
	if r.q.Type != "" || r.q.Not != "" {
		ids, err := json.Marshal(slices.Sorted(maps.Keys(r.series)))
		if err != nil {
			return err
		}
		r.only = " AND series IN (SELECT value FROM json_each('" + string(ids) + "'))" // numbers of our own
	}
	return rows.Err()
}

// readTotals sums a part by series, and by label if the query groups by it.
func (r *reader) readTotals(p part) error {
	label, args := "''", []any(nil)
	if r.byLabel() {
		label, args = ofLabel, []any{r.q.Group}
	}
	return r.each(p, "series", label, args, func(id int64, label string, s sums) {
		if k, ok := r.series[id]; ok {
			r.addPoint(k, label, s)
		}
	})
}

// readSteps sums a part by step and group. The database does it, because there may be many more series than
// groups.
func (r *reader) readSteps(p part) error {
	group, args := "''", []any{r.q.Step.Milliseconds()}
	switch column := map[string]string{"type": "kind", "repo": "repo", "agent_id": "agent"}[r.q.Group]; {
	case column != "":
		group = "(SELECT " + column + " FROM series WHERE series.id = series)"
	case r.byLabel():
		group = ofLabel
		args = append(args, r.q.Group)
	}
	return r.each(p, "at - at % ?", group, args, func(at int64, group string, s sums) {
		addTo(r.steps, place{at, group}, s)
	})
}

// ofLabel is the value of a label, or an empty string.
const ofLabel = "coalesce((SELECT value FROM json_each(labels) WHERE key = ?), '')"

// each sums a part by a number and a name.
func (r *reader) each(p part, number, name string, args []any, found func(int64, string, sums)) error {
	if !p.from.Before(p.to) {
		return nil
	}
	from := "event WHERE "
	if p.width > 0 {
		from = "sums WHERE width = ? AND " + r.rows(number) + " AND "
		args = append(args, int64(p.width/time.Second))
	}
	args = append(args, r.q.Scope, p.from.UnixMilli(), p.to.UnixMilli())
	rows, err := r.tx.QueryContext(r.ctx, "SELECT "+number+", "+name+`, sum(n), sum(valued), sum(sum),
		coalesce(min(CASE WHEN valued > 0 THEN min END), 0), coalesce(max(CASE WHEN valued > 0 THEN max END), 0)
		FROM `+from+"scope = ? AND at >= ? AND at < ?"+r.only+" GROUP BY 1, 2", args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var n int64
		var name string
		var s sums
		if err := rows.Scan(&n, &name, &s.n, &s.valued, &s.sum, &s.min, &s.max); err != nil {
			return err
		}
		found(n, name, s)
	}
	return rows.Err()
}

// rows selects among sums: those of all series together unless the query asks for single ones.
func (r *reader) rows(number string) string {
	if number != "series" && r.q.Group == "" && r.only == "" {
		return "series = 0"
	}
	return "series > 0"
}

// groupOf returns the group of an event; label is the value of the label by which the query groups.
func (r *reader) groupOf(k key, label string) string {
	switch r.q.Group {
	case "type":
		return k.kind
	case "repo":
		return k.repo
	case "agent_id":
		return k.agent
	}
	return label
}

func (r *reader) addPoint(k key, label string, s sums) {
	r.all.accumulate(s)
	addTo(r.types, k.kind, s)
	if k.repo != "" {
		addTo(r.repos, k.repo, s)
	}
	if k.agent != "" {
		addTo(r.agents, k.agent, s)
	}
	if r.q.Group != "" {
		addTo(r.groups, r.groupOf(k, label), s)
	}
}

func addTo[K comparable](m map[K]*Sum, k K, s sums) {
	if m[k] == nil {
		m[k] = &Sum{}
	}
	m[k].accumulate(s)
}

// readEvents reads the newest single events.
func (r *reader) readEvents() error {
	if r.q.Last <= 0 {
		return nil
	}
	rows, err := r.tx.QueryContext(
		r.ctx,
		"SELECT series, at, n, valued, sum, min, max, coalesce(labels, ''), data FROM event WHERE scope = ? AND at >= ?"+r.only+" ORDER BY at DESC, id DESC LIMIT ?",
		r.q.Scope,
		r.q.Since.UnixMilli(),
		r.q.Last,
	)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id, at, valued int64
		var e Event
		var sum float64
		var labels string
		if err := rows.Scan(&id, &at, &e.Count, &valued, &sum, &e.Min, &e.Max, &labels,
			(*[]byte)(&e.Data)); err != nil {
			return err
		}
		k := r.series[id]
		e.At, e.Type, e.Repo, e.Agent = time.UnixMilli(at).UTC(), k.kind, k.repo, k.agent
		if valued > 0 {
			e.Value = &sum
		}
		if labels != "" {
			if err := json.Unmarshal([]byte(labels), &e.Labels); err != nil {
				return err
			}
		}
		r.events = append(r.events, e)
	}
	return rows.Err()
}

func (r *reader) buildAnswer() Answer {
	a := Answer{
		Sum:    r.all,
		Types:  named(r.types),
		Repos:  named(r.repos),
		Agents: named(r.agents),
		Groups: named(r.groups),
		Events: r.events,
	}
	for p, s := range r.steps {
		a.Steps = append(a.Steps, Step{time.UnixMilli(p.at).UTC(), p.group, *s})
	}
	slices.SortFunc(a.Steps, func(x, y Step) int { return cmp.Or(x.At.Compare(y.At), cmp.Compare(x.Group, y.Group)) })
	return a
}

func named(m map[string]*Sum) []Named {
	var out []Named
	for _, name := range slices.Sorted(maps.Keys(m)) {
		out = append(out, Named{name, *m[name]})
	}
	slices.SortStableFunc(out, func(x, y Named) int { return cmp.Compare(y.Count, x.Count) })
	return out
}

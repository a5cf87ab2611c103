package metrics

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"gatehouse/internal/files/sqlfile"
)

// Kinds of series of a Usage.
const (
	ByTool      = "tool"
	ByPrincipal = "principal"
	ByPackage   = "package"
	Total       = "total" // one series of all calls, without a name
)

// These are the limits of a Usage.
const (
	MaxUsageNames  = 500       // names of one kind; more are counted as Other
	MaxMinuteSums  = 1_000_000 // rows of minutes; the oldest are removed
	usageKeep      = 90 * day
	usageInterval  = 10 * time.Second
	maxUsagePoints = 5000 // of one answer
	maxUsageSeries = 50   // of one answer; the largest
	bytesPerToken  = 4    // an estimate, as the text of a model's language is not known here
)

// Call is a finished call to count. Package may be "".
type Call struct {
	Tool, Principal string
	Took            time.Duration
	Failed          bool
	In, Out         int64 // bytes of arguments and of the result
}

// UsageOptions configures a Usage.
type UsageOptions struct {
	// PackageOf returns the package that a tool belongs to, "" if it belongs to none. It is called when sums are
	// written. nil means that there are no packages.
	PackageOf func(tool string) string
	Now       func() time.Time // nil means time.Now
	MaxRows   int              // rows of minutes; 0 means MaxMinuteSums
}

// Usage sums finished calls by the minute, hour and day for each tool, principal and package, and keeps the sums for
// 90 days. It is safe for concurrent use; Count never waits for the disk.
type Usage struct {
	o    UsageOptions
	file sqlfile.File

	// mu guards pending.
	mu      sync.Mutex
	pending map[usageKey]*usageSum

	// writing guards names and pruned, and is held while sums are written. mu is taken inside.
	writing sync.Mutex
	names   map[string]map[string]bool
	pruned  time.Time
}

// usageKey is a tool and a principal in one minute, before they are summed apart.
type usageKey struct {
	minute          int64 // Unix
	tool, principal string
}

type usageSum struct {
	calls, failed, in, out int64
	took                   time.Duration
	slow                   histogram
}

func (s *usageSum) add(o *usageSum) {
	s.calls, s.failed, s.in, s.out, s.took = s.calls+o.calls, s.failed+o.failed, s.in+o.in, s.out+o.out, s.took+o.took
	for i, n := range o.slow {
		s.slow[i] += n
	}
}

const usageSchema = `
CREATE TABLE usage (
	width INTEGER NOT NULL, kind TEXT NOT NULL, at INTEGER NOT NULL, name TEXT NOT NULL,
	calls INTEGER NOT NULL, failed INTEGER NOT NULL, sent INTEGER NOT NULL, got INTEGER NOT NULL,
	took INTEGER NOT NULL, slow BLOB NOT NULL, PRIMARY KEY (width, kind, at, name)) WITHOUT ROWID;`

// OpenUsage opens the sums in the file at path, which need not exist; "" keeps them in memory.
func OpenUsage(path string, o UsageOptions) *Usage {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.PackageOf == nil {
		o.PackageOf = func(string) string { return "" }
	}
	if o.MaxRows <= 0 {
		o.MaxRows = MaxMinuteSums
	}
	return &Usage{
		o:       o,
		file:    sqlfile.File{Path: path, Schema: usageSchema, Version: 1},
		pending: map[usageKey]*usageSum{},
	}
}

// maxPending is how many sums may wait to be written; calls of further tools and principals are counted as Other.
const maxPending = 4096

// Count adds a call.
func (u *Usage) Count(c Call) {
	if len(c.Tool) > MaxName || len(c.Principal) > MaxName {
		return
	}
	k := usageKey{u.o.Now().Unix() / 60 * 60, c.Tool, c.Principal}
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.pending[k]
	if s == nil {
		if len(u.pending) >= maxPending {
			k.tool, k.principal = Other, Other
		}
		if s = u.pending[k]; s == nil {
			s = &usageSum{}
			u.pending[k] = s
		}
	}
	s.calls++
	if c.Failed {
		s.failed++
	}
	s.in, s.out, s.took = s.in+c.In, s.out+c.Out, s.took+c.Took
	s.slow[bucketOf(c.Took)]++
}

// Run writes the sums until ctx is done, and then once more.
func (u *Usage) Run(ctx context.Context, failed func(error)) {
	tick := time.NewTicker(usageInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			if err := u.Flush(last); err != nil {
				failed(err)
			}
			return
		case <-tick.C:
			if err := u.Flush(ctx); err != nil {
				failed(err)
			}
		}
	}
}

// Close closes the file.
func (u *Usage) Close() error { return u.file.Close() }

// usageRow names one row.
type usageRow struct {
	width int64
	kind  string
	at    int64
	name  string
}

// Flush writes the sums that wait. If that fails, they are lost.
func (u *Usage) Flush(ctx context.Context) error {
	u.writing.Lock()
	defer u.writing.Unlock()
	u.mu.Lock()
	pending := u.pending
	u.pending = map[usageKey]*usageSum{}
	u.mu.Unlock()
	if len(pending) == 0 {
		return nil
	}
	db, err := u.file.DB()
	if err != nil {
		return err
	}
	if err := u.readNames(ctx, db); err != nil {
		return err
	}
	rows := map[usageRow]*usageSum{}
	for k, s := range pending {
		for kind, name := range map[string]string{
			ByTool: k.tool, ByPrincipal: k.principal, ByPackage: u.o.PackageOf(k.tool), Total: "",
		} {
			if name == "" && kind != Total {
				continue
			}
			name = u.known(kind, name)
			for _, width := range []int64{60, 3600, 86400} {
				r := usageRow{width, kind, k.minute / width * width, name}
				if rows[r] == nil {
					rows[r] = &usageSum{}
				}
				rows[r].add(s)
			}
		}
	}
	return u.write(ctx, db, rows)
}

// readNames reads the names that have sums, once.
func (u *Usage) readNames(ctx context.Context, db *sql.DB) error {
	if u.names != nil {
		return nil
	}
	names := map[string]map[string]bool{ByTool: {}, ByPrincipal: {}, ByPackage: {}, Total: {}}
	rows, err := db.QueryContext(ctx, "SELECT DISTINCT kind, name FROM usage WHERE width = 86400")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var kind, name string
		if err := rows.Scan(&kind, &name); err != nil {
			return err
		}
		if names[kind] != nil {
			names[kind][name] = true
		}
	}
	u.names = names
	return rows.Err()
}

// known returns a name, or Other if there are too many names.
func (u *Usage) known(kind, name string) string {
	of := u.names[kind]
	if !of[name] {
		if len(of) >= MaxUsageNames {
			return Other
		}
		of[name] = true
	}
	return name
}

// write adds sums to the file in one transaction.
func (u *Usage) write(ctx context.Context, db *sql.DB, rows map[usageRow]*usageSum) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for r, s := range rows {
		var old []byte
		err := tx.QueryRowContext(ctx, "SELECT slow FROM usage WHERE width = ? AND kind = ? AND at = ? AND name = ?",
			r.width, r.kind, r.at, r.name).Scan(&old)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		s.slow.addPacked(old)
		if _, err := tx.ExecContext(ctx, `INSERT INTO usage VALUES (?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET
			calls = calls + excluded.calls, failed = failed + excluded.failed, sent = sent + excluded.sent,
			got = got + excluded.got, took = took + excluded.took, slow = excluded.slow`,
			r.width, r.kind, r.at, r.name, s.calls, s.failed, s.in, s.out, s.took.Microseconds(),
			s.slow.pack()); err != nil {
			return err
		}
	}
	if err := u.prune(ctx, tx); err != nil {
		return err
	}
	return tx.Commit()
}

// prune removes old sums, once an hour.
func (u *Usage) prune(ctx context.Context, tx *sql.Tx) error {
	now := u.o.Now()
	if now.Sub(u.pruned) < hour {
		return nil
	}
	if _, err := tx.ExecContext(ctx, "DELETE FROM usage WHERE at < ?", now.Add(-usageKeep).Unix()); err != nil {
		return err
	}
	var minutes int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM usage WHERE width = 60").Scan(&minutes); err != nil {
		return err
	}
	if over := minutes - u.o.MaxRows; over > 0 {
		if _, err := tx.ExecContext(ctx, `DELETE FROM usage WHERE width = 60 AND at <=
			(SELECT at FROM usage WHERE width = 60 ORDER BY at LIMIT 1 OFFSET ?)`, over-1); err != nil {
			return err
		}
	}
	u.pruned = now
	return nil
}

// UsageQuery selects sums.
type UsageQuery struct {
	Kind  string // ByTool, ByPrincipal, ByPackage or Total
	Name  string // "" means all names of the kind
	Since time.Time
	Until time.Time     // excluded; zero means now
	Step  time.Duration // a minute, an hour or a day
}

// UsageSeries is the sums of one name over time.
type UsageSeries struct {
	Name   string
	Calls  int64 // of all points
	Points []UsagePoint
}

// UsagePoint is the sum of one minute, hour or day. Latencies are in milliseconds, with an error of a fifth at most.
type UsagePoint struct {
	At                  time.Time
	Calls, Failed       int64
	Mean, P50, P95, P99 float64
	In, Out, Tokens     int64
}

// Series returns sums, the names with the most calls first, and how many names were left out.
func (u *Usage) Series(ctx context.Context, q UsageQuery) (all []UsageSeries, more int, err error) {
	if !slices.Contains([]string{ByTool, ByPrincipal, ByPackage, Total}, q.Kind) {
		return nil, 0, invalid("by is %q; expected tool, principal, package or total", q.Kind)
	}
	if !slices.Contains([]time.Duration{time.Minute, hour, day}, q.Step) {
		return nil, 0, invalid("step is %v; expected 1m, 1h or 1d", q.Step)
	}
	if q.Until.IsZero() {
		q.Until = u.o.Now().Add(time.Second)
	}
	if n := q.Until.Sub(q.Since) / q.Step; n > maxUsagePoints {
		return nil, 0, invalid("since and step make %d points for each name; at most %d", n, maxUsagePoints)
	}
	if err := u.Flush(ctx); err != nil {
		return nil, 0, err
	}
	if !u.file.Exists() {
		return nil, 0, nil
	}
	db, err := u.file.DB()
	if err != nil {
		return nil, 0, err
	}
	from, until := q.Since.Truncate(q.Step).Unix(), q.Until.Unix()
	width := int64(q.Step / time.Second)
	names, more, err := largest(ctx, db, q, width, from, until)
	if err != nil || len(names) == 0 {
		return nil, more, err
	}
	room := max(1, maxUsagePoints/len(names))
	for _, name := range names {
		s := UsageSeries{Name: name}
		if s.Points, err = points(ctx, db, usageRow{width, q.Kind, from, name}, until, room); err != nil {
			return nil, 0, err
		}
		for _, p := range s.Points {
			s.Calls += p.Calls
		}
		all = append(all, s)
	}
	slices.SortStableFunc(all, func(a, b UsageSeries) int { return int(min(max(b.Calls-a.Calls, -1), 1)) })
	return all, more, nil
}

// largest returns the names with the most calls, and the number of the others.
func largest(
	ctx context.Context, db *sql.DB, q UsageQuery, width, from, until int64,
) (names []string, more int, err error) {
	rows, err := db.QueryContext(ctx, `SELECT name FROM usage WHERE width = ? AND kind = ? AND at >= ? AND at < ?
		AND ? IN ('', name) GROUP BY name ORDER BY sum(calls) DESC, name`, width, q.Kind, from, until, q.Name)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, 0, err
		}
		if len(names) < maxUsageSeries {
			names = append(names, name)
		} else {
			more++
		}
	}
	return names, more, rows.Err()
}

// points returns the newest sums of one name, oldest first.
func points(
	ctx context.Context, db *sql.DB, from usageRow, until int64, most int,
) (all []UsagePoint, err error) {
	rows, err := db.QueryContext(ctx, `SELECT at, calls, failed, sent, got, took, slow FROM usage
		WHERE width = ? AND kind = ? AND at >= ? AND at < ? AND name = ? ORDER BY at DESC LIMIT ?`,
		from.width, from.kind, from.at, until, from.name, most)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var at, took int64
		var p UsagePoint
		var slow []byte
		if err := rows.Scan(&at, &p.Calls, &p.Failed, &p.In, &p.Out, &took, &slow); err != nil {
			return nil, err
		}
		var h histogram
		h.addPacked(slow)
		p.At = time.Unix(at, 0).UTC()
		p.P50, p.P95, p.P99 = h.quantile(0.5), h.quantile(0.95), h.quantile(0.99)
		p.Mean = round3(float64(took) / 1000 / float64(max(p.Calls, 1)))
		p.Tokens = (p.In + p.Out) / bytesPerToken
		all = append(all, p)
	}
	slices.Reverse(all)
	return all, rows.Err()
}

// histogram counts durations in buckets, each of which ends at sqrt(2) times the end of the one before.
type histogram [48]uint32

const firstBucket = 50 * time.Microsecond // end of the first bucket

func bucketOf(d time.Duration) int {
	if d <= firstBucket {
		return 0
	}
	n := int(math.Ceil(2 * math.Log2(float64(d)/float64(firstBucket))))
	return min(n, len(histogram{})-1)
}

// endOf returns the end of a bucket in milliseconds.
func endOf(bucket int) float64 {
	return float64(firstBucket) / float64(time.Millisecond) * math.Pow(2, float64(bucket)/2)
}

// quantile returns a duration in milliseconds that a share q of the calls did not exceed: the middle of its bucket.
func (h *histogram) quantile(q float64) float64 {
	var all uint64
	for _, n := range h {
		all += uint64(n)
	}
	if all == 0 {
		return 0
	}
	rank, seen := uint64(math.Ceil(q*float64(all))), uint64(0)
	for i, n := range h {
		if seen += uint64(n); seen >= rank {
			return round3(endOf(i) * math.Pow(2, -0.25))
		}
	}
	return 0 // unreachable: seen is all at the end
}

func round3(f float64) float64 { return math.Round(f*1000) / 1000 }

// pack encodes the buckets that are not empty, each as its number and four bytes.
func (h *histogram) pack() []byte {
	b := []byte{}
	for i, n := range h {
		if n > 0 {
			b = append(b, byte(i), byte(n), byte(n>>8), byte(n>>16), byte(n>>24))
		}
	}
	return b
}

// addPacked adds what pack encoded; anything else is ignored.
func (h *histogram) addPacked(b []byte) {
	for ; len(b) >= 5; b = b[5:] {
		if i := int(b[0]); i < len(h) {
			h[i] += uint32(b[1]) | uint32(b[2])<<8 | uint32(b[3])<<16 | uint32(b[4])<<24
		}
	}
}

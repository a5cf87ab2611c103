package audit

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"time"

	"gatehouse/internal/mcp/rawjson"
)

// Filter selects lines; empty fields match all.
type Filter struct {
	Since, Until time.Time // of the line's own time; Until itself is excluded
	After        int64     // lines with a higher number
	Before       int64     // lines with a lower number; 0 means all
	Kind         string
	Level        Level
	Principal    string
	Context      string
	Session      string // as lines hold it; see SessionHash
	Tool         string
	Call         string
	Task         string
	Outcome      string
	Last         int // only this many of the newest; 0 means all
}

// page is the number of blocks that are read at once.
const page = 32

// Query yields the matching lines in the order in which they were written. It omits lines that are not
// on disk yet; see Sync. It ends after an error.
func (l *Ledger) Query(ctx context.Context, f Filter) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		if f.Last > 0 {
			l.newest(ctx, f, yield)
			return
		}
		l.ahead(ctx, &f, yield)
	}
}

// ahead yields the matching lines after f.After and advances f.After. It reports whether the caller
// wants more.
func (l *Ledger) ahead(ctx context.Context, f *Filter, yield func(Line, error) bool) bool {
	marks := f.marks()
	for from, more := f.After, true; more; {
		first, err := l.blockOf(ctx, from, f)
		if err != nil {
			return yield(Line{}, err) && false
		}
		blocks, err := l.blocks(ctx, "first >= ? ORDER BY first", first)
		if err != nil {
			return yield(Line{}, err) && false
		}
		for _, text := range blocks {
			if !f.pass(text, marks, yield) {
				return false
			}
		}
		from, more = f.After, len(blocks) == page
	}
	return true
}

// pass yields the matching lines of one block.
func (f *Filter) pass(text []byte, marks [][]byte, yield func(Line, error) bool) bool {
	for raw := range bytes.Lines(text) {
		seq, _, ok := parseLink(raw)
		if !ok {
			return yield(Line{}, fmt.Errorf("a line after %d is damaged: run gatehouse audit verify", f.After)) && false
		}
		if seq <= f.After {
			continue
		}
		f.After = seq
		line, fits, err := f.match(raw, marks)
		if (fits || err != nil) && (!yield(line, err) || err != nil) {
			return false
		}
	}
	return true
}

// blockOf returns the first block that can hold a matching line after the given one.
func (l *Ledger) blockOf(ctx context.Context, after int64, f *Filter) (first int64, err error) {
	db, err := l.file.reader()
	if db == nil || err != nil {
		return 0, err
	}
	var behind, recent sql.NullInt64
	err = db.QueryRowContext(ctx, "SELECT max(first) FROM block WHERE first <= ?", after+1).Scan(&behind)
	if err == nil && !f.Since.IsZero() {
		err = db.QueryRowContext(ctx, "SELECT min(first) FROM block INDEXED BY block_until WHERE until >= ?",
			f.Since.UnixMicro()).
			Scan(&recent)
		if !recent.Valid {
			recent.Int64 = math.MaxInt64
		}
	}
	if err != nil {
		return 0, fmt.Errorf("read the audit ledger: %w", err)
	}
	return max(behind.Int64, recent.Int64), nil
}

// newest yields the last matching lines, which it searches from the end.
func (l *Ledger) newest(ctx context.Context, f Filter, yield func(Line, error) bool) {
	var found []Line
	least, err := l.blockOf(ctx, f.After, &f)
	for before, more := cmp.Or(f.Before, math.MaxInt64), true; more && err == nil && len(found) < f.Last; {
		var blocks [][]byte
		blocks, err = l.blocks(ctx, "first >= ? AND first < ? ORDER BY first DESC", least, before)
		for _, text := range blocks {
			var lines []Line
			b := f
			b.pass(text, f.marks(), func(line Line, e error) bool {
				lines, err = append(lines, line), errors.Join(err, e)
				return err == nil
			})
			slices.Reverse(lines)
			found = append(found, lines...)
			if seq, _, ok := parseLink(text); ok {
				before = seq
			}
		}
		more = len(blocks) == page
	}
	if err != nil {
		yield(Line{}, err)
		return
	}
	for _, line := range slices.Backward(found[:min(f.Last, len(found))]) {
		if !yield(line, nil) {
			return
		}
	}
}

// look is the interval at which Follow looks for lines of other processes.
const look = 250 * time.Millisecond

// Follow yields the lines that Query yields, and then each line that this process or another writes,
// until ctx is done.
func (l *Ledger) Follow(ctx context.Context, f Filter) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		if f.Last > 0 {
			more := true
			l.newest(ctx, f, func(line Line, err error) bool {
				f.After = line.Seq
				more = yield(line, err) && err == nil
				return more
			})
			if !more {
				return
			}
		}
		tick := time.NewTicker(look)
		defer tick.Stop()
		for l.ahead(ctx, &f, yield) {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}
}

// blocks reads one page of blocks.
func (l *Ledger) blocks(ctx context.Context, where string, args ...any) (blocks [][]byte, err error) {
	db, err := l.file.reader()
	if db == nil || err != nil {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, "SELECT lines FROM block WHERE "+where+fmt.Sprintf(" LIMIT %d", page), args...)
	if err != nil {
		return nil, fmt.Errorf("read the audit ledger: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var packed sql.RawBytes
		if err := rows.Scan(&packed); err != nil {
			return nil, fmt.Errorf("read the audit ledger: %w", err)
		}
		text, err := unpack(packed)
		if err != nil {
			return nil, err
		}
		if len(text) > 0 {
			blocks = append(blocks, text)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the audit ledger: %w", err)
	}
	return blocks, nil
}

// marks are texts that a matching line must contain; looking for them first saves decoding most other
// lines.
func (f *Filter) marks() (marks [][]byte) {
	for name, text := range map[string]string{
		"kind": f.Kind, "level": string(f.Level), "principal": f.Principal, "context": f.Context,
		"session": f.Session, "tool": f.Tool, "call": f.Call, "task": f.Task, "outcome": f.Outcome,
	} {
		if m := appendMember(nil, name, text); m != nil {
			marks = append(marks, m[:len(m)-1])
		}
	}
	return marks
}

// match decodes a line if it fits.
func (f *Filter) match(raw []byte, marks [][]byte) (line Line, fits bool, err error) {
	for _, m := range marks {
		if !bytes.Contains(raw, m) {
			return line, false, nil
		}
	}
	if line, err = ParseLine(raw); err != nil {
		return line, false, err
	}
	return line, f.matchesLine(&line), nil
}

// matchesLine reports whether a decoded line matches. The marks do not suffice, because one may have been
// found within the arguments.
func (f *Filter) matchesLine(l *Line) bool {
	is := func(want, got string) bool { return want == "" || want == got }
	return (f.Before == 0 || l.Seq < f.Before) && (f.Since.IsZero() || !l.At.Before(f.Since)) &&
		(f.Until.IsZero() || l.At.Before(f.Until)) &&
		is(
			f.Kind,
			l.Kind,
		) && is(string(f.Level), string(l.Level)) && is(f.Principal, l.Principal) && is(f.Context, l.Context) &&
		is(f.Session, l.Session) && is(f.Tool, l.Tool) && is(f.Call, l.Call) && is(f.Task, l.Task) &&
		is(f.Outcome, l.Outcome)
}

// ParseLine parses one line in the form that Export writes.
func ParseLine(raw []byte) (line Line, err error) {
	raw = bytes.TrimSuffix(raw, []byte("\n"))
	if err := rawjson.Check(raw, 0); err != nil {
		return line, fmt.Errorf("a line of the audit ledger is damaged: %w", err)
	}
	if err := json.Unmarshal(raw, &line); err != nil {
		return line, fmt.Errorf("a line of the audit ledger is damaged: %w", err)
	}
	line.Raw = raw
	return line, nil
}

// Last returns the number of the newest line on disk; 0 if there is none.
func (l *Ledger) Last(ctx context.Context) (seq int64, err error) {
	db, err := l.file.reader()
	if db == nil || err != nil {
		return 0, err
	}
	err = db.QueryRowContext(ctx, "SELECT through FROM block ORDER BY first DESC LIMIT 1").Scan(&seq)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return seq, err
}

// Export writes all lines unchanged, one JSON object per line.
func (l *Ledger) Export(ctx context.Context, w io.Writer) error {
	if err := l.Sync(ctx); err != nil {
		return err
	}
	return l.eachBlock(ctx, func(b block) error {
		if b.damaged {
			return fmt.Errorf("lines %d to %d: %w", b.first, b.through, errPacked)
		}
		_, err := w.Write(b.lines)
		return err
	})
}

// block is one row.
type block struct {
	first, through, since, until int64
	hash, lines                  []byte
	damaged                      bool // its lines cannot be unpacked
}

// eachBlock reads all blocks in one snapshot of the file.
func (l *Ledger) eachBlock(ctx context.Context, f func(block) error) error {
	db, err := l.file.reader()
	if db == nil || err != nil {
		return err
	}
	rows, err := db.QueryContext(ctx, "SELECT first, through, since, until, hash, lines FROM block ORDER BY first")
	if err != nil {
		return fmt.Errorf("read the audit ledger: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var b block
		var packed sql.RawBytes
		if err := rows.Scan(&b.first, &b.through, &b.since, &b.until, (*sql.RawBytes)(&b.hash), &packed); err != nil {
			return fmt.Errorf("read the audit ledger: %w", err)
		}
		b.lines, err = unpack(packed)
		b.damaged = err != nil
		if err := f(b); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read the audit ledger: %w", err)
	}
	return nil
}

package audit

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

const (
	pruneEvery = 10 * time.Minute
	pruneAtOne = 32 << 20 // bytes of lines that one pass removes at most, because other writers wait meanwhile
)

// prune removes the oldest blocks if they are too old or too large in total. It records the removal in
// the chain within the same transaction: the line names the last line removed and its hash, so that the
// remaining chain can still be verified.
func (f *file) prune(ctx context.Context, l *Ledger, now time.Time) error {
	if now.Sub(f.pruned) < pruneEvery {
		return nil
	}
	f.pruned = now
	return f.pruneNow(ctx, l, now)
}

func (f *file) pruneNow(ctx context.Context, l *Ledger, now time.Time) error {
	db, _, err := f.writer()
	if err != nil {
		return err
	}
	if err := f.prepared.prepare(ctx, db); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	through, more, err := surplus(ctx, tx, l.o, now)
	if err != nil || through == 0 {
		return err
	}
	if more {
		f.pruned = time.Time{} // continue after the next lines
	}
	end, err := f.endOf(ctx, tx)
	if err != nil {
		return err
	}
	r := removal{Through: through}
	if r.Hash, r.Archive, err = f.takeOut(ctx, tx, l.o.Archive, through); err != nil {
		return err
	}
	args, err := json.Marshal(r)
	if err != nil {
		return err
	}
	e := Entry{Kind: removalKind, Level: Security, Args: args,
		Reason: "older than the retention time, or beyond the size limit"}
	b := newBatch()
	b.text = e.append(nil, l.who, &l.seen)
	b.ends = []int{len(b.text)}
	if end, err = f.insert(ctx, tx, end, b); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	l.o.Log.Info("audit: old lines were removed", "through", through, "archive", r.Archive)
	return f.head.addLink(end)
}

// surplus returns the last line to remove, 0 if all stay, and whether more is left than one pass
// removes. The newest block always stays.
func surplus(ctx context.Context, tx *sql.Tx, o Options, now time.Time) (through int64, more bool, err error) {
	var used, newest sql.NullInt64
	err = errors.Join(
		tx.QueryRowContext(ctx,
			"SELECT (p.page_count - f.freelist_count) * s.page_size FROM pragma_page_count p, "+
				"pragma_freelist_count f, pragma_page_size s").
			Scan(&used),
		tx.QueryRowContext(ctx, "SELECT max(first) FROM block").Scan(&newest),
	)
	if err != nil || !newest.Valid {
		return 0, false, err
	}
	over, removedAt := used.Int64-o.MaxSize, int64(0)
	oldest := int64(-1) << 62
	if o.Keep > 0 {
		oldest = now.Add(-o.Keep).UnixMicro()
	}
	rows, err := tx.QueryContext(
		ctx,
		"SELECT through, until, length(lines) FROM block WHERE first < ? ORDER BY first",
		newest.Int64,
	)
	if err != nil {
		return 0, false, err
	}
	defer rows.Close()
	for rows.Next() {
		var last, until, size int64
		if err := rows.Scan(&last, &until, &size); err != nil {
			return 0, false, err
		}
		if removedAt >= over && until >= oldest {
			break
		}
		if removedAt >= pruneAtOne {
			return through, true, nil
		}
		through, removedAt = last, removedAt+size
	}
	return through, false, rows.Err()
}

// takeOut removes all blocks up to a line, into an archive if one is configured, and returns the hash
// of the last line.
func (f *file) takeOut(
	ctx context.Context,
	tx *sql.Tx,
	folder string,
	through int64,
) (last, archive string, err error) {
	var sum []byte
	if err := tx.QueryRowContext(ctx, "SELECT hash FROM block WHERE through = ?", through).Scan(&sum); err != nil {
		return "", "", err
	}
	if folder != "" {
		if archive, err = store(ctx, tx, folder, through); err != nil {
			return "", "", fmt.Errorf("archive lines up to %d: %w", through, err)
		}
	}
	_, err = tx.ExecContext(ctx, "DELETE FROM block WHERE through <= ?", through)
	return fmt.Sprintf("%x", sum), archive, err
}

// store writes the blocks up to a line to an archive file.
func store(ctx context.Context, tx *sql.Tx, folder string, through int64) (name string, err error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", err
	}
	var first int64
	if err := tx.QueryRowContext(ctx, "SELECT min(first) FROM block").Scan(&first); err != nil {
		return "", err
	}
	name = fmt.Sprintf("audit-%d-%d.jsonl", first, through)
	out, err := os.OpenFile(filepath.Join(folder, name+".new"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			os.Remove(out.Name())
		}
	}()
	err = errors.Join(copyBlocks(ctx, tx, out, through), out.Sync(), out.Close())
	if err == nil {
		err = os.Rename(out.Name(), filepath.Join(folder, name))
	}
	return name, err
}

func copyBlocks(ctx context.Context, tx *sql.Tx, out *os.File, through int64) error {
	rows, err := tx.QueryContext(ctx, "SELECT lines FROM block WHERE through <= ? ORDER BY first", through)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var packed sql.RawBytes
		if err := rows.Scan(&packed); err != nil {
			return err
		}
		text, err := unpack(packed)
		if err != nil {
			return err
		}
		if _, err := out.Write(text); err != nil {
			return err
		}
	}
	return rows.Err()
}

package jobs

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

const keepEnded = 10 // ended records of one owner, as a multiple of the unfinished ones

type querier interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}

// insert stores a new row and calls after in the order of the changes.
func (s *store) insert(r row, limit int, after func(row)) error {
	if r.size() > maxBody {
		return ErrTooLarge
	}
	db, err := s.writer(true)
	if err != nil {
		return err
	}
	if err := s.lockHost(); err != nil {
		return err
	}
	f, err := r.fields()
	if err != nil {
		return err
	}
	r.rev, r.host = 1, s.host
	return s.transact(db, func(tx *sql.Tx) error {
		if err := enforceLimits(tx, r.Owner, limit); err != nil {
			return err
		}
		_, err := tx.Exec(
			`INSERT INTO job VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,
			max(?, (SELECT 1 + ifnull(max(place), 0) FROM job WHERE owner = ?)))`,
			r.ID,
			r.Owner,
			r.Title,
			r.Status,
			r.Note,
			r.Created.UnixMilli(),
			r.Updated.UnixMilli(),
			r.TTL.Milliseconds(),
			r.Poll.Milliseconds(),
			f.fault,
			f.questions,
			f.recorded,
			r.State,
			r.Done,
			r.Total,
			r.rev,
			r.Round,
			r.host,
			time.Now().UnixMicro(),
			r.Owner,
		)
		if err == nil {
			_, err = tx.Exec(`INSERT INTO body VALUES (?,?,NULL)`, r.ID, []byte(r.Request))
		}
		if err != nil {
			return fmt.Errorf("jobs: %w", err)
		}
		return nil
	}, func() { after(r) })
}

// enforceLimits enforces the limits of an owner's records: it refuses more unfinished ones, and removes the oldest
// ended one.
func enforceLimits(tx *sql.Tx, owner string, limit int) error {
	var open, ended int
	err := tx.QueryRow(`SELECT count(*) FILTER (WHERE status IN ('working','input_required')),
		count(*) FILTER (WHERE status NOT IN ('working','input_required')) FROM job WHERE owner = ?`, owner).Scan(&open, &ended)
	if err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	if open >= limit {
		return ErrTooMany
	}
	if over := ended - keepEnded*limit; over >= 0 {
		_, err = removeRows(
			tx,
			`owner = ? AND status NOT IN ('working','input_required') ORDER BY updated LIMIT ?`,
			owner,
			over+1,
		)
	}
	return err
}

// removeRows removes the records that match a condition.
func removeRows(tx *sql.Tx, where string, args ...any) (ids []string, err error) {
	ids, err = texts(tx.Query(`SELECT id FROM job WHERE `+where, args...))
	for _, id := range ids {
		if err == nil {
			_, err = tx.Exec(`DELETE FROM body WHERE id = ?`, id)
		}
		if err == nil {
			_, err = tx.Exec(`DELETE FROM job WHERE id = ?`, id)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("jobs: %w", err)
	}
	return ids, nil
}

// remove removes a row, if it exists.
func (s *store) remove(id string) error {
	db, err := s.writer(false)
	if err != nil || db == nil {
		return err
	}
	return s.transact(db, func(tx *sql.Tx) error {
		_, err := removeRows(tx, `id = ?`, id)
		return err
	}, func() {})
}

// changeRow works on the newest stored state; see Manager.changeJob.
func (s *store) changeRow(id string, f func(*row) error, after func(row)) error {
	db, err := s.writer(false)
	if err != nil {
		return err
	}
	if db == nil {
		return ErrNotFound
	}
	var r row
	return s.transact(db, func(tx *sql.Tx) error {
		if r, err = readWhole(tx, id); err != nil {
			return err
		}
		if err := f(&r); err != nil {
			return err
		}
		if r.size() > maxBody {
			return ErrTooLarge
		}
		if r.next { // it will run in this process
			if err := s.lockHost(); err != nil {
				return err
			}
		}
		r.rev++
		r.Updated = now()
		return update(tx, r)
	}, func() { after(r) })
}

func update(tx *sql.Tx, r row) error {
	f, err := r.fields()
	if err != nil {
		return err
	}
	_, err = tx.Exec(
		`UPDATE job SET status=?, note=?, updated=?, error=?, questions=?, recorded=?, state=?, done=?, total=?, rev=?, round=?, host=? WHERE id=?`,
		r.Status,
		r.Note,
		r.Updated.UnixMilli(),
		f.fault,
		f.questions,
		f.recorded,
		r.State,
		r.Done,
		r.Total,
		r.rev,
		r.Round,
		r.host,
		r.ID,
	)
	if err == nil && r.fresh {
		_, err = tx.Exec(`UPDATE body SET result=? WHERE id=?`, []byte(r.Result), r.ID)
	}
	if err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	return nil
}

// updateNote stores a running job's note and progress, and reports whether that round is still the current one.
func (s *store) updateNote(r row) (ours bool, err error) {
	db, err := s.writer(false)
	if err != nil || db == nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	res, err := db.ExecContext(
		ctx,
		`UPDATE job SET note=?, done=?, total=?, updated=?, rev=rev+1 WHERE id=? AND round=? AND status='working'`,
		r.Note,
		r.Done,
		r.Total,
		r.Updated.UnixMilli(),
		r.ID,
		r.Round,
	)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

func readWhole(q querier, id string) (row, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var request, result []byte
	r, err := scan(
		q.QueryRowContext(
			ctx,
			`SELECT `+columns+`, request, result FROM job JOIN body USING (id) WHERE job.id = ?`,
			id,
		),
		&request,
		&result,
	)
	r.Request, r.Result = request, result
	return r, err
}

func (s *store) readRow(id string) (row, error) {
	db, err := s.reader()
	if err != nil {
		return row{}, err
	}
	if db == nil {
		return row{}, ErrNotFound
	}
	return readWhole(db, id)
}

// listRows returns rows without their bodies, the newest first.
func (s *store) listRows(owner string, before int64, limit int) ([]row, error) {
	return s.rows(`owner = ? AND place < ? ORDER BY place DESC LIMIT ?`, owner, before, limit)
}

// rows returns the rows that match a condition, without their bodies.
func (s *store) rows(where string, args ...any) (list []row, err error) {
	db, err := s.reader()
	if err != nil || db == nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	rows, err := db.QueryContext(ctx, `SELECT `+columns+` FROM job WHERE `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("jobs: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		r, err := scan(rows)
		if err != nil {
			return nil, err
		}
		r.Recorded, r.State = nil, nil
		list = append(list, r)
	}
	return list, rows.Err()
}

// unfinished returns the rows of all owners that have not ended, without their bodies, the oldest first.
func (s *store) unfinished() ([]row, error) {
	return s.rows(`status IN ('working','input_required') ORDER BY created`)
}

// ended returns the rows of all owners that have ended, without their bodies, the oldest first, so that they keep
// their order when they are handed over.
func (s *store) ended() ([]row, error) {
	return s.rows(`status NOT IN ('working','input_required') ORDER BY place`)
}

// changeOwner gives an ended job to another owner, as the newest of that owner, and reports whether the job still
// existed.
func (s *store) changeOwner(owner, id, to string) (given bool, err error) {
	db, err := s.writer(false)
	if err != nil || db == nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	res, err := db.ExecContext(ctx, `UPDATE job SET owner = ?, rev = rev + 1,
		place = max(?, (SELECT 1 + ifnull(max(place), 0) FROM job WHERE owner = ?))
		WHERE id = ? AND owner = ? AND status NOT IN ('working','input_required')`, to, time.Now().UnixMicro(), to, id, owner)
	if err != nil {
		return false, fmt.Errorf("jobs: %w", err)
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

// removeExpired removes the rows for which row.expired holds, and returns their ids.
func (s *store) removeExpired(at time.Time) (ids []string, err error) {
	db, err := s.writer(false)
	if err != nil || db == nil {
		return nil, err
	}
	ms := at.UnixMilli()
	err = s.transact(db, func(tx *sql.Tx) (err error) {
		ids, err = removeRows(
			tx,
			`status NOT IN ('working','input_required') AND created+ttl <= ? AND updated+min(ttl,?) <= ?`,
			ms,
			linger.Milliseconds(),
			ms,
		)
		return err
	}, func() {})
	return ids, err
}

// unanswered returns the jobs that have waited for answers longer than a record is kept.
func (s *store) unanswered(at time.Time) ([]string, error) {
	db, err := s.reader()
	if err != nil || db == nil {
		return nil, err
	}
	return texts(db.Query(`SELECT id FROM job WHERE status = 'input_required' AND updated+ttl <= ?`, at.UnixMilli()))
}

// orphan is a working job whose host has ended.
type orphan struct{ id, host string }

func (s *store) orphans() (list []orphan, err error) {
	db, err := s.reader()
	if err != nil || db == nil || s.file.Path == "" {
		return nil, err
	}
	hosts, err := texts(db.Query(`SELECT DISTINCT host FROM job WHERE status = 'working' AND host <> ?`, s.host))
	if err != nil {
		return nil, fmt.Errorf("jobs: %w", err)
	}
	for _, h := range hosts {
		if hostAlive(s.file.Path, h) {
			continue
		}
		ids, err := texts(db.Query(`SELECT id FROM job WHERE status = 'working' AND host = ?`, h))
		if err != nil {
			return list, fmt.Errorf("jobs: %w", err)
		}
		for _, id := range ids {
			list = append(list, orphan{id, h})
		}
	}
	return list, nil
}

// version changes when another host has written to the file.
func (s *store) version() (v int64, err error) {
	db, err := s.writer(false)
	if err != nil || db == nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return v, db.QueryRowContext(ctx, `PRAGMA data_version`).Scan(&v)
}

// texts collects a query of one text column.
func texts(rows *sql.Rows, err error) (list []string, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, rows.Err()
}

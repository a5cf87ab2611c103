package index

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
)

// train makes the model of a collection, the vectors of all its chunks, and its tuning.
func (s *Store) train(ctx context.Context, c Collection) error {
	var m *lsa
	if s.embed == nil {
		texts, err := sample(ctx, s, c, lsaSample, func(title, heading, text string) string {
			return embedded(headings(title, heading), text)
		})
		if err != nil {
			return err
		}
		m = newLSA(texts)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := s.storeModel(ctx, c, m); err != nil {
		return err
	}
	return s.tune(ctx, c, m)
}

// firstModel makes the model of a new collection from some of its files, so that the vectors of each file are made when
// it is read. The model is stored with 0 chunks until all files are.
func (w *writer) firstModel(ctx context.Context) error {
	_, err := w.s.modelAge(ctx, w.c.ID)
	if !errors.Is(err, sql.ErrNoRows) || len(w.known) > 0 {
		if errors.Is(err, sql.ErrNoRows) {
			return nil // finish makes one
		}
		return err
	}
	texts, err := w.sampleFiles(ctx)
	if err != nil {
		return err
	}
	m := newLSA(texts)
	if m == nil { // the texts share no words
		return context.Cause(ctx)
	}
	data := m.pack()
	if w.model, err = unpackLSA(data); err != nil { // texts and questions are compared by the model as it is stored
		return err
	}
	tuned, err := json.Marshal(Tuning{Weight: defaultWeight, Neighbours: neighboursAt(defaultWeight)})
	if err != nil {
		return err
	}
	db, err := w.s.file.DB()
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, insertModel, w.c.ID, 0, string(tuned), data)
	return err
}

const insertModel = "INSERT OR REPLACE INTO model (collection, chunks, changed, tuned, data) VALUES (?, ?, 0, ?, ?)"

// sampleFiles returns the texts of the chunks of each n-th file, so that they are about lsaSample.
func (w *writer) sampleFiles(ctx context.Context) (texts []string, err error) {
	size := int64(0)
	for _, it := range w.in.Items {
		size += min(it.Size, MaxText)
	}
	step := int(size/chunkMean/lsaSample) + 1
	some := *w
	in := *w.in
	in.Items = nil
	for i := 0; i < len(w.in.Items); i += step {
		in.Items = append(in.Items, w.in.Items[i])
	}
	some.in = &in
	for f := range some.readAll(ctx) { // what cannot be read is reported when it is read again
		for _, c := range f.chunks {
			if len(texts) < lsaSample {
				texts = append(texts, embedded(headings(f.title, c.Heading), c.Text))
			}
		}
	}
	return texts, context.Cause(ctx)
}

// finishFirst completes the model that firstModel made, when all files are stored.
func (s *Store) finishFirst(ctx context.Context, c Collection, r *Report, progress func(int, int, string)) error {
	if progress != nil {
		progress(r.Files, r.Files, "comparing the rankings")
	}
	r.Trained = true
	m, err := s.readModel(ctx, c.ID)
	if err != nil {
		return err
	}
	if err := s.tune(ctx, c, m); err != nil {
		return err
	}
	db, err := s.file.DB()
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "UPDATE model SET chunks = ?, changed = 0 WHERE collection = ?", c.Chunks, c.ID)
	return err
}

// sample returns what make returns for each of at most limit chunks, evenly spread.
func sample[T any](
	ctx context.Context, s *Store, c Collection, limit int, make func(title, heading, text string) T,
) (all []T, err error) {
	db, err := s.file.Reader()
	if err != nil {
		return nil, err
	}
	step := max(1, (c.Chunks+limit-1)/limit)
	rows, err := db.QueryContext(ctx, `SELECT file.title, heading, text FROM chunk JOIN file ON file.id = chunk.file
		WHERE file.collection = ?1 AND (chunk.id % ?2) = 0 ORDER BY chunk.id LIMIT ?3`, c.ID, step, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var title, heading, text string
		if err := rows.Scan(&title, &heading, &text); err != nil {
			return nil, err
		}
		all = append(all, make(title, heading, text))
	}
	return all, rows.Err()
}

// storeModel stores a model and the vectors that it gives to all chunks, in one transaction.
func (s *Store) storeModel(ctx context.Context, c Collection, m *lsa) error {
	db, err := s.file.DB()
	if err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	data := []byte{}
	if m != nil {
		data = m.pack()
		if m, err = unpackLSA(data); err != nil { // texts and questions are compared by the model as it is stored
			return err
		}
	}
	how := Tuning{Weight: defaultWeight, Neighbours: neighboursAt(defaultWeight)}
	if s.embed != nil {
		how = Tuning{Weight: embedderWeight} // what neighbours are worth was measured without a model alone
	}
	tuned, err := json.Marshal(how)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, insertModel, c.ID, c.Chunks, string(tuned), data)
	if err != nil {
		return err
	}
	const page = 500
	for after := int64(0); m != nil; {
		rows, err := tx.QueryContext(ctx, `SELECT chunk.id, file.title, heading, text
			FROM chunk CROSS JOIN file ON file.id = chunk.file -- in the order of the chunks, without sorting them
			WHERE file.collection = ? AND chunk.id > ? ORDER BY chunk.id LIMIT ?`, c.ID, after, page)
		if err != nil {
			return err
		}
		var ids []int64
		var texts []string
		for rows.Next() {
			var id int64
			var title, heading, text string
			if err := rows.Scan(&id, &title, &heading, &text); err != nil {
				rows.Close()
				return err
			}
			ids = append(ids, id)
			texts = append(texts, embedded(headings(title, heading), text))
		}
		if err := rows.Close(); err != nil {
			return err
		}
		for i, v := range m.embed(texts) {
			if _, err := tx.ExecContext(ctx, insertVector, ids[i], c.ID, packVector(v)); err != nil {
				return err
			}
		}
		if len(ids) < page {
			break
		}
		after = ids[len(ids)-1]
	}
	if _, err := tx.ExecContext(ctx, "UPDATE collection SET revision = revision + 1 WHERE id = ?", c.ID); err != nil {
		return err
	}
	return tx.Commit()
}

package index

import (
	"context"
	"encoding/json"
)

// train makes the model of a collection, the vectors of all its chunks, and its tuning.
func (s *Store) train(ctx context.Context, c Collection) error {
	var m *lsa
	if s.embed == nil {
		texts, err := s.sample(ctx, c)
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

// sample returns the texts of at most lsaSample chunks, evenly spread.
func (s *Store) sample(ctx context.Context, c Collection) (texts []string, err error) {
	db, err := s.file.Reader()
	if err != nil {
		return nil, err
	}
	step := max(1, (c.Chunks+lsaSample-1)/lsaSample)
	rows, err := db.QueryContext(ctx, `SELECT file.title, heading, text FROM chunk JOIN file ON file.id = chunk.file
		WHERE file.collection = ?1 AND (chunk.id % ?2) = 0 ORDER BY chunk.id LIMIT ?3`, c.ID, step, lsaSample)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var title, heading, text string
		if err := rows.Scan(&title, &heading, &text); err != nil {
			return nil, err
		}
		texts = append(texts, embedded(headings(title, heading), text))
	}
	return texts, rows.Err()
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
	tuned, err := json.Marshal(Tuning{Weight: defaultWeight})
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT OR REPLACE INTO model (collection, chunks, changed, tuned, data)
		VALUES (?, ?, 0, ?, ?)`, c.ID, c.Chunks, string(tuned), data)
	if err != nil {
		return err
	}
	const page = 500
	for after := int64(0); m != nil; {
		rows, err := tx.QueryContext(ctx, `SELECT chunk.id, file.title, heading, text
			FROM chunk JOIN file ON file.id = chunk.file
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

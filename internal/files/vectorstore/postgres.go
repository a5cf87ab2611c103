package vectorstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/lib/pq"
)

// postgres is a Store in PostgreSQL with pgvector: a table for each collection, with an HNSW index.
type postgres struct {
	url string
	key func() (string, error)

	mu   sync.Mutex
	db   *sql.DB
	made map[string]bool // tables that exist
}

const (
	mostIndexed  = 2000 // dimensions that pgvector can index; larger vectors are all compared
	mostSearched = 1000 // the largest hnsw.ef_search
)

// Name implements Store.
func (*postgres) Name() string { return Postgres }

// open connects at the first use.
func (p *postgres) open() (*sql.DB, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.db != nil {
		return p.db, nil
	}
	u, err := url.Parse(p.url)
	if err != nil {
		return nil, errors.New("postgres: the address is not possible")
	}
	key, err := p.key()
	if err != nil {
		return nil, err
	}
	if key != "" {
		u.User = url.UserPassword(u.User.Username(), key)
	}
	q := u.Query()
	if !q.Has("connect_timeout") {
		q.Set("connect_timeout", "10")
	}
	u.RawQuery = q.Encode()
	connector, err := pq.NewConnector(u.String())
	if err != nil {
		return nil, errors.New("postgres: the address is not possible") // the error may contain the password
	}
	p.db = sql.OpenDB(connector)
	p.db.SetMaxOpenConns(4)
	p.db.SetConnMaxIdleTime(time.Minute)
	return p.db, nil
}

// Close implements Store.
func (p *postgres) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.db == nil {
		return nil
	}
	return p.db.Close()
}

// table returns the quoted name of the table of a collection.
func table(collection string) (string, error) {
	name, err := checkName(collection)
	return pq.QuoteIdentifier(name), err
}

// transact runs f in a transaction, whose statements fail after requestTime.
func (p *postgres) transact(ctx context.Context, f func(tx *sql.Tx) error) error {
	db, err := p.open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	tx, err := db.BeginTx(ctx, nil)
	if err == nil {
		defer tx.Rollback()
		if err = f(tx); err == nil {
			err = tx.Commit()
		}
	}
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}

// create creates the table of a collection. Hosts that do so at once wait for each other.
func (p *postgres) create(ctx context.Context, name string, dims int) error {
	p.mu.Lock()
	made := p.made[name]
	p.mu.Unlock()
	if made {
		return nil
	}
	err := p.transact(ctx, func(tx *sql.Tx) error {
		statements := []string{
			"SELECT pg_advisory_xact_lock(7217483)",
			"CREATE EXTENSION IF NOT EXISTS vector",
			fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (id bigint PRIMARY KEY, v vector(%d) NOT NULL)", name, dims),
		}
		if dims <= mostIndexed {
			statements = append(statements, fmt.Sprintf("CREATE INDEX IF NOT EXISTS %s ON %s USING hnsw (v vector_cosine_ops)",
				pq.QuoteIdentifier("v_"+name[1:len(name)-1]), name))
		}
		for _, s := range statements {
			if _, err := tx.ExecContext(ctx, s); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		p.mu.Lock()
		p.made[name] = true
		p.mu.Unlock()
	}
	return err
}

// format returns a vector as pgvector reads it.
func format(v []float32) string {
	b := []byte{'['}
	for i, x := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendFloat(b, float64(x), 'g', -1, 32)
	}
	return string(append(b, ']'))
}

// Put implements Store.
func (p *postgres) Put(ctx context.Context, collection string, ids []int64, vecs [][]float32) error {
	if len(ids) == 0 {
		return nil
	}
	name, err := table(collection)
	if err != nil {
		return err
	}
	if err := p.create(ctx, name, len(vecs[0])); err != nil {
		return err
	}
	for from := 0; from < len(ids); from += putMost {
		to := min(from+putMost, len(ids))
		texts := make([]string, 0, to-from)
		for _, v := range vecs[from:to] {
			texts = append(texts, format(v))
		}
		err := p.transact(ctx, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, fmt.Sprintf(`INSERT INTO %s (id, v)
				SELECT id, v::vector FROM unnest($1::bigint[], $2::text[]) AS new (id, v)
				ON CONFLICT (id) DO UPDATE SET v = excluded.v`, name), pq.Array(ids[from:to]), pq.Array(texts))
			return err
		})
		if err != nil {
			return p.forget(name, err)
		}
	}
	return nil
}

// forget returns an error, after which a table that is missing is created again.
func (p *postgres) forget(name string, err error) error {
	if isUndefined(err) {
		p.mu.Lock()
		delete(p.made, name)
		p.mu.Unlock()
	}
	return err
}

// isUndefined reports whether an error says that the table does not exist.
func isUndefined(err error) bool {
	e, ok := errors.AsType[*pq.Error](err)
	return ok && e.Code == "42P01"
}

// Delete implements Store.
func (p *postgres) Delete(ctx context.Context, collection string, ids []int64) error {
	name, err := table(collection)
	if err != nil || len(ids) == 0 {
		return err
	}
	err = p.transact(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM "+name+" WHERE id = ANY($1::bigint[])", pq.Array(ids))
		return err
	})
	if isUndefined(err) {
		return nil
	}
	return err
}

// Nearest implements Store.
func (p *postgres) Nearest(
	ctx context.Context, collection string, query []float32, n int, among []int64,
) (ids []int64, cosines []float32, err error) {
	name, err := table(collection)
	if err != nil || n < 1 || among != nil && len(among) == 0 {
		return nil, nil, err
	}
	where, args := "", []any{format(query), n}
	if among != nil {
		where, args = "WHERE id = ANY($3::bigint[])", append(args, pq.Array(among))
	}
	err = p.transact(ctx, func(tx *sql.Tx) error {
		// An index returns at most so many, and finds fewer of the nearest with a smaller number.
		set := "SET LOCAL hnsw.ef_search = " + strconv.Itoa(min(max(2*n, 40), mostSearched))
		if _, err := tx.ExecContext(ctx, set); err != nil {
			return err
		}
		rows, err := tx.QueryContext(ctx, fmt.Sprintf(
			"SELECT id, 1 - (v <=> $1::vector) FROM %s %s ORDER BY v <=> $1::vector LIMIT $2", name, where), args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var id int64
			var cosine float32
			if err := rows.Scan(&id, &cosine); err != nil {
				return err
			}
			ids, cosines = append(ids, id), append(cosines, cosine)
		}
		return rows.Err()
	})
	if isUndefined(err) {
		return nil, nil, nil
	}
	return ids, cosines, err
}

// Drop implements Store.
func (p *postgres) Drop(ctx context.Context, collection string) error {
	name, err := table(collection)
	if err != nil {
		return err
	}
	err = p.transact(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "DROP TABLE IF EXISTS "+name)
		return err
	})
	if err == nil {
		p.mu.Lock()
		delete(p.made, name)
		p.mu.Unlock()
	}
	return err
}

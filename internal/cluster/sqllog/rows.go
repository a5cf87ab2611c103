package sqllog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"gatehouse/internal/files/sqlfile"
)

// positionTable says which log a file comes from, by the ID of its first entry, and how much of it the file has.
const positionTable = `CREATE TABLE IF NOT EXISTS cluster_log (
	one INTEGER PRIMARY KEY CHECK (one = 1), origin TEXT NOT NULL, position INTEGER NOT NULL)`

const setPosition = "INSERT OR REPLACE INTO cluster_log VALUES (1, ?, ?)"

// Of reports whether a file comes from a log, so that it must be changed by way of it.
func Of(ctx context.Context, file *sqlfile.File) (bool, error) {
	db, err := file.Reader()
	if err != nil || db == nil {
		return false, err
	}
	var tables int
	err = db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema WHERE name = ?", sqlfile.LogTable).
		Scan(&tables)
	return tables > 0, err
}

// Forget makes a file that of one host again, with the rows that it has. No program may use it as a node.
func Forget(ctx context.Context, path string) error {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	address, err := sqlfile.Address(path)
	if err != nil {
		return err
	}
	db, err := sql.Open("sqlite", address+"?_busy_timeout=5000")
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "DROP TABLE IF EXISTS "+sqlfile.LogTable)
	if err := errors.Join(err, db.Close()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func position(ctx context.Context, q querier) (origin string, at uint64, err error) {
	err = q.QueryRowContext(ctx, "SELECT origin, position FROM cluster_log").Scan(&origin, &at)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return origin, at, err
}

// table is a table whose rows are in the log. Rows are found by their primary key, or by their number if there is none.
type table struct {
	name    string
	columns []string
	keys    []string
}

// name quotes a name for SQLite.
func name(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// text quotes a text for SQLite.
func text(s string) string { return `'` + strings.ReplaceAll(s, `'`, `''`) + `'` }

func tablesOf(ctx context.Context, db *sql.DB) ([]table, error) {
	rows, err := db.QueryContext(ctx, `SELECT t.name, c.name, c.pk FROM sqlite_schema t, pragma_table_info(t.name) c
		WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite\_%' ESCAPE '\' AND t.name <> 'cluster_log'
		ORDER BY t.rowid, c.cid`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []table
	for rows.Next() {
		var tableName, column string
		var isKey int
		if err := rows.Scan(&tableName, &column, &isKey); err != nil {
			return nil, err
		}
		if len(all) == 0 || all[len(all)-1].name != tableName {
			all = append(all, table{name: tableName})
		}
		t := &all[len(all)-1]
		t.columns = append(t.columns, column)
		if isKey > 0 {
			t.keys = append(t.keys, column)
		}
	}
	for i := range all {
		if t := &all[i]; len(t.keys) == 0 {
			t.columns, t.keys = append(t.columns, "rowid"), []string{"rowid"}
		}
	}
	return all, rows.Err()
}

// insert returns an expression for the statement that inserts a row; from is NEW. or OLD. in a trigger.
func (t *table) insert(from string) string {
	var names, values []string
	for _, c := range t.columns {
		names = append(names, name(c))
		values = append(values, "quote("+from+name(c)+")")
	}
	return text("INSERT OR REPLACE INTO "+name(t.name)+" ("+strings.Join(names, ", ")+") VALUES (") + " || " +
		strings.Join(values, " || ', ' || ") + " || ')'"
}

// where returns an expression for the condition that finds the row that was there before.
func (t *table) where() string {
	var parts []string
	for _, c := range t.keys {
		parts = append(parts, text(name(c)+" = ")+" || quote(OLD."+name(c)+")")
	}
	return text(" WHERE ") + " || " + strings.Join(parts, " || ' AND ' || ")
}

func (t *table) update() string {
	var parts []string
	for _, c := range t.columns {
		parts = append(parts, text(name(c)+" = ")+" || quote(NEW."+name(c)+")")
	}
	return text("UPDATE "+name(t.name)+" SET ") + " || " + strings.Join(parts, " || ', ' || ") + " || " + t.where()
}

// capture makes a transaction record the rows that it changes: cascades and what triggers do included. The triggers
// are of this connection alone.
func (l *Log) capture(tx *sql.Tx) error {
	if _, err := tx.Exec(`CREATE TEMP TABLE IF NOT EXISTS cluster_change (
		number INTEGER PRIMARY KEY AUTOINCREMENT, statement TEXT NOT NULL)`); err != nil {
		return err
	}
	for _, t := range l.tables {
		for on, statement := range map[string]string{
			"INSERT": t.insert("NEW."), "UPDATE": t.update(),
			"DELETE": text("DELETE FROM "+name(t.name)) + " || " + t.where(),
		} {
			if _, err := tx.Exec(fmt.Sprintf("CREATE TEMP TRIGGER IF NOT EXISTS %s AFTER %s ON main.%s BEGIN "+
				"INSERT INTO cluster_change (statement) VALUES (%s); END",
				name("cluster_"+on+"_"+t.name), on, name(t.name), statement)); err != nil {
				return err
			}
		}
	}
	_, err := tx.Exec("DELETE FROM temp.cluster_change") // of what changed this file alone
	return err
}

func captured(tx *sql.Tx) (all []string, err error) {
	rows, err := tx.Query("SELECT statement FROM temp.cluster_change ORDER BY number")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, rows.Err()
}

// untouched reports whether a file with the rows all has only those that a new file has.
func (l *Log) untouched(ctx context.Context, all []string) (bool, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return false, err
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // each connection has its own file
	if _, err := db.ExecContext(ctx, l.file.Schema+l.file.Additions); err != nil {
		return false, err
	}
	fresh, err := l.dump(ctx, db)
	return slices.Equal(fresh, all), err
}

// dump returns the statements that fill empty tables with the rows of the file, and with its highest numbers, because
// those of removed rows are never used again.
func (l *Log) dump(ctx context.Context, db querier) (all []string, err error) {
	queries := make([]string, 0, len(l.tables)+1)
	for _, t := range l.tables {
		queries = append(queries, "SELECT "+t.insert("")+" FROM "+name(t.name))
	}
	var sequences int
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema WHERE name = 'sqlite_sequence'").
		Scan(&sequences); err != nil {
		return nil, err
	}
	if sequences > 0 {
		const set = `SELECT 'DELETE FROM sqlite_sequence WHERE name = ' || quote(name) FROM main.sqlite_sequence
			UNION ALL SELECT 'INSERT INTO sqlite_sequence (name, seq) VALUES (' || quote(name) || ', ' || seq || ')'
			FROM main.sqlite_sequence`
		queries = append(queries, set)
	}
	for _, q := range queries {
		if all, err = texts(ctx, db, q, all); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func texts(ctx context.Context, db querier, query string, all []string) ([]string, error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, rows.Err()
}

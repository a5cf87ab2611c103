package audit

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"gatehouse/internal/files/sqlfile"
)

// A block holds lines that became durable together, compressed. Times are in microseconds; hash is the
// hash of its last line.
const tables = `
CREATE TABLE block (
	first INTEGER PRIMARY KEY, through INTEGER NOT NULL, since INTEGER NOT NULL, until INTEGER NOT NULL,
	hash BLOB NOT NULL, lines BLOB NOT NULL);
CREATE INDEX block_until ON block (until);`

// pageSize lets a block of a busy host fit into one or two pages, because each page costs two system
// calls to write.
const pageSize = 16 << 10

const longestBlock = 64 << 10 // bytes after which a block accepts no further line

// file is the SQLite file and its head.
type file struct {
	path string
	head head

	mu    sync.Mutex // guards the fields below while opening and closing
	open  *sqlfile.File
	shape os.FileInfo // of the file that is open for writing; nil if none is open, or if it is in memory

	// Only the writer uses these.
	pruned       time.Time // when the writer last looked for old lines
	text, packed []byte    // buffers of the last block, which the next one reuses
	prepared     statements
}

// statements are those of each batch, prepared once for a file, because parsing them costs as much as running them.
type statements struct {
	db       *sql.DB
	end, put *sql.Stmt
}

const lastBlock = "SELECT through, hash FROM block ORDER BY first DESC LIMIT 1"

// prepare prepares the statements for db, unless it has been done. db closes them with itself.
func (s *statements) prepare(ctx context.Context, db *sql.DB) error {
	if s.db == db {
		return nil
	}
	end, err := db.PrepareContext(ctx, lastBlock)
	if err != nil {
		return err
	}
	put, err := db.PrepareContext(ctx, "INSERT INTO block VALUES (?,?,?,?,?,?)")
	if err != nil {
		end.Close()
		return err
	}
	*s = statements{db, end, put}
	return nil
}

func newFile(path string) *file {
	f := &file{path: path}
	if path != "" {
		f.head.path = path + ".head"
	}
	f.fresh()
	return f
}

func (f *file) fresh() {
	f.open, f.shape = &sqlfile.File{Path: f.path, Schema: tables, Version: 2, Page: pageSize}, nil
}

func (f *file) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open.Close()
}

// writer opens the file for writing. If the file at its path is no longer the open one, because it was
// moved or removed, writer opens the file at the path; the head then shows which lines are missing.
func (f *file) writer() (db *sql.DB, opened bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shape != nil {
		now, err := os.Stat(f.path)
		if err == nil && os.SameFile(now, f.shape) {
			db, err = f.open.DB()
			return db, false, err
		}
		f.open.Close()
		f.fresh()
	}
	opened = !f.open.Exists() || f.path != ""
	if db, err = f.open.DB(); err == nil && f.path != "" {
		f.shape, err = os.Stat(f.path)
	}
	return db, opened, err
}

// reader opens the file for reading. It returns nil if the file does not exist.
func (f *file) reader() (*sql.DB, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open.Reader()
}

// append writes a batch at the end of the chain.
func (f *file) append(l *Ledger, b *batch) error {
	db, opened, err := f.writer()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.o.Wait)
	defer cancel()
	if err := f.prepared.prepare(ctx, db); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	end, err := f.endOf(ctx, tx)
	if err != nil {
		return err
	}
	lost, err := f.headLost(ctx, tx, end)
	if err != nil {
		return err
	}
	if err := f.head.shorten(end); err != nil {
		l.o.Log.Warn("audit: the head cannot be shortened", "err", err)
	}
	if opened {
		end = f.compare(l, end)
	}
	if lost {
		if end, err = f.sayHeadLost(ctx, tx, l, end); err != nil {
			return err
		}
	}
	if end, err = f.insert(ctx, tx, end, b); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	if err := f.head.addLink(end); err != nil {
		l.o.Log.Warn("audit: the head cannot be written; lines missing at the end would not be noticed", "err", err)
	}
	return nil
}

// endOf returns the end of the chain in the file.
func (f *file) endOf(ctx context.Context, tx *sql.Tx) (end link, err error) {
	var last []byte
	err = tx.StmtContext(ctx, f.prepared.end).QueryRowContext(ctx).Scan(&end.seq, &last)
	if errors.Is(err, sql.ErrNoRows) {
		return link{}, nil
	}
	if err == nil && copy(end.hash[:], last) != len(end.hash) {
		err = fmt.Errorf("the block that ends with line %d is damaged", end.seq)
	}
	return end, err
}

// headLost reports whether the chain has lines and the head names none of them: the head was removed or
// emptied, perhaps with lines at the end. The head is created before the first line is durable. If a
// process is killed in between, the head is empty at worst, and the file has only the blocks of writers
// that started together.
func (f *file) headLost(ctx context.Context, tx *sql.Tx, end link) (bool, error) {
	if f.head.path == "" {
		return false, nil
	}
	info, err := os.Stat(f.head.path)
	switch {
	case err == nil && info.Size() > 0:
		return false, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return false, err
	case end.seq == 0:
		return false, f.head.createFile()
	case err != nil:
		return true, nil
	}
	var blocks int
	err = tx.QueryRowContext(ctx, "SELECT count(*) FROM block").Scan(&blocks)
	return blocks > mostFirst, err
}

const mostFirst = 16 // blocks of writers that start a ledger together, before the first of them writes the head

// sayHeadLost adds a line that records the loss permanently, because the head that is written next
// would hide it.
func (f *file) sayHeadLost(ctx context.Context, tx *sql.Tx, l *Ledger, end link) (link, error) {
	l.o.Log.Error("audit: the head of the ledger was missing; run gatehouse audit verify", "behind", end.seq)
	e := Entry{
		Kind:   headLostKind,
		Level:  Security,
		Reason: "the head was missing or empty: whether lines behind the one before were removed is unknown",
	}
	b := newBatch()
	b.text = e.append(nil, l.who, &l.seen)
	b.ends = []int{len(b.text)}
	return f.insert(ctx, tx, end, b)
}

// compare compares the end of the chain with the head. If the chain has lost lines, the next line gets
// the number after the missing ones, so that Verify finds the gap.
func (f *file) compare(l *Ledger, end link) link {
	at, err := f.head.lastLink()
	if err != nil {
		l.o.Log.Error("audit: the head is damaged; run gatehouse audit verify", "err", err)
	}
	if at.seq <= end.seq {
		return end
	}
	l.o.Log.Error(
		"audit: lines are missing at the end of the ledger; run gatehouse audit verify",
		"first",
		end.seq+1,
		"last",
		at.seq,
	)
	return at
}

// insert chains the lines of a batch and stores them in blocks.
func (f *file) insert(ctx context.Context, tx *sql.Tx, end link, b *batch) (link, error) {
	put := tx.StmtContext(ctx, f.prepared.put)
	text := f.text[:0]
	var first int64
	var since, until [timeWidth]byte // as text; all have the same width, so that texts sort as times do
	from := 0
	for i, to := range b.ends {
		members := b.text[from:to]
		from = to
		at := [timeWidth]byte(members[len(atMember):])
		if len(text) == 0 {
			first, since, until = end.seq+1, at, at
		}
		if bytes.Compare(at[:], since[:]) < 0 {
			since = at
		}
		if bytes.Compare(at[:], until[:]) > 0 {
			until = at
		}
		text, end = appendLine(text, end, members)
		if len(text) < longestBlock && i < len(b.ends)-1 {
			continue
		}
		f.packed = pack(f.packed, text)
		if _, err := put.ExecContext(ctx, first, end.seq, micros(string(since[:])), micros(string(until[:])),
			end.hash[:], f.packed); err != nil {
			return end, err
		}
		f.text, text = text, text[:0]
	}
	return end, nil
}

const (
	atMember  = `"at":"`
	timeWidth = len("2006-01-02T15:04:05.000000Z")
)

// micros returns the time of a line as the block table stores it.
func micros(text string) int64 {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return 0
	}
	return t.UnixMicro()
}

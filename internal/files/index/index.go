// Package index keeps the text of files in collections that can be searched by words and by meaning.
//
// A collection belongs to an owner and can be shared with the callers of one context. Its files are cut into chunks,
// each with its lines and headings. A query combines two rankings: BM25 over the words (SQLite FTS5, Porter stems),
// and the cosine of vectors, which by default come from latent semantic analysis of the collection itself, so that no
// service and no weights are needed.
//
// The package never opens a file: the caller lists what there is and reads it, with the permissions of its own call.
// Each file is stored in one transaction with all of its chunks, so that an ingest that was killed leaves files that
// are complete or absent, and the next ingest continues with the absent ones.
package index

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/files/sqlfile"
)

// ChunkerVersion is the version of the rules by which texts are cut. A collection that was cut by other rules is
// refused until it is made again.
const ChunkerVersion = 1

// Limits of a store.
const (
	MaxName        = 100       // bytes of the name of a collection
	MaxText        = 8 << 20   // bytes of one document's text
	MaxCollections = 200       // of one owner
	MaxChunks      = 2_000_000 // of one collection
)

var (
	// ErrNotFound means that the owner has no such collection; one of another owner gives the same error.
	ErrNotFound = errors.New("there is no such collection")
	// ErrBusy means that the collection is being changed by another ingest.
	ErrBusy = errors.New("another ingest is changing this collection")
	// ErrTooMany means that an owner has MaxCollections, or a collection MaxChunks.
	ErrTooMany = errors.New("there are too many")
)

// Pinned is the error of an ingest or a query with another embedder or chunker than the one that made a collection.
type Pinned struct{ Collection, Has, Wants string }

func (p *Pinned) Error() string {
	return fmt.Sprintf("collection %q was made with %s, and this host uses %s", p.Collection, p.Has, p.Wants)
}

// Store is a file with collections. It is safe for concurrent use; several processes may share the file.
type Store struct {
	file    sqlfile.File
	embed   Embedder
	vectors VectorStore // nil means the file
	reranks Reranker    // nil means none

	// mu guards busy and loaded.
	mu     sync.Mutex
	busy   map[int64]bool
	loaded map[int64]*vectors // of the collections that were queried last

	// Inverted files of large collections are made aside until the Store is closed.
	closing   context.Context // a field because this work outlives the query that begins it
	stop      context.CancelFunc
	inverting sync.WaitGroup
	// oneAtATime guards the processor: one inverted file is made at a time. It is another lock than mu because that
	// takes seconds.
	oneAtATime sync.Mutex
}

// Embedder turns texts into vectors of one length.
type Embedder interface {
	// Space names the model and its version: vectors of different spaces cannot be compared.
	Space() (name string, dims int)
	// Embed returns one vector of length 1 for each text. query says that the texts are questions and not documents.
	Embed(ctx context.Context, texts []string, query bool) ([][]float32, error)
}

// Options configures a Store.
type Options struct {
	// Embedder makes the vectors; nil means latent semantic analysis of each collection.
	Embedder Embedder
	// Vectors keeps the vectors that the Embedder makes; nil means the file.
	Vectors VectorStore
	// Reranker orders the best passages of a question once more; nil means that their order stays.
	Reranker Reranker
}

// Reranker compares texts with a question.
type Reranker interface {
	// Rerank returns a score for each text. Only their order has a meaning.
	Rerank(ctx context.Context, question string, texts []string) ([]float64, error)
}

// VectorStore keeps vectors of length 1 by a collection and a number. A collection that does not exist is empty.
type VectorStore interface {
	Name() string
	// Put stores vectors, and replaces those with the same numbers.
	Put(ctx context.Context, collection string, ids []int64, vecs [][]float32) error
	Delete(ctx context.Context, collection string, ids []int64) error
	// Nearest returns at most n numbers with the largest cosines, and these; of among alone if it is not nil.
	Nearest(ctx context.Context, collection string, query []float32, n int, among []int64) ([]int64, []float32, error)
	Drop(ctx context.Context, collection string) error
}

// StoredAs is the name of a collection in a VectorStore. Numbers of collections alone are those of other hosts, too.
func StoredAs(c Collection) string { return fmt.Sprintf("%d_%d", c.Made.UnixMilli(), c.ID) }

const schema = `
CREATE TABLE collection (id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, name TEXT NOT NULL,
	shared TEXT NOT NULL, embedder TEXT NOT NULL, chunker INTEGER NOT NULL, made INTEGER NOT NULL,
	changed INTEGER NOT NULL, revision INTEGER NOT NULL, UNIQUE (owner, name));
CREATE INDEX collection_shared ON collection (shared, name);
CREATE TABLE model (collection INTEGER PRIMARY KEY REFERENCES collection ON DELETE CASCADE, chunks INTEGER NOT NULL,
	changed INTEGER NOT NULL, tuned TEXT NOT NULL, data BLOB NOT NULL);
CREATE TABLE file (id INTEGER PRIMARY KEY, collection INTEGER NOT NULL REFERENCES collection ON DELETE CASCADE,
	path TEXT NOT NULL, hash BLOB NOT NULL, size INTEGER NOT NULL, modified INTEGER NOT NULL, title TEXT NOT NULL,
	UNIQUE (collection, path));
CREATE TABLE chunk (id INTEGER PRIMARY KEY, file INTEGER NOT NULL REFERENCES file ON DELETE CASCADE,
	seq INTEGER NOT NULL, line INTEGER NOT NULL, last INTEGER NOT NULL, page INTEGER NOT NULL, heading TEXT NOT NULL,
	text TEXT NOT NULL);
CREATE INDEX chunk_file ON chunk (file, seq);
CREATE TABLE vector (chunk INTEGER PRIMARY KEY REFERENCES chunk ON DELETE CASCADE,
	collection INTEGER NOT NULL, data BLOB NOT NULL);
CREATE INDEX vector_collection ON vector (collection);
CREATE TABLE fact (id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, shared TEXT NOT NULL, kind TEXT NOT NULL,
	subject TEXT NOT NULL, text TEXT NOT NULL, source TEXT NOT NULL, made INTEGER NOT NULL,
	expires INTEGER NOT NULL, halves INTEGER NOT NULL);
CREATE INDEX fact_owner ON fact (owner, subject);
CREATE INDEX fact_shared ON fact (shared);`

// Open opens the store in the file at path, which need not exist; "" keeps it in memory. Nothing is read or created
// before the first use.
func Open(path string, o Options) *Store {
	closing, stop := context.WithCancel(context.Background())
	return &Store{
		closing: closing,
		stop:    stop,
		file:    sqlfile.File{Path: path, Schema: schema, Version: 1, ForeignKeys: true, Journal: 64 << 20},
		embed:   o.Embedder,
		vectors: o.Vectors,
		reranks: o.Reranker,
		busy:    map[int64]bool{},
		loaded:  map[int64]*vectors{},
	}
}

// Durable reports whether what is ingested outlives the Store.
func (s *Store) Durable() bool { return s.file.Path != "" }

// Close closes the file, and ends what is made aside. No query may begin after it.
func (s *Store) Close() error {
	s.stop()
	s.inverting.Wait()
	return s.file.Close()
}

// space names what makes the vectors of new collections.
func (s *Store) space() string {
	if s.embed == nil {
		return lsaSpace
	}
	name, dims := s.embed.Space()
	return fmt.Sprintf("%s/%d", name, dims) + s.kept()
}

// kept says where the vectors are, at the end of the name of a space; "" means the file.
func (s *Store) kept() string {
	if s.vectors == nil {
		return ""
	}
	return " in " + s.vectors.Name()
}

// Collection is what is known about a collection.
type Collection struct {
	ID       int64
	Owner    string
	Name     string
	Shared   string // the context whose callers may query it; "" means its owner alone
	Embedder string
	Made     time.Time
	Changed  time.Time // of the last ingest that changed something

	// Stats fills these in.
	Files  int
	Chunks int
	Bytes  int64 // of the files
	Tuned  *Tuning

	chunker  int
	revision int64
}

const collectionColumns = "id, owner, name, shared, embedder, chunker, made, changed, revision"

func scanCollection(row interface{ Scan(...any) error }) (c Collection, err error) {
	var made, changed int64
	err = row.Scan(&c.ID, &c.Owner, &c.Name, &c.Shared, &c.Embedder, &c.chunker, &made, &changed, &c.revision)
	c.Made, c.Changed = time.UnixMilli(made).UTC(), time.UnixMilli(changed).UTC()
	return c, err
}

// Find returns the collection of an owner, or else one of that name which is shared with the context.
func (s *Store) Find(ctx context.Context, owner, shared, name string) (c Collection, err error) {
	db, err := s.file.Reader()
	if err != nil || db == nil {
		return c, errors.Join(err, ifNil(db))
	}
	c, err = scanCollection(db.QueryRowContext(ctx, "SELECT "+collectionColumns+` FROM collection
		WHERE name = ?1 AND (owner = ?2 OR shared <> '' AND shared = ?3) ORDER BY owner <> ?2, id LIMIT 1`,
		name, owner, shared))
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNotFound
	}
	return c, err
}

func ifNil(db *sql.DB) error {
	if db == nil {
		return ErrNotFound
	}
	return nil
}

// List returns the collections of an owner, and those shared with a context, by name.
func (s *Store) List(ctx context.Context, owner, shared string) (all []Collection, err error) {
	db, err := s.file.Reader()
	if err != nil || db == nil {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, "SELECT "+collectionColumns+` FROM collection
		WHERE owner = ?1 OR shared <> '' AND shared = ?2 ORDER BY name, owner <> ?1, id LIMIT 1000`, owner, shared)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		c, err := scanCollection(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, rows.Err()
}

// Stats counts what a collection holds.
func (s *Store) Stats(ctx context.Context, c *Collection) error {
	db, err := s.file.Reader()
	if err != nil || db == nil {
		return errors.Join(err, ifNil(db))
	}
	err = db.QueryRowContext(ctx, `SELECT count(*), coalesce(sum(size), 0),
		(SELECT count(*) FROM chunk JOIN file ON file.id = chunk.file WHERE file.collection = ?1)
		FROM file WHERE collection = ?1`, c.ID).Scan(&c.Files, &c.Bytes, &c.Chunks)
	if err != nil {
		return err
	}
	c.Tuned, err = readTuning(ctx, db, c.ID)
	return err
}

// createCollection returns a collection of an owner, and makes it if there is none.
func (s *Store) createCollection(ctx context.Context, owner, name string) (Collection, error) {
	db, err := s.file.DB()
	if err != nil {
		return Collection{}, err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return Collection{}, err
	}
	defer tx.Rollback()
	find := func() (Collection, error) {
		return scanCollection(tx.QueryRowContext(ctx,
			"SELECT "+collectionColumns+" FROM collection WHERE owner = ? AND name = ?", owner, name))
	}
	if c, err := find(); !errors.Is(err, sql.ErrNoRows) {
		if err == nil {
			if _, err = tx.ExecContext(ctx, fmt.Sprintf(createCounts, c.ID)); err == nil {
				err = tx.Commit()
			}
		}
		return c, err
	}
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM collection WHERE owner = ?", owner).Scan(&n); err != nil {
		return Collection{}, err
	}
	if n >= MaxCollections {
		return Collection{}, fmt.Errorf("%w collections: %d", ErrTooMany, n)
	}
	now := time.Now().UnixMilli()
	_, err = tx.ExecContext(
		ctx,
		`INSERT INTO collection (owner, name, shared, embedder, chunker, made, changed, revision)
		VALUES (?, ?, '', ?, ?, ?, ?, 0)`,
		owner,
		name,
		s.space(),
		ChunkerVersion,
		now,
		now,
	)
	if err != nil {
		return Collection{}, err
	}
	c, err := find()
	if err != nil {
		return c, err
	}
	for _, statement := range []string{createWords, configureWords, createCounts} {
		if _, err := tx.ExecContext(ctx, fmt.Sprintf(statement, c.ID)); err != nil {
			return c, err
		}
	}
	return c, tx.Commit()
}

// createWords creates the words of one collection. Each has a table of its own, because BM25 weighs a word by how
// many chunks of the table have it, and those of other owners must not show.
const createWords = `CREATE VIRTUAL TABLE words_%d USING fts5(heading, body, names, content='', contentless_delete=1,
	tokenize='porter unicode61')`

// configureWords sets how many bytes of words SQLite collects in memory before it writes them, because what it writes
// more often it has to merge more often, and how many of such pieces it merges at once, because each merge writes all
// their words again.
const configureWords = `INSERT INTO words_%d (words_%[1]d, rank) VALUES ('hashsize', 16777216);
	INSERT INTO words_%[1]d (words_%[1]d, rank) VALUES ('automerge', 8)`

// createCounts gives access to how many chunks have a word. Collections of earlier versions get it with their next
// ingest.
const createCounts = "CREATE VIRTUAL TABLE IF NOT EXISTS counts_%[1]d USING fts5vocab('words_%[1]d', 'row')"

// Matches returns a Pinned error if a collection was made with another embedder or chunker.
func (s *Store) Matches(c Collection) error {
	if c.Embedder != s.space() {
		return &Pinned{c.Name, "the embedder " + c.Embedder, s.space()}
	}
	if c.chunker != ChunkerVersion {
		return &Pinned{
			c.Name, fmt.Sprintf("version %d of the chunker", c.chunker), fmt.Sprintf("version %d", ChunkerVersion),
		}
	}
	return nil
}

// Share makes a collection readable for the callers of a context; "" makes it private again.
func (s *Store) Share(ctx context.Context, c Collection, with string) error {
	db, err := s.file.DB()
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "UPDATE collection SET shared = ? WHERE id = ?", with, c.ID)
	return err
}

// Delete removes a collection.
func (s *Store) Delete(ctx context.Context, c Collection) error {
	release, err := s.acquire(c.ID)
	if err != nil {
		return err
	}
	defer release()
	return s.remove(ctx, c)
}

func (s *Store) remove(ctx context.Context, c Collection) error {
	db, err := s.file.DB()
	if err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for _, statement := range []string{
		fmt.Sprintf("DROP TABLE IF EXISTS counts_%d", c.ID),
		fmt.Sprintf("DROP TABLE IF EXISTS words_%d", c.ID),
		fmt.Sprintf("DELETE FROM collection WHERE id = %d", c.ID),
	} {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	s.dropVectors(c.ID)
	if err := tx.Commit(); err != nil || s.vectors == nil || !strings.HasSuffix(c.Embedder, s.kept()) {
		return err
	}
	return s.vectors.Drop(ctx, StoredAs(c))
}

// acquire keeps other ingests and deletions of this process away from a collection until release is called.
func (s *Store) acquire(id int64) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy[id] {
		return nil, ErrBusy
	}
	s.busy[id] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.busy, id)
	}, nil
}

// Owned calls f with each collection, and gives it to the owner that f returns: "" leaves it, and the same owner too.
// drop removes it instead.
func (s *Store) Owned(ctx context.Context, f func(c Collection) (heir string, drop bool)) error {
	db, err := s.file.Reader()
	if err != nil || db == nil {
		return err
	}
	rows, err := db.QueryContext(ctx, "SELECT "+collectionColumns+" FROM collection ORDER BY id")
	if err != nil {
		return err
	}
	var all []Collection
	for rows.Next() {
		c, err := scanCollection(rows)
		if err != nil {
			rows.Close()
			return err
		}
		all = append(all, c)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return err
	}
	for _, c := range all {
		heir, drop := f(c)
		switch {
		case drop:
			err = s.remove(ctx, c)
		case heir != "" && heir != c.Owner:
			err = s.handOver(ctx, c, heir)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// handOver gives a collection to another owner. If that one has a collection of this name, it gets a number.
func (s *Store) handOver(ctx context.Context, c Collection, heir string) error {
	db, err := s.file.DB()
	if err != nil {
		return err
	}
	name := c.Name
	for n := 2; ; n++ {
		_, err = db.ExecContext(ctx, "UPDATE collection SET owner = ?, name = ? WHERE id = ?", heir, name, c.ID)
		if !sqlfile.IsTaken(err) || n > MaxCollections {
			return err
		}
		name = fmt.Sprintf("%s-%d", strings.TrimSpace(c.Name), n)
	}
}

package index

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// ChatPrefix begins the names of texts that are chats with agents, and no files. The owner of their collection may read
// them.
const ChatPrefix = "chat:"

// Item is a file to ingest.
type Item struct {
	Path     string // absolute, or after ChatPrefix; names the file in the collection
	Size     int64
	Modified time.Time
}

// Document is the content of a file.
type Document struct {
	Text     []byte // nil if the file has no text: it is then skipped
	Language string
	Hash     [32]byte // of the content as it is in the file
}

// Ingest brings a collection up to date with the files below a directory.
type Ingest struct {
	Owner string
	Name  string
	// Below is an absolute path. Stored files below it, or this file itself, that are not among Items are removed.
	Below string
	Items []Item
	// Partial keeps stored files that are not among Items, because the list is not complete.
	Partial  bool
	Recreate bool // removes the collection first, unless Items is empty
	// Read returns the content of a file. It runs on several goroutines. An error leaves what is stored of the file.
	Read     func(ctx context.Context, it Item) (Document, error)
	Progress func(done, total int, note string) // nil for none
}

// Report is what an ingest did.
type Report struct {
	Files     int // in the list
	Added     int
	Changed   int
	Unchanged int
	Renamed   int
	Removed   int
	Skipped   int // without text
	Failed    int
	Chunks    int // written
	Bytes     int64
	Problems  []string // of failed files, at most 20
	Trained   bool     // the vectors of the whole collection were made again
}

const (
	commitBytes  = 16 << 20 // of text in one transaction: SQLite merges the words of each one later
	commitAfter  = time.Second
	readAhead    = 1024     // files that were read and are not stored yet, so that reading goes on during a commit
	readPlace    = 16 << 10 // bytes: a larger file counts as several
	maxProblems  = 20
	retrainShare = 5 // a fifth of the chunks changed since the model was made
)

// stored is a file as the collection has it.
type stored struct {
	id       int64
	hash     string
	size     int64
	modified int64
}

// read is a file that was read and cut.
type read struct {
	item   Item
	old    *stored
	hash   string
	title  string
	lang   string
	chunks []Chunk
	names  []string    // of the chunks: parts of the names in code
	vecs   [][]byte    // of the chunks, packed; nil if there is no model of the collection
	given  [][]float32 // of the chunks, by the Embedder, if a VectorStore keeps them
	size   int
	err    error
	same   bool // the content did not change
}

// Ingest runs an ingest. Files that it has committed stay when it returns an error.
func (s *Store) Ingest(ctx context.Context, in Ingest) (r Report, c Collection, err error) {
	if in.Recreate && len(in.Items) > 0 {
		if c, err := s.Find(ctx, in.Owner, "", in.Name); err == nil {
			err = s.Delete(ctx, c)
			if err != nil {
				return r, c, err
			}
		}
	}
	if c, err = s.createCollection(ctx, in.Owner, in.Name); err != nil {
		return r, c, err
	}
	if err := s.Matches(c); err != nil {
		return r, c, err
	}
	release, err := s.acquire(c.ID)
	if err != nil {
		return r, c, err
	}
	defer release()
	w := &writer{s: s, in: &in, c: c, r: &r}
	r.Files = len(in.Items)
	if err := w.writeDocuments(ctx); err != nil {
		return r, c, err
	}
	return r, c, s.finish(ctx, c, &r, in.Progress)
}

// writer is one ingest.
type writer struct {
	s       *Store
	in      *Ingest
	c       Collection
	r       *Report
	known   map[string]*stored // by path
	missing map[string]string  // paths that are not in the list any more, by hash
	model   *lsa

	tx      *sql.Tx
	prep    map[string]*sql.Stmt // of tx
	began   time.Time
	pending int // bytes in tx
	// wordsOf are the words of new chunks, which are stored last: FTS5 writes what it has collected whenever a statement
	// on another table begins a savepoint.
	wordsOf []wordsRow
	// put and gone are what a VectorStore is told: new vectors before tx is committed, and removed chunks after it. A
	// vector without a chunk is not found, but a chunk without a vector would stay so.
	put  map[int64][]float32
	gone []int64
	// packed are the new vectors of a collection that is in memory.
	noted  bool
	packed map[int64][]byte
}

// wordsRow is the words of a chunk.
type wordsRow struct {
	id                   int64
	heading, text, names string
}

func (w *writer) writeDocuments(ctx context.Context) (err error) {
	if err := w.readStored(ctx); err != nil {
		return err
	}
	if w.s.embed == nil {
		if w.model, err = w.s.readModel(ctx, w.c.ID); err != nil {
			return err
		}
		if w.model == nil {
			if err := w.firstModel(ctx); err != nil {
				return err
			}
		}
	}
	defer func() {
		if w.tx != nil {
			w.tx.Rollback()
		}
	}()
	done := 0
	for f := range w.readAll(ctx) {
		if err := w.addDocument(ctx, f); err != nil {
			return err
		}
		if done++; w.in.Progress != nil && (done%16 == 0 || done == len(w.in.Items)) {
			w.in.Progress(done, len(w.in.Items), "files read")
		}
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if !w.in.Partial {
		for _, path := range w.missing {
			if err := w.removeFile(ctx, w.known[path]); err != nil {
				return err
			}
			w.r.Removed++
		}
	}
	return w.commit(ctx)
}

// readStored reads which files the collection has.
func (w *writer) readStored(ctx context.Context) error {
	w.known, w.missing = map[string]*stored{}, map[string]string{}
	db, err := w.s.file.Reader()
	if err != nil {
		return err
	}
	rows, err := db.QueryContext(ctx, "SELECT id, path, hash, size, modified FROM file WHERE collection = ?", w.c.ID)
	if err != nil {
		return err
	}
	defer rows.Close()
	listed := make(map[string]bool, len(w.in.Items))
	for _, it := range w.in.Items {
		listed[it.Path] = true
	}
	for rows.Next() {
		var f stored
		var path string
		var hash []byte
		if err := rows.Scan(&f.id, &path, &hash, &f.size, &f.modified); err != nil {
			return err
		}
		f.hash = string(hash)
		w.known[path] = &f
		if !listed[path] && isBelow(path, w.in.Below) {
			key := f.hash
			if _, taken := w.missing[key]; taken {
				key += path // several files of one content
			}
			w.missing[key] = path
		}
	}
	return rows.Err()
}

func isBelow(path, dir string) bool {
	if path == dir {
		return true
	}
	if !strings.HasSuffix(dir, string(filepath.Separator)) {
		dir += string(filepath.Separator)
	}
	return strings.HasPrefix(path, dir)
}

// readAll reads and cuts the files whose size or time changed, on two goroutines. It yields them in the order of the
// items, so that the same files always give the same collection.
func (w *writer) readAll(ctx context.Context) iter.Seq[read] {
	return func(yield func(read) bool) {
		ctx, cancel := context.WithCancel(ctx)
		places := make(chan struct{}, readAhead)
		results := w.startReaders(ctx, places)
		defer func() {
			cancel()
			for range results { // the readers end before this returns
			}
		}()
		for result := range results {
			f := <-result
			if !yield(f) {
				return
			}
			for range placesOf(f.item) {
				<-places
			}
		}
	}
}

// placesOf returns how many of readAhead files a file counts for.
func placesOf(it Item) int { return int(max(1, min(it.Size/readPlace, readAhead))) }

// startReaders starts the goroutines of readAll, which take the places of each file. Each result arrives in its own
// channel. The channel of channels is closed at the end.
func (w *writer) startReaders(ctx context.Context, places chan<- struct{}) <-chan chan read {
	type task struct {
		item   Item
		result chan read
	}
	tasks, results := make(chan task), make(chan chan read, readAhead)
	var readers sync.WaitGroup
	for range min(2, runtime.GOMAXPROCS(0)) {
		readers.Go(func() {
			p := preparer{names: newNamer()}
			if w.model != nil {
				p.vectors = w.model.embedding()
			}
			for t := range tasks {
				t.result <- w.readOne(ctx, t.item, p)
			}
		})
	}
	go func() {
		defer close(results)
		defer readers.Wait()
		defer close(tasks)
		for _, it := range w.in.Items {
			for range placesOf(it) {
				select {
				case places <- struct{}{}:
				case <-ctx.Done():
					return
				}
			}
			t := task{it, make(chan read, 1)}
			select {
			case tasks <- t: // before its result is announced, so that each announced result arrives
			case <-ctx.Done():
				return
			}
			select {
			case results <- t.result:
			case <-ctx.Done():
				return
			}
		}
	}()
	return results
}

// preparer is what one goroutine makes of chunks.
type preparer struct {
	vectors *embedding // nil means that something else makes the vectors
	names   *namer
}

// readOne reads and cuts a file.
func (w *writer) readOne(ctx context.Context, it Item, p preparer) read {
	f := read{item: it, old: w.known[it.Path]}
	if f.old != nil && f.old.size == it.Size && f.old.modified == it.Modified.UnixNano() {
		f.same = true
		return f
	}
	d, err := w.in.Read(ctx, it)
	if err != nil {
		f.err = err
		return f
	}
	f.hash, f.lang = string(d.Hash[:]), d.Language
	if f.old != nil && f.old.hash == f.hash {
		f.same = true
		return f
	}
	f.size = len(d.Text)
	f.title = titleOf(d.Language, d.Text)
	f.chunks = Cut(d.Language, d.Text)
	if p.vectors != nil {
		f.vecs = make([][]byte, len(f.chunks))
		for i, c := range f.chunks {
			f.vecs[i] = packVector(p.vectors.of(embedded(headings(f.title, c.Heading), c.Text)))
		}
	}
	if isProse(d.Language) {
		return f
	}
	f.names = make([]string, len(f.chunks))
	for i, c := range f.chunks {
		f.names[i] = p.names.names(c.Text)
	}
	return f
}

func isProse(language string) bool {
	switch language {
	case "plaintext", "markdown", "restructuredtext", "html":
		return true
	}
	return false
}

// addDocument stores one file.
func (w *writer) addDocument(ctx context.Context, f read) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	switch {
	case f.err != nil:
		w.r.Failed++
		if len(w.r.Problems) < maxProblems {
			w.r.Problems = append(w.r.Problems, f.item.Path+": "+f.err.Error())
		}
		return nil
	case f.same:
		w.r.Unchanged++
		if f.old.modified == f.item.Modified.UnixNano() {
			return nil
		}
		return w.exec(ctx, "UPDATE file SET size = ?, modified = ? WHERE id = ?",
			f.item.Size, f.item.Modified.UnixNano(), f.old.id)
	case len(f.chunks) == 0:
		w.r.Skipped++
		if f.old != nil {
			return w.removeFile(ctx, f.old)
		}
		return nil
	}
	if path, ok := w.missing[f.hash]; ok && f.old == nil && !w.in.Partial {
		delete(w.missing, f.hash)
		w.r.Renamed++
		return w.rename(ctx, &f, w.known[path])
	}
	if w.r.Added++; f.old != nil {
		w.r.Added--
		w.r.Changed++
		if err := w.removeFile(ctx, f.old); err != nil {
			return err
		}
	}
	return w.insert(ctx, &f)
}

func (w *writer) insert(ctx context.Context, f *read) error {
	if w.s.embed != nil {
		if err := w.embedFile(ctx, f); err != nil {
			return err
		}
	}
	if err := w.beginTransaction(ctx); err != nil {
		return err
	}
	res, err := w.tx.ExecContext(ctx, `INSERT INTO file (collection, path, hash, size, modified, title)
		VALUES (?, ?, ?, ?, ?, ?)`, w.c.ID, f.item.Path, []byte(f.hash), f.item.Size, f.item.Modified.UnixNano(), f.title)
	if err != nil {
		return err
	}
	file, err := res.LastInsertId()
	if err != nil {
		return err
	}
	for i, c := range f.chunks {
		res, err := w.prepared(ctx, insertChunk, file, i, c.Line, c.Last, c.Page, c.Heading, c.Text)
		if err != nil {
			return err
		}
		id, err := res.LastInsertId()
		if err != nil {
			return err
		}
		w.addWords(id, f, i)
		if f.given != nil {
			w.put[id] = f.given[i]
		}
		if f.vecs != nil {
			if _, err := w.prepared(ctx, insertVector, id, w.c.ID, f.vecs[i]); err != nil {
				return err
			}
			if w.noted {
				w.packed[id] = f.vecs[i]
			}
		}
	}
	w.r.Chunks += len(f.chunks)
	w.r.Bytes += int64(f.size)
	w.pending += f.size
	return w.commitIfDue(ctx)
}

// prepared executes a statement in tx, which compiles it once.
func (w *writer) prepared(ctx context.Context, statement string, args ...any) (sql.Result, error) {
	st := w.prep[statement]
	if st == nil {
		var err error
		if st, err = w.tx.PrepareContext(ctx, statement); err != nil {
			return nil, err
		}
		w.prep[statement] = st
	}
	// A context that can end costs a goroutine for each of a million short statements; addDocument looks at it.
	return st.ExecContext(context.WithoutCancel(ctx), args...)
}

const (
	insertChunk  = "INSERT INTO chunk (file, seq, line, last, page, heading, text) VALUES (?,?,?,?,?,?,?)"
	insertVector = "INSERT OR REPLACE INTO vector (chunk, collection, data) VALUES (?,?,?)"
)

// addWords makes the words of chunk i of a file searchable, with the next commit.
func (w *writer) addWords(id int64, f *read, i int) {
	extra := filepath.Base(f.item.Path)
	if f.names != nil {
		extra += " " + names(extra) + " " + f.names[i]
	}
	c := f.chunks[i]
	w.wordsOf = append(w.wordsOf, wordsRow{id, headings(f.title, c.Heading), c.Text, extra})
}

func (w *writer) insertWords(ctx context.Context) error {
	statement := fmt.Sprintf("INSERT INTO words_%d (rowid, heading, body, names) VALUES (?,?,?,?)", w.c.ID)
	for _, r := range w.wordsOf {
		if _, err := w.prepared(ctx, statement, r.id, r.heading, r.text, r.names); err != nil {
			return err
		}
	}
	w.wordsOf = nil
	return nil
}

// rename gives a stored file another path. Its chunks and their vectors stay; its words contain its name, so they are
// made again.
func (w *writer) rename(ctx context.Context, f *read, old *stored) error {
	if err := w.beginTransaction(ctx); err != nil {
		return err
	}
	ids, err := w.chunkIDs(ctx, old.id)
	if err != nil {
		return err
	}
	if len(ids) != len(f.chunks) { // another extension: it is cut differently
		if err := w.removeFile(ctx, old); err != nil {
			return err
		}
		return w.insert(ctx, f)
	}
	for i, id := range ids {
		if err := w.exec(ctx, fmt.Sprintf("DELETE FROM words_%d WHERE rowid = ?", w.c.ID), id); err != nil {
			return err
		}
		w.addWords(id, f, i)
	}
	err = w.exec(ctx, "UPDATE file SET path = ?, size = ?, modified = ? WHERE id = ?",
		f.item.Path, f.item.Size, f.item.Modified.UnixNano(), old.id)
	if err != nil {
		return err
	}
	return w.commitIfDue(ctx)
}

func (w *writer) chunkIDs(ctx context.Context, file int64) (ids []int64, err error) {
	rows, err := w.tx.QueryContext(ctx, "SELECT id FROM chunk WHERE file = ? ORDER BY seq", file)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// headings returns the title of a document and the headings of a chunk.
func headings(title, heading string) string {
	if title == "" || strings.HasPrefix(heading, title) {
		return heading
	}
	return title + " " + heading
}

// embedFile asks the Embedder for the vectors of the chunks of a file.
func (w *writer) embedFile(ctx context.Context, f *read) error {
	texts := make([]string, len(f.chunks))
	for i, c := range f.chunks {
		texts[i] = embedded(headings(f.title, c.Heading), c.Text)
	}
	if err := w.commit(ctx); err != nil { // it may take long, and no other writer need wait for it
		return err
	}
	vecs, err := w.embed(ctx, texts)
	if err != nil {
		return err
	}
	if w.s.vectors != nil {
		f.given = vecs
		return nil
	}
	f.vecs = make([][]byte, len(vecs))
	for i, v := range vecs {
		f.vecs[i] = packVector(v)
	}
	return nil
}

// embed asks the Embedder for vectors, and checks what it returns.
func (w *writer) embed(ctx context.Context, texts []string) ([][]float32, error) {
	vecs, err := w.s.embed.Embed(ctx, texts, false)
	if err != nil {
		return nil, err
	}
	_, dims := w.s.embed.Space()
	if len(vecs) != len(texts) {
		return nil, fmt.Errorf("the embedder returned %d vectors for %d texts", len(vecs), len(texts))
	}
	for _, v := range vecs {
		if len(v) != dims {
			return nil, fmt.Errorf("the embedder returned %d dimensions; expected %d", len(v), dims)
		}
	}
	return vecs, nil
}

// embedded is the text of a chunk of which the vector is made.
func embedded(heading, text string) string {
	if heading == "" || strings.HasPrefix(strings.TrimLeft(text, "# "), heading) {
		return text
	}
	return heading + "\n" + text
}

// removeFile removes a file with its chunks.
func (w *writer) removeFile(ctx context.Context, f *stored) error {
	if err := w.beginTransaction(ctx); err != nil {
		return err
	}
	if w.s.vectors != nil || w.noted {
		ids, err := w.chunkIDs(ctx, f.id)
		if err != nil {
			return err
		}
		w.gone = append(w.gone, ids...)
	}
	err := w.exec(ctx, fmt.Sprintf("DELETE FROM words_%d WHERE rowid IN (SELECT id FROM chunk WHERE file = ?)", w.c.ID), f.id)
	if err != nil {
		return err
	}
	return w.exec(ctx, "DELETE FROM file WHERE id = ?", f.id)
}

func (w *writer) exec(ctx context.Context, statement string, args ...any) error {
	if err := w.beginTransaction(ctx); err != nil {
		return err
	}
	w.pending += 1 << 10
	if _, err := w.tx.ExecContext(ctx, statement, args...); err != nil {
		return err
	}
	return nil
}

func (w *writer) beginTransaction(ctx context.Context) error {
	if w.tx != nil {
		return nil
	}
	db, err := w.s.file.DB()
	if err != nil {
		return err
	}
	w.began, w.pending, w.prep = time.Now(), 0, map[string]*sql.Stmt{}
	w.put, w.gone = map[int64][]float32{}, nil
	w.noted, w.packed = w.s.vectors == nil && w.s.isLoaded(w.c.ID), map[int64][]byte{}
	w.tx, err = db.BeginTx(ctx, nil)
	return err
}

func (w *writer) commitIfDue(ctx context.Context) error {
	if w.pending < commitBytes && time.Since(w.began) < commitAfter {
		return nil
	}
	return w.commit(ctx)
}

func (w *writer) commit(ctx context.Context) error {
	if w.tx == nil {
		return nil
	}
	var revision int64
	err := w.tx.QueryRowContext(ctx,
		"UPDATE collection SET changed = ?, revision = revision + 1 WHERE id = ? RETURNING revision",
		time.Now().UnixMilli(), w.c.ID).Scan(&revision)
	if err != nil {
		return err
	}
	if err := w.insertWords(ctx); err != nil {
		return err
	}
	if err := w.putVectors(ctx); err != nil {
		return err
	}
	tx := w.tx
	w.tx = nil
	if err := tx.Commit(); err != nil {
		return err
	}
	if w.noted {
		w.s.noteChange(w.c.ID, change{revision, w.gone, w.packed})
	}
	if w.s.vectors == nil {
		return nil
	}
	// SQLite gives numbers of removed chunks to new ones.
	gone := slices.DeleteFunc(w.gone, func(id int64) bool { return w.put[id] != nil })
	if len(gone) == 0 {
		return nil
	}
	return w.s.vectors.Delete(ctx, StoredAs(w.c), gone)
}

// putVectors gives the vectors of tx to the VectorStore.
func (w *writer) putVectors(ctx context.Context) error {
	if len(w.put) == 0 {
		return nil
	}
	ids := slices.Sorted(maps.Keys(w.put))
	vecs := make([][]float32, len(ids))
	for i, id := range ids {
		vecs[i] = w.put[id]
	}
	return w.s.vectors.Put(ctx, StoredAs(w.c), ids, vecs)
}

// finish makes the model of a collection again if too much of it changed.
func (s *Store) finish(ctx context.Context, c Collection, r *Report, progress func(int, int, string)) error {
	if r.Chunks+r.Removed == 0 {
		if _, err := s.modelAge(ctx, c.ID); !errors.Is(err, sql.ErrNoRows) {
			return err
		}
	}
	if err := s.Stats(ctx, &c); err != nil {
		return err
	}
	if c.Chunks > MaxChunks {
		return fmt.Errorf("%w chunks: %d", ErrTooMany, c.Chunks)
	}
	old, err := s.modelAge(ctx, c.ID)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	switch {
	case err == nil && old.chunks == 0: // by firstModel
		return s.finishFirst(ctx, c, r, progress)
	case err == nil && old.changed+r.Chunks < max(c.Chunks, old.chunks)/retrainShare:
		return s.ageModel(ctx, c.ID, old.changed+r.Chunks)
	}
	if progress != nil {
		progress(r.Files, r.Files, "comparing the texts")
	}
	r.Trained = true
	return s.train(ctx, c)
}

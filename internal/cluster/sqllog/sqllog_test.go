package sqllog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/cluster/nodetest"
	"gatehouse/internal/files/sqlfile"
)

const schema = `
CREATE TABLE person (number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, face BLOB);
CREATE TABLE "key's" (
	id TEXT NOT NULL, person INTEGER NOT NULL REFERENCES person ON DELETE CASCADE, "of" TEXT, n REAL,
	PRIMARY KEY (id, person));
CREATE TABLE once (key TEXT PRIMARY KEY, by TEXT NOT NULL);
CREATE TABLE turn (n INTEGER NOT NULL);
INSERT INTO turn VALUES (0);`

// replica is the file of one node.
type replica struct {
	file *sqlfile.File
	log  *Log
}

func newFile(t *testing.T) *sqlfile.File {
	f := &sqlfile.File{
		Path: filepath.Join(t.TempDir(), "things.db"), Schema: schema, Version: 1, ForeignKeys: true,
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func open(t *testing.T, n *cluster.Node, f *sqlfile.File) replica {
	t.Helper()
	l, err := Open(t.Context(), n, "things", f, slog.New(slog.NewTextHandler(t.Output(), nil)),
		func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	run(t, l)
	return replica{f, l}
}

func run(t *testing.T, l *Log) {
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { l.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
}

func (r replica) exec(ctx context.Context, statements ...string) error {
	return r.file.Change(ctx, func(tx *sql.Tx) error {
		for _, s := range statements {
			if _, err := tx.Exec(s); err != nil {
				return err
			}
		}
		return nil
	})
}

func (r replica) rows(t *testing.T) []string {
	t.Helper()
	db, err := r.file.DB()
	if err != nil {
		t.Fatal(err)
	}
	all, err := r.log.dump(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

// TestAFileOnThreeNodes changes one file on three nodes, of which the first had rows before.
func TestAFileOnThreeNodes(t *testing.T) {
	nodes := nodetest.Start(t)
	ctx := t.Context()
	first := newFile(t)
	if err := first.Change(ctx, func(tx *sql.Tx) error {
		_, err := tx.Exec(`INSERT INTO person (name, face) VALUES ('Ada', X'00ff'), ('gone', NULL);
			DELETE FROM person WHERE name = 'gone'; INSERT INTO "key's" VALUES ('a', 1, 'it''s', 1.5)`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var all []replica
	for i, n := range nodes {
		f := first
		if i > 0 {
			f = newFile(t)
		}
		all = append(all, open(t, n, f))
	}
	same := func(what string) {
		t.Helper()
		for i, r := range all {
			var got, want []string
			for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				// A node that is silent for a lease is not waited for.
				if got, want = r.rows(t), all[0].rows(t); slices.Equal(got, want) {
					break
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: node %d has\n%q\nand the first\n%q", what, i, got, want)
			}
		}
	}
	same("at first")
	if n := len(all[2].rows(t)); n != 5 { // three rows, and two statements of the highest number
		t.Errorf("%d statements: %q", n, all[2].rows(t))
	}

	// A change is on all nodes when it returns. Numbers of removed rows are not used again on any.
	if err := all[1].exec(ctx, "INSERT INTO person (name) VALUES ('Bea')", "UPDATE turn SET n = n + 1",
		`INSERT INTO "key's" SELECT 'b', number, NULL, 2 FROM person WHERE name = 'Bea'`); err != nil {
		t.Fatal(err)
	}
	same("after an insertion")
	var number int
	db, _ := all[2].file.DB()
	if err := db.QueryRow("SELECT number FROM person WHERE name = 'Bea'").Scan(&number); err != nil || number != 3 {
		t.Errorf("number %d, %v", number, err)
	}
	if err := all[2].exec(ctx, "DELETE FROM person WHERE name = 'Ada'", `UPDATE "key's" SET "of" = 'x' || char(10)`,
		"INSERT OR REPLACE INTO once VALUES ('k', 'one')", "INSERT OR REPLACE INTO once VALUES ('k', 'two')"); err != nil {
		t.Fatal(err)
	}
	same("after a cascade")

	// What fails changes nothing, and what changes nothing is not in the log.
	if err := all[0].exec(ctx, "DELETE FROM once", "INSERT INTO nothing VALUES (1)"); err == nil {
		t.Error("a wrong statement succeeded")
	}
	if err := all[0].exec(ctx, "DELETE FROM once WHERE key = 'none'"); err != nil {
		t.Error(err)
	}
	same("after a failure")
	testOneWinner(t, all)
	same("after races")
	testBehind(t, nodes[2], all[1])
	same("after changes of a file that was behind")

	// A file of another lineage is refused, and one that has fallen behind catches up.
	other := newFile(t)
	if err := other.Change(ctx, func(tx *sql.Tx) error {
		_, err := tx.Exec("INSERT INTO once VALUES ('own', 'me')")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(ctx, nodes[2], "things", other, slog.New(slog.DiscardHandler), nil); !errors.Is(err, ErrOther) {
		t.Errorf("a file with other rows: %v", err)
	}
	late := open(t, nodes[2], newFile(t))
	if got, want := late.rows(t), all[0].rows(t); !slices.Equal(got, want) {
		t.Errorf("a new file has %q, expected %q", got, want)
	}

	testLost(t, nodes[2])

	// A change that takes too long is rolled back.
	brief, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if err := all[0].file.Change(brief, func(tx *sql.Tx) error {
		for {
			if _, err := tx.Exec("DELETE FROM once"); errors.Is(err, sql.ErrTxDone) {
				return nil
			}
		}
	}); !errors.Is(err, cluster.ErrNotRun) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a change that takes too long: %v", err)
	}

	// Without most of the nodes nothing changes.
	nodes[1].Close()
	nodes[2].Close()
	before := all[0].rows(t)
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := all[0].exec(short, "DELETE FROM once"); !errors.Is(err, cluster.ErrMayHaveRun) &&
		!errors.Is(err, cluster.ErrNotRun) {
		t.Errorf("a change of a node that is alone: %v", err)
	}
	if got := all[0].rows(t); !slices.Equal(got, before) {
		t.Errorf("a change of a node that is alone made %q of %q", got, before)
	}
}

// testLost starts a node with a file of which the cluster has lost the newest change.
func testLost(t *testing.T, n *cluster.Node) {
	discard := slog.New(slog.DiscardHandler)
	f := newFile(t)
	l, err := Open(t.Context(), n, "lost", f, discard, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := replica{f, l}
	for _, key := range []string{"a", "b"} {
		if err := r.exec(t.Context(), "INSERT INTO once VALUES ('"+key+"', 'me')"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(t.Context(), n, "lost", f, discard, nil); err != nil {
		t.Errorf("a file that the log reaches: %v", err)
	}
	if err := l.bucket.Remove(t.Context(), entryKey(2)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), n, "lost", f, discard, nil); !errors.Is(err, cluster.ErrLost) {
		t.Errorf("a file with a change that the cluster has lost: %v", err)
	}
}

// testOneWinner lets all nodes use the same keys at once: of each, one transaction finds it unused.
func testOneWinner(t *testing.T, all []replica) {
	ctx := t.Context()
	const keys = 10
	var mu sync.Mutex
	wins := map[string]int{}
	var running sync.WaitGroup
	for i, r := range all {
		running.Go(func() {
			for k := range keys {
				key := fmt.Sprint("once", k)
				won := false
				if err := r.file.Change(ctx, func(tx *sql.Tx) error {
					res, err := tx.Exec("INSERT INTO once VALUES (?, ?) ON CONFLICT DO NOTHING", key, fmt.Sprint(i))
					if err != nil {
						return err
					}
					n, err := res.RowsAffected()
					won = n == 1
					return err
				}); err != nil {
					t.Errorf("node %d: %v", i, err)
				}
				if won {
					mu.Lock()
					wins[key]++
					mu.Unlock()
				}
			}
		})
	}
	running.Wait()
	for k := range keys {
		if n := wins[fmt.Sprint("once", k)]; n != 1 {
			t.Errorf("key %d was used %d times", k, n)
		}
	}
	db, _ := all[0].file.DB()
	_, at, err := position(ctx, db)
	if err != nil || at != 3+keys { // the rows of the first node, two changes, and the winners
		t.Errorf("the log has %d changes, %v", at, err)
	}
}

// testBehind changes a file that is behind by what it does not have yet.
func testBehind(t *testing.T, n *cluster.Node, ahead replica) {
	file := newFile(t)
	l, err := Open(t.Context(), n, "things", file, slog.New(slog.DiscardHandler), func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	behind := replica{file, l} // it is told of no change
	missing := errors.New("it is missing")
	remove := func(key string) error {
		return behind.file.Change(t.Context(), func(tx *sql.Tx) error {
			err := tx.QueryRow("SELECT by FROM once WHERE key = ?", key).Scan(new(string))
			if errors.Is(err, sql.ErrNoRows) {
				return missing
			}
			if err == nil {
				_, err = tx.Exec("DELETE FROM once WHERE key = ?", key)
			}
			return err
		})
	}
	if err := remove("late"); !errors.Is(err, missing) {
		t.Errorf("a row that no node has: %v", err)
	}
	if err := ahead.exec(t.Context(), "INSERT INTO once VALUES ('late', 'me')"); err != nil {
		t.Fatal(err)
	}
	if err := remove("late"); err != nil {
		t.Errorf("a row that the node did not have yet: %v", err)
	}
	if err := ahead.exec(t.Context(), "INSERT INTO once VALUES ('later', 'me')"); err != nil {
		t.Fatal(err)
	}
	if err := behind.exec(t.Context(), "DELETE FROM once WHERE key = 'later'"); err != nil {
		t.Fatal(err)
	}
	for _, row := range ahead.rows(t) {
		if strings.Contains(row, "late") {
			t.Errorf("a change that found nothing at first has not changed %s", row)
		}
	}
}

// TestAFileOfANodeIsNotChangedAlone changes the file of a node by a program that does not know the cluster.
func TestAFileOfANodeIsNotChangedAlone(t *testing.T) {
	add := func(f *sqlfile.File, key string) error {
		return f.Change(t.Context(), func(tx *sql.Tx) error {
			_, err := tx.Exec("INSERT INTO once VALUES (?, 'me')", key)
			return err
		})
	}
	f := newFile(t)
	if err := add(f, "before"); err != nil {
		t.Fatal(err)
	}
	db, err := f.DB()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(positionTable); err != nil {
		t.Fatal(err)
	}
	if err := add(f, "alone"); !errors.Is(err, sqlfile.ErrReplicated) {
		t.Errorf("a change of a node's file: %v", err)
	}
	if err := Forget(t.Context(), f.Path); err != nil {
		t.Fatal(err)
	}
	if err := add(f, "after"); err != nil {
		t.Error(err)
	}
	var rows int
	if err := db.QueryRow("SELECT count(*) FROM once").Scan(&rows); err != nil || rows != 2 {
		t.Errorf("%d rows, %v", rows, err)
	}
}

// TestACommandChangesTheFileOfANode changes the file of a node by a command on its machine, which commits the change
// before the node hears of it: the node confirms it all the same, so that it stays fresh.
func TestACommandChangesTheFileOfANode(t *testing.T) {
	nodes := nodetest.Start(t)
	ctx := t.Context()
	var all []replica
	for _, n := range nodes[1:] {
		all = append(all, open(t, n, newFile(t)))
	}
	file := newFile(t)
	var reloads atomic.Int32
	slow, err := Open(ctx, nodes[0], "things", file, slog.New(slog.NewTextHandler(t.Output(), nil)),
		func() error { reloads.Add(1); return nil })
	if err != nil {
		t.Fatal(err)
	}
	visitor, err := cluster.Visitor(nodes[0].Dir())
	if err != nil {
		t.Fatal(err)
	}
	defer visitor.Close()
	same := &sqlfile.File{Path: file.Path, Schema: schema, Version: 1, ForeignKeys: true}
	defer same.Close()
	command, err := Open(ctx, visitor, "things", same, slog.New(slog.DiscardHandler), func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if err := (replica{same, command}).exec(ctx, "INSERT INTO once VALUES ('by', 'a command')"); err != nil {
		t.Fatal(err)
	}
	for i, r := range all {
		await(t, fmt.Sprintf("node %d has the change", i+1), func() bool { return len(r.rows(t)) == 2 })
	}
	run(t, slow) // it hears of the change only now
	await(t, "the node reads its file again", func() bool { return reloads.Load() > 0 })
	await(t, "most nodes hear the node", func() bool { return nodes[0].Fresh() == nil })

	// A change is applied too of which a node hears before the leader that answers it can read it.
	early := newFile(t)
	ahead, err := Open(ctx, nodes[1], "things", early, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := ahead.follow(ctx, 2); !errors.Is(err, errNotReadable) {
		t.Errorf("a change that cannot be read yet: %v", err)
	}
	var waiting sync.WaitGroup
	waiting.Go(func() { ahead.followUntil(ctx, 2) })
	if err := all[0].exec(ctx, "INSERT INTO once VALUES ('after', 'it was heard of')"); err != nil {
		t.Fatal(err)
	}
	waiting.Wait()
	if got := (replica{early, ahead}).rows(t); len(got) != 3 {
		t.Errorf("it has %q", got)
	}

	// A change of a newer version is refused, and nothing is written after it.
	newer := fmt.Appendf(nil, `{"id":"x","node":"y","format":%d,"statements":["DELETE FROM once"]}`, cluster.Format+1)
	if _, err := all[0].log.bucket.Create(ctx, entryKey(3), newer); err != nil {
		t.Fatal(err)
	}
	if err := all[0].exec(ctx, "INSERT INTO once VALUES ('beside', 'it')"); !errors.Is(err, cluster.ErrFormat) {
		t.Errorf("a change after one of a newer version: %v", err)
	}
	if got := all[0].rows(t); len(got) != 3 {
		t.Errorf("a change of a newer version made %q", got)
	}
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after a minute: %s", what)
		}
	}
}

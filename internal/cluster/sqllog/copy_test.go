package sqllog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"gatehouse/internal/cluster"
	"gatehouse/internal/cluster/nodetest"
	"gatehouse/internal/files/sqlfile"
)

// openShort is open with a log that is shortened after 20 entries, of which 5 stay. Changes wait for no other node.
func openShort(t *testing.T, n *cluster.Node, f *sqlfile.File) (r replica, stop func()) {
	t.Helper()
	l, err := Open(t.Context(), n, "things", f, slog.New(slog.NewTextHandler(t.Output(), nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	l.after, l.kept = 20, 5
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { l.Run(ctx) })
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(stop)
	return replica{f, l}, stop
}

// TestALogIsShortened changes a file often: the log stays short, and a node that lacks removed entries, a new one, and one
// whose file is an old copy get all rows.
func TestALogIsShortened(t *testing.T) {
	nodes := nodetest.Start(t)
	ctx := t.Context()
	first, _ := openShort(t, nodes[0], newFile(t))
	second, _ := openShort(t, nodes[1], newFile(t))
	file := newFile(t)
	behind, stop := openShort(t, nodes[2], file)
	if err := first.exec(ctx, "INSERT INTO person (name) VALUES ('Ada'), ('gone')",
		`INSERT INTO "key's" VALUES ('a', 1, 'x', 1.5), ('b', 2, 'y', 2)`); err != nil {
		t.Fatal(err)
	}
	await(t, "the third has it", func() bool { return len(behind.rows(t)) == len(first.rows(t)) })
	stop()
	file.Close()
	old, closed := copyOf(t, file), file
	file = newFile(t)
	file.Path = closed.Path

	// The rows of the file are the same in number, so the log must be, too.
	var largest uint64
	for i := range 100 {
		if err := first.exec(ctx, fmt.Sprintf("UPDATE turn SET n = %d", i),
			fmt.Sprintf("UPDATE person SET face = zeroblob(%d)", 1000+i)); err != nil {
			t.Fatal(err)
		}
		if i%10 == 9 {
			size, err := first.log.bucket.Size(ctx)
			if err != nil {
				t.Fatal(err)
			}
			largest = max(largest, size)
		}
	}
	if err := first.exec(ctx, "DELETE FROM person WHERE name = 'gone'"); err != nil {
		t.Fatal(err)
	}
	await(t, "the log is shortened", func() bool {
		keys, err := first.log.bucket.Keys(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return len(keys) <= 20+5
	})
	if _, err := first.log.bucket.Get(ctx, entryKey(1)); !errors.Is(err, cluster.ErrNotFound) {
		t.Errorf("the first entry: %v", err)
	}
	keys, err := first.log.copies.Keys(ctx)
	if err != nil || len(keys) > 3 { // the newest copy has one part, and the one before it may still have one
		t.Errorf("the copies are %q, %v", keys, err)
	}
	t.Logf("at most %d bytes in the log", largest)

	want := first.rows(t)
	for what, f := range map[string]*sqlfile.File{"behind": file, "an old image": old, "new": newFile(t)} {
		again, stop := openShort(t, nodes[2], f)
		if got := again.rows(t); !slices.Equal(got, want) {
			t.Errorf("%s: it has\n%q\nand the first\n%q", what, got, want)
		}
		if err := again.exec(ctx, "UPDATE turn SET n = n + 1"); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		await(t, "the others have its change", func() bool { return slices.Equal(second.rows(t), again.rows(t)) })
		want = again.rows(t)
		stop()
		f.Close()
	}
}

// copyOf returns a file with the same content.
func copyOf(t *testing.T, f *sqlfile.File) *sqlfile.File {
	t.Helper()
	to := newFile(t)
	for _, end := range []string{"", "-wal"} {
		from, err := os.Open(f.Path + end)
		if err != nil {
			continue
		}
		out, err := os.OpenFile(filepath.Clean(to.Path+end), os.O_WRONLY|os.O_CREATE, 0o600)
		if err == nil {
			_, err = io.Copy(out, from)
			out.Close()
		}
		from.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// TestAWriterThatIsFarBehind lets a node that knows an old end of the log write the next entry there, which was removed
// meanwhile: it is refused, and its transaction runs on the newest rows.
func TestAWriterThatIsFarBehind(t *testing.T) {
	nodes := nodetest.Start(t)
	ctx := t.Context()
	first, _ := openShort(t, nodes[0], newFile(t))
	late, stop := openShort(t, nodes[1], newFile(t))
	if err := first.exec(ctx, "INSERT INTO once VALUES ('k', 'first')"); err != nil {
		t.Fatal(err)
	}
	await(t, "both have it", func() bool { return len(late.rows(t)) == len(first.rows(t)) })
	stop()
	for i := range 45 {
		if err := first.exec(ctx, fmt.Sprintf("UPDATE turn SET n = %d", i+1)); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "the log is shortened", func() bool {
		_, err := first.log.bucket.Get(ctx, entryKey(2))
		return errors.Is(err, cluster.ErrNotFound)
	})
	if err := late.exec(ctx, "UPDATE turn SET n = n + 1000"); err != nil {
		t.Fatal(err)
	}
	await(t, "all have one history", func() bool {
		return slices.Contains(first.rows(t), `INSERT OR REPLACE INTO "turn" ("n", "rowid") VALUES (1045, 1)`) &&
			slices.Equal(first.rows(t), late.rows(t))
	})

	first.log.part = 256 << 10
	// A change that is longer than a part goes to all; one that is too long is refused and says its limit.
	if err := first.exec(ctx, "INSERT INTO person (name, face) VALUES ('long', randomblob(1000000))"); err != nil {
		t.Fatal(err)
	}
	want := first.rows(t)
	if err := late.exec(ctx, "UPDATE turn SET n = 0"); err != nil { // it must apply the other's change first
		t.Fatal(err)
	}
	if got := late.rows(t); len(got) != len(want) || len(strings.Join(got, "")) < 2_000_000 {
		t.Errorf("%d rows of %d bytes, expected %d", len(got), len(strings.Join(got, "")), len(want))
	}
	first.log.most = 1 << 20
	if err := first.exec(ctx, "INSERT INTO person (name, face) VALUES ('longer', zeroblob(1000000))"); err == nil ||
		!strings.Contains(err.Error(), "at most 1048576") {
		t.Errorf("a change that is too long: %v", err)
	}
}

package audit

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// kinds lists the kinds of a report's problems, with the lines they name.
func kinds(r Report) (all []string) {
	for _, p := range r.Problems {
		all = append(all, fmt.Sprintf("%s %d-%d", p.Kind, p.First, p.Last))
	}
	return all
}

// replaceLines rewrites the blocks that hold a text and returns their number.
func replaceLines(t *testing.T, db *sql.DB, from, to string) (n int) {
	t.Helper()
	rows, err := db.Query("SELECT first, lines FROM block")
	if err != nil {
		t.Fatal(err)
	}
	changed := map[int64][]byte{}
	for rows.Next() {
		var first int64
		var packed []byte
		if err := rows.Scan(&first, &packed); err != nil {
			t.Fatal(err)
		}
		text, err := unpack(packed)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(text, []byte(from)) {
			changed[first] = pack(nil, bytes.ReplaceAll(text, []byte(from), []byte(to)))
		}
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		t.Fatal(err)
	}
	for first, packed := range changed {
		if _, err := db.Exec("UPDATE block SET lines = ? WHERE first = ?", packed, first); err != nil {
			t.Fatal(err)
		}
	}
	return len(changed)
}

//redteam:attack What destroys is written down before it begins: lines of the ledger are changed, removed and moved
func TestTamperingIsFoundAndNamed(t *testing.T) {
	edit := func(from, to string) func(*testing.T, *sql.DB, string) {
		return func(t *testing.T, db *sql.DB, _ string) {
			if n := replaceLines(t, db, from, to); n != 1 {
				t.Fatalf("%d rows hold %s", n, from)
			}
		}
	}
	exec := func(statement string) func(*testing.T, *sql.DB, string) {
		return func(t *testing.T, db *sql.DB, _ string) {
			if _, err := db.Exec(statement); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		do   func(t *testing.T, db *sql.DB, path string)
		want []string
	}{
		"nothing":               {exec("SELECT 1"), nil},
		"a line within a row":   {edit(`"call":"call_33"`, `"call":"call_x3"`), []string{"altered 34-34"}},
		"a line that ends one":  {edit(`"call":"call_39"`, `"call":"call_x9"`), []string{"altered 40-40"}},
		"the very last line":    {edit(`"call":"call_99"`, `"call":"call_x9"`), []string{"altered 100-100"}},
		"the very first line":   {edit(`"call":"call_0"`, `"call":"call_x"`), []string{"altered 1-1"}},
		"a row":                 {exec("DELETE FROM block WHERE first = 31"), []string{"missing 31-40"}},
		"the last row":          {exec("DELETE FROM block WHERE first = 91"), []string{"truncated 91-100"}},
		"the first row":         {exec("DELETE FROM block WHERE first = 1"), []string{"beginning 1-10"}},
		"all rows":              {exec("DELETE FROM block"), []string{"truncated 1-100"}},
		"the row's own numbers": {exec("UPDATE block SET until = 7 WHERE first = 31"), []string{"index 31-40"}},
		"the row's hash": {exec("UPDATE block SET hash = zeroblob(32) WHERE first = 31"),
			[]string{"altered 40-40"}},
		"the order of rows": {exec("UPDATE block SET first = 1000 WHERE first = 31"),
			[]string{"missing 31-40", "order 31-31", "index 31-40", "truncated 41-100"}},
		"what is no block": {exec("UPDATE block SET lines = x'ffffffffff' WHERE first = 31"),
			[]string{"altered 31-40", "missing 31-40"}},
		"an empty row": {exec("UPDATE block SET lines = x'' WHERE first = 31"),
			[]string{"missing 31-40", "missing 31-40"}},
		"the head": {func(t *testing.T, _ *sql.DB, path string) {
			if err := os.Remove(path + ".head"); err != nil {
				t.Fatal(err)
			}
		}, []string{"head 0-0"}},
		"a line and its hash": {func(t *testing.T, db *sql.DB, _ string) {
			edit(`"call":"call_39"`, `"call":"call_x9"`)(t, db, "")
			var packed []byte
			if err := db.QueryRow("SELECT lines FROM block WHERE first = 31").Scan(&packed); err != nil {
				t.Fatal(err)
			}
			text, err := unpack(packed)
			if err != nil {
				t.Fatal(err)
			}
			var c checker
			c.block(block{lines: text})
			if _, err := db.Exec("UPDATE block SET hash = ? WHERE first = 31", c.end.hash[:]); err != nil {
				t.Fatal(err)
			}
		}, []string{"altered 41-41"}}, // the row confirms one of the two neighbours
	} {
		t.Run(name, func(t *testing.T) {
			path := fresh(t)
			l := ledger(t, path, Options{Flush: time.Second})
			fill(t, l, 100)
			db, _, err := l.file.writer()
			if err != nil {
				t.Fatal(err)
			}
			c.do(t, db, path)
			r := verify(t, l)
			if got := kinds(r); !slices.Equal(got, c.want) || r.OK != (c.want == nil) {
				t.Errorf("got %v, want %v", r.Problems, c.want)
			}
		})
	}
}

// If any byte of the file is changed, Verify finds it, or every line can still be read exactly as it
// was written.
//
//redteam:attack What destroys is written down before it begins: any one byte of the ledger is changed
func TestOneByte(t *testing.T) {
	path := fresh(t)
	l := Open(path, Options{})
	fill(t, l, 60)
	var before bytes.Buffer
	if err := l.Export(t.Context(), &before); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(t.Context()); err != nil { // the last connection to close moves everything into the one file
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, err := os.ReadFile(path + ".head")
	if err != nil {
		t.Fatal(err)
	}
	step, least := 61, 100
	if testing.Short() {
		step, least = 4*61+1, 25 // odd, so that each bit has its turn
	}
	found, harmless := 0, 0
	folder := t.TempDir()
	for at := 0; at < len(whole); at += step {
		damaged := bytes.Clone(whole)
		damaged[at] ^= 1 << (at % 8)
		copyPath := filepath.Join(folder, fmt.Sprint(at))
		if os.WriteFile(copyPath, damaged, 0o600) != nil || os.WriteFile(copyPath+".head", head, 0o600) != nil {
			t.Fatal("cannot write a copy")
		}
		c := Open(copyPath, Options{})
		r, err := c.Verify(t.Context())
		switch {
		case err != nil || !r.OK:
			found++
		default:
			harmless++
			var after bytes.Buffer
			if err := c.Export(t.Context(), &after); err != nil || !bytes.Equal(after.Bytes(), before.Bytes()) {
				t.Errorf("byte %d: changed unnoticed (%v)", at, err)
			}
		}
		c.Close(t.Context())
		os.Remove(copyPath)
	}
	t.Logf("%d changes found, %d in space that holds nothing", found, harmless)
	if found < least {
		t.Errorf("only %d changes found: the test tries too little", found)
	}
}

// If the file is cut back, or replaced by an old copy, and then used again, Verify finds the gap
// permanently.
func TestAnOldCopyIsFoundAlsoAfterFurtherLines(t *testing.T) {
	path := fresh(t)
	l := Open(path, Options{})
	fill(t, l, 50)
	l.Close(t.Context())
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	l = Open(path, Options{})
	fill(t, l, 50)
	l.Close(t.Context())
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	l = ledger(t, path, Options{})
	fill(t, l, 200)
	if r, want := verify(t, l), []string{"missing 51-100"}; !slices.Equal(kinds(r), want) {
		t.Errorf("got %v, want %v", r.Problems, want)
	}
}

// A file that is removed while the host runs is noticed by the next line.
func TestARemovedFileIsNoticed(t *testing.T) {
	path := fresh(t)
	l := ledger(t, path, Options{})
	fill(t, l, 50)
	for _, end := range []string{"", "-wal", "-shm"} {
		os.Remove(path + end)
	}
	fill(t, l, 10)
	if r, want := verify(t, l), []string{"beginning 1-50"}; !slices.Equal(kinds(r), want) {
		t.Errorf("got %v, want %v", r.Problems, want)
	}
}

func TestExportedLines(t *testing.T) {
	l := ledger(t, fresh(t), Options{})
	fill(t, l, 30)
	var out bytes.Buffer
	if err := l.Export(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	all := strings.SplitAfter(strings.TrimSuffix(out.String(), "\n"), "\n")
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"whole":           {out.String(), nil},
		"its end":         {strings.Join(all[10:], ""), nil},
		"without newline": {strings.Join(all, ""), nil},
		"one missing":     {strings.Join(slices.Delete(slices.Clone(all), 9, 10), ""), []string{"missing 10-10"}},
		"one twice":       {strings.Join(slices.Insert(slices.Clone(all), 9, all[8]), ""), []string{"order 9-9"}},
		"one altered":     {strings.Replace(out.String(), "call_14", "call_x4", 1), []string{"altered 15-15"}},
		"its link": {strings.Replace(out.String(), all[14][10:40], strings.Repeat("0", 30), 1),
			[]string{"altered 15-15"}},
		"no JSON": {"plain text\n", []string{"altered 1-1"}},
	} {
		r, err := VerifyLines(t.Context(), strings.NewReader(c.text))
		if err != nil {
			t.Fatal(err)
		}
		if name == "its link" {
			if r.OK {
				t.Errorf("%s: not found", name)
			}
			continue
		}
		if got := kinds(r); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, r.Problems, c.want)
		}
	}
}

// Verify reports a head that was removed or emptied also after the ledger is used again, whether or not
// lines were cut off with it, and also by a host that has it open.
//
//redteam:attack What destroys is written down before it begins: the head is removed, lines with it, and the ledger is used once
func TestALostHeadStaysAFinding(t *testing.T) {
	for name, lose := range map[string]func(path string) error{
		"removed": func(path string) error { return os.Remove(path) },
		"emptied": func(path string) error { return os.Truncate(path, 0) },
	} {
		for _, cut := range []bool{false, true} {
			for _, open := range []bool{false, true} {
				t.Run(fmt.Sprint(name, cut, open), func(t *testing.T) {
					path := fresh(t)
					l := Open(path, Options{})
					for range 30 {
						fill(t, l, 10)
					}
					db, _, err := l.file.writer()
					if err != nil {
						t.Fatal(err)
					}
					if cut {
						if _, err := db.Exec("DELETE FROM block WHERE first > 250"); err != nil {
							t.Fatal(err)
						}
					}
					if !open {
						if err := l.Close(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
					if err := lose(path + ".head"); err != nil {
						t.Fatal(err)
					}
					if !open {
						l = ledger(t, path, Options{})
					} else {
						t.Cleanup(func() { l.Close(context.Background()) })
					}
					for range 3 {
						fill(t, l, 1)
						if r := verify(t, l); r.OK ||
							!slices.ContainsFunc(
								r.Problems,
								func(p Problem) bool { return p.Kind == "head" && p.First > 250 },
							) {
							t.Fatalf("it is not found: %+v", r)
						}
					}
					if all := collect(t, l, Filter{Kind: headLostKind}); len(all) != 1 {
						t.Errorf("%d lines say that the head was lost, want one", len(all))
					}
				})
			}
		}
	}
}

// Writers that start a ledger together, and a kill right after its first line, cause no findings.
func TestAHeadThatIsNotYetWrittenIsNoFinding(t *testing.T) {
	path := fresh(t)
	l := Open(path, Options{})
	fill(t, l, 1)
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path+".head", 0); err != nil { // the state after a kill before the head is written
		t.Fatal(err)
	}
	l = ledger(t, path, Options{})
	fill(t, l, 1)
	if r := verify(t, l); !r.OK {
		t.Errorf("%+v", r.Problems)
	}
}

func TestTheHeadIsShortenedAndNeverSetBack(t *testing.T) {
	h := head{filepath.Join(t.TempDir(), "head")}
	var at link
	for i := range 1200 {
		at = link{int64(i + 1), hash{byte(i), byte(i >> 8)}}
		if err := h.shorten(link{at.seq - 1, hash{1}}); i > 0 && err != nil {
			t.Fatal(err)
		}
		if err := h.addLink(at); err != nil {
			t.Fatal(err)
		}
	}
	h.addLink(link{3, hash{}})
	if got, err := h.lastLink(); err != nil || got != at {
		t.Errorf("got %v, %v, want %v", got, err, at)
	}
	if info, _ := os.Stat(h.path); info.Size() > longestHead+1000 {
		t.Errorf("the head has %d bytes", info.Size())
	}
}

func FuzzParseLink(f *testing.F) {
	line, _ := appendLine(nil, link{41, hash{1, 2, 3}}, []byte(`"at":"2026-01-01T00:00:00.000000Z"`))
	f.Add(line)
	f.Add([]byte(`{"seq":1,"prev":"00"`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		atOf(raw)
		seq, prev, ok := parseLink(raw)
		if !ok {
			return
		}
		again, _ := appendLine(nil, link{seq - 1, prev}, []byte("x"))
		n := len(fmt.Sprintf("%s%d%s", seqMember, seq, prevMember))
		if !bytes.HasPrefix(
			again,
			fmt.Appendf(nil, "%s%d%s%s", seqMember, seq, prevMember, hex.EncodeToString(prev[:])),
		) ||
			len(raw) < n {
			t.Errorf("%q is read as %d, %x", raw, seq, prev)
		}
	})
}

func FuzzHead(f *testing.F) {
	f.Add([]byte("1 " + strings.Repeat("0", 64) + "\n"))
	f.Fuzz(func(t *testing.T, line []byte) {
		at, ok := parseRecord(line)
		if again := record(at); ok && !strings.EqualFold(string(bytes.TrimLeft(line, "+0")), string(again)) {
			t.Errorf("%q is read as %q", line, again)
		}
	})
}

func FuzzVerifyLines(f *testing.F) {
	var chain []byte
	at := link{}
	for range 3 {
		chain, at = appendLine(chain, at, []byte(`"at":"2026-01-01T00:00:00.000000Z","kind":"call"`))
	}
	f.Add(chain)
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := VerifyLines(context.Background(), bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if r.OK && r.Lines > 0 && !bytes.Contains(text, []byte(seqMember)) {
			t.Errorf("%q is called right", text)
		}
	})
}

// TestAHeadKeptElsewhere verifies a ledger that was written anew, and is whole in itself, by a head of the old one.
func TestAHeadKeptElsewhere(t *testing.T) {
	write := func(lines int) *Ledger {
		l := Open(filepath.Join(t.TempDir(), FileName), Options{})
		t.Cleanup(func() { l.Close(context.Background()) })
		for range lines {
			if err := l.Keep(t.Context(), Entry{Kind: "call", Tool: "file_read"}); err != nil {
				t.Fatal(err)
			}
		}
		return l
	}
	old := write(3)
	head, err := old.Head()
	if err != nil || head.Seq != 3 || len(head.Hash) != 64 {
		t.Fatalf("head %+v, %v", head, err)
	}
	for _, c := range []struct {
		l    *Ledger
		kind string // of the only problem
	}{{old, ""}, {write(3), "altered"}, {write(4), "altered"}, {write(2), "truncated"}, {write(0), "truncated"}} {
		r, err := c.l.Verify(t.Context(), head)
		if err != nil {
			t.Fatal(err)
		}
		if c.kind == "" && !r.OK || c.kind != "" && (len(r.Problems) != 1 || r.Problems[0].Kind != c.kind) {
			t.Errorf("expected %q: %+v", c.kind, r)
		}
		if r, err := c.l.Verify(t.Context()); err != nil || !r.OK {
			t.Errorf("by itself: %+v, %v", r, err)
		}
	}
}

package audit

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Report is the result of Verify.
type Report struct {
	OK    bool      `json:"ok"`
	Lines int64     `json:"lines"`
	First int64     `json:"first"` // number of the first line that is kept; 0 if there is none
	Last  int64     `json:"last"`  // number of the last
	Head  int64     `json:"head"`  // the last line that the head names
	Hash  string    `json:"hash"`  // of the last line: a copy kept elsewhere proves all lines before it
	Until time.Time `json:"until"` // time of the last line
	// lines at the beginning that retention removed, according to a line of the ledger
	Removed  int64     `json:"removed"`
	Problems []Problem `json:"problems"` // at most 100
}

// Problem is one place at which the ledger differs from what was written.
type Problem struct {
	Kind    string `json:"kind"` // altered, missing, order, truncated, beginning, index, head, damaged
	First   int64  `json:"first"`
	Last    int64  `json:"last"`
	Message string `json:"message"`
}

const mostProblems = 100

// Head is the last line of a ledger at some time. A copy that is kept elsewhere proves all lines up to it.
type Head struct {
	Seq  int64  `json:"seq"`
	Hash string `json:"hash"` // of the line, in hex
}

// Head returns the newest head that is on disk; the zero Head if there is none.
func (l *Ledger) Head() (Head, error) {
	last, err := l.file.head.lastLink()
	if err != nil || last.seq == 0 {
		return Head{}, err
	}
	return Head{last.seq, hexOf(last.hash)}, nil
}

// Verify reads the whole chain and compares it with itself, with the head, and with heads that are kept elsewhere.
// The error reports a failure to read; findings are in the report.
func (l *Ledger) Verify(ctx context.Context, elsewhere ...Head) (Report, error) {
	var c checker
	for _, h := range elsewhere {
		if c.elsewhere == nil {
			c.elsewhere = map[int64]string{}
		}
		c.elsewhere[h.Seq] = h.Hash
		c.furthest = max(c.furthest, h.Seq)
	}
	var err error
	// The head is read first, so that lines added meanwhile are after it.
	if c.head, err = l.file.head.lastLink(); err != nil {
		c.problem("head", 0, 0, err.Error())
	}
	err = l.eachBlock(ctx, func(b block) error {
		c.block(b)
		return ctx.Err()
	})
	if ctx.Err() != nil {
		return Report{}, context.Cause(ctx)
	}
	if err != nil {
		c.problem("damaged", c.end.seq+1, 0, fmt.Sprintf("what follows line %d cannot be read: %v", c.end.seq, err))
	} else if err := l.intact(ctx, &c); err != nil {
		return Report{}, err
	}
	return c.makeReport(l.file.path != ""), nil
}

// intact runs SQLite's integrity check on the file.
func (l *Ledger) intact(ctx context.Context, c *checker) error {
	db, err := l.file.reader()
	if db == nil || err != nil {
		return err
	}
	var word string
	if err := db.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&word); err != nil {
		word = err.Error()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if word != "ok" {
		c.problem("damaged", 0, 0, "the file is damaged: "+word)
	}
	return nil
}

// VerifyLines checks lines that Export or retention wrote. They may begin anywhere in the chain.
func VerifyLines(ctx context.Context, r io.Reader) (Report, error) {
	c := checker{export: true}
	in := bufio.NewReaderSize(r, 64<<10)
	for ctx.Err() == nil {
		raw, err := in.ReadBytes('\n')
		if len(raw) > 0 {
			c.checkLine(bytes.TrimSuffix(raw, []byte("\n")))
		}
		if errors.Is(err, io.EOF) {
			return c.makeReport(false), nil
		}
		if err != nil {
			return Report{}, err
		}
	}
	return Report{}, context.Cause(ctx)
}

// checker reads the chain from the first line to the last.
type checker struct {
	export   bool
	head     link
	lines    int64
	first    int64
	before   link   // the position before the first line
	end      link   // the line last read
	at       string // its time, as text
	sure     int64  // the last line whose hash a row confirms
	broken   int64  // the last line that did not match the one before it
	removals []removal
	problems []Problem
	more     int

	elsewhere map[int64]string // hashes of lines that are kept elsewhere
	furthest  int64            // the last of these lines
}

func (c *checker) problem(kind string, first, last int64, message string) {
	if len(c.problems) == mostProblems {
		c.more++
		return
	}
	c.problems = append(c.problems, Problem{kind, first, max(first, last), message})
}

// block checks the lines of a row and the row's other columns.
func (c *checker) block(b block) {
	if b.damaged {
		c.problem("altered", b.first, b.through, fmt.Sprintf("lines %d to %d cannot be unpacked", b.first, b.through))
		return
	}
	first, since, until := int64(0), "", ""
	for raw := range bytes.Lines(b.lines) {
		if !c.checkLine(bytes.TrimSuffix(raw, []byte("\n"))) {
			return // reported; without its number the row cannot be checked
		}
		if first == 0 {
			first, since, until = c.end.seq, c.at, c.at
		}
		since, until = min(since, c.at), max(until, c.at)
	}
	if first == 0 {
		c.problem(
			"missing",
			b.first,
			b.through,
			fmt.Sprintf("lines %d to %d are missing: their row is empty", b.first, b.through),
		)
		return
	}
	if bytes.Equal(b.hash, c.end.hash[:]) {
		c.sure = c.end.seq
	} else {
		c.altered(c.end.seq, fmt.Sprintf("line %d was altered, or the hash in its row", c.end.seq))
	}
	if b.first != first || b.through != c.end.seq || b.since != micros(since) || b.until != micros(until) {
		c.problem(
			"index",
			first,
			c.end.seq,
			fmt.Sprintf("the row of lines %d to %d does not match them: queries may miss them", first, c.end.seq),
		)
	}
}

// checkLine checks one line against the one before.
func (c *checker) checkLine(raw []byte) bool {
	seq, prev, ok := parseLink(raw)
	at, atOK := atOf(raw)
	if !ok || !atOK {
		c.problem(
			"altered",
			c.end.seq+1,
			0,
			fmt.Sprintf("the line after %d was altered: it has no number, hash or time where they belong", c.end.seq),
		)
		return false
	}
	switch {
	case c.lines == 0:
		c.first, c.before = seq, link{seq - 1, prev}
		if seq == 1 && prev != (hash{}) && !c.export {
			c.problem("altered", 1, 0, "line 1 was altered: it is the first, but names a line before it")
		}
	case seq > c.end.seq+1:
		c.problem(
			"missing",
			c.end.seq+1,
			seq-1,
			fmt.Sprintf("%s missing between lines %d and %d", lines(c.end.seq+1, seq-1), c.end.seq, seq),
		)
	case seq <= c.end.seq:
		c.problem("order", seq, 0, fmt.Sprintf("line %d comes after line %d", seq, c.end.seq))
	case prev != c.end.hash:
		c.unlinked(seq)
	}
	c.lines++
	c.end, c.at = link{seq, sha256.Sum256(raw)}, at
	if seq == c.head.seq && c.end.hash != c.head.hash {
		c.altered(seq, fmt.Sprintf("line %d was altered: the head holds another hash for it", seq))
	}
	if kept, ok := c.elsewhere[seq]; ok && kept != hexOf(c.end.hash) {
		c.altered(seq, fmt.Sprintf("line %d was altered, or one before it: another hash of it is kept elsewhere", seq))
	}
	c.removal(raw)
	if isKind(raw, headLostKind) {
		c.problem(
			"head",
			seq,
			0,
			fmt.Sprintf(
				"the head was missing when line %d was written: whether lines after line %d were removed is unknown",
				seq,
				seq-1,
			),
		)
	}
	return true
}

// unlinked handles two neighbours that do not match. One of them was altered; it is the one that does
// not match its other side either: the row confirms its last line, and a line that was altered alone
// matches neither neighbour.
func (c *checker) unlinked(seq int64) {
	switch seq - 1 {
	case c.sure:
		c.altered(seq, fmt.Sprintf("line %d was altered: it does not follow line %d", seq, seq-1))
	case c.broken:
		if n := len(c.problems); n < mostProblems && c.problems[n-1].First == seq-2 {
			c.problems = c.problems[:n-1]
		}
		fallthrough
	default:
		c.altered(seq-1, fmt.Sprintf("line %d was altered: line %d holds another hash for it", seq-1, seq))
	}
	c.broken = seq
}

// altered reports a line once.
func (c *checker) altered(seq int64, message string) {
	if n := len(c.problems); n > 0 && c.problems[n-1].Kind == "altered" && c.problems[n-1].First == seq {
		return
	}
	c.problem("altered", seq, 0, message)
}

func lines(first, last int64) string {
	if first == last {
		return fmt.Sprintf("line %d is", first)
	}
	return fmt.Sprintf("lines %d to %d are", first, last)
}

// atOf returns the time of a line.
func atOf(raw []byte) (string, bool) {
	_, rest, ok := bytes.Cut(raw, []byte(`",`+atMember))
	if !ok || len(rest) < timeWidth+1 || rest[timeWidth] != '"' {
		return "", false
	}
	return string(rest[:timeWidth]), true
}

// removal is the entry that records the removal of the oldest lines.
type removal struct {
	Through int64  `json:"through"`
	Hash    string `json:"hash"` // of the last line that was removed
	Archive string `json:"archive,omitempty"`
}

const (
	removalKind  = "audit.pruned"
	headLostKind = "audit.headless" // the head was missing although the chain had lines
)

// isKind reports whether a line has one of the kinds that the ledger itself writes.
func isKind(raw []byte, kind string) bool {
	if !bytes.Contains(raw, []byte(`"kind":"`+kind+`"`)) {
		return false // without decoding it
	}
	line, err := ParseLine(raw)
	return err == nil && line.Kind == kind
}

func (c *checker) removal(raw []byte) {
	if !isKind(raw, removalKind) {
		return
	}
	line, err := ParseLine(raw)
	var r removal
	if err == nil && json.Unmarshal(line.Args, &r) == nil {
		c.removals = append(c.removals, r)
	}
}

// makeReport checks the beginning and the end and returns the report.
func (c *checker) makeReport(onDisk bool) Report {
	if c.lines > 0 && c.before.seq > 0 && !c.export && !c.sealed() {
		c.problem(
			"beginning",
			1,
			c.before.seq,
			fmt.Sprintf("%s missing at the beginning, and no line records their removal", lines(1, c.before.seq)),
		)
	}
	switch {
	case c.head.seq > c.end.seq:
		c.problem(
			"truncated",
			c.end.seq+1,
			c.head.seq,
			fmt.Sprintf("%s missing at the end: the head names them", lines(c.end.seq+1, c.head.seq)),
		)
	case c.furthest > c.end.seq:
		c.problem(
			"truncated",
			c.end.seq+1,
			c.furthest,
			fmt.Sprintf("%s missing at the end: a hash of the last is kept elsewhere", lines(c.end.seq+1, c.furthest)),
		)
	case onDisk && c.head.seq == 0 && c.lines > 0:
		c.problem("head", 0, 0, "the head is missing: whether lines are missing at the end is unknown")
	}
	if c.more > 0 {
		c.problems = append(c.problems, Problem{"more", 0, 0, fmt.Sprintf("and %d more", c.more)})
	}
	r := Report{
		OK:       len(c.problems) == 0,
		Lines:    c.lines,
		First:    c.first,
		Last:     c.end.seq,
		Head:     c.head.seq,
		Removed:  c.before.seq,
		Problems: c.problems,
	}
	if c.lines > 0 {
		r.Hash = hexOf(c.end.hash)
		r.Until, _ = time.Parse(time.RFC3339Nano, c.at)
	}
	return r
}

// sealed reports whether a line of the ledger records the removal of exactly the lines that are missing
// at the beginning.
func (c *checker) sealed() bool {
	for _, r := range c.removals {
		if r.Through == c.before.seq && r.Hash == hexOf(c.before.hash) {
			return true
		}
	}
	return false
}

package code

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/files/filelock"
)

// journal keeps a file for each program, which says what it has called even if the host is killed. The host holds a
// lock of the file of a program that runs.
type journal struct{ dir string }

// newJournal returns the journal in a folder; "" means that nothing is written.
func newJournal(dir string) *journal { return &journal{dir} }

const (
	keptJournal = 24 * time.Hour
	mostLines   = 200 // lines of calls in an answer
	longestFile = 8 << 20
)

// journalHead is the first line of a file.
type journalHead struct {
	Run, Owner, Language string
	Began                time.Time
	Program              string
}

// journalLine is any further line: a call that begins, a call that ended, or the end of the program.
type journalLine struct {
	Begin   int    `json:"begin,omitempty"`
	End     int    `json:"end,omitempty"`
	Tool    string `json:"tool,omitempty"`
	Line    int    `json:"line,omitempty"`
	Outcome string `json:"outcome,omitempty"`
	Over    string `json:"over,omitempty"`
}

// callLog lists the calls of one program. It is safe for concurrent use.
type callLog struct {
	file *os.File // locked until it is closed; nil if nothing is written

	mu    sync.Mutex
	calls []*loggedCall
}

// loggedCall is one call.
type loggedCall struct {
	log     *callLog
	n       int
	tool    string
	line    int
	outcome string
}

const callRunning = "running"

func (j *journal) open(r *run) (*callLog, error) {
	l := &callLog{}
	if j.dir == "" {
		return l, nil
	}
	if err := os.MkdirAll(j.dir, 0o700); err != nil {
		return nil, err
	}
	j.clean()
	f, err := os.OpenFile(filepath.Join(j.dir, r.id+".jsonl"), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	if err := filelock.TryOpen(f, filelock.Exclusive); err != nil {
		f.Close()
		return nil, err
	}
	l.file = f
	l.write(journalHead{r.id, r.owner, r.language.name, r.began.UTC(), r.source})
	return l, nil
}

// clean removes files of programs that ended long ago.
func (j *journal) clean() {
	entries, err := os.ReadDir(j.dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && filepath.Ext(e.Name()) == ".jsonl" &&
			time.Since(info.ModTime()) > keptJournal {
			os.Remove(filepath.Join(j.dir, e.Name())) // a program does not run that long
		}
	}
}

func (l *callLog) write(v any) {
	if l.file == nil {
		return
	}
	b, err := json.Marshal(v)
	if err == nil {
		l.file.Write(append(b, '\n')) // one write; a full disk loses the journal and not the program
	}
}

func (l *callLog) writeCall(n int, name string, line int) *loggedCall {
	c := &loggedCall{log: l, n: n, tool: name, line: line, outcome: callRunning}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, c)
	l.write(journalLine{Begin: n, Tool: name, Line: line})
	return c
}

func (c *loggedCall) done(outcome string) {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	c.outcome = outcome
	c.log.write(journalLine{End: c.n, Outcome: outcome})
}

// writeOutcome records the end of the program.
func (l *callLog) writeOutcome(outcome string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.write(journalLine{Over: outcome})
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}

// lines summarizes the calls in the order of their first.
func (l *callLog) lines() []callLine {
	l.mu.Lock()
	defer l.mu.Unlock()
	return summarize(l.calls)
}

func summarize(calls []*loggedCall) []callLine {
	all := []callLine{}
	at := map[callLine]int{}
	for _, c := range calls {
		key := callLine{Tool: c.tool, Line: c.line, Outcome: c.outcome}
		i, ok := at[key]
		if !ok && len(all) >= mostLines {
			key.Tool, key.Line = "others", 0
			i, ok = at[key]
		}
		if !ok {
			i = len(all)
			at[key] = i
			all = append(all, key)
		}
		all[i].Times++
	}
	return all
}

// recorded is what a file says.
type recorded struct {
	journalHead
	calls []*loggedCall
	over  string // "" if the program runs, or was interrupted
	runs  bool
}

// listRuns returns the programs of an owner, the newest first.
func (j *journal) listRuns(owner string) (all []recorded, err error) {
	if j.dir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(j.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".jsonl" {
			continue
		}
		if r, ok := j.read(filepath.Join(j.dir, e.Name())); ok && r.Owner == owner {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b recorded) int { return b.Began.Compare(a.Began) })
	return all, err
}

func (j *journal) read(path string) (r recorded, ok bool) {
	f, err := os.Open(path)
	if err != nil {
		return r, false
	}
	defer f.Close()
	r.runs = filelock.TryOpen(f, filelock.Exclusive) != nil
	if info, err := f.Stat(); err != nil || info.Size() > longestFile {
		return r, false
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return r, false
	}
	head, rest, _ := strings.Cut(string(b), "\n")
	if json.Unmarshal([]byte(head), &r.journalHead) != nil {
		return r, false
	}
	by := map[int]*loggedCall{}
	for text := range strings.Lines(rest) {
		var l journalLine
		if json.Unmarshal([]byte(text), &l) != nil {
			continue // the last line, if the host was killed while it wrote it
		}
		switch {
		case l.Begin > 0:
			c := &loggedCall{n: l.Begin, tool: l.Tool, line: l.Line, outcome: callRunning}
			by[l.Begin] = c
			r.calls = append(r.calls, c)
		case l.End > 0 && by[l.End] != nil:
			by[l.End].outcome = l.Outcome
		case l.Over != "":
			r.over = l.Over
		}
	}
	return r, true
}

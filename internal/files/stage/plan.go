package stage

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"gatehouse/internal/files/atomicfile"
)

// op puts one name from one state to another.
type op struct {
	Layer int    `json:"layer"`
	Name  string `json:"name"`
	From  State  `json:"from"`
	To    State  `json:"to"`
	// Data is the content of To, a file in the folder of the plan. "" means that the upper folder has it, in which no
	// call changes anything until the plan is done.
	Data string `json:"data,omitempty"`
	Keep string `json:"keep,omitempty"` // the content of From
	Temp string `json:"temp,omitempty"` // in the folder of Name, while it is written
	Same int    `json:"same,omitempty"` // 1 + the op of which this is a hard link; 0 for none

	at   int    // in the plan
	path string // the name, if Name is that in its folder
}

// plan is what an acceptance or its undoing does. It is durable before the first name changes; from then on it is
// finished, if need be by the next host.
//
// It is a file of lines, because it may have a million names: the plan, its ops, each after that of a folder which
// contains its name, and the plan's folders.
type plan struct {
	At    time.Time `json:"at"`
	By    string    `json:"by"`
	Lines bool      `json:"lines,omitempty"` // ops and folders are in lines of their own; else it is of an earlier version
	Ops   []op      `json:"ops,omitempty"`
	// Folders are those that contain the names, unless the plan makes or removes them.
	Folders []folderTime `json:"folders,omitempty"`
}

// Result is what a plan did.
type Result struct {
	At       time.Time `json:"at"`
	By       string    `json:"by"`
	Done     []string  `json:"done"` // paths
	Conflict []Blocked `json:"conflict,omitempty"`
	Note     string    `json:"note,omitempty"` // that it was interrupted
}

// outcome is a result as it is stored.
type outcome struct {
	Result
	// States are those of the names of the ops afterwards, in their order; the type is "" for one that was left alone.
	// Plans of earlier versions have them.
	States  []State       `json:"states,omitempty"`
	Left    map[int]bool  `json:"left,omitempty"`    // the ops whose names were left alone
	Got     map[int]State `json:"got,omitempty"`     // the states of names that differ from those planned
	Folders []folderTime  `json:"folders,omitempty"` // those of the plan, afterwards
}

// of returns the state that an op has given its name; false if it was left alone.
func (r *outcome) of(o *op) (State, bool) {
	if len(r.States) > o.at {
		return r.States[o.at], r.States[o.at].Type != ""
	}
	if s, ok := r.Got[o.at]; ok {
		return s, true
	}
	return o.To, !r.Left[o.at]
}

// Blocked is a path that was left alone.
type Blocked struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

const (
	planFile   = "plan.json"
	resultFile = "result.json"
	undoFile   = "undo.json"
	undoneFile = "undone.json"
)

// temp returns the temporary name of an op.
func (o *op) temp() string { return path.Join(path.Dir(o.Name), o.Temp) }

// partial returns the name of what is being written. If the temporary name may get what a person wrote, it always has
// everything.
func (o *op) partial() string {
	if o.From.Type == None {
		return o.temp()
	}
	return strings.TrimSuffix(o.temp(), ".tmp") + "-part.tmp"
}

func tempName() string { return ".gatehouse-" + rand.Text() + ".tmp" }

// planWriter writes a plan.
type planWriter struct {
	file    string // the plan, when it is complete
	out     *os.File
	buf     *bufio.Writer
	enc     *json.Encoder
	n       int
	touched touched
}

func newPlan(file, by string) (*planWriter, error) {
	out, err := os.OpenFile(file+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	w := &planWriter{file: file, out: out, buf: bufio.NewWriterSize(out, 1<<16), touched: newTouched()}
	w.enc = json.NewEncoder(w.buf)
	return w, w.enc.Encode(plan{At: time.Now(), By: by, Lines: true})
}

// add adds an op, and returns its number.
func (w *planWriter) add(o op) error {
	for _, s := range []*State{&o.From, &o.To} { // what a plan does not compare
		s.Dev, s.Ino, s.CTime, s.Links = 0, 0, 0, 0
	}
	w.touched.add(&o)
	w.n++
	return w.enc.Encode(o)
}

// finish makes the plan durable. From then on it counts.
func (w *planWriter) finish(folders []folderTime) error {
	err := errors.Join(w.enc.Encode(plan{Folders: folders}), w.buf.Flush(), w.out.Sync())
	if err = errors.Join(err, w.out.Close()); err == nil {
		err = os.Rename(w.file+".tmp", w.file)
	}
	if err != nil {
		os.Remove(w.file + ".tmp")
		return err
	}
	return atomicfile.SyncFolder(filepath.Dir(w.file))
}

// abort drops the plan.
func (w *planWriter) abort() {
	w.out.Close()
	os.Remove(w.file + ".tmp")
}

// planReader reads a plan, of which it keeps little in memory.
type planReader struct {
	plan
	file  *os.File
	lines []int64 // where the ops begin, and the end of the last one
	block []byte  // a part of the file
	from  int64   // where that begins
}

// mostBlock is how much of a plan is read at once.
const mostBlock = 1 << 18

// openPlan opens a plan. The caller closes it.
func openPlan(file string) (p *planReader, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	p = &planReader{file: f}
	defer func() {
		if err != nil {
			f.Close()
			err = fmt.Errorf("plan %s: %w", file, err)
		}
	}()
	in := bufio.NewReaderSize(f, mostBlock)
	head, err := in.ReadBytes('\n')
	if err != nil && err != io.EOF {
		return nil, err
	}
	if err := json.Unmarshal(head, &p.plan); err != nil || !p.Lines {
		for i := range p.Ops {
			p.Ops[i].at = i
		}
		return p, err
	}
	for at := int64(len(head)); ; {
		n, err := skipLine(in)
		if err == io.EOF && n == 0 {
			break
		}
		if err != nil {
			return nil, err
		}
		p.lines = append(p.lines, at)
		at += n
	}
	if len(p.lines) == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	last, err := io.ReadAll(io.NewSectionReader(f, p.lines[len(p.lines)-1], 1<<62))
	if err != nil {
		return nil, err
	}
	var end plan
	err = json.Unmarshal(last, &end)
	p.Folders = end.Folders
	return p, err
}

// skipLine reads a line, and returns its length.
func skipLine(in *bufio.Reader) (n int64, err error) {
	for {
		part, err := in.ReadSlice('\n')
		if n += int64(len(part)); err != bufio.ErrBufferFull {
			if err == io.EOF && n > 0 {
				err = io.ErrUnexpectedEOF
			}
			return n, err
		}
	}
}

func (p *planReader) close() { p.file.Close() }

func (p *planReader) len() int {
	if !p.Lines {
		return len(p.Ops)
	}
	return len(p.lines) - 1
}

// op returns an op, which the caller may change. It is fast for ops in their order or the reverse.
func (p *planReader) op(i int) (*op, error) {
	if !p.Lines {
		o := p.Ops[i]
		return &o, nil
	}
	from, to := p.lines[i], p.lines[i+1]
	if from < p.from || to > p.from+int64(len(p.block)) {
		at := from
		if from < p.from { // in the reverse order
			at = max(min(from, to-mostBlock), 0)
		}
		p.block = make([]byte, max(mostBlock, to-at))
		n, err := p.file.ReadAt(p.block, at)
		if p.block, p.from = p.block[:n], at; at+int64(n) < to {
			return nil, fmt.Errorf("op %d of the plan: %w", i, errors.Join(err, io.ErrUnexpectedEOF))
		}
	}
	o := &op{at: i}
	if err := json.Unmarshal(p.block[from-p.from:to-p.from], o); err != nil {
		return nil, fmt.Errorf("op %d of the plan: %w", i, err)
	}
	return o, nil
}

// each calls f for each op in its order.
func (p *planReader) each(f func(*op) error) error {
	for i := range p.len() {
		o, err := p.op(i)
		if err == nil {
			err = f(o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readOutcome reads the result of a plan, with the paths that it changed.
func (t *Task) readOutcome(dir, planned, result string) (r outcome, err error) {
	if err := readJSON(filepath.Join(dir, result), &r); err != nil || r.Done != nil {
		return r, err
	}
	p, err := openPlan(filepath.Join(dir, planned))
	if err != nil {
		return r, err
	}
	defer p.close()
	r.Done = []string{}
	err = p.each(func(o *op) error {
		if _, ok := r.of(o); ok {
			r.Done = append(r.Done, t.pathOf(o))
		}
		return nil
	})
	return r, err
}

func (t *Task) pathOf(o *op) string { return filepath.Join(t.Layers[o.Layer].Lower, o.Name) }

func writeJSON(file string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return atomicfile.Write(file, b)
}

func readJSON(file string, v any) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

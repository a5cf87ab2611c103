package agentprotocol

import (
	"encoding/binary"
	"fmt"
	"math"
	"syscall"
	"time"
)

// Plan is what the place is to be like. The agent makes it before anything
// else runs.
type Plan struct {
	Hostname    string
	UID, GID    int64    // of the code, in the sandbox
	Made        bool     // somebody else made the place; only what can be written is missing
	Bound       bool     // the agent ends with the process that started it, even while it is stopped
	Strict      bool     // the code may make the calls of the strict filter only
	OneUser     bool     // the agent cannot become anybody else, so the code has its id
	DiskBytes   int64    // of everything that can be written, together
	DiskFiles   int64    // how many files and folders that may be
	Descriptors int64    // files a process may have open
	Processes   int64    // processes of the code's user; 0 means that is held elsewhere
	DataBytes   int64    // data of one process; 0 means memory is held elsewhere
	Side        int64    // a socket the agent inherited, through which it hands over listeners; 0 means none
	Proxy       int64    // port on loopback that the host listens at; 0 means none
	MemoryBytes int64    // of everything together, which the agent's own group holds, as it does Processes and VCPUs; 0 means that is held elsewhere
	VCPUs       int64    // processors that may be kept busy, where MemoryBytes is not 0
	Env         []string // for every program
	Trees       []Tree
	Links       []Text // symbolic links and where they lead
	Texts       []Text // small files and what they say
}

// Text is a path of the place and what is to be there.
type Text struct{ At, Says string }

// Tree is what is shown read-only. FD is a detached mount the agent inherited,
// or 0 when the agent opens From itself.
type Tree struct {
	FD       int64
	From, To string
}

// Body is the body of a Setup frame.
func (p Plan) Body() []byte {
	var w writer
	w.text(p.Hostname)
	for _, n := range []int64{p.UID, p.GID, p.DiskBytes, p.DiskFiles, p.Descriptors, p.Processes, p.DataBytes, p.Side, p.Proxy, p.MemoryBytes, p.VCPUs} {
		w.number(n)
	}
	w.flag(p.OneUser)
	w.flag(p.Made)
	w.flag(p.Bound)
	w.flag(p.Strict)
	w.texts(p.Env)
	w.number(int64(len(p.Trees)))
	for _, t := range p.Trees {
		w.number(t.FD)
		w.text(t.From)
		w.text(t.To)
	}
	for _, l := range [][]Text{p.Links, p.Texts} {
		w.number(int64(len(l)))
		for _, t := range l {
			w.text(t.At)
			w.text(t.Says)
		}
	}
	return w.b
}

// ParsePlan reads the body of a Setup frame.
func ParsePlan(body []byte) (p Plan, err error) {
	r := reader{b: body}
	p.Hostname = r.text()
	for _, n := range []*int64{&p.UID, &p.GID, &p.DiskBytes, &p.DiskFiles, &p.Descriptors, &p.Processes, &p.DataBytes, &p.Side, &p.Proxy, &p.MemoryBytes, &p.VCPUs} {
		*n = r.number()
	}
	p.OneUser = r.flag()
	p.Made = r.flag()
	p.Bound = r.flag()
	p.Strict = r.flag()
	p.Env = r.texts()
	for n := r.number(); n > 0 && !r.broken; n-- {
		p.Trees = append(p.Trees, Tree{FD: r.number(), From: r.text(), To: r.text()})
	}
	for _, l := range []*[]Text{&p.Links, &p.Texts} {
		for n := r.number(); n > 0 && !r.broken; n-- {
			*l = append(*l, Text{At: r.text(), Says: r.text()})
		}
	}
	return p, r.done("a plan")
}

// Program is what a Start frame asks to run.
type Program struct {
	Argv, Env []string
	Dir       string
	Size      Size // of its terminal; zero means it has none
}

// Body is the body of a Start frame.
func (p Program) Body() []byte {
	var w writer
	w.texts(p.Argv)
	w.texts(p.Env)
	w.text(p.Dir)
	w.number(int64(p.Size.Cols))
	w.number(int64(p.Size.Rows))
	return w.b
}

// ParseProgram reads the body of a Start frame.
func ParseProgram(body []byte) (p Program, err error) {
	r := reader{b: body}
	p.Argv, p.Env, p.Dir = r.texts(), r.texts(), r.text()
	cols, rows := r.number(), r.number()
	if cols < 0 || rows < 0 || cols > math.MaxUint16 || rows > math.MaxUint16 || len(p.Argv) == 0 {
		r.fail()
	}
	p.Size = Size{Cols: uint16(cols), Rows: uint16(rows)}
	return p, r.done("a program")
}

// Size is that of a terminal, in characters.
type Size struct{ Cols, Rows uint16 }

const resizeSize = 4

// Body is the body of a Resize frame.
func (s Size) Body() []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, s.Cols), s.Rows)
}

// ParseSize reads the body of a Resize frame.
func ParseSize(body []byte) (Size, error) {
	if len(body) != resizeSize {
		return Size{}, fmt.Errorf("%w: a size of %d bytes", ErrBroken, len(body))
	}
	return Size{Cols: binary.BigEndian.Uint16(body), Rows: binary.BigEndian.Uint16(body[2:])}, nil
}

const grantSize = 5

// Grant lets the sender of a stream send so many bytes more.
type Grant struct {
	Stream Kind // Stdin, Stdout or Stderr
	Bytes  uint32
}

// Body is the body of a Credit frame.
func (g Grant) Body() []byte { return binary.BigEndian.AppendUint32([]byte{byte(g.Stream)}, g.Bytes) }

// ParseGrant reads the body of a Credit frame.
func ParseGrant(body []byte) (Grant, error) {
	if len(body) != grantSize {
		return Grant{}, fmt.Errorf("%w: a grant of %d bytes", ErrBroken, len(body))
	}
	g := Grant{Stream: Kind(body[0]), Bytes: binary.BigEndian.Uint32(body[1:])}
	if g.Stream != Stdin && g.Stream != Stdout && g.Stream != Stderr || g.Bytes > Window {
		return Grant{}, fmt.Errorf("%w: a grant of %d bytes for stream %d", ErrBroken, g.Bytes, g.Stream)
	}
	return g, nil
}

// Failure is why a request was not done.
type Failure struct {
	Errno syscall.Errno // 0 when no system call is to blame
	Text  string
}

func (f Failure) Error() string { return f.Text }

// Unwrap gives the error number, so that errors.Is finds fs.ErrNotExist.
func (f Failure) Unwrap() error {
	if f.Errno == 0 {
		return nil
	}
	return f.Errno
}

const longestText = 4 << 10 // bytes of a failure's text

// Body is the body of a Failed frame. A text that is too long is cut.
func (f Failure) Body() []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(f.Errno))
	return append(b, f.Text[:min(len(f.Text), longestText)]...)
}

// ParseFailure reads the body of a Failed frame.
func ParseFailure(body []byte) (Failure, error) {
	if len(body) < 2 || len(body) > 2+longestText {
		return Failure{}, fmt.Errorf("%w: a failure of %d bytes", ErrBroken, len(body))
	}
	return Failure{Errno: syscall.Errno(binary.BigEndian.Uint16(body)), Text: string(body[2:])}, nil
}

// Op says what a FileWork does.
type Op int64

const (
	ReadFile     Op = 1 + iota // an Entry of the whole file, then its bytes as Stdout
	StoreFile                  // the bytes come as Stdin; an Entry at the end
	ListFolder                 // an Entry for each name; Exit has code 1 when there are more
	StatPath                   // an Entry
	MakeFolder                 // nothing but Exit
	RemovePath                 // nothing but Exit
	RenamePath                 // nothing but Exit
	PackFolder                 // a tar of what is below comes as Stdout
	UnpackFolder               // a tar of what is to be below comes as Stdin
	UsedDisk                   // an Entry whose size is what the writable file systems hold together
	UsedGroup                  // an Entry for each thing the agent's own group counts, with the number as its size
	afterOps
)

// FileWork is what a File frame asks for.
type FileWork struct {
	Op             Op
	Path, Other    string // Other is the new path of RenamePath, and for ListFolder what sorts before the first
	Offset, Length int64  // of ReadFile; a Length of 0 or less means up to the end. For ListFolder Length is the most entries
	Mode           int64  // permissions of a new file
	Append         bool   // of StoreFile
	Parents        bool   // of StoreFile: make the folders above
	All            bool   // of RemovePath: also what is in it
}

// Body is the body of a File frame.
func (f FileWork) Body() []byte {
	var w writer
	w.number(int64(f.Op))
	w.text(f.Path)
	w.text(f.Other)
	w.number(f.Offset)
	w.number(f.Length)
	w.number(f.Mode)
	w.flag(f.Append)
	w.flag(f.Parents)
	w.flag(f.All)
	return w.b
}

// ParseFileWork reads the body of a File frame.
func ParseFileWork(body []byte) (f FileWork, err error) {
	r := reader{b: body}
	f.Op = Op(r.number())
	f.Path, f.Other = r.text(), r.text()
	f.Offset, f.Length, f.Mode = r.number(), r.number(), r.number()
	f.Append, f.Parents, f.All = r.flag(), r.flag(), r.flag()
	if f.Op < 1 || f.Op >= afterOps || f.Offset < 0 || f.Mode < 0 || f.Mode > 0o777 {
		r.fail()
	}
	return f, r.done("work on a file")
}

// Info describes a file.
type Info struct {
	Name     string
	Link     string // where it leads, when it is a link
	Size     int64
	Mode     uint32 // as the kernel has it, type included
	Modified time.Time
}

// Body is the body of an Entry frame.
func (i Info) Body() []byte {
	var w writer
	w.text(i.Name)
	w.text(i.Link)
	w.number(i.Size)
	w.number(int64(i.Mode))
	w.number(i.Modified.UnixNano())
	return w.b
}

// ParseInfo reads the body of an Entry frame.
func ParseInfo(body []byte) (i Info, err error) {
	r := reader{b: body}
	i.Name, i.Link, i.Size = r.text(), r.text(), r.number()
	mode := r.number()
	i.Modified = time.Unix(0, r.number())
	if i.Size < 0 || mode < 0 || mode > math.MaxUint32 {
		r.fail()
	}
	i.Mode = uint32(mode)
	return i, r.done("an entry")
}

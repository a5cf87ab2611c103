package agentprotocol

import (
	"encoding/binary"
	"fmt"
	"math"
	"syscall"
	"time"
)

// Plan describes the sandbox. The agent sets it up before anything else runs.
type Plan struct {
	Hostname       string
	UID, GID       int64 // of the code, in the sandbox
	Prebuilt       bool  // a container runtime set up the root file system; only the writable folders are missing
	DieWithParent  bool  // the agent is killed when the process that started it ends, even while it is stopped
	Strict         bool  // the code may make only the system calls of the strict filter
	KeepOwners     bool  // see sandbox.Spec
	Range          bool  // see sandbox.Users; UID and GID are those with which programs start
	SingleUser     bool  // the agent cannot change its user, so the code runs as the agent's
	DiskBytes      int64 // most bytes of all writable file systems together
	DiskFiles      int64 // most files and folders on them
	Descriptors    int64 // open files of one process
	Processes      int64 // processes of the code's user; 0 means the limit is enforced elsewhere
	DataBytes      int64 // data segment of one process; 0 means memory is limited elsewhere
	ListenerSocket int64 // an inherited socket, through which the agent passes listeners to the host; 0 means none
	Proxy          int64 // loopback port on which the host accepts connections; 0 means none
	// memory of everything together, enforced, like Processes and VCPUs, by the agent's own control group; 0
	// means that is done elsewhere
	MemoryBytes int64
	VCPUs       int64    // processors that may be busy, if MemoryBytes is not 0
	Env         []string // for every program
	Trees       []Tree
	Links       []TextFile // symbolic links; Content is the target
	Files       []TextFile // small files to write
	Mounts      []Mount    // in their order, above everything else
	Route       bool       // every address leads to the loopback interface, and Ports are listened on
	Ports       []int64    // TCP ports of every address that the host accepts connections at
	Groups      []int64    // further groups of programs, if Range is set
	// Base is the root folder of an image. A writable layer lies over it, of which DiskBytes and DiskFiles count, too.
	// To is "/", or "" if there is none, and the root consists of Trees, which can only be read.
	Base Tree
}

// TextFile is a path in the sandbox and the content of the file there.
type TextFile struct{ Path, Content string }

// Tree is a read-only mount. FD is a detached mount that the agent inherited, or 0 if the agent opens From
// itself.
type Tree struct {
	FD       int64
	From, To string
}

// Mount is a file or folder of the host. FD is as in Tree. With neither FD nor From it is empty, and covers what is
// at To.
type Mount struct {
	FD            int64
	From, To      string
	Write, Device bool
}

// Body encodes the body of a Setup frame.
func (p Plan) Body() []byte {
	var w writer
	w.writeText(p.Hostname)
	for _, n := range []int64{
		p.UID, p.GID, p.DiskBytes, p.DiskFiles, p.Descriptors, p.Processes, p.DataBytes, p.ListenerSocket, p.Proxy,
		p.MemoryBytes, p.VCPUs,
	} {
		w.writeNumber(n)
	}
	w.flag(p.SingleUser)
	w.flag(p.Prebuilt)
	w.flag(p.DieWithParent)
	w.flag(p.Strict)
	w.flag(p.KeepOwners)
	w.flag(p.Range)
	w.texts(p.Env)
	w.writeNumber(int64(len(p.Trees)))
	for _, t := range p.Trees {
		w.writeNumber(t.FD)
		w.writeText(t.From)
		w.writeText(t.To)
	}
	for _, l := range [][]TextFile{p.Links, p.Files} {
		w.writeNumber(int64(len(l)))
		for _, t := range l {
			w.writeText(t.Path)
			w.writeText(t.Content)
		}
	}
	w.writeNumber(int64(len(p.Mounts)))
	for _, m := range p.Mounts {
		w.writeNumber(m.FD)
		w.writeText(m.From)
		w.writeText(m.To)
		w.flag(m.Write)
		w.flag(m.Device)
	}
	w.flag(p.Route)
	for _, l := range [][]int64{p.Ports, p.Groups} {
		w.writeNumber(int64(len(l)))
		for _, n := range l {
			w.writeNumber(n)
		}
	}
	w.writeNumber(p.Base.FD)
	w.writeText(p.Base.From)
	w.writeText(p.Base.To)
	return w.b
}

// RootLayer is in the error of a sandbox whose kernel cannot mount the layer over Plan.Base.
const RootLayer = "the writable layer of the root"

// ParsePlan decodes the body of a Setup frame.
func ParsePlan(body []byte) (p Plan, err error) {
	r := reader{b: body}
	p.Hostname = r.readText()
	for _, n := range []*int64{
		&p.UID, &p.GID, &p.DiskBytes, &p.DiskFiles, &p.Descriptors, &p.Processes, &p.DataBytes,
		&p.ListenerSocket, &p.Proxy,
		&p.MemoryBytes, &p.VCPUs,
	} {
		*n = r.readNumber()
	}
	p.SingleUser = r.flag()
	p.Prebuilt = r.flag()
	p.DieWithParent = r.flag()
	p.Strict = r.flag()
	p.KeepOwners = r.flag()
	p.Range = r.flag()
	p.Env = r.texts()
	for n := r.readNumber(); n > 0 && !r.broken; n-- {
		p.Trees = append(p.Trees, Tree{FD: r.readNumber(), From: r.readText(), To: r.readText()})
	}
	for _, l := range []*[]TextFile{&p.Links, &p.Files} {
		for n := r.readNumber(); n > 0 && !r.broken; n-- {
			*l = append(*l, TextFile{Path: r.readText(), Content: r.readText()})
		}
	}
	for n := r.readNumber(); n > 0 && !r.broken; n-- {
		p.Mounts = append(p.Mounts, Mount{
			FD: r.readNumber(), From: r.readText(), To: r.readText(), Write: r.flag(), Device: r.flag(),
		})
	}
	p.Route = r.flag()
	for _, l := range []*[]int64{&p.Ports, &p.Groups} {
		for n := r.readNumber(); n > 0 && !r.broken; n-- {
			*l = append(*l, r.readNumber())
		}
	}
	p.Base = Tree{FD: r.readNumber(), From: r.readText(), To: r.readText()}
	return p, r.finishReading("a plan")
}

// Program is the program that a Start frame runs.
type Program struct {
	Argv, Env []string
	Dir       string
	Size      Size // size of its terminal; zero means it has none
	// Lists decide which programs its processes may start, as JSON of package supervisor; "" means that nothing does.
	Lists string
}

// Body encodes the body of a Start frame.
func (p Program) Body() []byte {
	var w writer
	w.texts(p.Argv)
	w.texts(p.Env)
	w.writeText(p.Dir)
	w.writeNumber(int64(p.Size.Cols))
	w.writeNumber(int64(p.Size.Rows))
	w.writeText(p.Lists)
	return w.b
}

// ParseProgram decodes the body of a Start frame.
func ParseProgram(body []byte) (p Program, err error) {
	r := reader{b: body}
	p.Argv, p.Env, p.Dir = r.texts(), r.texts(), r.readText()
	cols, rows := r.readNumber(), r.readNumber()
	if cols < 0 || rows < 0 || cols > math.MaxUint16 || rows > math.MaxUint16 || len(p.Argv) == 0 {
		r.failShort()
	}
	p.Size = Size{Cols: uint16(cols), Rows: uint16(rows)}
	p.Lists = r.readText()
	return p, r.finishReading("a program")
}

// Size is the size of a terminal in characters.
type Size struct{ Cols, Rows uint16 }

const resizeSize = 4

// Body encodes the body of a Resize frame.
func (s Size) Body() []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, s.Cols), s.Rows)
}

// ParseSize decodes the body of a Resize frame.
func ParseSize(body []byte) (Size, error) {
	if len(body) != resizeSize {
		return Size{}, fmt.Errorf("%w: a size of %d bytes", ErrBroken, len(body))
	}
	return Size{Cols: binary.BigEndian.Uint16(body), Rows: binary.BigEndian.Uint16(body[2:])}, nil
}

const grantSize = 5

// Grant allows the sender of a stream to send Bytes more.
type Grant struct {
	Stream Kind // Stdin, Stdout or Stderr
	Bytes  uint32
}

// Body encodes the body of a Credit frame.
func (g Grant) Body() []byte { return binary.BigEndian.AppendUint32([]byte{byte(g.Stream)}, g.Bytes) }

// ParseGrant decodes the body of a Credit frame.
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

// Failure is the error of a request.
type Failure struct {
	Errno syscall.Errno // 0 if no system call failed
	Text  string
}

func (f Failure) Error() string { return f.Text }

// Unwrap returns the error number, so that errors.Is matches fs.ErrNotExist.
func (f Failure) Unwrap() error {
	if f.Errno == 0 {
		return nil
	}
	return f.Errno
}

const longestText = 4 << 10 // bytes of a failure's text

// Body encodes the body of a Failed frame. It truncates a long text.
func (f Failure) Body() []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(f.Errno))
	return append(b, f.Text[:min(len(f.Text), longestText)]...)
}

// ParseFailure decodes the body of a Failed frame.
func ParseFailure(body []byte) (Failure, error) {
	if len(body) < 2 || len(body) > 2+longestText {
		return Failure{}, fmt.Errorf("%w: a failure of %d bytes", ErrBroken, len(body))
	}
	return Failure{Errno: syscall.Errno(binary.BigEndian.Uint16(body)), Text: string(body[2:])}, nil
}

// Op is the operation of a FileRequest.
type Op int64

const (
	ReadFile     Op = 1 + iota // answered by an Entry for the whole file, then its bytes as Stdout
	StoreFile                  // the bytes arrive as Stdin; answered by an Entry at the end
	ListFolder                 // answered by an Entry for each name; Exit has code 1 if there are more
	StatPath                   // answered by an Entry
	MakeFolder                 // answered by Exit alone
	RemovePath                 // answered by Exit alone
	RenamePath                 // answered by Exit alone
	PackFolder                 // a tar of the folder's contents is sent as Stdout
	UnpackFolder               // a tar to unpack into the folder arrives as Stdin
	DiskUsage                  // answered by an Entry with the bytes in use on the writable file systems as its size
	// answered by an Entry for each counter of the agent's own control group, with the value as its size
	GroupUsage
	// user Offset and group Length get the files of user 0, with All every file, at or below Path; answered by Exit
	// alone
	ChownTree
	TreeSize // answered by an Entry with the bytes of the files below Path as its size
	afterOps
)

// FileRequest is the operation that a File frame requests.
type FileRequest struct {
	Op          Op
	Path, Other string // Other is the new path of RenamePath; for ListFolder, entries start after this name
	// of ReadFile; a Length of 0 or less means up to the end. For ListFolder, Length is the most entries
	// and for ChownTree see there
	Offset, Length int64
	Mode           int64 // permissions of a new file
	Append         bool  // of StoreFile
	Parents        bool  // of StoreFile: create missing parent folders
	All            bool  // of RemovePath: also remove the contents
}

// Body encodes the body of a File frame.
func (f FileRequest) Body() []byte {
	var w writer
	w.writeNumber(int64(f.Op))
	w.writeText(f.Path)
	w.writeText(f.Other)
	w.writeNumber(f.Offset)
	w.writeNumber(f.Length)
	w.writeNumber(f.Mode)
	w.flag(f.Append)
	w.flag(f.Parents)
	w.flag(f.All)
	return w.b
}

// ParseFileRequest decodes the body of a File frame.
func ParseFileRequest(body []byte) (f FileRequest, err error) {
	r := reader{b: body}
	f.Op = Op(r.readNumber())
	f.Path, f.Other = r.readText(), r.readText()
	f.Offset, f.Length, f.Mode = r.readNumber(), r.readNumber(), r.readNumber()
	f.Append, f.Parents, f.All = r.flag(), r.flag(), r.flag()
	if f.Op < 1 || f.Op >= afterOps || f.Offset < 0 || f.Mode < 0 || f.Mode > 0o777 {
		r.failShort()
	}
	return f, r.finishReading("work on a file")
}

// Info describes a file.
type Info struct {
	Name     string
	Link     string // target of a symbolic link, else ""
	Size     int64
	Mode     uint32 // as in the kernel's st_mode, including the type
	Modified time.Time
}

// Body encodes the body of an Entry frame.
func (i Info) Body() []byte {
	var w writer
	w.writeText(i.Name)
	w.writeText(i.Link)
	w.writeNumber(i.Size)
	w.writeNumber(int64(i.Mode))
	w.writeNumber(i.Modified.UnixNano())
	return w.b
}

// ParseInfo decodes the body of an Entry frame.
func ParseInfo(body []byte) (i Info, err error) {
	r := reader{b: body}
	i.Name, i.Link, i.Size = r.readText(), r.readText(), r.readNumber()
	mode := r.readNumber()
	i.Modified = time.Unix(0, r.readNumber())
	if i.Size < 0 || mode < 0 || mode > math.MaxUint32 {
		r.failShort()
	}
	i.Mode = uint32(mode)
	return i, r.finishReading("an entry")
}

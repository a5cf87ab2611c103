package sandboxtest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"gatehouse/internal/sandbox"
)

// packed returns a tar archive of the entries, in their order.
func packed(t *testing.T, all ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range all {
		body := h.PAXRecords["body"]
		h.PAXRecords = nil
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(body))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// file returns an entry for packed.
func file(name, body string) tar.Header {
	return tar.Header{Name: name, PAXRecords: map[string]string{"body": body}}
}

// contents returns the entries of a tar archive by name, each as one line.
func contents(t *testing.T, b []byte) map[string]string {
	t.Helper()
	all := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		all[h.Name] = fmt.Sprintf("%c %o %s%s", h.Typeflag, h.Mode, h.Linkname, body)
	}
}

// archiveChecks are the checks of one sandbox that packs and unpacks folders.
type archiveChecks struct {
	suite
	b sandbox.Sandbox
	a sandbox.Archive
}

// archives checks that folders can be packed and unpacked as tar archives, and that hostile archives are refused.
func (s suite) archives(t *testing.T) {
	b := s.box(t, sandbox.Spec{})
	a, ok := b.(sandbox.Archive)
	if !ok {
		s.lacks.Store(true)
		t.Skip("the driver offers no archives")
	}
	c := archiveChecks{s, b, a}
	t.Run("there and back", c.roundTrip)
	t.Run("what is there is replaced", c.replaces)
	t.Run("hostile", c.hostile)
	t.Run("a size that is a lie", c.falseSize)
	t.Run("more files than there may be", c.tooManyFiles)
	t.Run("called off", c.cancelled)
}

func (s archiveChecks) roundTrip(t *testing.T) {
	ctx := deadline(t)
	b, a := s.b, s.a
	long := strings.Repeat("a long name of a folder/", 30) + "file"
	if r := shell(t, b, `mkdir -p from/dir/empty && cd from && printf hello >file && chmod 640 file && ln -s file link && ln -s /etc/passwd out &&
		printf run >dir/run && chmod 4755 dir/run && : >'odd
name' && mkfifo pipe && mkdir -p "`+strings.TrimSuffix(long, "/file")+`" && printf deep >"`+long+`" && head -c 3000000 /dev/zero >large`); r.Outcome != sandbox.OK {
		t.Fatalf("%+v: %s", r.Result, r.stderr)
	}
	var first, second bytes.Buffer
	if err := a.Pack(ctx, "from", &first); err != nil {
		t.Fatal(err)
	}
	got := contents(t, first.Bytes())
	for name, want := range map[string]string{
		"file":       "0 640 hello",
		"link":       "2 777 file",
		"out":        "2 777 /etc/passwd",
		"dir/empty/": "5 755 ",
		"dir/run":    "0 755 run",
		"odd\nname":  "0 644 ",
		long:         "0 644 deep",
	} {
		if got[name] != want {
			t.Errorf("%q is %q, want %q", name, got[name], want)
		}
	}
	if _, is := got["pipe"]; is || len(got["large"]) < 3_000_000 {
		t.Errorf("a pipe is in it: %v; the large file has %d bytes", is, len(got["large"]))
	}
	if err := a.Unpack(ctx, "to/new", bytes.NewReader(first.Bytes())); err != nil {
		t.Fatal(err)
	}
	if err := a.Unpack(ctx, "to/new", bytes.NewReader(first.Bytes())); err != nil {
		t.Errorf("again, over what is there: %v", err)
	}
	if err := a.Pack(ctx, "to/new", &second); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(got, contents(t, second.Bytes())) {
		t.Error("what came back is another tar")
	}
	if r := shell(t, b,
		`cmp from/large to/new/large && [ -L to/new/out ] && cat to/new/file && rm -rf from to`); r.Outcome != sandbox.OK || r.stdout != "hello" {
		t.Errorf("%+v: %s%s", r.Result, r.stdout, r.stderr)
	}
}

func (s archiveChecks) replaces(t *testing.T) {
	ctx := deadline(t)
	b, a := s.b, s.a
	shell(
		t,
		b,
		`mkdir -p over/folder; printf old >over/file; ln -s /tmp over/away; ln -s file over/link; mkdir over/empty`,
	)
	err := a.Unpack(ctx, "over", bytes.NewReader(packed(t, file("file", "new"), file("link", "no link any more"),
		tar.Header{Name: "./away/", Typeflag: tar.TypeDir, Mode: 0o755}, file("away/inside", "x"),
		file("empty", "a file"), file("folder/more", "y"))))
	if r := shell(t, b,
		`cd over && cat file link empty away/inside folder/more && [ ! -L away ] && [ ! -e /tmp/inside ]`); err != nil || r.stdout != "newno link any morea filexy" || r.Code != 0 {
		t.Errorf("%v: %+v, %q %s", err, r.Result, r.stdout, r.stderr)
	}
}

func (s archiveChecks) hostile(t *testing.T) {
	ctx := deadline(t)
	b, a := s.b, s.a
	link := func(name, to string) tar.Header {
		return tar.Header{Name: name, Linkname: to, Typeflag: tar.TypeSymlink}
	}
	for name, entries := range map[string][]tar.Header{
		"a way out":                {file("../escaped", "x")},
		"a way out in the middle":  {file("a/../../escaped", "x")},
		"an absolute name":         {file("/tmp/escaped", "x")},
		"through a link":           {link("l", "/tmp"), file("l/escaped", "x")},
		"through a link of two":    {link("l", "."), link("l/m", "/tmp"), file("l/m/escaped", "x")},
		"a folder through a link":  {link("l", "/tmp"), {Name: "l/escaped/", Typeflag: tar.TypeDir}},
		"through a link upwards":   {link("l", ".."), file("l/escaped", "x")},
		"a hard link":              {{Name: "h", Linkname: "/etc/passwd", Typeflag: tar.TypeLink}},
		"a device":                 {{Name: "d", Typeflag: tar.TypeBlock, Devmajor: 8}},
		"a terminal":               {{Name: "d", Typeflag: tar.TypeChar, Devmajor: 5}},
		"a pipe":                   {{Name: "p", Typeflag: tar.TypeFifo}},
		"no name":                  {file(".", "x")},
		"a name that is too long":  {file(strings.Repeat("x", 300), "x")},
		"a path that is too long":  {file(strings.Repeat("x/", 3000)+"y", "x")},
		"below a file":             {file("f", "x"), file("f/escaped", "x")},
		"over a folder that holds": {file("f/g", "x"), file("f", "x")},
	} {
		if err := a.Unpack(ctx, "hostile", bytes.NewReader(packed(t, entries...))); err == nil {
			t.Errorf("%s was unpacked", name)
		}
		if r := shell(t, b,
			`find /tmp /var/tmp /dev/shm "$HOME" -name escaped 2>/dev/null; rm -rf hostile`); r.stdout != "" {
			t.Errorf("%s made %s", name, r.stdout)
		}
	}
	whole := packed(t, file("one", "1"), file("two", strings.Repeat("2", 10_000)))
	for name, tarred := range map[string][]byte{
		"no tar":      bytes.Repeat([]byte("this is no tar "), 1000),
		"half a tar":  whole[:3000],
		"half a head": whole[:1200],
	} {
		if err := a.Unpack(ctx, "hostile", bytes.NewReader(tarred)); err == nil {
			t.Errorf("%s was unpacked", name)
		}
	}
	for _, folder := range []string{"/usr/new", "/proc/self", "/etc"} {
		if err := a.Unpack(ctx, folder, bytes.NewReader(whole)); err == nil {
			t.Errorf("it was unpacked into %s", folder)
		}
	}
	for _, folder := range []string{"/proc", "/proc/1/root", "nowhere", "/etc/passwd"} {
		if err := a.Pack(ctx, folder, io.Discard); err == nil {
			t.Errorf("%s was packed", folder)
		}
	}
	if err := a.Pack(ctx, "nowhere", io.Discard); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
	alive(t, b)
}

func (s archiveChecks) falseSize(t *testing.T) {
	ctx := deadline(t)
	b, a := s.b, s.a
	// What is claimed is far above what the sandbox may have.
	lie := packed(t, file("lie", ""))
	copy(lie[124:136], []byte{0x80, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0}) // 2^40 bytes, and then the sum of the head
	sum := 0
	copy(lie[148:156], "        ")
	for _, c := range lie[:512] {
		sum += int(c)
	}
	copy(lie[148:156], fmt.Sprintf("%06o\x00 ", sum))
	if err := a.Unpack(ctx, "lies",
		io.MultiReader(bytes.NewReader(lie[:512]), io.LimitReader(nothing{}, 8<<30))); err == nil {
		t.Error("it was unpacked")
	}
	shell(t, b, "rm -rf lies")
	alive(t, b)
}

func (s archiveChecks) tooManyFiles(t *testing.T) {
	ctx := deadline(t)
	r, w := io.Pipe()
	go func() {
		to := tar.NewWriter(w)
		for i := range 1_000_000 {
			if err := to.WriteHeader(&tar.Header{
				Name:     fmt.Sprintf("%d/%d", i/1000, i),
				Typeflag: tar.TypeReg,
				Mode:     0o644,
			}); err != nil {
				return // it was refused
			}
		}
		w.CloseWithError(to.Close())
	}()
	small := s.box(t, sandbox.Spec{Limits: sandbox.Limits{DiskMiB: 8}})
	err := small.(sandbox.Archive).Unpack(ctx, "many", r)
	r.Close()
	if r := shell(t, small, "ls many | wc -l"); err == nil && r.stdout != "1000\n" {
		t.Errorf("%v: %+v, %q", err, r.Result, r.stdout)
	}
	alive(t, small)
}

func (s archiveChecks) cancelled(t *testing.T) {
	ctx := deadline(t)
	b, a := s.b, s.a
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	go func() {
		w.Write(packed(t, file("first", "1"))[:1024])
		cancel()
		w.CloseWithError(context.Canceled) // a Reader that blocks is the caller's own
	}()
	if err := a.Unpack(ctx, "half", r); !errors.Is(err, context.Canceled) {
		t.Errorf("called off: %v", err)
	}
	r.Close()
	broken := errors.New("broken off")
	if err := a.Unpack(t.Context(), "half",
		io.MultiReader(bytes.NewReader(packed(t, file("first", "1"))[:700]),
			iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("%v, want %v", err, broken)
	}
	shell(t, b, "head -c 10000000 /dev/zero >half/large")
	if err := a.Pack(t.Context(), "half", failing{broken}); !errors.Is(err, broken) {
		t.Errorf("%v, want %v", err, broken)
	}
	alive(t, b)
}

// nothing is a reader of zeros that does not end.
type nothing struct{}

func (nothing) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// portChecks are the checks of one sandbox in which a server listens on port 8000.
type portChecks struct {
	suite
	b sandbox.Sandbox
	p sandbox.Dialer
}

// ports checks that the host can connect to servers in the sandbox.
func (s suite) ports(t *testing.T) {
	b := s.box(t, sandbox.Spec{})
	p, ok := b.(sandbox.Dialer)
	if !ok {
		s.lacks.Store(true)
		t.Skip("the driver offers no ports")
	}
	if shell(t, b, "command -v python3").Code != 0 {
		t.Skip("Python is not there, with which the test serves")
	}
	out, say := io.Pipe()
	if _, err := b.Exec(t.Context(), sandbox.Command{Argv: []string{"python3", "-uc", `
import socket, threading
s = socket.create_server(("127.0.0.1", 8000), backlog=50)
print("listens")
def serve(c):
    with c:
        while b := c.recv(65536):
            c.sendall(b)
        c.sendall(b"the end")
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()`}, Stdout: say, Timeout: -1}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("listens\n"))); err != nil {
		t.Fatal(err)
	}
	c := portChecks{s, b, p}
	t.Run("both ways, and by halves", c.bothWays)
	t.Run("nothing else", c.otherPorts)
	t.Run("with the sandbox", c.closed)
}

func (s portChecks) bothWays(t *testing.T) {
	ctx := deadline(t)
	p := s.p
	for range 3 {
		c, err := p.Dial(ctx, 8000)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(patience))
		sent := strings.Repeat("0123456789abcdef", 1<<16)
		go func() {
			io.WriteString(c, sent)
			if half, ok := c.(interface{ CloseWrite() error }); ok {
				half.CloseWrite()
			}
		}()
		if got, err := io.ReadAll(c); err != nil || string(got) != sent+"the end" {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		c.Close()
	}
}

func (s portChecks) otherPorts(t *testing.T) {
	ctx := deadline(t)
	p := s.p
	here, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	for _, port := range []int{8001, here.Addr().(*net.TCPAddr).Port} {
		if c, err := p.Dial(ctx, uint16(port)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("port %d of the sandbox, where nobody listens: %v, %v", port, c, err)
		}
	}
	if _, err := p.Dial(ctx, 0); err == nil {
		t.Error("there is a port 0")
	}
}

func (s portChecks) closed(t *testing.T) {
	ctx := deadline(t)
	b, p := s.b, s.p
	c, err := p.Dial(ctx, 8000)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the connection outlived it")
	}
	if _, err := p.Dial(ctx, 8000); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("dialled a sandbox that is gone: %v", err)
	}
}

package build

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"sync"
)

// output keeps the beginning and the end of what a build prints. It is safe for concurrent use.
type output struct {
	mu      sync.Mutex
	head    []byte
	tail    []byte
	dropped int
}

// Write never fails.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := len(b)
	space := min(max(maxLog/2-len(o.head), 0), n)
	o.head, b = append(o.head, b[:space]...), b[space:]
	o.tail = append(o.tail, b...)
	if over := len(o.tail) - maxLog/2; over > maxLog/8 {
		o.tail = append([]byte(nil), o.tail[over:]...)
		o.dropped += over
	}
	return n, nil
}

// text returns the output, with a line in place of the missing part.
func (o *output) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := string(o.head)
	if o.dropped > 0 {
		s += fmt.Sprintf("\n[%d bytes are missing here]\n", o.dropped)
	}
	return strings.ToValidUTF8(s+string(o.tail), "?")
}

// existing returns the longest end of a name that is a file in dir, or the name. Some tools put the name of a package
// or module before that of a file, or leave out the folder of the sources.
func existing(dir *os.Root, name string) string {
	isFile := func(n string) bool {
		info, err := dir.Stat(n)
		return err == nil && info.Mode().IsRegular()
	}
	if name == "" || path.IsAbs(name) {
		return name
	}
	for rest := name; ; {
		for _, below := range []string{"", "src/main/java", "src/test/java", "src/main/kotlin", "src/test/kotlin"} {
			if n := path.Join(below, rest); isFile(n) {
				return n
			}
		}
		_, after, ok := strings.Cut(rest, "/")
		if !ok {
			return name
		}
		rest = after
	}
}

// linesOf returns the lines of a file of a build, nil if it cannot be read or is large.
func linesOf(dir *os.Root, name string) []string {
	f, err := dir.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > maxLog {
		return nil
	}
	b, err := io.ReadAll(bufio.NewReader(f))
	if err != nil {
		return nil
	}
	return strings.Split(string(b), "\n")
}

func clip(s string) string {
	s = strings.TrimSpace(s)
	if len(s) > maxLines {
		s = strings.ToValidUTF8(s[:maxLines], "") + "…"
	}
	return s
}

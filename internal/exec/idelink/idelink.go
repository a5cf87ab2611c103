// Package idelink connects editors and coding agents by lock files, as Claude Code and its editor extensions do.
//
// An editor listens on a port of this machine and writes a lock file with a secret, which only its user can read; the
// agent finds the file, proves with the secret that it could, and both exchange JSON-RPC messages
// over a WebSocket. This package has both sides. It does not know what the messages mean.
package idelink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"

	"gatehouse/internal/exec/rpc"
)

const (
	header     = "X-Claude-Code-Ide-Authorization" // carries the secret of the lock file
	protocol   = "mcp"                             // of the WebSocket
	maxLock    = 64 << 10
	maxLocks   = 100
	maxMessage = 16 << 20
	pingEvery  = 20 * time.Second
	handshake  = 10 * time.Second
)

// Lock is the content of a lock file. The file of port 1234 is 1234.lock.
type Lock struct {
	PID       int      `json:"pid"`
	Folders   []string `json:"workspaceFolders"`
	Editor    string   `json:"ideName"`
	Transport string   `json:"transport"`
	Windows   bool     `json:"runningInWindows,omitempty"`
	Token     string   `json:"authToken"`

	Port int    `json:"-"`
	Path string `json:"-"`
}

// Dir returns the folder of the lock files of this user.
func Dir(getenv func(string) string) (string, error) {
	if dir := getenv("CLAUDE_CONFIG_DIR"); dir != "" {
		return filepath.Join(dir, "ide"), nil
	}
	home := getenv("HOME")
	if home == "" {
		var err error
		if home, err = os.UserHomeDir(); err != nil {
			return "", err
		}
	}
	return filepath.Join(home, ".claude", "ide"), nil
}

// Unusable is a lock file that Find does not trust.
type Unusable struct {
	Path string
	Err  error
}

// FindLocks returns the editors whose lock files are in a folder, the newest first, and why others are left out: a file is
// used if it is a regular file of this user that others cannot read, and names a process that is alive.
func FindLocks(dir string) (found []Lock, unusable []Unusable) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			unusable = append(unusable, Unusable{dir, err})
		}
		return nil, unusable
	}
	if err := private(dir, true); err != nil {
		return nil, []Unusable{{dir, err}}
	}
	when := map[int]time.Time{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".lock") || len(found)+len(unusable) >= maxLocks {
			continue
		}
		path := filepath.Join(dir, e.Name())
		l, at, err := read(path)
		if err != nil {
			unusable = append(unusable, Unusable{path, err})
			continue
		}
		found = append(found, l)
		when[l.Port] = at
	}
	slices.SortFunc(found, func(a, b Lock) int { return when[b.Port].Compare(when[a.Port]) })
	return found, unusable
}

// read reads a lock file and checks that it can be trusted.
func read(path string) (l Lock, at time.Time, err error) {
	f, err := openRegular(path)
	if err != nil {
		return l, at, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil {
		err = privateInfo(path, info, false)
	}
	if err != nil {
		return l, at, err
	}
	if info.Size() > maxLock {
		return l, at, fmt.Errorf("it has %d bytes, at most %d are read", info.Size(), maxLock)
	}
	b := make([]byte, info.Size())
	if n, err := f.ReadAt(b, 0); n < len(b) {
		return l, at, err
	}
	if err := json.Unmarshal(b, &l); err != nil {
		return l, at, fmt.Errorf("it is not valid: %w", err)
	}
	l.Path = path
	l.Port, err = strconv.Atoi(strings.TrimSuffix(filepath.Base(path), ".lock"))
	switch {
	case err != nil || l.Port < 1 || l.Port > 65535:
		return l, at, errors.New("its name is not a port")
	case l.Transport != "ws":
		return l, at, fmt.Errorf("its transport is %q, expected ws", l.Transport)
	case len(l.Token) < 16:
		return l, at, errors.New("its authToken is missing or too short")
	case !l.Windows && !alive(l.PID):
		return l, at, fmt.Errorf("its process %d does not exist: the file was left behind", l.PID)
	}
	return l, info.ModTime(), nil
}

// Dial connects to an editor. The secret is sent only if the port still belongs to the process of the lock file, or one
// of its family, where the system tells.
func Dial(ctx context.Context, l Lock, h rpc.Handler) (*rpc.Conn, error) {
	if err := ownsPort(l); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, handshake)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, fmt.Sprintf("ws://127.0.0.1:%d/", l.Port), &websocket.DialOptions{
		HTTPHeader: map[string][]string{header: {l.Token}}, Subprotocols: []string{protocol},
	})
	if err != nil {
		return nil, fmt.Errorf("connect to %s at port %d: %w", l.Editor, l.Port, err)
	}
	return connect(conn, h), nil
}

// connect exchanges messages over a WebSocket and pings it, so that a peer that vanished is noticed.
func connect(conn *websocket.Conn, h rpc.Handler) *rpc.Conn {
	conn.SetReadLimit(maxMessage)
	c := rpc.New(&stream{conn}, h)
	go func() {
		tick := time.NewTicker(pingEvery)
		defer tick.Stop()
		for {
			select {
			case <-c.Done():
				return
			case <-tick.C:
			}
			ctx, cancel := context.WithTimeout(context.Background(), pingEvery)
			if conn.Ping(ctx) != nil {
				conn.CloseNow()
			}
			cancel()
		}
	}()
	return c
}

// stream is a WebSocket with a message in each frame.
type stream struct{ conn *websocket.Conn }

func (s *stream) Read() ([]byte, error) {
	_, b, err := s.conn.Read(context.Background())
	return b, err
}

func (s *stream) Write(ctx context.Context, b []byte) error {
	return s.conn.Write(ctx, websocket.MessageText, b)
}

func (s *stream) Close() error { return s.conn.CloseNow() }

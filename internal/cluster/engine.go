package cluster

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/files/atomicfile"
)

// engine is the embedded NATS: a child process that ends when its standard input does, thus with this one.
type engine struct {
	program  string
	dir      string
	log      *slog.Logger
	client   string // URL
	user     string
	password string
	config   map[string]any
	auth     *Authority // nil without certificates

	mu      sync.Mutex
	stdin   io.WriteCloser
	closing bool
	ended   chan struct{} // closed when the process has ended for good
}

// FindProgram returns the path of the engine: asked, or Program beside the running program, or in the PATH.
func FindProgram(asked string) (string, error) {
	names := []string{asked}
	if asked == "" {
		names = []string{beside(Program), Program}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", fmt.Errorf(
		"%s was not found in the folder of gatehouse or in the PATH; install the package of that name "+
			"of the same release, build it with make nats, or name a NATS server with cluster.nats.address",
		names[len(names)-1],
	)
}

func beside(name string) string {
	self, err := os.Executable()
	if err != nil {
		return name
	}
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	return filepath.Join(filepath.Dir(self), name)
}

// loopback reports whether an address can be reached from this machine alone.
func loopback(hostPort string) bool {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// startEngine starts the embedded NATS and waits until clients can connect.
func startEngine(ctx context.Context, o Options, id string, known *epochs) (*engine, error) {
	program, err := FindProgram(o.Program)
	if err != nil {
		return nil, err
	}
	e := &engine{
		program: program, dir: o.Dir, log: o.Log, user: "host", password: rand.Text(), ended: make(chan struct{}),
	}
	var routes []string
	for _, j := range append([]string{o.Listen}, o.Join...) { // the first node has no other, and one is required
		routes = append(routes, "nats-route://"+j)
	}
	cluster := map[string]any{"name": o.Name, "listen": o.Listen, "routes": routes, "connect_retries": 1 << 30}
	if o.Advertise != "" {
		cluster["cluster_advertise"] = o.Advertise
	}
	if e.auth, err = authorityFor(o, id); err != nil {
		return nil, err
	}
	if e.auth != nil {
		cluster["tls"] = map[string]any{
			"cert_file": e.auth.path("node.pem"), "key_file": e.auth.path("node.key"),
			"ca_file": e.auth.path("ca.pem"), "verify": true, "timeout": 5,
		}
	}
	e.config = map[string]any{
		"server_name":    id,
		"host":           "127.0.0.1",
		"port":           anyPort,
		"max_payload":    maxPayload,
		"max_pending":    256 << 20,
		"ping_interval":  "1s", // to other nodes as well: a cut is noticed
		"ping_max":       2,
		"write_deadline": "5s",
		"authorization":  map[string]any{"users": []any{user(e.user, e.password)}},
		// Peers are removed by way of this account.
		"accounts":       map[string]any{"$SYS": map[string]any{"users": []any{user(systemUser, e.password)}}},
		"system_account": "$SYS",
		"cluster":        cluster,
		"jetstream": map[string]any{
			"store_dir": filepath.Join(o.Dir, recordsFolder),
			// By default an acknowledged write is lost if all nodes lose power.
			"sync_interval": "always",
		},
	}
	if e.auth != nil && !e.auth.complete() {
		if err := e.fetchKeys(ctx, o, id); err != nil {
			return nil, err
		}
	}
	if err := e.checkImage(ctx, o, id, known); err != nil {
		return nil, err
	}
	return e, e.start(ctx)
}

// systemUser is the user that manages the engine.
const systemUser = "system"

func user(name, password string) map[string]string {
	return map[string]string{"user": name, "password": password}
}

// reopenEngine returns the engine of a node that was started before.
func reopenEngine(dir, program string) (*engine, error) {
	raw, err := os.ReadFile(filepath.Join(dir, "nats.json"))
	if err != nil {
		return nil, fmt.Errorf("no node with an embedded engine has its data here: %w", err)
	}
	e := &engine{program: program, dir: dir, log: slog.New(slog.DiscardHandler), ended: make(chan struct{})}
	if err := json.Unmarshal(raw, &e.config); err != nil {
		return nil, err
	}
	e.config["port"] = anyPort
	return e, nil
}

// maxPayload bounds one message between nodes; longer ones are sent in parts.
const maxPayload = 8 << 20

// anyPort makes the engine listen for clients at a port that is free. start stores which, because the engine must have
// the same one when it is started again, so that its clients find it.
const anyPort = -1

func (e *engine) configFile() string { return filepath.Join(e.dir, "nats.json") }

func (e *engine) writeConfig() error {
	raw, err := json.MarshalIndent(e.config, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(e.configFile(), raw)
}

// start starts the process and, when it ends unasked, starts it again.
func (e *engine) start(ctx context.Context) error {
	if err := e.writeConfig(); err != nil {
		return err
	}
	wait, err := e.runEngine(ctx)
	if err != nil {
		return err
	}
	at, err := url.Parse(e.client)
	if err == nil {
		e.config["port"], err = strconv.Atoi(at.Port())
	}
	if err == nil {
		err = e.writeConfig()
	}
	if err != nil {
		e.restart()
		wait()
		return err
	}
	go func() {
		defer close(e.ended)
		for {
			err := wait()
			for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
				if e.isClosing() {
					return
				}
				e.log.Error("the engine of the cluster ended and is started again", "err", err)
				time.Sleep(pause)
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				wait, err = e.runEngine(ctx)
				cancel()
				if err == nil {
					break
				}
			}
		}
	}()
	return nil
}

func (e *engine) isClosing() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closing
}

// runEngine starts the process once and waits until it serves. wait returns when it has ended.
func (e *engine) runEngine(ctx context.Context) (wait func() error, err error) {
	cmd := exec.Command(e.program, e.configFile())
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	said := &engineLog{log: e.log}
	cmd.Stderr = said
	cmd.WaitDelay = time.Second
	e.mu.Lock()
	if e.closing {
		e.mu.Unlock()
		return nil, errors.New("the node is closing")
	}
	if err := cmd.Start(); err != nil {
		e.mu.Unlock()
		return nil, fmt.Errorf("start the engine of the cluster: %w", err)
	}
	e.stdin = stdin
	e.mu.Unlock()
	first := make(chan error, 1)
	go func() {
		var ready struct{ Client, Cluster string }
		err := json.NewDecoder(bufio.NewReader(stdout)).Decode(&ready)
		e.client = ready.Client
		first <- err
		io.Copy(io.Discard, stdout)
	}()
	select {
	case err = <-first:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		stdin.Close()
		cmd.Process.Kill()
		cmd.Wait()
		return nil, fmt.Errorf("the engine of the cluster did not start: %s: %w", said.last(), err)
	}
	return cmd.Wait, nil
}

// restart ends the process, which start starts again. Clients of it connect again.
func (e *engine) restart() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stdin.Close()
}

// close ends the engine and waits until it has written what it keeps.
func (e *engine) close() {
	e.mu.Lock()
	e.closing = true
	if e.stdin != nil {
		e.stdin.Close()
	}
	e.mu.Unlock()
	<-e.ended
}

// engineLog logs the lines of the engine, and keeps the last one.
type engineLog struct {
	log *slog.Logger

	mu   sync.Mutex
	line string
	part []byte
}

func (l *engineLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.part = append(l.part, p...)
	for {
		line, rest, ok := strings.Cut(string(l.part), "\n")
		if !ok {
			l.part = l.part[:min(len(l.part), 8<<10)]
			return len(p), nil
		}
		l.part = []byte(rest)
		// The engine writes: [pid] date time [INF] text.
		level := slog.LevelDebug
		if strings.Contains(line, "[ERR]") || strings.Contains(line, "[FTL]") {
			level = slog.LevelWarn
		}
		if _, text, ok := strings.Cut(line, "] "); ok && strings.HasPrefix(line, "[") {
			line = text
		}
		l.line = line
		l.log.Log(context.Background(), level, "engine of the cluster", "says", line)
	}
}

func (l *engineLog) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.line
}

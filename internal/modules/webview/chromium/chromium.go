// Package chromium finds, starts and ends Chromium, and speaks the DevTools protocol with it over a pipe.
package chromium

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/chromedp"

	"gatehouse/internal/exec/proc"
	"gatehouse/internal/exec/procid"
	"gatehouse/internal/sandbox"
)

// prefix begins the names of the folders of browsers. It is short because Chromium exits if the path of a socket
// below it exceeds the limit of Unix sockets (108 bytes on Linux).
const prefix = "ghb-"

// Options are for Launch. The zero value starts the browser of this machine without a proxy.
type Options struct {
	Program   string   // see Find
	Folder    string   // the folder for temporary profiles; "" means the system's
	Proxy     string   // host:port of the HTTP proxy of all traffic; "" means none
	Width     int      // of the window, in pixels; 0 means 1280
	Height    int      // 0 means 800
	Flags     []string // added to the command line
	Processes int      // how many processes and threads the browser may have; 0 means no limit
	// NoSandbox switches Chromium's own sandbox off, which cannot be used by root.
	NoSandbox bool

	// Driver makes the sandbox that confines the browser; nil means that it is a process of the host. What follows is
	// for a confined browser, and Proxy is not.
	Driver  sandbox.Driver
	Network sandbox.Network // what it may reach
	Memory  int             // MiB; 0 means 2048
	Shared  string          // a folder of the host that it can write, at the same path; "" means none
}

// Process is a browser that was started, in a sandbox or a process group of its own and with a profile that is removed
// when it ends.
type Process struct {
	Conn   *Conn
	folder string          // "" if it is in a sandbox, which has the profile in memory
	child  *proc.Process   // nil if it is in a sandbox
	box    sandbox.Sandbox // nil if it is not
	ended  <-chan struct{} // of what runs in the sandbox
	said   *lastWords
	once   sync.Once
	wg     sync.WaitGroup
}

// lastWords keeps the first output of a browser, for the error of a start that failed. It is safe for concurrent use.
type lastWords struct {
	mu sync.Mutex
	b  bytes.Buffer
}

const mostWords = 16 << 10 // bytes

func (w *lastWords) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b.Write(b[:min(len(b), max(0, mostWords-w.b.Len()))])
	return len(b), nil
}

// line returns the line that says most: the last one with an error.
func (w *lastWords) line() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := ""
	for l := range strings.Lines(w.b.String()) {
		if l = strings.TrimSpace(l); l != "" &&
			(last == "" || strings.Contains(l, "ERROR") || strings.Contains(l, "FATAL")) {
			last = l
		}
	}
	return last
}

// Sweep removes the profiles that hosts left which have been killed. Their processes have ended with them.
func Sweep(folder string) {
	folder = folderOr(folder)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() && procid.Left(prefix, e.Name()) {
			os.RemoveAll(filepath.Join(folder, e.Name()))
		}
	}
}

// MakeFolder makes an empty folder that Sweep removes if this process is killed.
func MakeFolder(folder string) (string, error) {
	return os.MkdirTemp(folderOr(folder), prefix+procid.Self()+"-")
}

// folderOr returns folder, or else the one for temporary files; or /tmp if the path of that one is too long, as it is
// on macOS.
func folderOr(folder string) string {
	if folder == "" {
		folder = os.TempDir()
		if runtime.GOOS != "windows" && len(folder)+longestName > longestFolder {
			folder = "/tmp"
		}
	}
	return folder
}

// NeedsNoSandbox reports whether Chromium cannot use its own sandbox here, because it would run as root.
func NeedsNoSandbox() bool { return os.Geteuid() == 0 }

// longestFolder is how long the path of a browser's temporary folder may be, in bytes, so that the socket that it makes
// below it does not exceed the system's limit.
const longestFolder = 107 - len("/org.chromium.Chromium.XXXXXX/SingletonSocket")

// longestName is how long the rest of that path is, in bytes: the name of the browser's folder, and "t" below it.
const longestName = len("/" + prefix + "4026531836-4194304-999999999-4294967295/t")

// Launch starts a browser. event is as of NewConn. The caller must call Close.
func Launch(ctx context.Context, o Options, event func(Event)) (_ *Process, err error) {
	program, err := FindProgram(o.Program)
	if err != nil {
		return nil, err
	}
	if o.Driver != nil {
		return launchConfined(ctx, program, o, event)
	}
	folder, err := MakeFolder(o.Folder)
	if err != nil {
		return nil, err
	}
	p := &Process{folder: folder, said: &lastWords{}}
	defer func() {
		if err != nil {
			p.removeFolder()
		}
	}()
	temp := filepath.Join(folder, "t")
	if len(temp) > longestFolder {
		return nil, fmt.Errorf("the folder for temporary files has too long a path for the browser's sockets: %s",
			folder)
	}
	if err := os.Mkdir(temp, 0o700); err != nil {
		return nil, err
	}
	toIt, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer toIt.Close()
	out, fromIt, err := os.Pipe()
	if err != nil {
		in.Close()
		return nil, err
	}
	defer fromIt.Close()
	env := append(proc.BaseEnv(), "HOME="+folder, "TMPDIR="+temp, "XDG_CONFIG_HOME=", "XDG_CACHE_HOME=",
		"XDG_RUNTIME_DIR="+temp)
	p.child, err = proc.Start(context.WithoutCancel(ctx), proc.Spec{
		Path: program, Args: o.arguments(filepath.Join(folder, "p")), Dir: folder, Env: env,
		Files:  []*os.File{toIt, fromIt}, // descriptors 3 and 4, as --remote-debugging-pipe expects
		Stderr: p.said, Stdout: p.said, Whole: true, Processes: o.Processes, Grace: time.Second,
	})
	if err != nil {
		in.Close()
		out.Close()
		return nil, fmt.Errorf("cannot start %s: %w", program, err)
	}
	p.Conn = NewConn(chromedp.NewPipeConn(out, in), event)
	p.wg.Go(p.Conn.Run)
	return p, nil
}

// arguments returns the command line. Everything that reaches the network on its own is off, names are resolved by
// the proxy alone, and no datagram leaves the browser.
func (o Options) arguments(profile string) []string {
	width, height := o.Width, o.Height
	if width == 0 {
		width = 1280
	}
	if height == 0 {
		height = 800
	}
	args := []string{
		"--headless", "--remote-debugging-pipe", "--user-data-dir=" + profile,
		fmt.Sprintf("--window-size=%d,%d", width, height),
		"--no-first-run", "--no-default-browser-check", "--allow-browser-signin=false",
		"--disable-component-extensions-with-background-pages", "--component-updater=disable-background-downloads",
		"--disable-gpu", "--hide-scrollbars", "--mute-audio",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps",
		"--disable-dev-shm-usage", "--disable-breakpad", "--disable-crash-reporter", "--metrics-recording-only",
		"--disable-client-side-phishing-detection", "--disable-extensions", "--disable-hang-monitor",
		"--disable-prompt-on-repost", "--disable-quic", "--dns-prefetch-disable", "--password-store=basic",
		"--use-mock-keychain", "--no-service-autorun", "--no-pings", "--disable-field-trial-config",
		"--disable-background-timer-throttling", "--disable-backgrounding-occluded-windows",
		"--disable-renderer-backgrounding", "--disable-ipc-flooding-protection",
		"--disable-search-engine-choice-screen",
		"--force-webrtc-ip-handling-policy=disable_non_proxied_udp", "--disable-blink-features=AutomationControlled",
		"--disable-features=Translate,MediaRouter,OptimizationHints,AutofillServerCommunication,DialMediaRouteProvider," +
			"InterestFeedContentSuggestions,CertificateTransparencyComponentUpdater,NetworkTimeServiceQuerying," +
			"AsyncDns,DnsOverHttps,HttpsUpgrades,PaintHolding",
	}
	if o.NoSandbox {
		args = append(args, "--no-sandbox")
	}
	if o.Proxy != "" {
		args = append(args, "--proxy-server=http://"+o.Proxy)
	}
	if o.Proxy != "" || o.Driver != nil {
		args = append(args, "--proxy-bypass-list=<-loopback>",
			"--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1")
	}
	return append(append(args, o.Flags...), "about:blank")
}

// PID returns the number of the browser's process, or 0 if it is in a sandbox.
func (p *Process) PID() int {
	if p.child == nil {
		return 0
	}
	return p.child.Pid()
}

// Confined reports whether the browser is in a sandbox.
func (p *Process) Confined() bool { return p.box != nil }

// Failure words why the browser ended.
func (p *Process) Failure() error {
	if line := p.said.line(); line != "" {
		return errors.New("the browser ended: " + line)
	}
	return ErrClosed
}

// closeWait is the time that a browser has to end by itself when its pipe is closed.
const closeWait = 2 * time.Second

// Close ends the browser and everything that it started, and removes its profile. It may be called more than once.
func (p *Process) Close() {
	p.once.Do(func() {
		p.Conn.Close()
		if p.box != nil {
			p.box.Close()
			<-p.ended
			p.wg.Wait()
			return
		}
		late := time.AfterFunc(closeWait, func() { p.child.Kill() })
		p.child.Wait() // its exit code says nothing here
		late.Stop()
		p.wg.Wait()
		p.removeFolder()
	})
}

// removeFolder tries for a while, because processes that are being killed can still write there.
func (p *Process) removeFolder() {
	for range 50 {
		if os.RemoveAll(p.folder) == nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

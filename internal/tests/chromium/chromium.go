// Package chromium drives a real Chromium in tests, by the DevTools protocol over a pipe.
package chromium

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Browser is a browser with a profile of its own, which ends with the test.
type Browser struct {
	t    testing.TB
	in   io.Writer
	out  *bufio.Reader
	last int

	// Said are the messages that pages wrote to their consoles, and their uncaught errors, up to the last command.
	Said []string
	// Requested are the addresses that pages requested, up to the last command; see Page.Watch.
	Requested []string
	// Workers are the registrations of service workers, by their scopes, after ServiceWorker.enable.
	Workers map[string]string

	trace []event // of the recording, up to the last command
	whole bool    // whether all events of the recording have come
}

// Page is a page of a browser. Pages are not safe for concurrent use, nor are two pages of one browser.
type Page struct {
	b       *Browser
	session string // of DevTools
	target  string
	context int // of a frame in the process of its page; 0 is the page
}

// New starts a browser. Without one it skips the test, but not in continuous integration.
func New(t testing.TB) *Browser {
	t.Helper()
	program := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	switch {
	case program != "" && runtime.GOOS != "windows":
	case os.Getenv("CI") != "":
		t.Fatal("there is no chromium, which continuous integration needs: make setup installs it")
	default:
		t.Skip("there is no chromium: make setup installs it")
	}
	// The path is short, because Chromium exits if the path of a socket in it exceeds the limit of Unix sockets
	// (108 bytes on Linux).
	home, err := os.MkdirTemp("", "c")
	check(t, err)
	t.Cleanup(func() { // processes of Chromium can write there a little longer than it runs
		for range 100 {
			if err = os.RemoveAll(home); err == nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Error(err)
	})
	ours, theirs := filepath.Join(home, "p"), filepath.Join(home, "t")
	if err := os.Mkdir(theirs, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
		"--user-data-dir="+ours, "--remote-debugging-pipe", "about:blank")
	cmd.Env = append(
		os.Environ(),
		"HOME="+home,
		"TMPDIR="+theirs,
		"XDG_CONFIG_HOME=",
		"XDG_CACHE_HOME=",
		"XDG_RUNTIME_DIR="+theirs,
	)
	toIt, in, err := os.Pipe()
	check(t, err)
	out, fromIt, err := os.Pipe()
	check(t, err)
	cmd.ExtraFiles = []*os.File{toIt, fromIt} // descriptors 3 and 4, as --remote-debugging-pipe wants them
	check(t, cmd.Start())
	toIt.Close()
	fromIt.Close()
	t.Cleanup(func() {
		in.Close() // by which it ends
		late := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
		cmd.Wait() // its exit code says nothing here
		late.Stop()
		out.Close()
	})
	check(t, out.SetReadDeadline(time.Now().Add(5*time.Minute)))
	return &Browser{t: t, in: in, out: bufio.NewReader(out)}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// NewPage opens an empty page.
func (b *Browser) NewPage() *Page {
	b.t.Helper()
	made := b.do("", "Target.createTarget", map[string]any{"url": "about:blank"})
	p := &Page{b: b}
	p.target, _ = made["targetId"].(string)
	attached := b.do("", "Target.attachToTarget", map[string]any{"targetId": p.target, "flatten": true})
	p.session, _ = attached["sessionId"].(string)
	p.Do("Page.enable", nil)
	return p
}

// Do sends one command of the DevTools protocol for the page and returns its result.
func (p *Page) Do(method string, params map[string]any) map[string]any {
	p.b.t.Helper()
	return p.b.do(p.session, method, params)
}

// Close closes the page.
func (p *Page) Close() {
	p.b.t.Helper()
	p.b.do("", "Target.closeTarget", map[string]any{"targetId": p.target})
}

// Watch makes the browser keep what the page says and requests.
func (p *Page) Watch() {
	p.b.t.Helper()
	p.Do("Runtime.enable", nil)
	p.Do("Log.enable", nil)
	p.Do("Network.enable", nil)
}

func (b *Browser) do(session, method string, params map[string]any) map[string]any {
	b.t.Helper()
	b.last++
	id := b.last
	m := map[string]any{"id": id, "method": method, "params": params}
	if session != "" {
		m["sessionId"] = session
	}
	text, err := json.Marshal(m)
	check(b.t, err)
	_, err = b.in.Write(append(text, 0))
	check(b.t, err)
	for {
		text, err := b.out.ReadBytes(0)
		if err != nil {
			b.t.Fatalf("%s: chromium ended: %v", method, err)
		}
		text = text[:len(text)-1]
		var got struct {
			ID     int
			Result map[string]any
			Error  *struct{ Message string }
			Method string
			Params struct {
				Entry            struct{ Level, Text string }
				Type             string
				Args             []struct{ Value any }
				ExceptionDetails struct{ Exception struct{ Description string } }
				Request          struct{ URL string }
				URL              string
				Registrations    []struct{ RegistrationID, ScopeURL string }
				Value            []event // of Tracing.dataCollected
			}
		}
		check(b.t, json.Unmarshal(text, &got))
		switch {
		case got.Method == "Log.entryAdded":
			b.Said = append(b.Said, got.Params.Entry.Level+": "+got.Params.Entry.Text)
		case got.Method == "Runtime.exceptionThrown":
			b.Said = append(b.Said, "exception: "+got.Params.ExceptionDetails.Exception.Description)
		case got.Method == "Runtime.consoleAPICalled" && (got.Params.Type == "error" || got.Params.Type == "warning"):
			b.Said = append(b.Said, fmt.Sprint(got.Params.Type, ": ", got.Params.Args))
		case got.Method == "ServiceWorker.workerRegistrationUpdated":
			for _, r := range got.Params.Registrations {
				if b.Workers == nil {
					b.Workers = map[string]string{}
				}
				b.Workers[r.ScopeURL] = r.RegistrationID
			}
		case got.Method == "Network.requestWillBeSent":
			b.Requested = append(b.Requested, got.Params.Request.URL)
		case got.Method == "Network.webSocketCreated":
			b.Requested = append(b.Requested, got.Params.URL)
		case got.Method == "Tracing.dataCollected":
			b.trace = append(b.trace, got.Params.Value...)
		case got.Method == "Tracing.tracingComplete":
			b.whole = true
		case got.ID != id:
		case got.Error != nil:
			b.t.Fatalf("%s: %s", method, got.Error.Message)
		default:
			return got.Result
		}
	}
}

// Open opens an address and waits until the page has loaded.
func (p *Page) Open(url string) {
	p.b.t.Helper()
	p.Do("Page.navigate", map[string]any{"url": url})
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if p.Run("[location.href, document.readyState]+''") == url+",complete" {
			return
		}
		if time.Now().After(end) {
			p.b.t.Fatalf("%s is not read: %v", url, p.Run("location.href"))
		}
	}
}

// Run evaluates an expression in the page, and waits if it is a promise.
func (p *Page) Run(expression string) any {
	p.b.t.Helper()
	params := map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true}
	if p.context != 0 {
		params["contextId"] = p.context
	}
	got := p.Do("Runtime.evaluate", params)
	if failed, ok := got["exceptionDetails"]; ok {
		p.b.t.Fatalf("%s: %v", expression, failed)
	}
	result, _ := got["result"].(map[string]any)
	return result["value"]
}

// Leave begins a script that leaves the page, and does not wait for what it does.
func (p *Page) Leave(script string) {
	p.b.t.Helper()
	p.Do("Runtime.evaluate",
		map[string]any{"expression": "setTimeout(() => { " + script + " }, 0); 0", "userGesture": true})
}

// Until evaluates an expression until its value is true, a text or a number, for a minute, and returns it.
func (p *Page) Until(expression string) any {
	p.b.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if got := p.Run(expression); got != nil && got != false && got != "" {
			return got
		}
		if time.Now().After(end) {
			p.b.t.Fatalf("%s does not become true", expression)
		}
	}
}

// Frame returns a frame of the page whose address contains a text, as a page in which expressions can be evaluated.
func (p *Page) Frame(address string) *Page {
	p.b.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		for _, url := range p.b.Frames() {
			if strings.Contains(url.Address, address) {
				attached := p.b.do("", "Target.attachToTarget", map[string]any{"targetId": url.Target, "flatten": true})
				f := &Page{b: p.b, target: url.Target}
				f.session, _ = attached["sessionId"].(string)
				return f
			}
		}
		tree, _ := p.Do("Page.getFrameTree", nil)["frameTree"].(map[string]any)
		children, _ := tree["childFrames"].([]any)
		for _, child := range children {
			frame, _ := child.(map[string]any)["frame"].(map[string]any)
			if url, _ := frame["url"].(string); !strings.Contains(url, address) {
				continue
			}
			world := p.Do("Page.createIsolatedWorld", map[string]any{"frameId": frame["id"]})
			id, _ := world["executionContextId"].(float64)
			return &Page{b: p.b, session: p.session, target: p.target, context: int(id)}
		}
		if time.Now().After(end) {
			p.b.t.Fatalf("there is no frame of %s", address)
		}
	}
}

// Frame is a frame that has a process of its own.
type Frame struct{ Target, Address string }

// Frames returns the frames of all pages that have a process of their own.
func (b *Browser) Frames() []Frame {
	b.t.Helper()
	return b.targets("iframe")
}

func (b *Browser) targets(kind string) (all []Frame) {
	b.t.Helper()
	infos, _ := b.do("", "Target.getTargets", map[string]any{"filter": []any{map[string]any{}}})["targetInfos"].([]any)
	for _, info := range infos {
		if i, _ := info.(map[string]any); i["type"] == kind {
			target, _ := i["targetId"].(string)
			address, _ := i["url"].(string)
			all = append(all, Frame{target, address})
		}
	}
	return all
}

// ServiceWorker returns the service worker whose address contains a text, as a page in which expressions can be
// evaluated. The browser keeps it running as long as the test does.
func (b *Browser) ServiceWorker(address string) *Page {
	b.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		for _, worker := range b.targets("service_worker") {
			if strings.Contains(worker.Address, address) {
				attached := b.do("", "Target.attachToTarget", map[string]any{"targetId": worker.Target, "flatten": true})
				p := &Page{b: b, target: worker.Target}
				p.session, _ = attached["sessionId"].(string)
				return p
			}
		}
		if time.Now().After(end) {
			b.t.Fatalf("there is no service worker of %s", address)
		}
	}
}

// Screenshot returns what the page shows, as PNG.
func (p *Page) Screenshot() []byte {
	p.b.t.Helper()
	data, _ := p.Do("Page.captureScreenshot", map[string]any{"format": "png"})["data"].(string)
	shot, err := base64.StdEncoding.DecodeString(data)
	check(p.b.t, err)
	return shot
}

// Resize sets the size of the page in pixels of CSS, and whether it prefers the dark theme.
func (p *Page) Resize(width, height int, dark bool) {
	p.b.t.Helper()
	p.Do("Emulation.setDeviceMetricsOverride", map[string]any{
		"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500,
	})
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	p.Do("Emulation.setEmulatedMedia", map[string]any{
		"features": []map[string]any{{"name": "prefers-color-scheme", "value": scheme}},
	})
}

// Key presses and releases a key, such as "k", "Enter" or "ArrowDown". modifiers is the sum of 1 (Alt), 2 (Ctrl),
// 4 (Meta) and 8 (Shift).
func (p *Page) Key(key string, modifiers int) {
	p.b.t.Helper()
	down := map[string]any{"type": "keyDown", "key": key, "code": key, "modifiers": modifiers}
	if len(key) == 1 && modifiers&7 == 0 {
		down["text"] = key
	}
	if key == "Enter" {
		down["text"], down["windowsVirtualKeyCode"] = "\r", 13
	}
	if key == "Tab" {
		down["windowsVirtualKeyCode"] = 9
	}
	p.Do("Input.dispatchKeyEvent", down)
	p.Do("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "code": key, "modifiers": modifiers})
}

package hosttest_test

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// chromium is a browser that a test drives, with one page.
type chromium struct {
	t    *testing.T
	in   io.Writer
	out  *bufio.Reader
	page string // the DevTools session of the page
	last atomic.Int32
}

// newChromium starts a browser with a profile of its own. Without a browser it skips the test, but not in
// continuous integration.
func newChromium(t *testing.T) *chromium {
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
	must(t, err)
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
	must(t, err)
	out, fromIt, err := os.Pipe()
	must(t, err)
	cmd.ExtraFiles = []*os.File{toIt, fromIt} // descriptors 3 and 4, as --remote-debugging-pipe wants them
	must(t, cmd.Start())
	toIt.Close()
	fromIt.Close()
	t.Cleanup(func() {
		in.Close() // by which it ends
		late := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
		cmd.Wait() // its exit code says nothing here
		late.Stop()
		out.Close()
	})
	must(t, out.SetReadDeadline(time.Now().Add(5*time.Minute)))
	c := &chromium{t: t, in: in, out: bufio.NewReader(out)}
	made := c.do("", "Target.createTarget", map[string]any{"url": "about:blank"})
	target, _ := made["targetId"].(string)
	attached := c.do("", "Target.attachToTarget", map[string]any{"targetId": target, "flatten": true})
	c.page, _ = attached["sessionId"].(string)
	c.do(c.page, "Page.enable", nil)
	return c
}

// do sends one command of the DevTools protocol and returns its result. It ignores events.
func (c *chromium) do(session, method string, params map[string]any) map[string]any {
	c.t.Helper()
	id := c.last.Add(1)
	m := map[string]any{"id": id, "method": method, "params": params}
	if session != "" {
		m["sessionId"] = session
	}
	b, err := json.Marshal(m)
	must(c.t, err)
	_, err = c.in.Write(append(b, 0))
	must(c.t, err)
	for {
		b, err := c.out.ReadBytes(0)
		if err != nil {
			c.t.Fatalf("%s: chromium ended: %v", method, err)
		}
		var got struct {
			ID     int32
			Result map[string]any
			Error  *struct{ Message string }
		}
		must(c.t, json.Unmarshal(b[:len(b)-1], &got))
		switch {
		case got.ID != id:
		case got.Error != nil:
			c.t.Fatalf("%s: %s", method, got.Error.Message)
		default:
			return got.Result
		}
	}
}

// open opens a page and waits until it has loaded.
func (c *chromium) open(url string) {
	c.t.Helper()
	c.do(c.page, "Page.navigate", map[string]any{"url": url})
	for end := time.Now().Add(time.Minute); c.run("[location.href, document.readyState]+''") != url+",complete"; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatalf("%s is not read: %v", url, c.run("location.href"))
		}
	}
}

// run evaluates an expression in the page, and waits if it is a promise.
func (c *chromium) run(expression string) any {
	c.t.Helper()
	got := c.do(
		c.page,
		"Runtime.evaluate",
		map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true},
	)
	if failed, ok := got["exceptionDetails"]; ok {
		c.t.Fatalf("%s: %v", expression, failed)
	}
	result, _ := got["result"].(map[string]any)
	return result["value"]
}

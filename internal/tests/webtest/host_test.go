package webtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/tests/chromium"
	"gatehouse/module"
	"gatehouse/tool"
)

// host is a whole host with its HTTP listener on loopback.
type host struct {
	t    testing.TB
	cfg  config.Config
	app  *app.App
	url  string // of its pages, without a path
	stop func()
}

func settings(t testing.TB) config.Config {
	t.Helper()
	home := t.TempDir()
	c, err := config.FromEnv(func(name string) string {
		return map[string]string{"HOME": home, "XDG_RUNTIME_DIR": filepath.Join(home, "run")}[name]
	})
	check(t, err)
	c.Roots.Folders = []string{t.TempDir()}
	c.Limits.StopPatience = 10 * time.Second
	c.Limits.Rate = new(float64)
	c.View.Modules = []string{"file", "dir", "process", "server", "db"}
	c.Listen.HTTP.Open, c.Listen.HTTP.Host, c.Listen.HTTP.Port = true, "127.0.0.1", 0
	return c
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// start runs a host with the tools of fixture beside its own.
func start(t testing.TB, cfg config.Config, tools ...tool.Tool) *host {
	t.Helper()
	h := &host{t: t, cfg: cfg}
	h.run(nil, tools)
	return h
}

// run runs the host, on ln if it is not nil.
func (h *host) run(ln net.Listener, tools []tool.Tool) {
	t := h.t
	t.Helper()
	o := app.Options{
		Log:   slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError})),
		Extra: []app.Module{{Name: "t", New: offering(append(fixture(), tools...)...)}},
	}
	if ln != nil {
		o.Listeners = map[string]net.Listener{app.HTTP: ln}
	}
	a, err := app.New(t.Context(), h.cfg, o)
	check(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	over := false
	h.stop = func() {
		if over {
			return
		}
		over = true
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(h.stop)
	h.app, h.url = a, strings.TrimSuffix(a.Listeners()[0].Address, "/mcp")
}

type fixed struct{ tools []tool.Tool }

func offering(tools ...tool.Tool) module.New {
	return func(context.Context, module.Deps) (module.Module, error) { return fixed{tools}, nil }
}

func (f fixed) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &module.Offer{Tools: f.tools}, nil
}

func (fixed) Close(context.Context) error { return nil }

type name struct {
	Name string `json:"name"`
}

type steps struct {
	Steps int `json:"steps" doc:"how many"`
}

type city struct {
	City   string  `json:"city"`
	People int     `json:"people"`
	Warm   bool    `json:"warm"`
	Share  float64 `json:"share"`
}

type cities struct {
	Cities []city `json:"cities"`
}

// fixture are tools with what a page must show: a question, progress, an image, rows.
func fixture() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{Name: "t_order", Title: "Order", Description: "Asks for a size.", Effects: tool.Writes},
			func(_ context.Context, c *tool.Call, in name) (tool.Result, error) {
				got, err := c.Peer.Ask(tool.Elicit("size", "Which size shall "+in.Name+" have?", json.RawMessage(
					`{"type":"object","properties":{"size":{"type":"string","enum":["small","large"]}},"required":["size"]}`)))
				if err != nil {
					return tool.Result{}, err
				}
				var answer struct{ Size string }
				action, err := tool.Elicited(got["size"], &answer)
				if err != nil {
					return tool.Result{}, err
				}
				return tool.Result{Content: []tool.Content{tool.Text(action + " " + answer.Size + " " + in.Name)}}, nil
			}),
		tool.New(tool.Def{Name: "t_walk", Description: "Takes steps.", Effects: tool.Reads, Timeout: time.Minute},
			func(ctx context.Context, c *tool.Call, in steps) (tool.Result, error) {
				for i := range in.Steps {
					c.Peer.Progress(float64(i+1), float64(in.Steps), fmt.Sprint("step ", i+1))
					select {
					case <-ctx.Done():
						return tool.Result{}, ctx.Err()
					case <-time.After(50 * time.Millisecond):
					}
				}
				return tool.Result{Content: []tool.Content{tool.Text("walked")}}, nil
			}),
		tool.New(tool.Def{Name: "t_picture", Description: "Draws.", Effects: tool.Reads},
			func(context.Context, *tool.Call, struct{}) (tool.Result, error) {
				var b bytes.Buffer
				if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, 24, 16))); err != nil {
					return tool.Result{}, err
				}
				return tool.Result{Content: []tool.Content{tool.Image("image/png", b.Bytes())}}, nil
			}),
		tool.New(tool.Def{Name: "t_cities", Description: "Lists cities.", Effects: tool.Reads},
			func(context.Context, *tool.Call, struct{}) (cities, error) {
				return cities{[]city{{"Lyon", 522_000, true, .5}, {"Oslo", 709_000, false, .25}}}, nil
			}),
	}
}

// driver are functions that a story uses in its page. Each waits until what it needs is there.
const driver = `
window.story = {
  async until(what, f) {
    const end = Date.now() + 120000;
    for (;;) {
      let got;
      try { got = await f(); } catch (e) { got = undefined; }
      if (got) return got;
      if (Date.now() > end) throw new Error("there is no " + what + " in: " + document.body.innerText.slice(0, 3000));
      await new Promise((done) => setTimeout(done, 15));
    }
  },
  shown: (e) => e.checkVisibility({ visibilityProperty: true }),
  text: (t) => story.until("text " + t, () => document.body.innerText.includes(t)),
  gone: (t) => story.until("end of " + t, () => !document.body.innerText.includes(t)),
  find: (selector, t) => story.until(selector + " " + t, () => [...document.querySelectorAll(selector)].find((e) => story.shown(e)
    && !e.disabled && (t === undefined || e.innerText.trim() === t || e.getAttribute("aria-label") === t))),
  async press(t, selector = "button, a, [role=option]") { (await story.find(selector, t)).click(); },
  async fill(id, value) {
    const e = await story.until("field " + id, () => document.getElementById(id));
    e.focus();
    Object.getOwnPropertyDescriptor(Object.getPrototypeOf(e), "value").set.call(e, value);
    e.dispatchEvent(new Event("input", { bubbles: true }));
    e.dispatchEvent(new Event("change", { bubbles: true }));
  },
  go(hash) { location.hash = hash; },
};
true`

// visit opens a page of the host in a browser, and says where nothing may be said: its errors fail the test.
func (h *host) visit(b *chromium.Browser, hash string) *chromium.Page {
	h.t.Helper()
	p := h.blank(b)
	p.Open(h.url + "/" + hash)
	return p
}

// blank opens an empty page.
func (h *host) blank(b *chromium.Browser) *chromium.Page {
	h.t.Helper()
	p := b.NewPage()
	p.Watch()
	p.Do("Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": driver})
	p.Resize(1280, 900, false)
	h.t.Cleanup(func() {
		for _, said := range b.Said {
			if !strings.Contains(said, "/auth/me") && !strings.Contains(said, "Failed to load resource") {
				h.t.Errorf("the page said: %s", said)
			}
		}
	})
	return p
}

// play runs the steps of a story, which are JavaScript, and returns their value.
func play(p *chromium.Page, steps string) any {
	return p.Run("(async () => { " + steps + " })()")
}

// until calls f until it returns nil, for two minutes, and returns its last error.
func until(f func() error) (err error) {
	for range 2400 {
		if err = f(); err == nil {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return err
}

func exists(path string) error {
	_, err := os.Stat(path)
	return err
}

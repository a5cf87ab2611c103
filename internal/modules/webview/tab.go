package webview

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/files/roots"
	"gatehouse/internal/modules/webview/page"
	"gatehouse/tool"
)

// place is the part of the arguments that names the page.
type place struct {
	Session string `json:"session,omitempty" doc:"the browser, by a name of your choice" default:"default" min:"1" max:"64"`
	Tab     string `json:"tab,omitempty" doc:"from webview_tabs; default: the current one" max:"16"`
}

// showing is the part of the arguments of an action that asks for the page after it.
type showing struct {
	Snapshot  string `json:"snapshot,omitempty" doc:"add the page after the action: what changed since you last saw it, or all" enum:"none,diff,full" default:"none"`
	MaxTokens int    `json:"max_tokens,omitempty" doc:"of the snapshot; default 4000" min:"100" max:"50000"`
}

type timed struct {
	Timeout int `json:"timeout,omitempty" doc:"seconds to wait" default:"10" min:"1" max:"45"`
}

func (t timed) duration() time.Duration { return time.Duration(t.Timeout) * time.Second }

// acted is the output of an action.
type acted struct {
	Text    string `json:"text,omitempty" text:"product" doc:"the page, if it was asked for"`
	Success bool   `json:"success" text:"facts"`
	URL     string `json:"url,omitempty" text:"facts"`
	Ref     string `json:"ref,omitempty" text:"facts" doc:"of the element that was acted on"`
	Healed  string `json:"healed,omitempty" text:"facts" doc:"what was done about a stale ref"`
	Dialog  string `json:"dialog,omitempty" text:"facts" doc:"a dialog that waits for webview_dialog"`
	Tab     string `json:"tab,omitempty" text:"facts" doc:"if another tab is the current one now"`
	Notice  string `json:"notice,omitempty" text:"facts"`
}

// Facts implements tool.Facter.
func (o acted) Facts() string {
	var words []string
	if o.Success {
		words = append(words, "ok")
	}
	for _, f := range []struct{ name, value string }{{"url", o.URL}, {"tab", o.Tab}} {
		if f.value != "" {
			words = append(words, f.name+"="+tool.Fact(f.value))
		}
	}
	for _, text := range []string{o.Healed, o.Dialog, o.Notice} {
		if text != "" {
			words = append(words, oneLine(text))
		}
	}
	return tool.Facts(words...)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// on runs f with the tab that the arguments name, while no other call acts on it. Files are served
// from the roots of the call.
func (m *manager) on(ctx context.Context, c *tool.Call, p place, f func(s *session, t *page.Tab) error) error {
	s := m.findSession(c, p.Session)
	if s == nil {
		return &tool.Refusal{
			Code: tool.CodeNotFound, Message: fmt.Sprintf("no browser of the name %q is open", p.Session),
			Next: "webview_navigate opens a page, and starts a browser for it.",
		}
	}
	t, err := s.tab(ctx, p.Tab)
	if err != nil {
		return refuse(err)
	}
	t.Lock()
	defer t.Unlock()
	t.ServeFiles(filesOf(c))
	defer t.ServeFiles(nil)
	return refuse(f(s, t))
}

// tab returns a tab by its ID, or the current one.
func (s *session) tab(ctx context.Context, id string) (*page.Tab, error) {
	if id == "" {
		return s.browser.Current(ctx)
	}
	tabs, _ := s.browser.Tabs()
	i := slices.IndexFunc(tabs, func(t *page.Tab) bool { return t.ID == id })
	if i < 0 {
		return nil, &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: fmt.Sprintf("there is no tab %q", id),
			Next:    "webview_tabs lists them.",
		}
	}
	return tabs[i], nil
}

const mostFile = 32 << 20 // bytes of a file that a page loads

// filesOf returns what serves files from the roots of a call.
func filesOf(c *tool.Call) page.FileServer {
	return func(path string) ([]byte, string, error) {
		p, err := roots.Locate(c.Roots, filepath.FromSlash(path))
		if err != nil {
			return nil, "", err
		}
		f, info, err := p.Regular()
		if err != nil {
			return nil, "", err
		}
		defer f.Close()
		if info.Size() > mostFile {
			return nil, "", errors.New("it is too large")
		}
		b, err := io.ReadAll(io.LimitReader(f, mostFile))
		kind := mime.TypeByExtension(filepath.Ext(path))
		if kind == "" {
			kind = "application/octet-stream"
		}
		return b, kind, err
	}
}

// dialogRefusal refuses an action while a dialog is open.
func dialogRefusal(t *page.Tab) error {
	d := t.Dialog()
	if d == nil {
		return nil
	}
	return &tool.Refusal{
		Code: tool.CodeBusy, Message: wordDialog(d),
		Next: "Answer it with webview_dialog; the page does nothing until then.",
	}
}

func wordDialog(d *page.Dialog) string {
	return fmt.Sprintf("dialog %s is open: %s %q", d.Handle, d.Type, d.Message)
}

// act runs an action on an element and describes what came of it.
func (m *manager) act(
	ctx context.Context,
	c *tool.Call,
	p place,
	show showing,
	f func(*session, *page.Tab) (page.Element, error),
) (out acted, err error) {
	err = m.on(ctx, c, p, func(s *session, t *page.Tab) error {
		if err := dialogRefusal(t); err != nil {
			return err
		}
		before := t.URL()
		e, err := f(s, t)
		if err != nil && !errors.Is(err, page.ErrDialog) {
			return err
		}
		out.Success = true
		if e.Ref() != "e0" {
			out.Ref = e.Ref()
		}
		out.Healed = e.Healed
		return m.after(ctx, s, t, show, before, &out)
	})
	return out, err
}

// after adds to the output of an action what the page is now.
func (m *manager) after(ctx context.Context, s *session, t *page.Tab, show showing, before string, out *acted) error {
	if _, now := s.browser.Tabs(); now != nil && now != t {
		out.Tab = now.ID
	}
	if d := t.Dialog(); d != nil {
		out.Dialog = wordDialog(d)
		return nil
	}
	if url := t.URL(); url != before {
		out.URL = url
	}
	if show.Snapshot == "none" || show.Snapshot == "" {
		return nil
	}
	shown, err := t.Snapshot(ctx,
		page.SnapshotOptions{MaxTokens: show.MaxTokens, Diff: show.Snapshot == "diff" && out.URL == ""})
	if errors.Is(err, page.ErrDialog) {
		return nil
	}
	if err != nil {
		return err
	}
	out.Text = s.hide(shown.Text)
	return nil
}

// target reads the target of an action: the field target, or selector of the original tool.
func target(text, selector string) (page.Target, error) {
	if text == "" && selector != "" {
		return page.Target{Selector: selector}, nil
	}
	if text == "" {
		return page.Target{}, tool.Refuse(tool.CodeInvalidArguments, "target: expected a ref such as e12, "+
			`role and name such as button "Save", text=..., css=... or x,y`)
	}
	t, err := page.ParseTarget(text)
	if err != nil {
		return t, tool.Refuse(tool.CodeInvalidArguments, "target: %v", err)
	}
	return t, nil
}

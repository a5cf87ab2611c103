package webview

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/modules/webview/page"
	"gatehouse/tool"
)

type connectIn struct {
	DebugURL string `json:"debug_url,omitempty" doc:"of a browser that runs with a debug port, such as http://127.0.0.1:9222; default: one is started" max:"500"`
	Timeout  int    `json:"timeout,omitempty" doc:"seconds" default:"30" min:"1" max:"45"`
	Session  string `json:"session,omitempty" default:"default" min:"1" max:"64"`
}

type connectOut struct {
	Success bool   `json:"success"`
	Message string `json:"message,omitempty"`
}

func (m *manager) connect(ctx context.Context, c *tool.Call, in connectIn) (connectOut, error) {
	if in.DebugURL != "" && !slices.Contains(m.cfg.Attach, strings.TrimSuffix(in.DebugURL, "/")) {
		return connectOut{}, &tool.Refusal{
			Code:    tool.CodeDenied,
			Message: "debug_url: the settings of this host do not allow to attach to " + in.DebugURL,
			Next:    "The administrator can add it to modules.webview.attach; without debug_url a browser is started.",
		}
	}
	m.endSessions(func(s *session) bool { return s.owner == c.Caller.Owner && s.name == in.Session })
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(in.Timeout)*time.Second,
		fmt.Errorf("the browser was not ready within %d s", in.Timeout))
	defer cancel()
	s, err := m.get(ctx, c, in.Session, in.DebugURL)
	if err != nil {
		return connectOut{}, err
	}
	message := "started a browser in a sandbox"
	switch {
	case in.DebugURL != "":
		message = "attached to " + in.DebugURL
	case s.loose != "":
		message = "started a browser without a sandbox: " + s.loose
	}
	return connectOut{true, message}, nil
}

type disconnectIn struct {
	Session string `json:"session,omitempty" default:"default" min:"1" max:"64"`
}

func (m *manager) disconnect(_ context.Context, c *tool.Call, in disconnectIn) (connectOut, error) {
	ended := m.endSessions(func(s *session) bool { return s.owner == c.Caller.Owner && s.name == in.Session })
	if len(ended) == 0 {
		return connectOut{true, "no browser of this name was open"}, nil
	}
	return connectOut{true, "closed"}, nil
}

type navigateIn struct {
	place
	URL     string `json:"url,omitempty" doc:"http, https or a file in your folders" max:"8000"`
	History string `json:"history,omitempty" doc:"instead of url" enum:"back,forward,reload"`
	showing
	Timeout int `json:"timeout,omitempty" doc:"seconds until the load event" default:"30" min:"1" max:"45"`
}

type navigateOut struct {
	Text    string `json:"text,omitempty" text:"product" doc:"the page, if it was asked for"`
	Success bool   `json:"success" text:"facts"`
	URL     string `json:"url" text:"facts"`
	Title   string `json:"title,omitempty" text:"facts"`
	Status  int64  `json:"status,omitempty" text:"facts" doc:"of HTTP"`
	Loading bool   `json:"loading,omitempty" text:"facts" doc:"the page had not loaded in time"`
	Dialog  string `json:"dialog,omitempty" text:"facts"`
}

// Facts implements tool.Facter.
func (o navigateOut) Facts() string {
	words := []string{"url=" + tool.Fact(o.URL)}
	if o.Title != "" {
		words = append(words, "title="+tool.Fact(o.Title))
	}
	if o.Status != 0 && o.Status != 200 {
		words = append(words, fmt.Sprintf("status=%d", o.Status))
	}
	if o.Loading {
		words = append(words, "still loading")
	}
	return tool.Facts(append(words, oneLine(o.Dialog))...)
}

var historySteps = map[string]int{"back": -1, "forward": 1, "reload": 0}

func (m *manager) navigate(ctx context.Context, c *tool.Call, in navigateIn) (out navigateOut, err error) {
	if (in.URL == "") == (in.History == "") {
		return out, tool.Refuse(tool.CodeInvalidArguments, "expected either url or history")
	}
	if in.URL != "" {
		if _, err := page.CheckURL(in.URL); err != nil {
			return out, refuse(err) // before a browser is started
		}
	}
	if in.URL != "" {
		if _, err := m.get(ctx, c, in.Session, ""); err != nil {
			return out, err
		}
	}
	err = m.on(ctx, c, in.place, func(s *session, t *page.Tab) error {
		if err := dialogRefusal(t); err != nil {
			return err
		}
		var n page.Navigation
		var err error
		timeout := time.Duration(in.Timeout) * time.Second
		if in.URL != "" {
			n, err = t.Navigate(ctx, in.URL, timeout)
		} else {
			n, err = t.History(ctx, historySteps[in.History], timeout)
		}
		if err != nil {
			return err
		}
		out = navigateOut{Success: true, URL: n.URL, Status: n.Status, Loading: n.Loading}
		if d := t.Dialog(); d != nil {
			out.Dialog = wordDialog(d)
			return nil
		}
		if in.Snapshot == "none" {
			return nil
		}
		shown, err := t.Snapshot(ctx, page.SnapshotOptions{MaxTokens: in.MaxTokens, Diff: in.Snapshot == "diff"})
		out.Text, out.Title = s.hide(shown.Text), shown.Title
		return err
	})
	return out, err
}

type tabsIn struct {
	Session string `json:"session,omitempty" default:"default" min:"1" max:"64"`
	Action  string `json:"action,omitempty" enum:"list,new,select,close" default:"list"`
	Tab     string `json:"tab,omitempty" doc:"of select and close" max:"16"`
}

type tabsOut struct {
	Tabs     []tabOut `json:"tabs"`
	Sessions []string `json:"sessions" doc:"your open browsers"`
}

type tabOut struct {
	Tab     string `json:"tab"`
	URL     string `json:"url"`
	Current bool   `json:"current,omitempty"`
	Dialog  string `json:"dialog,omitempty"`
}

func (m *manager) tabs(ctx context.Context, c *tool.Call, in tabsIn) (out tabsOut, err error) {
	out.Tabs, out.Sessions = []tabOut{}, []string{}
	s := m.findSession(c, in.Session)
	if s == nil && in.Action == "new" {
		if s, err = m.get(ctx, c, in.Session, ""); err != nil {
			return out, err
		}
	} else if s != nil && in.Action != "list" {
		if err := s.changeTab(ctx, in); err != nil {
			return out, refuse(err)
		}
	}
	m.mu.Lock()
	for _, o := range m.sessions {
		if o.owner == c.Caller.Owner {
			out.Sessions = append(out.Sessions, o.name)
		}
	}
	m.mu.Unlock()
	slices.Sort(out.Sessions)
	if s == nil {
		return out, nil
	}
	tabs, current := s.browser.Tabs()
	for _, t := range tabs {
		o := tabOut{Tab: t.ID, URL: t.URL(), Current: t == current}
		if d := t.Dialog(); d != nil {
			o.Dialog = wordDialog(d)
		}
		out.Tabs = append(out.Tabs, o)
	}
	return out, nil
}

func (s *session) changeTab(ctx context.Context, in tabsIn) error {
	if in.Action == "new" {
		_, err := s.browser.NewTab(ctx)
		return err
	}
	if in.Tab == "" {
		return tool.Refuse(tool.CodeInvalidArguments, "tab: expected the tab to %s", in.Action)
	}
	t, err := s.tab(ctx, in.Tab)
	if err != nil {
		return err
	}
	if in.Action == "select" {
		return s.browser.Select(ctx, t)
	}
	return s.browser.CloseTab(ctx, t)
}

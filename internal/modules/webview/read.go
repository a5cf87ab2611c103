package webview

import (
	"context"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"time"

	"gatehouse/internal/modules/webview/page"
	"gatehouse/tool"
)

type snapshotIn struct {
	place
	Mode      string `json:"mode,omitempty" enum:"full,interactive,text,markdown" default:"full"`
	MaxTokens int    `json:"max_tokens,omitempty" default:"4000" min:"100" max:"50000"`
	Within    string `json:"within,omitempty" doc:"a target: only this element" max:"1000"`
	Cursor    int    `json:"cursor,omitempty" doc:"the line to begin with" min:"1"`
	Diff      bool   `json:"diff,omitempty" doc:"only what changed since the page was last shown"`
	URLs      bool   `json:"urls,omitempty" doc:"links with their addresses"`
}

type snapshotOut struct {
	Text   string `json:"text" text:"product"`
	URL    string `json:"url" text:"facts"`
	Title  string `json:"title" text:"facts"`
	Lines  int    `json:"lines" text:"facts" doc:"of the whole page"`
	Shown  int    `json:"shown" text:"facts"`
	Next   int    `json:"next,omitempty" text:"facts" doc:"the cursor of the first line that is left out"`
	Healed string `json:"healed,omitempty" text:"facts"`
	Dialog string `json:"dialog,omitempty" text:"facts"`
}

// Facts implements tool.Facter.
func (o snapshotOut) Facts() string {
	words := []string{"url=" + tool.Fact(o.URL), "title=" + tool.Fact(o.Title)}
	if o.Next > 0 {
		words = append(words, fmt.Sprintf("%d of %d lines; next cursor=%d", o.Shown, o.Lines, o.Next))
	}
	return tool.Facts(append(words, oneLine(o.Healed), oneLine(o.Dialog))...)
}

func (m *manager) snapshot(ctx context.Context, c *tool.Call, in snapshotIn) (out snapshotOut, err error) {
	o := page.SnapshotOptions{Mode: in.Mode, MaxTokens: in.MaxTokens, Cursor: in.Cursor, Diff: in.Diff, URLs: in.URLs}
	if in.Within != "" {
		within, err := target(in.Within, "")
		if err != nil {
			return out, err
		}
		o.Within = &within
	}
	err = m.on(ctx, c, in.place, func(s *session, t *page.Tab) error {
		if err := dialogRefusal(t); err != nil {
			return err
		}
		got, err := t.Snapshot(ctx, o)
		if err != nil {
			return err
		}
		out = snapshotOut{
			Text: s.hide(got.Text), URL: got.URL, Title: got.Title, Lines: got.Lines, Shown: got.Shown, Next: got.Next,
			Healed: got.Healed,
		}
		return nil
	})
	return out, err
}

type findIn struct {
	place
	Text  string `json:"text,omitempty" max:"500"`
	Regex string `json:"regex,omitempty" doc:"instead of text" max:"500"`
	Limit int    `json:"limit,omitempty" default:"20" min:"1" max:"200"`
}

type findOut struct {
	Text  string `json:"text" text:"product"`
	Total int    `json:"total" text:"facts"`
}

// Facts implements tool.Facter.
func (o findOut) Facts() string { return tool.Facts(fmt.Sprintf("total=%d", o.Total)) }

func (m *manager) findLines(ctx context.Context, c *tool.Call, in findIn) (out findOut, err error) {
	if (in.Text == "") == (in.Regex == "") {
		return out, tool.Refuse(tool.CodeInvalidArguments, "expected either text or regex")
	}
	want := strings.ToLower(in.Text)
	match := func(line string) bool { return strings.Contains(strings.ToLower(line), want) }
	if in.Regex != "" {
		re, err := regexp.Compile(in.Regex)
		if err != nil {
			return out, tool.Refuse(tool.CodeInvalidArguments, "regex: %v", err)
		}
		match = re.MatchString
	}
	err = m.on(ctx, c, in.place, func(s *session, t *page.Tab) error {
		if err := dialogRefusal(t); err != nil {
			return err
		}
		found, total, err := t.Find(ctx, match, in.Limit)
		var b strings.Builder
		for _, f := range found {
			fmt.Fprintf(&b, "%d: %s", f.Line, f.Text)
			if f.Before != "" {
				fmt.Fprintf(&b, "  (%s)", f.Before)
			}
			b.WriteByte('\n')
		}
		if out = (findOut{s.hide(b.String()), total}); total == 0 {
			out.Text = "Nothing was found.\n"
		}
		return err
	})
	return out, err
}

type queryIn struct {
	place
	Selector string   `json:"selector,omitempty" doc:"CSS; it finds elements in shadow trees too" max:"1000"`
	Target   string   `json:"target,omitempty" doc:"instead of selector" max:"1000"`
	All      bool     `json:"all,omitempty" doc:"describe all that match, not only the first"`
	Fields   []string `json:"fields,omitempty" doc:"text, links, rows: what to give of each element; rows are those of a table or list" max:"3"`
	Page     int      `json:"page,omitempty" doc:"of rows, from 1" min:"1"`
	PerPage  int      `json:"per_page,omitempty" default:"20" min:"1" max:"500"`
	Contains string   `json:"contains,omitempty" doc:"only rows with this text" max:"500"`
}

type queryOut struct {
	Found    bool               `json:"found"`
	Count    int                `json:"count"`
	Elements []page.Description `json:"elements,omitempty"`
	Header   string             `json:"header,omitempty"`
	Rows     []string           `json:"rows,omitempty"`
	Total    int                `json:"total,omitempty" doc:"rows that match"`
}

const (
	mostQueried = 100
	queriedText = 500 // bytes
)

func (m *manager) query(ctx context.Context, c *tool.Call, in queryIn) (out queryOut, err error) {
	want, err := target(in.Target, in.Selector)
	if err != nil {
		return out, err
	}
	text, links, rows := 0, false, in.Page > 0 || in.Contains != ""
	for _, f := range in.Fields {
		switch f {
		case "text":
			text = queriedText
		case "links":
			links = true
		case "rows":
			rows = true
		default:
			return out, tool.Refuse(tool.CodeInvalidArguments, "fields: expected text, links or rows, not %q", f)
		}
	}
	err = m.on(ctx, c, in.place, func(s *session, t *page.Tab) error {
		if err := dialogRefusal(t); err != nil {
			return err
		}
		most := 1
		if in.All {
			most = mostQueried
		}
		found, count, err := t.Search(ctx, want, most)
		if err != nil {
			return err
		}
		out.Found, out.Count = count > 0, count
		if rows && count > 0 {
			items, err := t.Items(ctx, found[0], (max(in.Page, 1)-1)*in.PerPage, in.PerPage, in.Contains)
			if err != nil {
				return err
			}
			out.Header, out.Total = items.Header, items.Total
			for _, r := range items.Rows {
				out.Rows = append(out.Rows, s.hide(r))
			}
			return nil
		}
		if out.Elements, err = t.Describe(ctx, found, text, links); err != nil {
			return err
		}
		for i := range out.Elements {
			out.Elements[i].Text, out.Elements[i].Value = s.hide(out.Elements[i].Text), s.hide(out.Elements[i].Value)
		}
		return nil
	})
	return out, err
}

type evalIn struct {
	place
	Script string `json:"script" doc:"an expression, or statements with return" min:"1" max:"100000"`
}

type evalOut struct {
	Result  string `json:"result,omitempty" text:"product" doc:"the value as JSON"`
	Success bool   `json:"success" text:"facts"`
	Error   string `json:"error,omitempty" text:"facts"`
	Dialog  string `json:"dialog,omitempty" text:"facts"`
}

// Facts implements tool.Facter.
func (o evalOut) Facts() string {
	if o.Error != "" {
		return tool.Facts("the script failed: "+o.Error, oneLine(o.Dialog))
	}
	return tool.Facts(oneLine(o.Dialog))
}

const mostResult = 100_000 // bytes

func (m *manager) eval(ctx context.Context, c *tool.Call, in evalIn) (out evalOut, err error) {
	err = m.on(ctx, c, in.place, func(s *session, t *page.Tab) error {
		if err := dialogRefusal(t); err != nil {
			return err
		}
		v, err := t.Eval(ctx, in.Script)
		if d := t.Dialog(); d != nil {
			out = evalOut{Dialog: wordDialog(d), Success: true}
			return nil
		}
		if e, ok := err.(*page.ScriptError); ok {
			out.Error = s.hide(e.Text)
			return nil
		}
		if err != nil {
			return err
		}
		if len(v) > mostResult {
			return &tool.Refusal{
				Code:    tool.CodeTooLarge,
				Message: fmt.Sprintf("the value has %d bytes; at most %d are returned", len(v), mostResult),
				Next:    "Return a part of it.",
			}
		}
		out = evalOut{Success: true, Result: s.hide(string(v))}
		return nil
	})
	return out, err
}

type waitIn struct {
	place
	Selector string `json:"selector,omitempty" max:"1000"`
	Text     string `json:"text,omitempty" max:"1000"`
	TextGone string `json:"text_gone,omitempty" max:"1000"`
	URL      string `json:"url,omitempty" doc:"a part of the address" max:"1000"`
	Script   string `json:"script,omitempty" doc:"an expression that becomes true" max:"10000"`
	Idle     bool   `json:"network_idle,omitempty" doc:"no request for half a second"`
	Timeout  int    `json:"timeout,omitempty" doc:"seconds" default:"10" min:"1" max:"45"`
}

func (m *manager) waitFor(ctx context.Context, c *tool.Call, in waitIn) (out connectOut, err error) {
	given := 0
	for _, s := range []string{in.Selector, in.Text, in.TextGone, in.URL, in.Script} {
		if s != "" {
			given++
		}
	}
	if in.Idle {
		given++
	}
	if given != 1 {
		return out, tool.Refuse(tool.CodeInvalidArguments,
			"expected exactly one of selector, text, text_gone, url, script and network_idle")
	}
	err = m.on(ctx, c, in.place, func(_ *session, t *page.Tab) error {
		if err := dialogRefusal(t); err != nil {
			return err
		}
		limit := time.Duration(in.Timeout) * time.Second
		ctx, cancel := context.WithTimeoutCause(ctx, limit, &tool.Refusal{
			Code: tool.CodeTimeout, Message: fmt.Sprintf("it did not come within %v", limit),
			Next: "webview_snapshot shows the page as it is.",
		})
		defer cancel()
		err := t.Await(ctx, page.Condition{
			Selector: in.Selector, Text: in.Text, TextGone: in.TextGone, Script: in.Script, URL: in.URL, Idle: in.Idle,
		})
		if d := t.Dialog(); d != nil {
			out = connectOut{false, wordDialog(d)}
			return nil
		}
		out.Success = err == nil
		return err
	})
	return out, err
}

type screenshotIn struct {
	place
	Format string `json:"format,omitempty" enum:"jpeg,png" default:"jpeg"`
	Target string `json:"target,omitempty" doc:"only this element" max:"1000"`
	Full   bool   `json:"full_page,omitempty"`
	Marks  bool   `json:"marks,omitempty" doc:"draw the refs"`
	Width  int    `json:"max_width,omitempty" doc:"pixels; default 1024" min:"16" max:"4096"`
}

// screenshotOut has a text, because clients that show the model structured content do not show it the picture then.
type screenshotOut struct {
	Text    string `json:"text" text:"product"`
	Success bool   `json:"success" text:"facts"`
	Format  string `json:"format" text:"facts"`
	Bytes   int    `json:"bytes" text:"facts"`
}

// Facts implements tool.Facter.
func (screenshotOut) Facts() string { return "" }

// screenshotTool returns the tool whose picture is a block of its own.
func (m *manager) screenshotTool(d tool.Def) tool.Tool {
	t := tool.New(d, func(ctx context.Context, c *tool.Call, in screenshotIn) (tool.Result, error) {
		picture, err := m.screenshot(ctx, c, in)
		if err != nil {
			return tool.Result{}, err
		}
		text := fmt.Sprintf("image/%s, %d bytes", in.Format, len(picture))
		res := tool.Typed(screenshotOut{text, true, in.Format, len(picture)})
		res.Content = []tool.Content{tool.Image("image/"+in.Format, picture)}
		return res, nil
	})
	t.Out = reflect.TypeFor[screenshotOut]()
	return t
}

func (m *manager) screenshot(ctx context.Context, c *tool.Call, in screenshotIn) (picture []byte, err error) {
	o := page.ShotOptions{PNG: in.Format == "png", Full: in.Full, Marks: in.Marks, Width: in.Width}
	if in.Target != "" {
		clip, err := target(in.Target, "")
		if err != nil {
			return nil, err
		}
		o.Target = &clip
	}
	err = m.on(ctx, c, in.place, func(_ *session, t *page.Tab) error {
		if err := dialogRefusal(t); err != nil {
			return err
		}
		picture, err = t.Screenshot(ctx, o)
		return err
	})
	return picture, err
}

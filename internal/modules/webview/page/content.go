package page

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/storage"

	"gatehouse/internal/modules/webview/chromium"
)

// Eval runs a script in the page's own world, as an expression or as the body of a function, and returns its value as
// JSON. An element is returned as its ref.
func (t *Tab) Eval(ctx context.Context, script string) (json.RawMessage, error) {
	t.browser.mu.Lock()
	f := t.frames[t.main]
	t.browser.mu.Unlock()
	if f == nil {
		return nil, errFrameGone
	}
	var got runtime.EvaluateResult
	var err error
	// What cannot be parsed has not run: it may be an expression with await, or the body of a function.
	for _, form := range []string{"%s", "(async () => (%s\n))()", "(async () => {%s\n})()"} {
		got, err = t.evaluate(ctx, f, strings.Replace(form, "%s", script, 1))
		if d := got.ExceptionDetails; err != nil || d == nil ||
			!strings.HasPrefix(scriptError(d).Error(), "SyntaxError") {
			break
		}
	}
	switch {
	case err != nil:
		return nil, err
	case got.ExceptionDetails != nil:
		return nil, scriptError(got.ExceptionDetails)
	case got.Result == nil || got.Result.Type == runtime.RemoteObjectTypeUndefined:
		return json.RawMessage("null"), nil
	case got.Result.Subtype == runtime.RemoteObjectSubtypeNode && got.Result.ObjectID != "":
		return t.refOfObject(ctx, f, got.Result.ObjectID)
	case got.Result.ObjectID != "":
		return t.valueOf(ctx, f, got.Result)
	case got.Result.UnserializableValue != "":
		return json.Marshal(string(got.Result.UnserializableValue))
	}
	return json.RawMessage(got.Result.Value), nil
}

func (t *Tab) evaluate(ctx context.Context, f *frame, script string) (got runtime.EvaluateResult, err error) {
	err = t.waitForReply(ctx, chromium.Send(f.session.Session, runtime.Evaluate, runtime.EvaluateParams{
		Expression: script, AwaitPromise: new(true), UserGesture: new(true), ContextID: f.script,
		ObjectGroup: "eval",
	}), &got)
	return got, err
}

// valueOf returns an object of the page as JSON.
func (t *Tab) valueOf(ctx context.Context, f *frame, o *runtime.RemoteObject) (json.RawMessage, error) {
	var got runtime.CallFunctionOnResult
	err := t.waitForReply(ctx, chromium.Send(f.session.Session, runtime.CallFunctionOn, runtime.CallFunctionOnParams{
		FunctionDeclaration: "function() { return this }", ObjectID: o.ObjectID, ReturnByValue: new(true),
	}), &got)
	chromium.Send(f.session.Session, runtime.ReleaseObjectGroup, runtime.ReleaseObjectGroupParams{ObjectGroup: "eval"})
	if err != nil || got.ExceptionDetails != nil || got.Result == nil || len(got.Result.Value) == 0 {
		return json.Marshal(o.Description) // such as a function, or an object that contains itself
	}
	return json.RawMessage(got.Result.Value), nil
}

// refOfObject returns the ref of an element of the page's own world.
func (t *Tab) refOfObject(ctx context.Context, f *frame, object runtime.RemoteObjectID) (json.RawMessage, error) {
	var node dom.DescribeNodeResult
	if err := t.waitForReply(ctx, chromium.Send(f.session.Session, dom.DescribeNode,
		dom.DescribeNodeParams{ObjectID: object}), &node); err != nil {
		return nil, err
	}
	s, c, err := t.contextOf(ctx, f.id)
	if err != nil {
		return nil, err
	}
	var mine dom.ResolveNodeResult
	err = t.waitForReply(
		ctx,
		chromium.Send(s, dom.ResolveNode,
			dom.ResolveNodeParams{BackendNodeID: node.Node.BackendNodeID, ExecutionContextID: c}),
		&mine,
	)
	if err != nil || mine.Object == nil {
		return nil, errors.Join(err, errFrameGone)
	}
	var got struct {
		Ref   int     `json:"ref"`
		Next  int     `json:"next"`
		Fresh [][]any `json:"fresh"`
	}
	if node.Node.NodeType != 1 {
		return json.Marshal(node.Node.NodeName)
	}
	if err := t.callFunction(ctx, f.id, "refOf", &got, mine.Object.ObjectID, t.nextRef()); err != nil {
		return nil, err
	}
	t.learn(f.id, got.Next, got.Fresh)
	return json.Marshal(map[string]string{"ref": refText(got.Ref)})
}

// Description is an element as webview_query describes it.
type Description struct {
	NodeID      int               `json:"nodeId"`
	Ref         string            `json:"ref"`
	TagName     string            `json:"tagName"`
	Attributes  map[string]string `json:"attributes,omitempty"`
	BoundingBox *Box              `json:"boundingBox,omitempty"`
	Text        string            `json:"text,omitempty"`
	Value       string            `json:"value,omitempty"`
	Links       []Link            `json:"links,omitempty"`
}

// Box is a rectangle in pixels of the viewport.
type Box struct {
	X      float64 `json:"x"`
	Y      float64 `json:"y"`
	Width  float64 `json:"width"`
	Height float64 `json:"height"`
}

// Link is a link in an element.
type Link struct {
	Text string `json:"text"`
	URL  string `json:"url"`
}

// Describe describes elements; textBytes limits the text of each, 0 means none.
func (t *Tab) Describe(ctx context.Context, all []Element, textBytes int, links bool) (out []Description, err error) {
	byFrame := map[frameID][]int{}
	var order []frameID
	for _, e := range all {
		if byFrame[e.frame] == nil {
			order = append(order, e.frame)
		}
		byFrame[e.frame] = append(byFrame[e.frame], e.n)
	}
	for _, id := range order {
		var got []*Description
		if err := t.callFunction(ctx, id, "describe", &got, byFrame[id],
			map[string]any{"text": textBytes, "links": links}); err != nil {
			return nil, err
		}
		for _, d := range got {
			if d != nil {
				out = append(out, *d)
			}
		}
	}
	return out, nil
}

// Items are rows of a table, or children of another element.
type Items struct {
	Header string   `json:"header"`
	Rows   []string `json:"rows"`
	Total  int      `json:"total"`
	Stale  bool     `json:"stale"`
	Next   int      `json:"next"`
	Fresh  [][]any  `json:"fresh"`
}

// Items returns the rows of an element that contain a text, from an index on.
func (t *Tab) Items(ctx context.Context, e Element, from, most int, contains string) (out Items, err error) {
	if err = t.callFunction(ctx, e.frame, "items", &out, e.n, from, most, contains, t.nextRef()); err != nil {
		return out, err
	}
	if out.Stale {
		return out, &StaleError{Ref: e.n, Role: e.Role, Name: e.Name}
	}
	t.learn(e.frame, out.Next, out.Fresh)
	return out, nil
}

// ShotOptions are for Screenshot. The zero value is the viewport as JPEG.
type ShotOptions struct {
	PNG     bool
	Quality int // of JPEG, 1 to 100; 0 means 70
	Target  *Target
	Full    bool // the whole page
	Marks   bool // refs are drawn
	Width   int  // at most, in pixels; 0 means 1024
}

const (
	mostHeight = 8000 // pixels of a whole page
	shotWait   = 5 * time.Second
)

// Screenshot takes a picture.
func (t *Tab) Screenshot(ctx context.Context, o ShotOptions) ([]byte, error) {
	var m page.GetLayoutMetricsResult
	if err := t.waitForReply(ctx, chromium.Send(t.session.Session, page.GetLayoutMetrics, cdp.Empty{}), &m); err != nil {
		return nil, err
	}
	v := m.CSSVisualViewport
	clip := &page.Viewport{X: v.PageX, Y: v.PageY, Width: v.ClientWidth, Height: v.ClientHeight}
	switch {
	case o.Target != nil:
		box, err := t.boxOf(ctx, *o.Target)
		if err != nil {
			return nil, err
		}
		clip.X, clip.Y, clip.Width, clip.Height = box.X, box.Y, max(1, box.Width), max(1, min(box.Height, mostHeight))
	case o.Full:
		clip.X, clip.Y = 0, 0
		clip.Width, clip.Height = m.CSSContentSize.Width, min(m.CSSContentSize.Height, mostHeight)
	}
	most := o.Width
	if most == 0 {
		most = 1024
	}
	clip.Scale = min(1, float64(most)/max(1, clip.Width))
	params := page.CaptureScreenshotParams{
		Format: page.CaptureScreenshotFormatJpeg, Clip: clip, CaptureBeyondViewport: new(o.Full || o.Target != nil),
		OptimizeForSpeed: new(true),
	}
	if o.PNG {
		params.Format = page.CaptureScreenshotFormatPng
	} else {
		q := int64(o.Quality)
		if q == 0 {
			q = 70
		}
		params.Quality = &q
	}
	if o.Marks {
		if err := t.mark(ctx); err != nil {
			return nil, err
		}
		defer t.callFunction(context.WithoutCancel(ctx), t.mainFrame(), "unmark", nil)
	}
	var got page.CaptureScreenshotResult
	err := t.waitForReply(ctx, chromium.Send(t.session.Session, page.CaptureScreenshot, params), &got)
	return got.Data, err
}

// boxOf returns where an element is on the page.
func (t *Tab) boxOf(ctx context.Context, target Target) (Box, error) {
	e, err := t.awaitElement(ctx, target, shotWait)
	if err != nil {
		return Box{}, err
	}
	var got struct {
		OK    bool   `json:"ok"`
		Why   string `json:"why"`
		Stale bool   `json:"stale"`
		Box   Box    `json:"box"`
	}
	if err := t.callFunction(ctx, e.frame, "ready", &got, e.n,
		map[string]any{"kind": "see", "timeout": shotWait.Milliseconds()}); err != nil {
		return Box{}, err
	}
	if !got.OK {
		return Box{}, &NotReadyError{e, got.Why}
	}
	dx, dy, err := t.offset(ctx, e.frame)
	got.Box.X, got.Box.Y = got.Box.X+dx, got.Box.Y+dy
	return got.Box, err
}

// mark draws the refs of the main frame.
func (t *Tab) mark(ctx context.Context) error {
	if _, err := t.words(ctx, t.mainFrame(), 0, SnapshotOptions{Mode: ModeFull}, foldAt); err != nil {
		return err
	}
	var refs []int
	main := t.mainFrame()
	t.browser.mu.Lock()
	for n, r := range t.refs {
		if r.frame == main {
			refs = append(refs, n)
		}
	}
	t.browser.mu.Unlock()
	slices.Sort(refs)
	var boxes [][]float64
	if err := t.callFunction(ctx, main, "boxes", &boxes, refs); err != nil {
		return err
	}
	return t.callFunction(ctx, main, "mark", nil, boxes)
}

// PDF prints the page.
func (t *Tab) PDF(ctx context.Context, landscape bool) ([]byte, error) {
	var got page.PrintToPDFResult
	err := t.waitForReply(ctx, chromium.Send(t.session.Session, page.PrintToPDF, page.PrintToPDFParams{
		Landscape: new(landscape), PrintBackground: new(true),
	}), &got)
	return got.Data, err
}

// Condition is what Await waits for; exactly one member is set.
type Condition struct {
	Selector string
	Text     string
	TextGone string
	Script   string // an expression that becomes true
	URL      string // a part of the address
	Idle     bool   // no request has run for half a second
}

const (
	pollEvery = 50 * time.Millisecond
	idleFor   = 500 * time.Millisecond
)

// Await waits for a condition.
func (t *Tab) Await(ctx context.Context, c Condition) error {
	quiet := time.Now()
	for {
		ok, err := t.holds(ctx, c, &quiet)
		if err != nil || ok {
			return err
		}
		select {
		case <-time.After(pollEvery):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (t *Tab) holds(ctx context.Context, c Condition, quiet *time.Time) (bool, error) {
	switch {
	case c.URL != "":
		return strings.Contains(t.URL(), c.URL), nil
	case c.Idle:
		t.browser.mu.Lock()
		defer t.browser.mu.Unlock()
		if t.running() > 0 || t.starting || !t.loadedLocked("load") {
			*quiet = time.Now()
		}
		return time.Since(*quiet) > idleFor, nil
	case c.Script != "":
		v, err := t.Eval(ctx, "!!("+c.Script+")")
		return string(v) == "true", err
	}
	query := map[string]any{"selector": c.Selector, "text": c.Text}
	if c.TextGone != "" {
		query["text"] = c.TextGone
	}
	yes := false
	for _, id := range t.allFrames() {
		var got struct {
			Yes bool   `json:"yes"`
			Bad string `json:"bad"`
		}
		if err := t.callFunction(ctx, id, "has", &got, query); err != nil &&
			(id == t.mainFrame() || !errors.Is(err, errFrameGone)) {
			return false, err
		}
		if got.Bad != "" {
			return false, fmt.Errorf("%q is not a selector: %s", c.Selector, got.Bad)
		}
		yes = yes || got.Yes
	}
	return yes == (c.TextGone == ""), nil
}

// Upload gives files to an input for files, or to the chooser that a click has opened if target is nil.
func (t *Tab) Upload(ctx context.Context, target *Target, paths []string) (Element, error) {
	params := dom.SetFileInputFilesParams{Files: paths}
	s := t.session.Session
	var e Element
	if target == nil {
		t.browser.mu.Lock()
		params.BackendNodeID, t.chooser = t.chooser, 0
		t.browser.mu.Unlock()
		if params.BackendNodeID == 0 {
			return e, errors.New(
				"no page has asked for files: name the field as target, or click what opens the chooser first",
			)
		}
	} else {
		var err error
		if e, err = t.Resolve(ctx, *target); err != nil {
			return e, err
		}
		var c runtime.ExecutionContextID
		if s, c, err = t.contextOf(ctx, e.frame); err != nil {
			return e, err
		}
		var got runtime.CallFunctionOnResult
		err = t.waitForReply(ctx, chromium.Send(s, runtime.CallFunctionOn, runtime.CallFunctionOnParams{
			FunctionDeclaration: fmt.Sprintf("() => { const e = engine.element(%d); return e && e.control || e }", e.n),
			ExecutionContextID:  c,
		}), &got)
		if err != nil || got.Result == nil || got.Result.ObjectID == "" {
			return e, errors.Join(err, &StaleError{Ref: e.n, Role: e.Role, Name: e.Name})
		}
		params.ObjectID = got.Result.ObjectID
	}
	if err := t.waitForReply(ctx, chromium.Send(s, dom.SetFileInputFiles, params), nil); err != nil {
		return e, err
	}
	return e, t.settled(ctx, nil)
}

// State is the storage of a browser: its cookies, and the local storage of the current origin.
type State struct {
	Cookies []*network.Cookie `json:"cookies"`
	Origins []OriginState     `json:"origins"`
}

// OriginState is the local storage of an origin.
type OriginState struct {
	Origin string            `json:"origin"`
	Local  map[string]string `json:"localStorage"`
}

// SaveState returns the cookies of the browser, and the local storage of the tab's origin.
func (t *Tab) SaveState(ctx context.Context) (s State, err error) {
	got, err := chromium.Call(ctx, chromium.Session{Conn: t.browser.conn}, storage.GetCookies,
		storage.GetCookiesParams{})
	if err != nil {
		return s, err
	}
	s.Cookies = got.Cookies
	v, err := t.Eval(
		ctx,
		`(() => { try { return {origin: location.origin, localStorage: {...localStorage}} } catch (e) { return null } })()`,
	)
	if err != nil {
		return s, err
	}
	var o *OriginState
	if json.Unmarshal(v, &o) == nil && o != nil && o.Origin != "null" && len(o.Local) > 0 {
		s.Origins = append(s.Origins, *o)
	}
	return s, nil
}

// LoadState sets cookies, and the local storage of origins when a page of them is opened in this tab.
func (t *Tab) LoadState(ctx context.Context, s State) error {
	var cookies []*network.CookieParam
	for _, c := range s.Cookies {
		p := &network.CookieParam{
			Name: c.Name, Value: c.Value, Domain: c.Domain, Path: c.Path, Secure: c.Secure, HTTPOnly: c.HTTPOnly,
			SameSite: c.SameSite,
		}
		if !c.Session {
			p.Expires = cdp.TimeSinceEpoch(c.Expires)
		}
		cookies = append(cookies, p)
	}
	if len(cookies) > 0 {
		err := chromium.Send(chromium.Session{Conn: t.browser.conn}, storage.SetCookies,
			storage.SetCookiesParams{Cookies: cookies}).
			Wait(ctx, nil)
		if err != nil {
			return err
		}
	}
	if len(s.Origins) == 0 {
		return nil
	}
	b, err := json.Marshal(s.Origins)
	if err != nil {
		return err
	}
	source := "(() => { for (const o of " + string(b) + ") if (o.origin === location.origin) " +
		"for (const [k, v] of Object.entries(o.localStorage)) if (localStorage.getItem(k) === null) " +
		"localStorage.setItem(k, v) })()"
	return t.waitForReply(
		ctx,
		chromium.Send(
			t.session.Session,
			page.AddScriptToEvaluateOnNewDocument,
			page.AddScriptToEvaluateOnNewDocumentParams{
				Source: source, RunImmediately: new(true),
			},
		),
		nil,
	)
}

// ClearState removes all cookies, and all that the tab's origin has stored.
func (t *Tab) ClearState(ctx context.Context, origin string) error {
	root := chromium.Session{Conn: t.browser.conn}
	if err := chromium.Send(root, storage.ClearCookies, storage.ClearCookiesParams{}).Wait(ctx, nil); err != nil {
		return err
	}
	return t.waitForReply(ctx, chromium.Send(t.session.Session, storage.ClearDataForOrigin, storage.ClearDataForOriginParams{
		Origin: origin, StorageTypes: "all",
	}), nil)
}

// SetContent replaces the document of the tab.
func (t *Tab) SetContent(ctx context.Context, html string) error {
	id := t.mainFrame()
	if err := t.waitForReply(ctx, chromium.Send(t.session.Session, page.SetDocumentContent,
		page.SetDocumentContentParams{FrameID: id, HTML: html}), nil); err != nil {
		return err
	}
	return t.callFunction(ctx, id, "frame", nil)
}

// Replace replaces the content of an element.
func (t *Tab) Replace(ctx context.Context, target Target, html string) error {
	e, err := t.Resolve(ctx, target)
	if err != nil {
		return err
	}
	var got struct {
		Stale bool `json:"stale"`
	}
	if err := t.callFunction(ctx, e.frame, "replace", &got, e.n, html); err != nil {
		return err
	}
	if got.Stale {
		return &StaleError{Ref: e.n, Role: e.Role, Name: e.Name}
	}
	return nil
}

// Focus puts the focus on an element.
func (t *Tab) Focus(ctx context.Context, target Target, timeout time.Duration) (Element, error) {
	e, _, err := t.ready(ctx, target, "focus", timeout)
	if err != nil {
		return e, err
	}
	return e, t.callFunction(ctx, e.frame, "put", nil, e.n)
}

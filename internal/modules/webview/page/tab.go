package page

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/cdp/jsonv2"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/fetch"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"

	"gatehouse/internal/modules/webview/chromium"
)

// Tab is one page of a browser. Its exported methods are safe for concurrent use; those that act are run one after
// the other by the caller holding Lock.
type Tab struct {
	sync.Mutex // held by a caller that acts on the tab

	ID      string // "t1", "t2"...
	browser *Browser
	target  target.ID
	session *session

	// What follows is guarded by browser.mu.
	isReady  bool
	before   *Tab       // that was the current one when this one opened
	opener   *Tab       // whose script or link opened this one; nil if a call did
	files    FileServer // of the call that acts on the tab; nil if none does
	main     frameID
	frames   map[frameID]*frame
	order    []frameID
	life     map[cdp.LoaderID]map[string]bool
	starting bool // a navigation of the main frame was requested and has not committed
	dialog   *Dialog
	opened   chan struct{} // closed while a dialog is open
	chooser  cdp.BackendNodeID
	console  ring[Message]
	requests ring[*Request]
	byID     map[network.RequestID]*Request
	refs     map[int]ref
	next     int
	shown    []string // the lines of the last snapshot, for differences
}

// frame is a document of a tab.
type frame struct {
	id      frameID
	parent  frameID
	url     string
	loader  cdp.LoaderID
	session *session
	engine  runtime.ExecutionContextID // 0 until the document has one
	script  runtime.ExecutionContextID // of the page's own scripts
	names   [2]string                  // that distinguish both from all contexts before and after
}

// ref is what is known about the element of a number.
type ref struct {
	frame      frameID
	role, name string
}

// Dialog is a dialog of a page that waits for an answer: alert, confirm, prompt or beforeunload.
type Dialog struct {
	Handle  string
	Type    string
	Message string
	Default string
	URL     string
}

func newTab(b *Browser, id string, t target.ID) *Tab {
	return &Tab{
		ID: id, browser: b, target: t, frames: map[frameID]*frame{}, life: map[cdp.LoaderID]map[string]bool{},
		opened: make(chan struct{}), byID: map[network.RequestID]*Request{}, refs: map[int]ref{}, next: 1,
		console: ring[Message]{most: 1000}, requests: ring[*Request]{most: 500},
	}
}

// event is called by the connection for each event.
func (b *Browser) event(e chromium.Event) {
	switch e.Method {
	case target.AttachedToTarget.Method:
		handle(e, b.attachedToTarget)
		return
	case target.DetachedFromTarget.Method:
		handle(e, func(_ chromium.Event, d target.EventDetachedFromTarget) { b.detached(d.SessionID) })
		return
	case browserDownloadWillBegin:
		handle(e, func(_ chromium.Event, d downloadWillBegin) { b.downloadBegan(d) })
		return
	case browserDownloadProgress:
		handle(e, func(_ chromium.Event, d downloadProgress) { b.downloadProgressed(d) })
		return
	}
	b.mu.Lock()
	s := b.sessions[e.Session]
	b.mu.Unlock()
	if s != nil && s.tab != nil {
		s.tab.event(s, e)
	} else if s != nil && e.Method == fetch.RequestPaused.Method {
		handle(e, func(_ chromium.Event, r fetch.EventRequestPaused) { b.wg.Go(func() { b.answerFile(s, r) }) })
	}
}

// handle decodes an event for a function; one that cannot be decoded is of a newer browser and is ignored.
func handle[E any](e chromium.Event, f func(chromium.Event, E)) {
	if decoded, err := chromium.Decode[E](e); err == nil {
		f(e, decoded)
	}
}

func (b *Browser) attachedToTarget(e chromium.Event, a target.EventAttachedToTarget) {
	s := &session{Session: chromium.Session{Conn: b.conn, ID: a.SessionID}}
	b.mu.Lock()
	s.parent = b.sessions[e.Session]
	b.sessions[a.SessionID] = s
	excess := false
	switch a.TargetInfo.Type {
	case "page":
		b.lastTab++
		s.tab = newTab(b, fmt.Sprintf("t%d", b.lastTab), a.TargetInfo.TargetID)
		s.tab.session = s
		if i := slices.IndexFunc(b.tabs, func(t *Tab) bool { return t.target == a.TargetInfo.OpenerID }); i >= 0 {
			s.tab.opener = b.tabs[i]
		}
		b.tabs = append(b.tabs, s.tab)
		excess = len(b.tabs) > mostTabs
		if b.current == nil {
			b.current = s.tab
		}
	case "iframe":
		if s.parent != nil {
			s.tab = s.parent.tab
		}
	}
	b.mu.Unlock()
	b.wg.Go(func() {
		ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
		defer cancel()
		if excess {
			chromium.Send(chromium.Session{Conn: b.conn}, target.CloseTarget,
				target.CloseTargetParams{TargetID: a.TargetInfo.TargetID})
			return
		}
		b.setUp(ctx, s)
	})
}

// setUp asks a new target for its events before its first script runs.
func (b *Browser) setUp(ctx context.Context, s *session) {
	first := []chromium.Pending{
		chromium.Send(s.Session, fetch.Enable, fetch.EnableParams{Patterns: b.intercepted()}),
		chromium.Send(s.Session, target.SetAutoAttach, target.SetAutoAttachParams{
			AutoAttach: true, WaitForDebuggerOnStart: true, Flatten: new(true),
		}),
	}
	var tree page.GetFrameTreeResult
	if s.tab != nil {
		first = append(
			first,
			chromium.Send(s.Session, page.Enable, page.EnableParams{}),
			chromium.Send(s.Session, page.SetLifecycleEventsEnabled,
				page.SetLifecycleEventsEnabledParams{Enabled: true}),
			chromium.Send(s.Session, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{
				Source: engineSource, WorldName: world, RunImmediately: new(true),
			}),
			chromium.Send(s.Session, runtime.Enable, cdp.Empty{}),
			chromium.Send(s.Session, network.Enable, network.EnableParams{}),
			chromium.Send(s.Session, log.Enable, cdp.Empty{}),
			chromium.Send(s.Session, page.SetInterceptFileChooserDialog,
				page.SetInterceptFileChooserDialogParams{Enabled: true}),
		)
		frames := chromium.Send(s.Session, page.GetFrameTree, cdp.Empty{})
		first = append(first, chromium.Send(s.Session, runtime.RunIfWaitingForDebugger, cdp.Empty{}))
		if frames.Wait(ctx, &tree) == nil {
			s.tab.seed(s, tree.FrameTree)
		}
	} else {
		first = append(first, chromium.Send(s.Session, runtime.RunIfWaitingForDebugger, cdp.Empty{}))
	}
	for _, p := range first {
		p.Wait(ctx, nil) // a target that is gone already has nothing to set up
	}
	if s.tab == nil || s.tab.session != s {
		return
	}
	b.mu.Lock()
	s.tab.isReady = true
	if b.current != s.tab {
		s.tab.before, b.current = b.current, s.tab // what a page opened is what its user sees
	}
	b.broadcast()
	b.mu.Unlock()
}

// intercepted returns the requests that the browser asks about: for files, and for everything if no proxy judges them.
func (b *Browser) intercepted() []*fetch.RequestPattern {
	if b.opts.DebugURL != "" {
		return []*fetch.RequestPattern{{URLPattern: "*"}}
	}
	return []*fetch.RequestPattern{{URLPattern: "file://*"}}
}

func (b *Browser) detached(id target.SessionID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.sessions[id]
	delete(b.sessions, id)
	if s == nil || s.tab == nil {
		return
	}
	t := s.tab
	if t.session != s {
		for _, f := range t.frames {
			if f.session == s {
				f.engine, f.script = 0, 0
			}
		}
		b.broadcast()
		return
	}
	b.tabs = slices.DeleteFunc(b.tabs, func(o *Tab) bool { return o == t })
	if b.current == t {
		b.current = nil
		for _, o := range b.tabs {
			if b.current == nil || o == t.before {
				b.current = o
			}
		}
	}
	t.closeDialog()
	b.broadcast()
}

// seed registers the frames that a target has already.
func (t *Tab) seed(s *session, tree *page.FrameTree) {
	if tree == nil {
		return
	}
	t.browser.mu.Lock()
	var add func(n *page.FrameTree)
	add = func(n *page.FrameTree) {
		f := t.frameOf(n.Frame.ID, s)
		if f.loader == "" { // an event may have told of a newer document already
			f.url, f.loader = n.Frame.URL, n.Frame.LoaderID
		}
		if n.Frame.ParentID != "" {
			f.parent = n.Frame.ParentID
		} else if s == t.session {
			t.main = n.Frame.ID
		}
		for _, c := range n.ChildFrames {
			add(c)
		}
	}
	add(tree)
	t.browser.mu.Unlock()
}

// frameOf returns a frame, which it registers if it is new. browser.mu is held.
func (t *Tab) frameOf(id frameID, s *session) *frame {
	f := t.frames[id]
	if f == nil {
		f = &frame{id: id}
		t.frames[id] = f
		t.order = append(t.order, id)
	}
	f.session = s
	return f
}

// event is called for the events of a tab's sessions.
func (t *Tab) event(s *session, e chromium.Event) {
	b := t.browser
	switch e.Method {
	case fetch.RequestPaused.Method:
		handle(e, func(_ chromium.Event, r fetch.EventRequestPaused) { b.wg.Go(func() { b.answerFile(s, r) }) })
		return
	case runtime.ConsoleAPICalled.Method, runtime.ExceptionThrown.Method, log.EntryAdded.Method:
		t.recordEvent(e)
		return
	case network.RequestWillBeSent.Method, network.ResponseReceived.Method,
		network.LoadingFinished.Method, network.LoadingFailed.Method:
		t.traffic(s, e)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e.Method {
	case page.FrameAttached.Method:
		handle(e,
			func(_ chromium.Event, a page.EventFrameAttached) { t.frameOf(a.FrameID, s).parent = a.ParentFrameID })
	case page.FrameDetached.Method:
		handle(e, func(_ chromium.Event, d page.EventFrameDetached) {
			if d.Reason != page.FrameDetachedReasonSwap {
				t.dropFrame(d.FrameID)
			}
		})
	case page.FrameNavigated.Method:
		handle(e, func(_ chromium.Event, n page.EventFrameNavigated) { t.navigated(s, n.Frame) })
	case page.NavigatedWithinDocument.Method:
		handle(e, func(_ chromium.Event, n page.EventNavigatedWithinDocument) {
			if f := t.frames[n.FrameID]; f != nil {
				f.url = n.URL
			}
		})
	case page.LifecycleEvent.Method:
		handle(e, func(_ chromium.Event, l page.EventLifecycleEvent) { t.lived(l) })
	case page.FrameRequestedNavigation.Method:
		handle(e, func(_ chromium.Event, n page.EventFrameRequestedNavigation) {
			if n.FrameID == t.main && n.Disposition == page.ClientNavigationDispositionCurrentTab {
				t.starting = true
			}
		})
	case page.FrameStoppedLoading.Method:
		handle(e, func(_ chromium.Event, n page.EventFrameStoppedLoading) {
			if n.FrameID == t.main {
				t.starting = false
			}
		})
	case page.JavascriptDialogOpening.Method:
		handle(e, func(_ chromium.Event, d page.EventJavascriptDialogOpening) { t.openDialog(s, d) })
	case page.JavascriptDialogClosed.Method:
		t.closeDialog()
	case page.FileChooserOpened.Method:
		handle(e, func(_ chromium.Event, c page.EventFileChooserOpened) { t.chooser = c.BackendNodeID })
	case runtime.ExecutionContextCreated.Method:
		handle(e, func(_ chromium.Event, c runtime.EventExecutionContextCreated) { t.contextCreated(s, c.Context) })
	case runtime.ExecutionContextDestroyed.Method:
		handle(e, func(_ chromium.Event, c runtime.EventExecutionContextDestroyed) {
			t.contextGone(s, c.ExecutionContextUniqueID)
		})
	case runtime.ExecutionContextsCleared.Method:
		t.contextGone(s, "")
	default:
		return
	}
	b.broadcast()
}

func (t *Tab) navigated(s *session, n *cdp.Frame) {
	f := t.frameOf(n.ID, s)
	f.url, f.loader = n.URL+n.URLFragment, n.LoaderID
	if n.ParentID != "" {
		f.parent = n.ParentID
	} else if s == t.session {
		t.main, t.starting = n.ID, false
	}
}

const mostLoaders = 50 // documents whose events are remembered

func (t *Tab) lived(l page.EventLifecycleEvent) {
	if t.life[l.LoaderID] == nil {
		if len(t.life) > mostLoaders {
			clear(t.life)
		}
		t.life[l.LoaderID] = map[string]bool{}
	}
	t.life[l.LoaderID][l.Name] = true
	if f := t.frames[l.FrameID]; f != nil && l.Name == "commit" {
		f.loader = l.LoaderID
	}
}

func (t *Tab) dropFrame(id frameID) {
	for _, f := range t.frames {
		if f.parent == id && f.id != id {
			t.dropFrame(f.id)
		}
	}
	delete(t.frames, id)
	t.order = slices.DeleteFunc(t.order, func(o frameID) bool { return o == id })
}

func (t *Tab) contextCreated(s *session, c *runtime.ExecutionContextDescription) {
	var aux struct {
		Default bool    `json:"isDefault"`
		Frame   frameID `json:"frameId"`
	}
	if c == nil || jsonv2.Unmarshal(c.AuxData, &aux) != nil || aux.Frame == "" {
		return
	}
	f := t.frameOf(aux.Frame, s)
	switch {
	case c.Name == world:
		f.engine, f.names[0] = c.ID, c.UniqueID
	case aux.Default:
		f.script, f.names[1] = c.ID, c.UniqueID
	}
}

// contextGone forgets a context, or all of a session if name is "".
func (t *Tab) contextGone(s *session, name string) {
	for _, f := range t.frames {
		if f.session != s {
			continue
		}
		if name == "" || f.names[0] == name {
			f.engine = 0
		}
		if name == "" || f.names[1] == name {
			f.script = 0
		}
	}
}

var dialogs sync.Mutex // guards lastDialog
var lastDialog int

func (t *Tab) openDialog(s *session, d page.EventJavascriptDialogOpening) {
	dialogs.Lock()
	lastDialog++
	handle := fmt.Sprintf("d%d", lastDialog)
	dialogs.Unlock()
	if t.dialog == nil {
		close(t.opened)
	}
	t.dialog = &Dialog{
		Handle:  handle,
		Type:    string(d.Type),
		Message: cutText(d.Message, 2000),
		Default: cutText(d.DefaultPrompt, 500),
		URL:     d.URL,
	}
}

func (t *Tab) closeDialog() {
	if t.dialog != nil {
		t.dialog = nil
		t.opened = make(chan struct{})
	}
}

// Dialog returns the open dialog, or nil.
func (t *Tab) Dialog() *Dialog {
	t.browser.mu.Lock()
	defer t.browser.mu.Unlock()
	return t.dialog
}

// URL returns the address of the tab's document.
func (t *Tab) URL() string {
	t.browser.mu.Lock()
	defer t.browser.mu.Unlock()
	if f := t.frames[t.main]; f != nil {
		return f.url
	}
	return ""
}

// ErrDialog is the error of an action that a dialog holds up.
var ErrDialog = errors.New("a dialog is open")

// AnswerDialog accepts or dismisses the open dialog.
func (t *Tab) AnswerDialog(ctx context.Context, accept bool, text string) error {
	err := chromium.Send(t.session.Session, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{
		Accept: accept, PromptText: text,
	}).Wait(ctx, nil)
	if err != nil {
		return err
	}
	return t.browser.until(ctx, func() bool { return t.dialog == nil || !slices.Contains(t.browser.tabs, t) })
}

// waitForReply waits for the answer of a command unless a dialog opens.
func (t *Tab) waitForReply(ctx context.Context, p chromium.Pending, out any) error {
	t.browser.mu.Lock()
	opened := t.opened
	t.browser.mu.Unlock()
	err := p.WaitUnless(ctx, opened, out)
	if errors.Is(err, chromium.ErrInterrupted) {
		return ErrDialog
	}
	return t.browser.explain(err)
}

// ScriptError is an error that a script has thrown.
type ScriptError struct{ Text string }

func (e *ScriptError) Error() string { return e.Text }

func scriptError(d *runtime.ExceptionDetails) error {
	text := d.Text
	if d.Exception != nil && d.Exception.Description != "" {
		text = d.Exception.Description
	}
	return &ScriptError{cutText(text, 2000)}
}

// callFunction runs a function of the engine in a frame and decodes what it returns. It waits for a document that loads. Only
// the first argument can be an object of the page.
func (t *Tab) callFunction(ctx context.Context, id frameID, function string, out any, args ...any) error {
	list := []*runtime.CallArgument{{}, {}}
	if len(args) > 0 {
		if r, ok := args[0].(runtime.RemoteObjectID); ok {
			list[1].ObjectID, args = r, args[1:]
		}
	}
	// One list rather than several arguments, because an empty value would be left out.
	b, err := jsonv2.Marshal(append([]any{0}, args...))
	if err != nil {
		return err
	}
	list[0].Value = b
	for tries := 0; ; tries++ {
		s, context, err := t.contextOf(ctx, id)
		if err != nil {
			return err
		}
		var got runtime.CallFunctionOnResult
		err = t.waitForReply(ctx, chromium.Send(s, runtime.CallFunctionOn, runtime.CallFunctionOnParams{
			FunctionDeclaration: "(a, o) => engine." + function + "(...(o ? [o] : []), ...a.slice(1))", Arguments: list,
			ExecutionContextID: context,
			ReturnByValue:      new(true), AwaitPromise: new(true),
		}), &got)
		switch {
		case err != nil && isContextGone(err) && tries < 3:
			t.forgetContext(id, context)
			continue
		case err != nil:
			return err
		case got.ExceptionDetails != nil:
			return scriptError(got.ExceptionDetails)
		case out == nil || got.Result == nil || len(got.Result.Value) == 0:
			return nil
		}
		return unmarshal(got.Result.Value, out) // whose members need no tags
	}
}

const contextWait = 10 * time.Second // for the document of a frame to begin

// contextOf returns the session of a frame, and the context of the engine in it.
func (t *Tab) contextOf(ctx context.Context, id frameID) (s chromium.Session, c runtime.ExecutionContextID, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, contextWait,
		fmt.Errorf("the page did not begin within %v", contextWait))
	defer cancel()
	gone := false
	err = t.browser.until(ctx, func() bool {
		f := t.frames[id]
		if f == nil || t.dialog != nil {
			gone = f == nil
			return true
		}
		s, c = f.session.Session, f.engine
		return c != 0
	})
	switch {
	case err != nil:
		return s, c, err
	case gone:
		return s, c, errFrameGone
	case c == 0:
		return s, c, ErrDialog
	}
	return s, c, nil
}

var errFrameGone = errors.New("the frame is gone")

func isContextGone(err error) bool {
	text := err.Error()
	for _, s := range []string{"Cannot find context", "Execution context was destroyed", "Inspected target navigated",
		"Session with given id not found"} {
		if containsText(text, s) {
			return true
		}
	}
	return false
}

func (t *Tab) forgetContext(id frameID, c runtime.ExecutionContextID) {
	t.browser.mu.Lock()
	defer t.browser.mu.Unlock()
	if f := t.frames[id]; f != nil && f.engine == c {
		f.engine = 0
	}
}

// mainFrame returns the frame of the tab's document.
func (t *Tab) mainFrame() frameID {
	t.browser.mu.Lock()
	defer t.browser.mu.Unlock()
	return t.main
}

// allFrames returns the frames, the main one first.
func (t *Tab) allFrames() []frameID {
	t.browser.mu.Lock()
	defer t.browser.mu.Unlock()
	ids := []frameID{t.main}
	for _, id := range t.order {
		if id != t.main && len(ids) < mostFrames && t.frames[id].engine != 0 {
			ids = append(ids, id)
		}
	}
	return ids
}

// owner returns the iframe element of a frame, as an object in the parent's world of the engine.
func (t *Tab) owner(ctx context.Context, id frameID) (parent frameID, object runtime.RemoteObjectID, err error) {
	t.browser.mu.Lock()
	f := t.frames[id]
	if f == nil || t.frames[f.parent] == nil {
		t.browser.mu.Unlock()
		return "", "", errFrameGone
	}
	parent = f.parent
	t.browser.mu.Unlock()
	s, c, err := t.contextOf(ctx, parent)
	if err != nil {
		return "", "", err
	}
	var got dom.GetFrameOwnerResult
	if err := t.waitForReply(ctx, chromium.Send(s, dom.GetFrameOwner, dom.GetFrameOwnerParams{FrameID: id}), &got); err != nil {
		return "", "", err
	}
	var node dom.ResolveNodeResult
	err = t.waitForReply(
		ctx,
		chromium.Send(s, dom.ResolveNode,
			dom.ResolveNodeParams{BackendNodeID: got.BackendNodeID, ExecutionContextID: c}),
		&node,
	)
	if err != nil || node.Object == nil {
		return "", "", errors.Join(err, errFrameGone)
	}
	return parent, node.Object.ObjectID, nil
}

package page

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp/kb"

	"gatehouse/internal/modules/webview/chromium"
)

// NotReadyError is the error of an element that cannot be acted on within the time.
type NotReadyError struct {
	Element Element
	Why     string
}

func (e *NotReadyError) Error() string {
	return fmt.Sprintf("%s %s %q: %s", e.Element.Ref(), e.Element.Role, cutText(e.Element.Name, 60), e.Why)
}

// point is where an element can be acted on, in pixels of the tab's viewport.
type point struct {
	x, y    float64
	checked bool
}

// readiness is what the engine says about an element.
type readiness struct {
	OK      bool    `json:"ok"`
	Stale   bool    `json:"stale"`
	Why     string  `json:"why"`
	X       float64 `json:"x"`
	Y       float64 `json:"y"`
	Checked bool    `json:"checked"`
	Box     struct{ X, Y, Width, Height float64 }
}

// ready waits until an element is attached, visible, stable, enabled and hit by a click. It heals a ref once.
func (t *Tab) ready(ctx context.Context, target Target, kind string, timeout time.Duration) (Element, point, error) {
	e, err := t.awaitElement(ctx, target, timeout)
	for tries := 0; ; tries++ {
		if err != nil {
			return e, point{}, err
		}
		var got readiness
		err = t.callFunction(ctx, e.frame, "ready", &got, e.n, map[string]any{"kind": kind, "timeout": timeout.Milliseconds()})
		switch {
		case errors.Is(err, errFrameGone) && tries == 0 || err == nil && got.Stale && tries == 0:
			t.browser.mu.Lock()
			known := t.refs[e.n]
			t.browser.mu.Unlock()
			e, err = t.heal(ctx, e.n, known)
			continue
		case err != nil:
			return e, point{}, err
		case !got.OK:
			return e, point{}, &NotReadyError{e, got.Why + " after " + timeout.String()}
		}
		dx, dy, err := t.settledOffset(ctx, e.frame)
		return e, point{got.X + dx, got.Y + dy, got.Checked}, err
	}
}

// awaitElement resolves a target, and waits until it is there if it is not a ref.
func (t *Tab) awaitElement(ctx context.Context, target Target, timeout time.Duration) (Element, error) {
	end := time.Now().Add(timeout)
	for {
		e, err := t.Resolve(ctx, target)
		if _, missing := errors.AsType[*MissingError](err); !missing || time.Now().After(end) {
			return e, err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return e, context.Cause(ctx)
		}
	}
}

// settledOffset returns offset when it is the same after two frames: until then the browser sends events to where a
// frame of another process was.
func (t *Tab) settledOffset(ctx context.Context, id frameID) (x, y float64, err error) {
	main := t.mainFrame()
	if id == main {
		return 0, 0, nil
	}
	for range 20 {
		beforeX, beforeY, err := t.offset(ctx, id)
		for range 2 {
			if err == nil {
				err = t.callFunction(ctx, main, "frame", nil)
			}
		}
		if err == nil {
			x, y, err = t.offset(ctx, id)
		}
		if err != nil || x == beforeX && y == beforeY {
			return x, y, err
		}
	}
	return x, y, nil
}

// offset returns where the viewport of a frame begins in that of the tab.
func (t *Tab) offset(ctx context.Context, id frameID) (x, y float64, err error) {
	for main := t.mainFrame(); id != main; {
		parent, object, err := t.owner(ctx, id)
		if err != nil {
			return 0, 0, err
		}
		var at struct{ X, Y float64 }
		if err := t.callFunction(ctx, parent, "offset", &at, object); err != nil {
			return 0, 0, err
		}
		x, y, id = x+at.X, y+at.Y, parent
	}
	return x, y, nil
}

// ClickOptions are for Click. The zero value is a click with the left button.
type ClickOptions struct {
	Button  string // left, right or middle; "" means left
	Count   int    // 2 is a double click; 0 means 1
	Timeout time.Duration
}

// Click presses and releases a mouse button on an element or at a point.
func (t *Tab) Click(ctx context.Context, target Target, o ClickOptions) (Element, error) {
	var e Element
	at := point{x: target.X, y: target.Y}
	if !target.Point {
		var err error
		if e, at, err = t.ready(ctx, target, "click", o.Timeout); err != nil {
			return e, err
		}
	}
	return e, t.settled(ctx, t.clickAt(ctx, at, o))
}

var buttons = map[string]int64{"left": 1, "right": 2, "middle": 4}

func (t *Tab) clickAt(ctx context.Context, at point, o ClickOptions) error {
	button := input.MouseButton(o.Button)
	if button == "" {
		button = input.MouseButtonLeft
	}
	event := input.DispatchMouseEventParams{Type: input.DispatchMouseEventTypeMouseMoved, X: at.x, Y: at.y}
	sent := []chromium.Pending{t.mouse(event)}
	event.Button, event.Buttons = button, buttons[string(button)]
	for n := range max(1, o.Count) {
		event.ClickCount = int64(n + 1)
		event.Type = input.DispatchMouseEventTypeMousePressed
		sent = append(sent, t.mouse(event))
		event.Type = input.DispatchMouseEventTypeMouseReleased
		sent = append(sent, t.mouse(event))
	}
	return t.waitAll(ctx, sent)
}

func (t *Tab) mouse(e input.DispatchMouseEventParams) chromium.Pending {
	return chromium.Send(t.session.Session, input.DispatchMouseEvent, e)
}

// waitAll waits for the answers to commands. A dialog that opens ends the wait without an error, because the command
// that opened it was done.
func (t *Tab) waitAll(ctx context.Context, sent []chromium.Pending) error {
	for _, p := range sent {
		if err := t.waitForReply(ctx, p, nil); err != nil {
			if errors.Is(err, ErrDialog) {
				return nil
			}
			return err
		}
	}
	return nil
}

// Hover moves the mouse to an element.
func (t *Tab) Hover(ctx context.Context, target Target, timeout time.Duration) (Element, error) {
	var e Element
	at := point{x: target.X, y: target.Y}
	if !target.Point {
		var err error
		if e, at, err = t.ready(ctx, target, "hover", timeout); err != nil {
			return e, err
		}
	}
	p := t.mouse(input.DispatchMouseEventParams{Type: input.DispatchMouseEventTypeMouseMoved, X: at.x, Y: at.y})
	return e, t.settled(ctx, t.waitAll(ctx, []chromium.Pending{p}))
}

const dragSteps = 8

// Drag presses the mouse on one element and releases it on another.
func (t *Tab) Drag(ctx context.Context, from, to Target, timeout time.Duration) (Element, error) {
	e, a, err := t.placeOf(ctx, from, timeout)
	if err != nil {
		return e, err
	}
	_, b, err := t.placeOf(ctx, to, timeout)
	if err != nil {
		return e, err
	}
	event := input.DispatchMouseEventParams{Type: input.DispatchMouseEventTypeMouseMoved, X: a.x, Y: a.y}
	sent := []chromium.Pending{t.mouse(event)}
	event.Type, event.Button, event.Buttons, event.ClickCount = input.DispatchMouseEventTypeMousePressed,
		input.MouseButtonLeft, 1, 1
	sent = append(sent, t.mouse(event))
	if err := t.waitAll(ctx, sent); err != nil {
		return e, err
	}
	for i := range dragSteps {
		part := float64(i+1) / dragSteps
		event.Type, event.X, event.Y = input.DispatchMouseEventTypeMouseMoved, a.x+(b.x-a.x)*part, a.y+(b.y-a.y)*part
		if err := t.waitAll(ctx, []chromium.Pending{t.mouse(event)}); err != nil {
			return e, err
		}
	}
	event.Type = input.DispatchMouseEventTypeMouseReleased
	return e, t.settled(ctx, t.waitAll(ctx, []chromium.Pending{t.mouse(event)}))
}

func (t *Tab) placeOf(ctx context.Context, target Target, timeout time.Duration) (Element, point, error) {
	if target.Point {
		return Element{}, point{x: target.X, y: target.Y}, nil
	}
	return t.ready(ctx, target, "drag", timeout)
}

// TypeOptions are for Type. The zero value appends.
type TypeOptions struct {
	Clear   bool // the text replaces what is there
	Submit  bool // Enter follows
	Timeout time.Duration
	// May is called with the origin of the frame before anything is typed; an error refuses it. With May the text is a
	// secret, which is put into the field in one step, so that no other field or frame gets a part of it.
	May func(origin string, password bool) error
}

const mostKeys = 500 // characters that are typed key by key; longer texts are inserted

// Type types text into a field with real key events.
func (t *Tab) Type(ctx context.Context, target Target, text string, o TypeOptions) (Element, error) {
	e, _, err := t.ready(ctx, target, "type", o.Timeout)
	if err != nil {
		return e, err
	}
	var got struct {
		OK, Stale, Setter, Password, Empty bool
		Why, Type, Origin                  string
	}
	if err := t.callFunction(ctx, e.frame, "focus", &got, e.n, o.Clear); err != nil {
		return e, err
	}
	switch {
	case got.Stale:
		return e, &StaleError{Ref: e.n, Role: e.Role, Name: e.Name}
	case got.Why != "":
		return e, &NotReadyError{e, got.Why}
	}
	if o.May != nil {
		if err := o.May(got.Origin, got.Password); err != nil {
			return e, err
		}
	}
	switch {
	case o.May != nil:
		err = t.change(ctx, e, "insertSecret", got.Origin, text)
	case got.Setter:
		err = t.change(ctx, e, "setValue", text)
	case text == "" && o.Clear && !got.Empty:
		err = t.keys(
			ctx,
			[]*input.DispatchKeyEventParams{
				keyEvent(kb.Backspace, input.DispatchKeyEventTypeRawKeyDown),
				keyEvent(kb.Backspace, input.DispatchKeyEventTypeKeyUp),
			},
		)
	case utf8.RuneCountInString(text) > mostKeys:
		err = t.waitAll(ctx,
			[]chromium.Pending{chromium.Send(t.session.Session, input.InsertText, input.InsertTextParams{Text: text})})
	default:
		err = t.typeKeys(ctx, &e, text)
	}
	if err == nil && o.Submit {
		err = t.Press(ctx, "Enter")
	}
	return e, t.settled(ctx, err)
}

// change calls a function of the engine that changes the value of a field.
func (t *Tab) change(ctx context.Context, e Element, function string, args ...any) error {
	var got readiness
	if err := t.callFunction(ctx, e.frame, function, &got, append([]any{e.n}, args...)...); err != nil {
		return err
	}
	switch {
	case got.Stale:
		return &StaleError{Ref: e.n, Role: e.Role, Name: e.Name}
	case got.Why != "":
		return &NotReadyError{e, got.Why}
	}
	return nil
}

// typeKeys types key by key. A page that replaces the field while it is typed into gets the rest into its replacement.
func (t *Tab) typeKeys(ctx context.Context, e *Element, text string) error {
	for _, r := range text {
		var events []*input.DispatchKeyEventParams
		if r == '\n' {
			r = '\r'
		}
		if _, known := kb.Keys[r]; known {
			events = kb.Encode(r)
		}
		if events == nil {
			if err := t.waitAll(ctx,
				[]chromium.Pending{chromium.Send(t.session.Session, input.InsertText,
					input.InsertTextParams{Text: string(r)})}); err != nil {
				return err
			}
		} else if err := t.keys(ctx, events); err != nil {
			return err
		}
		if t.Dialog() != nil {
			return nil
		}
		var kept struct {
			Ref    int     `json:"ref"`
			Stale  bool    `json:"stale"`
			Healed bool    `json:"healed"`
			Next   int     `json:"next"`
			Fresh  [][]any `json:"fresh"`
		}
		if err := t.callFunction(ctx, e.frame, "keep", &kept, e.n, t.nextRef()); err != nil {
			return err
		}
		t.learn(e.frame, kept.Next, kept.Fresh)
		if kept.Stale {
			return &StaleError{Ref: e.n, Role: e.Role, Name: e.Name}
		}
		if kept.Healed {
			e.Healed = fmt.Sprintf("the page replaced %s by %s while it was typed into", e.Ref(), refText(kept.Ref))
			e.n = kept.Ref
		}
	}
	return nil
}

func (t *Tab) keys(ctx context.Context, events []*input.DispatchKeyEventParams) error {
	var sent []chromium.Pending
	for _, e := range events {
		sent = append(sent, chromium.Send(t.session.Session, input.DispatchKeyEvent, *e))
	}
	return t.waitAll(ctx, sent)
}

// named are keys by the names that KeyboardEvent.key has.
var named = map[string]string{
	"Enter": kb.Enter, "Tab": kb.Tab, "Backspace": kb.Backspace, "Delete": kb.Delete, "Escape": kb.Escape,
	"ArrowUp": kb.ArrowUp, "ArrowDown": kb.ArrowDown, "ArrowLeft": kb.ArrowLeft, "ArrowRight": kb.ArrowRight,
	"Home": kb.Home, "End": kb.End, "PageUp": kb.PageUp, "PageDown": kb.PageDown, "Space": " ", "Insert": kb.Insert,
	"F1": kb.F1, "F2": kb.F2, "F3": kb.F3, "F4": kb.F4, "F5": kb.F5, "F6": kb.F6, "F7": kb.F7, "F8": kb.F8,
	"F9": kb.F9, "F10": kb.F10, "F11": kb.F11, "F12": kb.F12,
}

var modifiers = map[string]int64{"Alt": 1, "Control": 2, "Ctrl": 2, "Meta": 4, "Command": 4, "Shift": 8}

// commands are what a key with Control does to text, which the browser does not do by itself without a window.
var commands = map[string]string{"a": "selectAll", "c": "copy", "v": "paste", "x": "cut", "z": "undo", "y": "redo"}

func keyEvent(key string, kind input.DispatchKeyEventType) *input.DispatchKeyEventParams {
	r, _ := utf8.DecodeRuneInString(key)
	k := kb.Keys[r]
	if k == nil {
		k = &kb.Key{Key: key, Text: key, Unmodified: key}
	}
	e := &input.DispatchKeyEventParams{
		Type: kind, Key: k.Key, Code: k.Code, NativeVirtualKeyCode: k.Native, WindowsVirtualKeyCode: k.Windows,
	}
	if kind == input.DispatchKeyEventTypeKeyDown {
		e.Text, e.UnmodifiedText = k.Text, k.Unmodified
	}
	return e
}

// Press presses one key, with modifiers before it: Enter, a or Control+Shift+ArrowLeft.
func (t *Tab) Press(ctx context.Context, combination string) error {
	parts := strings.Split(combination, "+")
	name := parts[len(parts)-1]
	if name == "" && len(parts) > 1 { // the key + itself
		name, parts = "+", parts[:len(parts)-1]
	}
	var mask int64
	for _, m := range parts[:len(parts)-1] {
		bit, ok := modifiers[m]
		if !ok {
			return fmt.Errorf("%q is not a modifier; expected Alt, Control, Meta or Shift", m)
		}
		mask |= bit
	}
	key, ok := named[name]
	if !ok {
		if utf8.RuneCountInString(name) != 1 {
			return fmt.Errorf(
				"%q is not a key; expected one character, or a name such as Enter, Tab, Escape, ArrowDown, "+
					"PageDown or F5",
				name,
			)
		}
		key = name
	}
	kind := input.DispatchKeyEventTypeKeyDown
	if mask&^8 != 0 {
		kind = input.DispatchKeyEventTypeRawKeyDown
	}
	down, up := keyEvent(key, kind), keyEvent(key, input.DispatchKeyEventTypeKeyUp)
	if kind == input.DispatchKeyEventTypeKeyDown && down.Text == "" {
		down.Type = input.DispatchKeyEventTypeRawKeyDown
	}
	if mask == 2 || mask == 4 {
		if c := commands[strings.ToLower(name)]; c != "" {
			down.Commands = []string{c}
		}
	}
	down.Modifiers, up.Modifiers = mask, mask
	return t.settled(ctx, t.keys(ctx, []*input.DispatchKeyEventParams{down, up}))
}

// Select selects options of a list by their values or labels.
func (t *Tab) Select(ctx context.Context, target Target, values []string, timeout time.Duration) (Element, error) {
	e, _, err := t.ready(ctx, target, "select", timeout)
	if err != nil {
		return e, err
	}
	var got readiness
	if err := t.callFunction(ctx, e.frame, "select", &got, e.n, values); err != nil {
		return e, err
	}
	if got.Why != "" {
		return e, &NotReadyError{e, got.Why}
	}
	return e, t.settled(ctx, nil)
}

// Check makes a box checked or not, with a click if it is otherwise.
func (t *Tab) Check(ctx context.Context, target Target, want bool, timeout time.Duration) (Element, error) {
	e, at, err := t.ready(ctx, target, "click", timeout)
	if err != nil || at.checked == want {
		return e, err
	}
	return e, t.settled(ctx, t.clickAt(ctx, at, ClickOptions{}))
}

// Fill puts a value into a field of any kind: text, a box (true or false) or a list of options.
func (t *Tab) Fill(ctx context.Context, target Target, value string, o TypeOptions) (Element, error) {
	e, err := t.awaitElement(ctx, target, o.Timeout)
	if err != nil {
		return e, err
	}
	healed := e.Healed
	switch by := (Target{Ref: e.n}); {
	case e.Role == "checkbox" || e.Role == "radio" || e.Role == "switch":
		if value != "true" && value != "false" {
			return e, &NotReadyError{e, fmt.Sprintf("its value is true or false, not %q", value)}
		}
		e, err = t.Check(ctx, by, value == "true", o.Timeout)
	case (e.Role == "combobox" || e.Role == "listbox") && t.isNativeList(ctx, e):
		e, err = t.Select(ctx, by, strings.Split(value, "\n"), o.Timeout)
	default:
		o.Clear = true
		e, err = t.Type(ctx, by, value, o)
	}
	if healed != "" {
		e.Healed = healed
	}
	return e, err
}

func (t *Tab) isNativeList(ctx context.Context, e Element) bool {
	var d []struct {
		TagName string `json:"tagName"`
	}
	return t.callFunction(ctx, e.frame, "describe", &d, []int{e.n}, map[string]any{}) == nil && len(d) == 1 &&
		d[0].TagName == "SELECT"
}

// Scroll scrolls the page, or an element, by pixels or to its top or bottom, or an element into view.
func (t *Tab) Scroll(ctx context.Context, target *Target, to string, by float64) (Element, error) {
	e := Element{frame: t.mainFrame()}
	if target != nil && !target.Point {
		var err error
		if e, err = t.Resolve(ctx, *target); err != nil {
			return e, err
		}
	}
	if by != 0 {
		at := point{x: 400, y: 300}
		if target != nil {
			var err error
			if _, at, err = t.placeOf(ctx, *target, time.Second); err != nil {
				return e, err
			}
		}
		p := t.mouse(
			input.DispatchMouseEventParams{Type: input.DispatchMouseEventTypeMouseWheel, X: at.x, Y: at.y, DeltaY: by},
		)
		err := t.waitAll(ctx, []chromium.Pending{p})
		if err == nil {
			err = t.callFunction(ctx, t.mainFrame(), "frame", nil)
		}
		return e, t.settled(ctx, err)
	}
	return e, t.callFunction(ctx, e.frame, "scroll", nil, e.n, to)
}

const (
	startWait = 5 * time.Second // for a navigation that an action has begun
	loadWait  = 3 * time.Second // for its load event
)

// settled waits, after an action, for the document that the action may have begun to load.
func (t *Tab) settled(ctx context.Context, err error) error {
	if err != nil || t.Dialog() != nil {
		return err
	}
	t.callFunction(ctx, t.mainFrame(), "element", nil, 0) // events that the action caused arrive before the answer
	b := t.browser
	b.mu.Lock()
	starting := t.starting
	b.mu.Unlock()
	if !starting {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	b.until(wait, func() bool { return !t.starting || t.dialog != nil })
	load, cancel := context.WithTimeout(ctx, loadWait)
	defer cancel()
	b.until(load, func() bool { return t.dialog != nil || t.loadedLocked("load") })
	return ctx.Err()
}

// loadedLocked reports whether the main document has reached an event of its life. browser.mu is held.
func (t *Tab) loadedLocked(event string) bool {
	f := t.frames[t.main]
	return f != nil && t.life[f.loader][event]
}

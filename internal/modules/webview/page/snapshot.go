package page

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Flags of lines, as the engine sets them.
const (
	flagView     = 1 << iota // in the viewport
	flagAction               // holds something to act on
	flagHeading              //
	flagLandmark             //
	flagNote                 // says what was folded
	flagFrame                // the content of a frame follows
	flagModal                // in a modal dialog
)

// Modes of a snapshot.
const (
	ModeFull        = "full"
	ModeInteractive = "interactive"
	ModeText        = "text"
	ModeMarkdown    = "markdown"
)

// SnapshotOptions are for Snapshot. The zero value is the default snapshot.
type SnapshotOptions struct {
	Mode      string // "" means ModeFull
	MaxTokens int    // 0 means 4000
	Within    *Target
	Cursor    int  // the number of the first line; 0 means that lines in the viewport come first
	Diff      bool // only what differs from the last snapshot that was shown
	URLs      bool // links with their addresses
}

// Snapshot is a page as text.
type Snapshot struct {
	Text   string
	URL    string
	Title  string
	Lines  int // of the whole page
	Shown  int
	Next   int // the cursor of the first line that is left out; 0 if none is
	Healed string
}

const (
	defaultTokens = 4000
	bytesPerToken = 3 // of lines with refs and quotes, which have more tokens than prose
	foldAt        = 20
	foldRoomy     = 100 // if the page is small otherwise
)

// line is one line of a snapshot.
type line struct {
	flags, depth int
	text         string
	frame        int // the ref of an iframe
}

func (l *line) UnmarshalJSON(b []byte) error {
	var parts []any
	if err := unmarshal(b, &parts); err != nil {
		return err
	}
	if len(parts) < 3 {
		return errors.New("a line of the engine has fewer than three members")
	}
	number := func(i int) int {
		if i >= len(parts) {
			return 0
		}
		f, _ := parts[i].(float64)
		return int(f)
	}
	l.flags, l.depth, l.frame = number(0), number(1), number(3)
	l.text, _ = parts[2].(string)
	return nil
}

const longestLine = 4000 // bytes

func (l line) String() string {
	return strings.Repeat(" ", min(l.depth, 12)) + cutText(l.text, longestLine)
}

// wording is what the engine returns for one document.
type wording struct {
	Lines  []line  `json:"lines"`
	Next   int     `json:"next"`
	Fresh  [][]any `json:"fresh"`
	Folded int     `json:"folded"`
	Title  string  `json:"title"`
	URL    string  `json:"url"`
	Stale  bool    `json:"stale"`
}

// learn keeps what the engine says about new refs.
func (t *Tab) learn(id frameID, next int, fresh [][]any) {
	t.browser.mu.Lock()
	defer t.browser.mu.Unlock()
	t.next = max(t.next, next)
	if len(t.refs) > mostRefs {
		for n := range t.refs {
			if n < t.next-mostRefs/2 {
				delete(t.refs, n)
			}
		}
	}
	for _, f := range fresh {
		if len(f) != 3 {
			continue
		}
		n, _ := f[0].(float64)
		role, _ := f[1].(string)
		name, _ := f[2].(string)
		t.refs[int(n)] = ref{id, role, name}
	}
}

const mostRefs = 100_000 // of one tab

func (t *Tab) nextRef() int {
	t.browser.mu.Lock()
	defer t.browser.mu.Unlock()
	return t.next
}

// Snapshot words the page.
func (t *Tab) Snapshot(ctx context.Context, o SnapshotOptions) (s Snapshot, err error) {
	if o.Mode == "" {
		o.Mode = ModeFull
	}
	if o.MaxTokens == 0 {
		o.MaxTokens = defaultTokens
	}
	room := o.MaxTokens * bytesPerToken
	frame, within := t.mainFrame(), 0
	if o.Within != nil {
		at, err := t.Resolve(ctx, *o.Within)
		if err != nil {
			return s, err
		}
		frame, within, s.Healed = at.frame, at.n, at.Healed
	}
	w, err := t.words(ctx, frame, within, o, foldAt)
	if err != nil {
		return s, err
	}
	if w.Folded > 0 && textSize(w.Lines) < room/2 && o.Mode != ModeInteractive {
		if more, err := t.words(ctx, frame, within, o, foldRoomy); err == nil && textSize(more.Lines) < room {
			w = more
		}
	}
	s.URL, s.Title = w.URL, w.Title
	lines := w.Lines
	if o.Mode == ModeInteractive {
		lines = slices.DeleteFunc(lines, func(l line) bool {
			return l.flags&(flagAction|flagHeading|flagLandmark|flagFrame|flagNote) == 0
		})
	}
	s.Lines = len(lines)
	texts := make([]string, len(lines))
	for i, l := range lines {
		texts[i] = l.String()
	}
	t.browser.mu.Lock()
	before := t.shown
	t.shown = texts
	t.browser.mu.Unlock()
	switch {
	case o.Diff && before != nil:
		s.Text, s.Shown = difference(before, texts, room)
	case o.Cursor > 0:
		s.Text, s.Shown, s.Next = pageOf(texts, o.Cursor, room)
	default:
		s.Text, s.Shown, s.Next = choose(lines, texts, room)
	}
	return s, nil
}

func textSize(lines []line) (n int) {
	for _, l := range lines {
		n += len(l.text) + l.depth + 1
	}
	return n
}

// words asks the engine for the lines of a frame, and puts those of its frames in their places.
func (t *Tab) words(ctx context.Context, id frameID, within int, o SnapshotOptions, fold int) (w wording, err error) {
	options := map[string]any{"next": t.nextRef(), "mode": o.Mode, "limit": fold, "within": within, "urls": o.URLs}
	if o.Mode == ModeText || o.Mode == ModeMarkdown {
		options["limit"] = 0
	}
	if err := t.callFunction(ctx, id, "snapshot", &w, options); err != nil {
		return w, err
	}
	if w.Stale {
		return w, &StaleError{Ref: within}
	}
	t.learn(id, w.Next, w.Fresh)
	if !slices.ContainsFunc(w.Lines, func(l line) bool { return l.flags&flagFrame != 0 }) {
		return w, nil
	}
	inside, err := t.childFrames(ctx, id)
	if err != nil {
		return w, err
	}
	var all []line
	for _, l := range w.Lines {
		all = append(all, l)
		child, ok := inside[l.frame]
		if l.flags&flagFrame == 0 || !ok {
			continue
		}
		got, err := t.words(ctx, child, 0, o, fold)
		if errors.Is(err, ErrDialog) || ctx.Err() != nil {
			return w, err
		}
		if err != nil {
			continue // it is gone, or does not load
		}
		for _, c := range got.Lines {
			c.depth += l.depth + 1
			if l.flags&flagView == 0 {
				c.flags &^= flagView
			}
			all = append(all, c)
		}
	}
	w.Lines = all
	return w, nil
}

// childFrames returns the frames in a frame by the refs of their elements.
func (t *Tab) childFrames(ctx context.Context, id frameID) (map[int]frameID, error) {
	t.browser.mu.Lock()
	var children []frameID
	for _, f := range t.order {
		if t.frames[f].parent == id && f != id && len(children) < mostFrames {
			children = append(children, f)
		}
	}
	t.browser.mu.Unlock()
	all := map[int]frameID{}
	for _, c := range children {
		n, err := t.refOfFrame(ctx, c)
		if errors.Is(err, ErrDialog) || ctx.Err() != nil {
			return nil, err
		}
		if err == nil {
			all[n] = c
		}
	}
	return all, nil
}

func (t *Tab) refOfFrame(ctx context.Context, id frameID) (int, error) {
	parent, object, err := t.owner(ctx, id)
	if err != nil {
		return 0, err
	}
	var got struct {
		Ref   int     `json:"ref"`
		Next  int     `json:"next"`
		Fresh [][]any `json:"fresh"`
	}
	if err := t.callFunction(ctx, parent, "refOf", &got, object, t.nextRef()); err != nil {
		return 0, err
	}
	t.learn(parent, got.Next, got.Fresh)
	return got.Ref, nil
}

// choose returns the lines that fit: first those of a modal dialog and of the viewport, then the headings and what can
// be acted on elsewhere, then the rest in its order. The notes about what is left out count too.
func choose(lines []line, texts []string, room int) (text string, shown, next int) {
	total := 0
	for _, t := range texts {
		total += len(t) + 1
	}
	if total <= room {
		return join(texts), len(texts), 0
	}
	for notes := 80; ; { // bytes for the notes about gaps, of which it is not known how many there will be
		text, shown, next = fit(lines, texts, room-notes)
		over := len(text) - room
		if over <= 0 || notes > room/2 {
			return text, shown, next
		}
		notes += over
	}
}

func fit(lines []line, texts []string, room int) (text string, shown, next int) {
	take := make([]bool, len(lines))
	left := room
	add := func(most int, wanted func(line) bool) {
		used := 0
		for i, l := range lines {
			cost := len(texts[i]) + 1
			if take[i] || !wanted(l) || cost > left || used+cost > most {
				continue
			}
			take[i] = true
			left -= cost
			used += cost
		}
	}
	add(room, func(l line) bool { return l.flags&flagModal != 0 })
	add(room*7/10, func(l line) bool { return l.flags&flagView != 0 })
	add(room*2/10, func(l line) bool { return l.flags&flagHeading != 0 })
	add(room*1/10, func(l line) bool { return l.flags&(flagNote|flagLandmark) != 0 })
	add(room, func(l line) bool { return l.flags&flagView != 0 })
	for i := range lines { // the rest without gaps
		if cost := len(texts[i]) + 1; !take[i] {
			if cost > left {
				break
			}
			take[i] = true
			left -= cost
		}
	}
	var out []string
	for i := 0; i < len(lines); i++ {
		if take[i] {
			out = append(out, texts[i])
			shown++
			continue
		}
		from := i
		for i+1 < len(lines) && !take[i+1] {
			i++
		}
		if next == 0 {
			next = from + 1
		}
		if gap := i - from + 1; gap > 3 || shown == 0 || i == len(lines)-1 {
			out = append(out, fmt.Sprintf("… %d lines: cursor=%d", gap, from+1))
		} else {
			out = append(out, "…")
		}
	}
	return join(out), shown, next
}

// pageOf returns the lines from a cursor on.
func pageOf(texts []string, cursor, room int) (text string, shown, next int) {
	var out []string
	for i := cursor - 1; i < len(texts); i++ {
		if room -= len(texts[i]) + 1; room < 0 && len(out) > 0 {
			next = i + 1
			break
		}
		out = append(out, texts[i])
	}
	if len(out) == 0 {
		return fmt.Sprintf("There is no line %d; the page has %d lines.\n", cursor, len(texts)), 0, 0
	}
	return join(out), len(out), next
}

func join(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return strings.Join(lines, "\n") + "\n"
}

// Found is a line that Find found.
type Found struct {
	Line   int // its cursor
	Text   string
	Before string
}

// Find returns the lines of the whole page for which match holds, at most a number of them.
func (t *Tab) Find(ctx context.Context, match func(string) bool, most int) (found []Found, total int, err error) {
	w, err := t.words(ctx, t.mainFrame(), 0, SnapshotOptions{Mode: ModeFull}, 0)
	if err != nil {
		return nil, 0, err
	}
	heading := ""
	for i, l := range w.Lines {
		if l.flags&(flagHeading|flagLandmark) != 0 {
			heading = strings.TrimSpace(l.text)
		}
		if !match(l.text) {
			continue
		}
		if total++; len(found) < most {
			f := Found{Line: i + 1, Text: cutText(strings.TrimSpace(l.text), 500)}
			if heading != f.Text {
				f.Before = cutText(heading, 80)
			}
			found = append(found, f)
		}
	}
	return found, total, nil
}

func refText(n int) string { return "e" + strconv.Itoa(n) }

package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Target names an element, or a point, in one of five ways.
type Target struct {
	Ref        int // of a snapshot
	Role, Name string
	Text       string
	Selector   string
	Point      bool
	X, Y       float64
	loose      bool // the text may be a selector or a text
}

var (
	refForm   = regexp.MustCompile(`^e(\d{1,7})(?:\s.*)?$`)
	pointForm = regexp.MustCompile(`^(\d{1,5}(?:\.\d+)?)\s*,\s*(\d{1,5}(?:\.\d+)?)$`)
	roleForm  = regexp.MustCompile(`^(?:role=)?([a-z]+)\s+(?:name=)?"(.*)"(?:\s.*)?$`)
	bareRole  = regexp.MustCompile(`^role=([a-z]+)$`)
)

// ParseTarget reads a target as a caller writes it: e12, button "Save", text=Save, css=#save or 120,300. Text without
// a prefix is a selector and, if it selects nothing, a text.
func ParseTarget(s string) (t Target, err error) {
	s = strings.TrimSpace(s)
	s = strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]:"))
	if m := refForm.FindStringSubmatch(strings.TrimSuffix(s, "]")); m != nil {
		t.Ref, err = strconv.Atoi(m[1])
		return t, err
	}
	if strings.HasPrefix(s, "ref=") {
		return ParseTarget(s[4:])
	}
	if m := pointForm.FindStringSubmatch(s); m != nil {
		t.Point = true
		t.X, _ = strconv.ParseFloat(m[1], 64)
		t.Y, _ = strconv.ParseFloat(m[2], 64)
		return t, nil
	}
	if m := roleForm.FindStringSubmatch(strings.TrimSuffix(s, "]")); m != nil {
		t.Role, t.Name = m[1], strings.ReplaceAll(m[2], `\"`, `"`)
		return t, nil
	}
	if m := bareRole.FindStringSubmatch(s); m != nil {
		t.Role = m[1]
		return t, nil
	}
	switch {
	case s == "":
		return t, errors.New(
			`expected a ref such as e12, role and name such as button "Save", text=..., css=... or x,y`,
		)
	case strings.HasPrefix(s, "text="):
		t.Text = strings.Trim(s[5:], `"`)
	case strings.HasPrefix(s, "css="):
		t.Selector = s[4:]
	case strings.HasPrefix(s, `"`) && strings.HasSuffix(s, `"`) && len(s) > 2:
		t.Text = s[1 : len(s)-1]
	default:
		t.Selector, t.loose = s, true
	}
	return t, nil
}

func (t Target) String() string {
	switch {
	case t.Ref > 0:
		return refText(t.Ref)
	case t.Point:
		return fmt.Sprintf("%g,%g", t.X, t.Y)
	case t.Text != "":
		return fmt.Sprintf("text %q", t.Text)
	case t.Selector != "":
		return t.Selector
	case t.Name == "":
		return t.Role
	}
	return fmt.Sprintf("%s %q", t.Role, t.Name)
}

// Element is an element that a target names.
type Element struct {
	n          int
	frame      frameID
	Role, Name string
	Healed     string // what was done about a stale ref; "" if nothing was
	Visible    bool
}

// Ref returns the number as a caller writes it.
func (e Element) Ref() string { return refText(e.n) }

// StaleError is the error of a ref whose element is gone and was not found again.
type StaleError struct {
	Ref        int
	Role, Name string
	Now        []Element // what has its role and name now
}

func (e *StaleError) Error() string {
	was := ""
	if e.Role != "" {
		was = fmt.Sprintf(" (%s %q)", e.Role, e.Name)
	}
	if len(e.Now) == 0 {
		return fmt.Sprintf("e%d%s is no longer on the page", e.Ref, was)
	}
	return fmt.Sprintf("e%d%s is no longer on the page, and %d elements have its role and name: %s", e.Ref, was,
		len(e.Now), listed(e.Now))
}

// AmbiguousError is the error of a target that several elements match.
type AmbiguousError struct {
	Target Target
	Count  int
	First  []Element
}

func (e *AmbiguousError) Error() string {
	return fmt.Sprintf("%d elements match %s: %s", e.Count, e.Target, listed(e.First))
}

// MissingError is the error of a target that nothing matches.
type MissingError struct{ Target Target }

func (e *MissingError) Error() string { return fmt.Sprintf("nothing on the page matches %s", e.Target) }

func listed(all []Element) string {
	var words []string
	for _, e := range all {
		words = append(words, strings.TrimSpace(fmt.Sprintf("%s %s %q", e.Ref(), e.Role, cutText(e.Name, 40))))
	}
	return strings.Join(words, ", ")
}

// resolved is what the engine returns for a search.
type resolved struct {
	Found [][]any `json:"found"`
	Count int     `json:"count"`
	Next  int     `json:"next"`
	Fresh [][]any `json:"fresh"`
	Bad   string  `json:"bad"`
}

// Resolve returns the one element that a target names.
func (t *Tab) Resolve(ctx context.Context, target Target) (Element, error) {
	if target.Ref > 0 {
		return t.byRef(ctx, target.Ref)
	}
	all, count, err := t.Search(ctx, target, 10)
	switch {
	case err != nil:
		return Element{}, err
	case count == 0:
		return Element{}, &MissingError{target}
	case count > 1:
		return Element{}, &AmbiguousError{target, count, all}
	}
	return all[0], nil
}

// Search returns the elements that a target names in all frames, at most a number of them, and their count.
func (t *Tab) Search(ctx context.Context, target Target, most int) (all []Element, count int, err error) {
	if target.Ref > 0 {
		e, err := t.byRef(ctx, target.Ref)
		if err != nil {
			return nil, 0, err
		}
		return []Element{e}, 1, nil
	}
	query := map[string]any{
		"most":     most,
		"role":     target.Role,
		"name":     target.Name,
		"text":     target.Text,
		"selector": target.Selector,
	}
	bad := ""
	for _, id := range t.allFrames() {
		var got resolved
		if err := t.callFunction(ctx, id, "resolve", &got, query, t.nextRef()); err != nil {
			if errors.Is(err, errFrameGone) && id != t.mainFrame() {
				continue
			}
			return nil, 0, err
		}
		if bad = cmp.Or(bad, got.Bad); got.Bad != "" {
			break
		}
		t.learn(id, got.Next, got.Fresh)
		count += got.Count
		for _, f := range got.Found {
			if len(all) < most && len(f) == 4 {
				n, _ := f[0].(float64)
				e := Element{n: int(n), frame: id}
				e.Role, _ = f[1].(string)
				e.Name, _ = f[2].(string)
				e.Visible, _ = f[3].(bool)
				all = append(all, e)
			}
		}
	}
	if count == 0 && target.loose {
		return t.Search(ctx, Target{Text: target.Selector}, most)
	}
	if bad != "" {
		return nil, 0, fmt.Errorf("%q is not a selector: %s", target.Selector, bad)
	}
	return all, count, nil
}

func (t *Tab) byRef(ctx context.Context, n int) (Element, error) {
	t.browser.mu.Lock()
	known, ok := t.refs[n]
	t.browser.mu.Unlock()
	if !ok {
		return Element{}, &StaleError{Ref: n}
	}
	var there []any
	err := t.callFunction(ctx, known.frame, "describe", &there, []int{n}, map[string]any{})
	if err == nil && len(there) == 1 && there[0] != nil {
		return Element{n: n, frame: known.frame, Role: known.role, Name: known.name, Visible: true}, nil
	}
	if err != nil && !errors.Is(err, errFrameGone) {
		return Element{}, err
	}
	return t.heal(ctx, n, known)
}

// heal finds the element that has the role and name of one that is gone.
func (t *Tab) heal(ctx context.Context, n int, known ref) (Element, error) {
	stale := &StaleError{Ref: n, Role: known.role, Name: known.name}
	all, count, err := t.Search(ctx, Target{Role: known.role, Name: known.name}, 10)
	if err != nil {
		return Element{}, err
	}
	var same []Element
	for _, e := range all {
		if e.Name == known.name {
			same = append(same, e)
		}
	}
	if len(same) != 1 || count > 10 {
		stale.Now = all
		return Element{}, stale
	}
	same[0].Healed = fmt.Sprintf("e%d was stale; its role and name are now %s", n, same[0].Ref())
	return same[0], nil
}

package webview

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/modules/webview/page"
	"gatehouse/tool"
)

type clickIn struct {
	place
	Target   string `json:"target,omitempty" doc:"e12, button \"Save\", text=Save, css=#save or x,y" max:"1000"`
	Selector string `json:"selector,omitempty" doc:"CSS, instead of target" max:"1000"`
	Button   string `json:"button,omitempty" enum:"left,right,middle" default:"left"`
	Count    int    `json:"count,omitempty" doc:"2 is a double click" default:"1" min:"1" max:"3"`
	showing
	timed
}

func (m *manager) click(ctx context.Context, c *tool.Call, in clickIn) (acted, error) {
	at, err := target(in.Target, in.Selector)
	if err != nil {
		return acted{}, err
	}
	return m.act(ctx, c, in.place, in.showing, func(_ *session, t *page.Tab) (page.Element, error) {
		return t.Click(ctx, at, page.ClickOptions{Button: in.Button, Count: in.Count, Timeout: in.duration()})
	})
}

type typeIn struct {
	place
	Target   string `json:"target,omitempty" doc:"e12, textbox \"Name\", css=#name" max:"1000"`
	Selector string `json:"selector,omitempty" doc:"CSS, instead of target" max:"1000"`
	Text     string `json:"text,omitempty" max:"100000"`
	Secret   string `json:"secret,omitempty" doc:"instead of text: the name of a stored secret, for password fields" max:"200"`
	Clear    bool   `json:"clear,omitempty" doc:"replace what is there"`
	Submit   bool   `json:"submit,omitempty" doc:"press Enter afterwards"`
	showing
	timed
}

func (m *manager) typeText(ctx context.Context, c *tool.Call, in typeIn) (acted, error) {
	at, err := target(in.Target, in.Selector)
	if err != nil {
		return acted{}, err
	}
	if in.Secret != "" && in.Text != "" {
		return acted{}, tool.Refuse(tool.CodeInvalidArguments, "expected either text or secret")
	}
	o := page.TypeOptions{Clear: in.Clear, Submit: in.Submit, Timeout: in.duration()}
	text := in.Text
	var value secret.Text
	if in.Secret != "" {
		if value, err = m.secretFor(c, in.Secret, &o); err != nil {
			return acted{}, err
		}
		text = value.Reveal()
	}
	return m.act(ctx, c, in.place, in.showing, func(s *session, t *page.Tab) (page.Element, error) {
		if in.Secret != "" {
			s.keepSecret(value)
		}
		return t.Type(ctx, at, text, o)
	})
}

// secretFor returns a secret, and limits the typing of it to password fields of the origins that the settings name.
func (m *manager) secretFor(c *tool.Call, name string, o *page.TypeOptions) (secret.Text, error) {
	i := slices.IndexFunc(m.cfg.Secrets, func(s Secret) bool { return s.Name == name })
	missing := &tool.Refusal{
		Code: tool.CodeNotFound, Message: fmt.Sprintf("there is no secret %q that may be typed in this context", name),
		Next: "The administrator can name it in modules.webview.secrets and in the environment of the context.",
	}
	if i < 0 || m.cfg.Secret == nil {
		return secret.Text{}, missing
	}
	value, ok, err := m.cfg.Secret(c.Caller, name)
	if err != nil {
		return secret.Text{}, err
	}
	if !ok || value.Empty() {
		return secret.Text{}, missing
	}
	origins := m.cfg.Secrets[i].Origins
	o.May = func(origin string, password bool) error {
		switch {
		case !slices.Contains(origins, origin):
			return &tool.Refusal{
				Code: tool.CodeDenied,
				Message: fmt.Sprintf("the secret %q may not be typed into a page of %s; it is for %s", name, origin,
					strings.Join(origins, ", ")),
			}
		case !password:
			return tool.Refuse(tool.CodeDenied, "secrets are typed into password fields only, and this field is none")
		}
		return nil
	}
	return value, nil
}

type fillIn struct {
	place
	Fields []fieldIn `json:"fields" min:"1" max:"100"`
	Submit string    `json:"submit,omitempty" doc:"a target to click afterwards" max:"1000"`
	showing
	timed
}

type fieldIn struct {
	Target string `json:"target" min:"1" max:"1000"`
	Value  string `json:"value" doc:"text; true or false for a box; the label of an option, several on lines of their own" max:"100000"`
}

func (m *manager) fill(ctx context.Context, c *tool.Call, in fillIn) (acted, error) {
	var healed []string
	out, err := m.act(ctx, c, in.place, in.showing, func(_ *session, t *page.Tab) (e page.Element, err error) {
		for i, f := range in.Fields {
			at, err := target(f.Target, "")
			if err == nil {
				e, err = t.Fill(ctx, at, f.Value, page.TypeOptions{Timeout: in.duration()})
			}
			if err != nil {
				return e, fieldError(i, in.Fields, err)
			}
			if e.Healed != "" {
				healed = append(healed, e.Healed)
			}
			if t.Dialog() != nil {
				return e, nil
			}
		}
		if in.Submit == "" {
			return e, nil
		}
		at, err := target(in.Submit, "")
		if err != nil {
			return e, err
		}
		return t.Click(ctx, at, page.ClickOptions{Timeout: in.duration()})
	})
	out.Ref, out.Healed = "", strings.Join(healed, "; ")
	if err == nil {
		out.Notice = fmt.Sprintf("%d fields", len(in.Fields))
	}
	return out, err
}

// fieldError says which field failed, and that those before it are set.
func fieldError(i int, all []fieldIn, err error) error {
	r, ok := refuse(err).(*tool.Refusal)
	if !ok {
		return err
	}
	return &tool.Refusal{
		Code: r.Code, Message: fmt.Sprintf("fields[%d] (%s): %s", i, all[i].Target, r.Message),
		Next: strings.TrimSpace(fmt.Sprintf("The %d fields before it are set. %s", i, r.Next)),
	}
}

type actIn struct {
	place
	Action string   `json:"action" enum:"press,hover,select,check,uncheck,scroll,drag"`
	Target string   `json:"target,omitempty" max:"1000"`
	Key    string   `json:"key,omitempty" doc:"of press: Enter, a, Control+A" max:"60"`
	Values []string `json:"values,omitempty" doc:"of select: labels or values" max:"100"`
	To     string   `json:"to,omitempty" doc:"of drag: a target; of scroll: top, bottom or pixels such as 600 or -600" max:"1000"`
	showing
	timed
}

func (m *manager) actOn(ctx context.Context, c *tool.Call, in actIn) (acted, error) {
	var at *page.Target
	if in.Target != "" {
		t, err := target(in.Target, "")
		if err != nil {
			return acted{}, err
		}
		at = &t
	}
	if at == nil && in.Action != "press" && in.Action != "scroll" {
		return acted{}, tool.Refuse(tool.CodeInvalidArguments, "target: expected what to %s", in.Action)
	}
	return m.act(ctx, c, in.place, in.showing, func(_ *session, t *page.Tab) (page.Element, error) {
		switch in.Action {
		case "press":
			return press(ctx, t, at, in)
		case "hover":
			return t.Hover(ctx, *at, in.duration())
		case "select":
			return t.Select(ctx, *at, in.Values, in.duration())
		case "check", "uncheck":
			return t.Check(ctx, *at, in.Action == "check", in.duration())
		case "scroll":
			return scroll(ctx, t, at, in)
		}
		to, err := target(in.To, "")
		if err != nil {
			return page.Element{}, err
		}
		return t.Drag(ctx, *at, to, in.duration())
	})
}

func press(ctx context.Context, t *page.Tab, at *page.Target, in actIn) (e page.Element, err error) {
	if in.Key == "" {
		return e, tool.Refuse(tool.CodeInvalidArguments, "key: expected a key such as Enter")
	}
	if at != nil {
		if e, err = t.Focus(ctx, *at, in.duration()); err != nil {
			return e, err
		}
	}
	return e, t.Press(ctx, in.Key)
}

func scroll(ctx context.Context, t *page.Tab, at *page.Target, in actIn) (page.Element, error) {
	if in.To == "" || in.To == "top" || in.To == "bottom" {
		return t.Scroll(ctx, at, in.To, 0)
	}
	var by float64
	if n, err := fmt.Sscanf(in.To, "%g", &by); n != 1 || err != nil {
		return page.Element{}, tool.Refuse(tool.CodeInvalidArguments, "to: expected top, bottom or pixels, not %q",
			in.To)
	}
	return t.Scroll(ctx, at, "", by)
}

type dialogIn struct {
	place
	Handle string `json:"handle,omitempty" doc:"of the dialog that is meant; default: the open one" max:"20"`
	Accept bool   `json:"accept" doc:"false dismisses it"`
	Text   string `json:"text,omitempty" doc:"for a prompt" max:"10000"`
	showing
}

func (m *manager) dialog(ctx context.Context, c *tool.Call, in dialogIn) (out acted, err error) {
	err = m.on(ctx, c, in.place, func(s *session, t *page.Tab) error {
		d := t.Dialog()
		if d == nil || in.Handle != "" && in.Handle != d.Handle {
			return &tool.Refusal{
				Code:    tool.CodeNotFound,
				Message: "no such dialog is open",
				Next:    "webview_snapshot shows the page.",
			}
		}
		before := t.URL()
		if err := t.AnswerDialog(ctx, in.Accept, in.Text); err != nil {
			return err
		}
		out.Success = true
		return m.after(ctx, s, t, in.showing, before, &out)
	})
	return out, err
}

type renderIn struct {
	Session string `json:"session,omitempty" default:"default" min:"1" max:"64"`
	ID      string `json:"id" doc:"a name of your choice" min:"1" max:"64"`
	HTML    string `json:"html" min:"1" max:"2000000"`
	showing
}

func (m *manager) render(ctx context.Context, c *tool.Call, in renderIn) (out acted, err error) {
	s, err := m.get(ctx, c, in.Session, "")
	if err != nil {
		return out, err
	}
	t := s.rendered(in.ID)
	if t == nil {
		if t, err = s.browser.NewTab(ctx); err != nil {
			return out, refuse(err)
		}
		s.mu.Lock()
		s.renders[in.ID] = t
		s.mu.Unlock()
	}
	return m.show(ctx, s, t, in.HTML, in.showing)
}

// rendered returns the tab of a name, if it is open.
func (s *session) rendered(id string) *page.Tab {
	tabs, _ := s.browser.Tabs()
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.renders[id]; slices.Contains(tabs, t) {
		return t
	}
	delete(s.renders, id)
	return nil
}

func (m *manager) show(ctx context.Context, s *session, t *page.Tab, html string, show showing) (out acted, err error) {
	t.Lock()
	defer t.Unlock()
	if err := dialogRefusal(t); err != nil {
		return out, err
	}
	if err := t.SetContent(ctx, html); err != nil {
		return out, refuse(err)
	}
	out = acted{Success: true, Tab: t.ID}
	tab := t.ID
	err = refuse(m.after(ctx, s, t, show, t.URL(), &out))
	out.Tab = tab
	return out, err
}

type updateIn struct {
	Session  string `json:"session,omitempty" default:"default" min:"1" max:"64"`
	ID       string `json:"id" doc:"of webview_render" min:"1" max:"64"`
	HTML     string `json:"html" max:"2000000"`
	Selector string `json:"selector,omitempty" doc:"CSS of the element whose content is replaced; default: the whole page" max:"1000"`
	showing
}

func (m *manager) update(ctx context.Context, c *tool.Call, in updateIn) (out acted, err error) {
	var t *page.Tab
	s := m.findSession(c, in.Session)
	if s != nil {
		t = s.rendered(in.ID)
	}
	if t == nil {
		return out, &tool.Refusal{
			Code: tool.CodeNotFound, Message: fmt.Sprintf("nothing is shown under the name %q", in.ID),
			Next: "webview_render shows it.",
		}
	}
	if in.Selector == "" {
		return m.show(ctx, s, t, in.HTML, in.showing)
	}
	t.Lock()
	defer t.Unlock()
	if err := dialogRefusal(t); err != nil {
		return out, err
	}
	if err := t.Replace(ctx, page.Target{Selector: in.Selector}, in.HTML); err != nil {
		return out, refuse(err)
	}
	out.Success = true
	err = refuse(m.after(ctx, s, t, in.showing, t.URL(), &out))
	out.Tab = t.ID
	return out, err
}

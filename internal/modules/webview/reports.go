package webview

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"gatehouse/internal/modules/webview/page"
	"gatehouse/internal/sandbox"
	"gatehouse/tool"
)

type consoleIn struct {
	place
	Clear  bool   `json:"clear,omitempty" doc:"forget the messages afterwards"`
	Cursor int    `json:"cursor,omitempty" doc:"only messages after this one" min:"0"`
	Type   string `json:"type,omitempty" doc:"only these: log, warning, error, exception, info, debug" max:"20"`
	Limit  int    `json:"limit,omitempty" doc:"the newest" default:"50" min:"1" max:"1000"`
}

type consoleOut struct {
	Messages []messageOut `json:"messages"`
	Count    int          `json:"count"`
	Cursor   int          `json:"cursor" doc:"of the newest message"`
	Lost     int          `json:"lost,omitempty" doc:"messages after the cursor that are no longer kept"`
}

type messageOut struct {
	Type      string `json:"type"`
	Text      string `json:"text"`
	Timestamp string `json:"timestamp"`
	URL       string `json:"url,omitempty"`
	Line      int64  `json:"line,omitempty"`
}

func (m *manager) console(ctx context.Context, c *tool.Call, in consoleIn) (out consoleOut, err error) {
	out.Messages = []messageOut{}
	err = m.on(ctx, c, in.place, func(s *session, t *page.Tab) error {
		all, lost := t.Console(in.Cursor)
		out.Lost, out.Cursor = lost, in.Cursor
		if n := len(all); n > 0 {
			out.Cursor = all[n-1].Seq
		}
		for _, msg := range all {
			if in.Type == "" || msg.Type == in.Type {
				out.Messages = append(out.Messages, messageOut{
					msg.Type, s.hide(msg.Text), msg.At.UTC().Format(time.RFC3339Nano), msg.URL, msg.Line,
				})
			}
		}
		out.Messages = out.Messages[max(0, len(out.Messages)-in.Limit):]
		out.Count = len(out.Messages)
		if in.Clear {
			t.ClearConsole()
		}
		return nil
	})
	return out, err
}

type networkIn struct {
	place
	Cursor    int    `json:"cursor,omitempty" doc:"only requests after this one" min:"0"`
	Contains  string `json:"contains,omitempty" doc:"a part of the address" max:"500"`
	Failed    bool   `json:"failed,omitempty" doc:"only those without an answer, or with status 400 and above"`
	Limit     int    `json:"limit,omitempty" doc:"the newest" default:"50" min:"1" max:"500"`
	Body      int    `json:"body,omitempty" doc:"the number of a request: its answer with headers and body" min:"1"`
	Decisions bool   `json:"decisions,omitempty" doc:"what the address policy allowed and refused"`
}

type networkOut struct {
	Requests  []requestOut      `json:"requests"`
	Cursor    int               `json:"cursor"`
	Lost      int               `json:"lost,omitempty"`
	Headers   map[string]string `json:"headers,omitempty"`
	Body      string            `json:"body,omitempty"`
	Truncated bool              `json:"truncated,omitempty" doc:"only the beginning of the body is given"`
	Decisions []decisionOut     `json:"decisions,omitempty"`
}

type requestOut struct {
	Number int    `json:"number"`
	Method string `json:"method"`
	URL    string `json:"url"`
	Type   string `json:"type"`
	Status int64  `json:"status,omitempty"`
	MIME   string `json:"mime,omitempty"`
	Bytes  int64  `json:"bytes,omitempty"`
	Millis int64  `json:"ms,omitempty"`
	Failed string `json:"failed,omitempty"`
}

type decisionOut struct {
	Allowed bool   `json:"allowed"`
	Target  string `json:"target"`
	Address string `json:"address,omitempty"`
	Reason  string `json:"reason"`
}

const mostBody = 50_000 // bytes

func (m *manager) networkLog(ctx context.Context, c *tool.Call, in networkIn) (out networkOut, err error) {
	out.Requests = []requestOut{}
	err = m.on(ctx, c, in.place, func(s *session, t *page.Tab) error {
		if in.Decisions {
			out.Decisions = wordDecisions(s.browser.Decisions(), in.Limit)
			return nil
		}
		after := in.Cursor
		if in.Body > 0 {
			after = in.Body - 1
		}
		all, lost := t.Network(after)
		out.Lost, out.Cursor = lost, in.Cursor
		if in.Body > 0 {
			return out.addBody(ctx, s, t, all, in.Body)
		}
		for _, q := range all {
			out.Cursor = q.Seq
			if strings.Contains(q.URL, in.Contains) && (!in.Failed || q.Failed != "" || q.Status >= 400) {
				out.Requests = append(out.Requests, wordRequest(s, q))
			}
		}
		out.Requests = out.Requests[max(0, len(out.Requests)-in.Limit):]
		return nil
	})
	return out, err
}

func wordRequest(s *session, q page.Request) requestOut {
	return requestOut{
		q.Seq, q.Method, s.hide(q.URL), q.Type, q.Status, q.MIME, q.Bytes, q.Took.Milliseconds(), q.Failed,
	}
}

func (o *networkOut) addBody(ctx context.Context, s *session, t *page.Tab, all []page.Request, number int) error {
	if len(all) == 0 || all[0].Seq != number {
		return &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: fmt.Sprintf("request %d is not kept", number),
			Next:    "webview_network lists those that are.",
		}
	}
	q := all[0]
	o.Requests = append(o.Requests, wordRequest(s, q))
	o.Headers = map[string]string{}
	for name, value := range q.Headers {
		if !slices.Contains([]string{"set-cookie", "authorization", "proxy-authorization"}, strings.ToLower(name)) {
			o.Headers[name] = s.hide(value)
		}
	}
	body, err := t.ResponseBody(ctx, q)
	if err != nil {
		return err
	}
	if !utf8.Valid(body) {
		return &tool.Refusal{
			Code:    tool.CodeBinary,
			Message: fmt.Sprintf("the body is no text (%s, %d bytes)", q.MIME, len(body)),
		}
	}
	if o.Truncated = len(body) > mostBody; o.Truncated {
		body = body[:mostBody]
	}
	o.Body = s.hide(strings.ToValidUTF8(string(body), ""))
	return nil
}

func wordDecisions(all []sandbox.Decision, most int) (out []decisionOut) {
	for _, d := range all[max(0, len(all)-most):] {
		out = append(out, decisionOut{d.Allowed, d.Target, d.Address, d.Reason})
	}
	return out
}

package page

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp/jsonv2"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"

	"gatehouse/internal/modules/webview/chromium"
)

type (
	downloadWillBegin = browser.EventDownloadWillBegin
	downloadProgress  = browser.EventDownloadProgress
)

var (
	browserDownloadWillBegin = browser.DownloadWillBegin.Method
	browserDownloadProgress  = browser.DownloadProgress.Method
)

// ring keeps the newest values, numbered from 1.
type ring[T any] struct {
	most int
	last int // the number of the newest
	all  []T
}

func (r *ring[T]) appendRecord(v T) (number int) {
	if len(r.all) >= r.most {
		r.all = append(r.all[:0], r.all[max(1, r.most/10):]...)
	}
	r.all = append(r.all, v)
	r.last++
	return r.last
}

// after returns the values after a number, and how many of them are lost.
func (r *ring[T]) after(n int) (values []T, lost int) {
	first := r.last - len(r.all) // the number before the oldest
	if n < first {
		lost, n = first-n, first
	}
	return append([]T(nil), r.all[min(len(r.all), n-first):]...), lost
}

// Message is a line of a page's console.
type Message struct {
	Seq  int
	Type string // log, warning, error, ...
	Text string
	At   time.Time
	URL  string
	Line int64
}

const longestMessage = 2000 // bytes

func (t *Tab) recordEvent(e chromium.Event) {
	var m Message
	switch e.Method {
	case runtime.ConsoleAPICalled.Method:
		handle(e, func(_ chromium.Event, c runtime.EventConsoleAPICalled) {
			m.Type, m.At = string(c.Type), millis(float64(c.Timestamp))
			var words []string
			for _, a := range c.Args {
				words = append(words, wordObject(a))
			}
			m.Text = strings.Join(words, " ")
			if c.StackTrace != nil && len(c.StackTrace.CallFrames) > 0 {
				m.URL, m.Line = c.StackTrace.CallFrames[0].URL, c.StackTrace.CallFrames[0].LineNumber+1
			}
		})
	case runtime.ExceptionThrown.Method:
		handle(e, func(_ chromium.Event, x runtime.EventExceptionThrown) {
			if d := x.ExceptionDetails; d != nil {
				m.Type, m.At, m.URL, m.Line = "exception", millis(float64(x.Timestamp)), d.URL, d.LineNumber+1
				m.Text = scriptError(d).Error()
			}
		})
	default:
		handle(e, func(_ chromium.Event, l log.EventEntryAdded) {
			if l.Entry != nil {
				m.Type, m.Text, m.At, m.URL, m.Line = string(
					l.Entry.Level,
				), l.Entry.Text, millis(float64(l.Entry.Timestamp)), l.Entry.URL, l.Entry.LineNumber
			}
		})
	}
	if m.Type == "" {
		return
	}
	m.Text = cutText(m.Text, longestMessage)
	t.browser.mu.Lock()
	defer t.browser.mu.Unlock()
	m.Seq = t.console.last + 1
	t.console.appendRecord(m)
}

func millis(ms float64) time.Time { return time.UnixMilli(int64(ms)) }

// wordObject words an argument of the console, objects by their members.
func wordObject(o *runtime.RemoteObject) string {
	switch {
	case o == nil:
		return ""
	case o.Preview != nil && o.Subtype != runtime.RemoteObjectSubtypeError:
		var parts []string
		for _, p := range o.Preview.Properties {
			if o.Subtype == runtime.RemoteObjectSubtypeArray {
				parts = append(parts, p.Value)
			} else {
				parts = append(parts, p.Name+": "+p.Value)
			}
		}
		if o.Preview.Overflow {
			parts = append(parts, "…")
		}
		if o.Subtype == runtime.RemoteObjectSubtypeArray {
			return "[" + strings.Join(parts, ", ") + "]"
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case o.Type == runtime.RemoteObjectTypeString:
		var s string
		if jsonv2.Unmarshal(o.Value, &s) == nil {
			return s
		}
	case len(o.Value) > 0:
		return string(o.Value)
	case o.UnserializableValue != "":
		return string(o.UnserializableValue)
	}
	return o.Description
}

// Console returns the messages after a number, and how many are lost.
func (t *Tab) Console(after int) ([]Message, int) {
	t.browser.mu.Lock()
	defer t.browser.mu.Unlock()
	return t.console.after(after)
}

// ClearConsole forgets the messages.
func (t *Tab) ClearConsole() {
	t.browser.mu.Lock()
	defer t.browser.mu.Unlock()
	t.console.all = nil
}

// Request is a request of a page.
type Request struct {
	Seq     int
	ID      network.RequestID
	Method  string
	URL     string
	Type    string
	Status  int64 // 0 without an answer
	MIME    string
	Bytes   int64
	Failed  string // why there is no answer
	Started time.Time
	Took    time.Duration // 0 while it runs
	Headers map[string]string

	session *session
	begun   float64
}

func (t *Tab) traffic(s *session, e chromium.Event) {
	t.browser.mu.Lock()
	defer t.browser.mu.Unlock()
	switch e.Method {
	case network.RequestWillBeSent.Method:
		handle(e, func(_ chromium.Event, r network.EventRequestWillBeSent) {
			if old := t.byID[r.RequestID]; old != nil && r.RedirectResponse != nil {
				old.Status, old.MIME = r.RedirectResponse.Status, r.RedirectResponse.MimeType
			}
			q := &Request{
				Seq: t.requests.last + 1, ID: r.RequestID, Method: r.Request.Method, URL: cutText(r.Request.URL, 2000),
				Type: string(
					r.Type,
				), session: s, begun: float64(r.Timestamp), Started: time.UnixMilli(int64(float64(r.WallTime) * 1000)),
			}
			t.requests.appendRecord(q)
			if len(t.byID) > t.requests.most {
				clear(t.byID)
			}
			t.byID[r.RequestID] = q
		})
	case network.ResponseReceived.Method:
		handle(e, func(_ chromium.Event, r network.EventResponseReceived) {
			if q := t.byID[r.RequestID]; q != nil && r.Response != nil {
				q.Status, q.MIME, q.Headers = r.Response.Status, r.Response.MimeType, map[string]string{}
				for name, value := range r.Response.Headers {
					if text, ok := value.(string); ok && len(q.Headers) < 50 {
						q.Headers[name] = cutText(text, 500)
					}
				}
			}
		})
	case network.LoadingFinished.Method:
		handle(e, func(_ chromium.Event, r network.EventLoadingFinished) {
			if q := t.byID[r.RequestID]; q != nil {
				q.Bytes, q.Took = int64(r.EncodedDataLength), seconds(float64(r.Timestamp)-q.begun)
			}
		})
	case network.LoadingFailed.Method:
		handle(e, func(_ chromium.Event, r network.EventLoadingFailed) {
			if q := t.byID[r.RequestID]; q != nil {
				q.Failed, q.Took = r.ErrorText, seconds(float64(r.Timestamp)-q.begun)
			}
		})
	}
	t.browser.broadcast()
}

func seconds(s float64) time.Duration { return time.Duration(max(s, 0.000001) * float64(time.Second)) }

// Network returns the requests after a number, and how many are lost.
func (t *Tab) Network(after int) (all []Request, lost int) {
	t.browser.mu.Lock()
	defer t.browser.mu.Unlock()
	found, lost := t.requests.after(after)
	for _, q := range found {
		all = append(all, *q)
	}
	return all, lost
}

// ResponseBody returns the body of the answer to a request.
func (t *Tab) ResponseBody(ctx context.Context, r Request) ([]byte, error) {
	got, err := chromium.Call(ctx, r.session.Session, network.GetResponseBody,
		network.GetResponseBodyParams{RequestID: r.ID})
	return []byte(got.Body), err
}

// running counts the requests that have no answer yet. browser.mu is held.
func (t *Tab) running() int {
	n := 0
	for _, q := range t.requests.all {
		if q.Took == 0 && q.Type != "WebSocket" && q.Type != "EventSource" {
			n++
		}
	}
	return n
}

// cutText returns the beginning of a text, at most a number of bytes.
func cutText(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most] + "…"
}

func containsText(s, part string) bool { return strings.Contains(s, part) }

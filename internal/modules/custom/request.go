package custom

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

// answerBytes of the body of an answer that is an error are shown.
const answerBytes = 4 << 10

// request is an HTTP request with its templates read.
type request struct {
	method  string
	host    string // what the address begins with, up to its path
	url     contextstore.Template
	headers map[string]contextstore.Template
	body    any // decoded; nil means the arguments
	bounds  bounds
	client  *http.Client
}

func (m *Module) request(h *contextstore.HTTP, b bounds) (source, error) {
	r := &request{method: h.Method, headers: map[string]contextstore.Template{}, bounds: b, client: m.opts.Client}
	if r.method == "" {
		r.method = "POST"
	}
	scheme, rest, _ := strings.Cut(h.URL, "://")
	host, _, _ := strings.Cut(rest, "/")
	r.host = scheme + "://" + host
	var err error
	if r.url, err = contextstore.ParseTemplate(h.URL); err != nil {
		return nil, err
	}
	for name, text := range h.Headers {
		if r.headers[name], err = contextstore.ParseTemplate(text); err != nil {
			return nil, err
		}
	}
	if h.Body != nil {
		d := json.NewDecoder(bytes.NewReader(h.Body))
		d.UseNumber()
		err = d.Decode(&r.body)
	}
	return r.run, err
}

func (r *request) run(ctx context.Context, c *tool.Call, env *contextstore.Environment) (answer, error) {
	ctx, stop := context.WithTimeoutCause(ctx, r.bounds.timeout, errTimeout)
	defer stop()
	req, err := r.build(ctx, c, env)
	if err != nil {
		return answer{}, err
	}
	res, err := r.client.Do(req)
	if err != nil {
		return answer{}, r.broken(ctx, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, int64(r.bounds.most)+1))
	switch {
	case err != nil:
		return answer{}, r.broken(ctx, err)
	case len(body) > r.bounds.most:
		return answer{}, r.bounds.ended(errTooLong)
	case res.StatusCode < 200 || res.StatusCode > 299:
		return answer{}, refusedBy(res, body)
	}
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	return answer{body, kind, true}, nil
}

// broken is an answer that did not come. The address stays with the author.
func (r *request) broken(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if refusal := r.bounds.ended(cause); refusal != nil {
		return refusal
	}
	if cause != nil {
		return cause
	}
	why := innermost(err)
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		why = "the host is not known"
	}
	return &tool.Refusal{Code: "unavailable", Message: "no answer came: " + why, Next: "Try again in a moment."}
}

func refusedBy(res *http.Response, body []byte) error {
	what := "HTTP " + res.Status
	if res.StatusCode/100 == 3 {
		what += "; redirects are not followed"
	}
	return failed(what, body[:min(len(body), answerBytes)])
}

// build makes the request of one call.
func (r *request) build(ctx context.Context, c *tool.Call, env *contextstore.Environment) (*http.Request, error) {
	v, err := readValues(c.Args)
	if err != nil {
		return nil, err
	}
	address, err := r.address(v)
	if err != nil {
		return nil, err
	}
	var body io.Reader
	if r.method != "GET" && r.method != "HEAD" && !(r.method == "DELETE" && r.body == nil) {
		text, err := r.encode(c.Args, v)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, address, body)
	if err != nil {
		return nil, tool.Refuse("invalid_arguments", "the arguments make no address")
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("User-Agent", "gatehouse")
	req.Header.Set("X-Request-Id", c.ID)
	if c.Caller.Trace != "" {
		req.Header.Set("Traceparent", c.Caller.Trace)
	}
	return req, r.setHeaders(req.Header, env, v)
}

// address fills the template of the address. A value is one segment of the
// path or one value of the query, never more. Escaping alone does not keep it
// there: many servers decode a path before they look for separators and dots,
// some of them twice.
func (r *request) address(v values) (string, error) {
	leaves := ""
	s, err := r.url.Expand(func(name, before string) (string, bool) {
		text, ok := v.text(name)
		if strings.Contains(before, "?") {
			return url.QueryEscape(text), ok
		}
		if plain, whole := decoded(text); !whole || strings.ContainsFunc(plain, separates) {
			leaves = name
		}
		return url.PathEscape(text), ok
	})
	if err != nil {
		return "", missing(err)
	}
	if leaves != "" {
		return "", tool.Refuse("invalid_arguments", "%s: a value in the path is one segment, without / \\ or control characters, encoded ones included", leaves)
	}
	u, err := url.Parse(s)
	if err != nil || !strings.HasPrefix(s, r.host+"/") && s != r.host {
		return "", tool.Refuse("invalid_arguments", "the arguments make no address")
	}
	for part := range strings.SplitSeq(u.EscapedPath(), "/") {
		part, _ = decoded(part)
		part, _, _ = strings.Cut(part, ";") // before the parameters of the segment
		if part == "." || part == ".." {
			return "", tool.Refuse("invalid_arguments", "an argument that is . or .. would lead elsewhere")
		}
	}
	return s, nil
}

// decoded undoes percent-encoding as often as it was done, each %XX by itself, so
// that a malformed one elsewhere hides nothing. It is false for what was encoded
// more often than any server decodes.
func decoded(s string) (plain string, whole bool) {
	const most = 8
	for range most {
		next := escape.ReplaceAllStringFunc(s, func(e string) string {
			b, _ := hex.DecodeString(e[1:])
			return string(b)
		})
		if next == s {
			return s, true
		}
		s = next
	}
	return s, false
}

var escape = regexp.MustCompile("%[0-9A-Fa-f]{2}")

// separates reports whether some server ends a segment of a path at c.
func separates(c rune) bool { return c == '/' || c == '\\' || c < ' ' || c == 0x7f }

func (r *request) setHeaders(h http.Header, env *contextstore.Environment, v values) error {
	for name, t := range r.headers {
		s, err := t.Expand(func(name, _ string) (string, bool) {
			if variable, ok := strings.CutPrefix(name, contextstore.EnvPrefix); ok {
				return env.Find(variable)
			}
			return v.text(name)
		})
		if err != nil {
			return missing(err)
		}
		if strings.ContainsFunc(s, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
			return tool.Refuse("invalid_arguments", "the header %s cannot hold control characters", name)
		}
		h.Set(name, s)
	}
	return nil
}

func (r *request) encode(args json.RawMessage, v values) ([]byte, error) {
	if r.body == nil {
		return args, nil
	}
	filled, err := v.fill(r.body)
	if err != nil {
		return nil, err
	}
	if filled == absent {
		filled = nil
	}
	return json.Marshal(filled)
}

// fill puts the arguments into a decoded JSON value. A member whose optional
// value is missing is left out.
func (v values) fill(into any) (any, error) {
	switch into := into.(type) {
	case string:
		return v.fillString(into)
	case []any:
		out := []any{}
		for _, e := range into {
			f, err := v.fill(e)
			if err != nil {
				return nil, err
			}
			if f != absent {
				out = append(out, f)
			}
		}
		return out, nil
	case map[string]any:
		out := map[string]any{}
		for k, e := range into {
			f, err := v.fill(e)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", k, err)
			}
			if f != absent {
				out[k] = f
			}
		}
		return out, nil
	}
	return into, nil
}

// absent stands for an optional value that is missing.
var absent any = &struct{ byte }{}

func (v values) fillString(text string) (any, error) {
	t, err := contextstore.ParseTemplate(text)
	if err != nil {
		return nil, err
	}
	if t.Droppable(v.has) {
		return absent, nil
	}
	if name, alone := t.Only(); alone && v.has(name) && rawjson.Kind(v[name]) != '"' {
		return v[name], nil
	}
	return v.expand(t)
}

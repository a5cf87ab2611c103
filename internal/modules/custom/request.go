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

// maxErrorBody is the number of bytes of the body of an error response that are
// shown.
const maxErrorBody = 4 << 10

// request is an HTTP request with parsed templates.
type request struct {
	method  string
	host    string // scheme and host of the URL
	url     contextstore.Template
	headers map[string]contextstore.Template
	body    any // decoded JSON; nil means the arguments
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
	return r.doRequest, err
}

func (r *request) doRequest(ctx context.Context, c *tool.Call, env *contextstore.Environment) (answer, error) {
	ctx, stop := context.WithTimeoutCause(ctx, r.bounds.timeout, errTimeout)
	defer stop()
	req, err := r.buildRequest(ctx, c, env)
	if err != nil {
		return answer{}, err
	}
	res, err := r.client.Do(req)
	if err != nil {
		return answer{}, r.refusalOf(ctx, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, int64(r.bounds.max)+1))
	switch {
	case err != nil:
		return answer{}, r.refusalOf(ctx, err)
	case len(body) > r.bounds.max:
		return answer{}, r.bounds.refusal(errTooLong)
	case res.StatusCode < 200 || res.StatusCode > 299:
		return answer{}, statusError(res, body)
	}
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	return answer{body, kind, true}, nil
}

// refusalOf turns the error of a request without a response into a refusal. The text
// does not have the URL, which only the author of the tool may know.
func (r *request) refusalOf(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if refusal := r.bounds.refusal(cause); refusal != nil {
		return refusal
	}
	if cause != nil {
		return cause
	}
	why := innermost(err)
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		why = "unknown host"
	}
	return &tool.Refusal{
		Code:    tool.CodeUnavailable,
		Message: "the server did not respond: " + why,
		Next:    "Call the tool again later.",
	}
}

func statusError(res *http.Response, body []byte) error {
	what := "HTTP " + res.Status
	if res.StatusCode/100 == 3 {
		what += "; redirects are not followed"
	}
	return newFailure(what, body[:min(len(body), maxErrorBody)])
}

// buildRequest returns the request of one call.
func (r *request) buildRequest(ctx context.Context, c *tool.Call, env *contextstore.Environment) (*http.Request, error) {
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
		text, err := r.encodeBody(c.Args, v)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, address, body)
	if err != nil {
		return nil, tool.Refuse(tool.CodeInvalidArguments, "the URL is invalid with these arguments")
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

// address expands the template of the URL. A value is one segment of the path or
// one value of the query, never more. Escaping alone does not ensure that,
// because many servers decode a path before they search for separators and
// dots, some of them twice.
func (r *request) address(v values) (string, error) {
	leaves := ""
	s, err := r.url.Expand(func(name, before string) (string, bool) {
		text, ok := v.textOf(name)
		if strings.Contains(before, "?") {
			return url.QueryEscape(text), ok
		}
		if plain, whole := decodeAll(text); !whole || strings.ContainsFunc(plain, isSeparator) {
			leaves = name
		}
		return url.PathEscape(text), ok
	})
	if err != nil {
		return "", missing(err)
	}
	if leaves != "" {
		return "", tool.Refuse(
			tool.CodeInvalidArguments,
			"%s: a value in the path must be one segment, without / \\ or control characters, also encoded ones",
			leaves,
		)
	}
	u, err := url.Parse(s)
	if err != nil || !strings.HasPrefix(s, r.host+"/") && s != r.host {
		return "", tool.Refuse(tool.CodeInvalidArguments, "the URL is invalid with these arguments")
	}
	for part := range strings.SplitSeq(u.EscapedPath(), "/") {
		part, _ = decodeAll(part)
		part, _, _ = strings.Cut(part, ";") // without the parameters of the segment
		if part == "." || part == ".." {
			return "", tool.Refuse(tool.CodeInvalidArguments, "an argument that is . or .. would change the path")
		}
	}
	return s, nil
}

// decodeAll removes all levels of percent-encoding. It decodes each %XX by itself,
// so that a malformed one elsewhere does not hide it. It returns false for a
// string that is encoded more often than any server decodes.
func decodeAll(s string) (plain string, whole bool) {
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

// isSeparator reports whether some server ends a path segment at c.
func isSeparator(c rune) bool { return c == '/' || c == '\\' || c < ' ' || c == 0x7f }

func (r *request) setHeaders(h http.Header, env *contextstore.Environment, v values) error {
	for name, t := range r.headers {
		s, err := t.Expand(func(name, _ string) (string, bool) {
			if variable, ok := strings.CutPrefix(name, contextstore.EnvPrefix); ok {
				return env.Find(variable)
			}
			return v.textOf(name)
		})
		if err != nil {
			return missing(err)
		}
		if strings.ContainsFunc(s, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
			return tool.Refuse(tool.CodeInvalidArguments, "the value of the header %s contains control characters",
				name)
		}
		h.Set(name, s)
	}
	return nil
}

func (r *request) encodeBody(args json.RawMessage, v values) ([]byte, error) {
	if r.body == nil {
		return args, nil
	}
	filled, err := v.fillValues(r.body)
	if err != nil {
		return nil, err
	}
	if filled == absent {
		filled = nil
	}
	return json.Marshal(filled)
}

// fillValues expands the templates in a decoded JSON value. A member whose optional
// value is missing is omitted.
func (v values) fillValues(into any) (any, error) {
	switch into := into.(type) {
	case string:
		return v.fillString(into)
	case []any:
		out := []any{}
		for _, e := range into {
			f, err := v.fillValues(e)
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
			f, err := v.fillValues(e)
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

// absent represents an optional value that is missing.
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

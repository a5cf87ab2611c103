package openapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// Result is the response to a call.
type Result struct {
	Status int `json:"status"`
	// Body is JSON as the server sent it, or its text, or its bytes in base64; see Encoding.
	Body     json.RawMessage `json:"body,omitempty"`
	Type     string          `json:"type,omitempty"`     // the media type of what is not JSON
	Encoding string          `json:"encoding,omitempty"` // base64, or ""
	Next     string          `json:"next,omitempty"`     // the address of the next page; see the argument next
}

// errArguments wraps what is wrong with arguments.
type errArguments struct{ err error }

func (e *errArguments) Error() string { return e.err.Error() }

// Call checks arguments and calls an operation. If the arguments are wrong nothing is sent.
func (a *API) Call(ctx context.Context, name string, args json.RawMessage) (Result, error) {
	t := a.byName[name]
	if t == nil {
		return Result{}, &errArguments{fmt.Errorf("there is no tool %.100q", name)}
	}
	if err := t.Check(args); err != nil {
		return Result{}, &errArguments{err}
	}
	values := map[string]any{}
	if len(args) > 0 {
		d := json.NewDecoder(bytes.NewReader(args))
		d.UseNumber()
		if err := d.Decode(&values); err != nil {
			return Result{}, &errArguments{err}
		}
	}
	req, err := a.request(ctx, t, values)
	if err != nil {
		return Result{}, &errArguments{err}
	}
	if err := a.authorize(t, req); err != nil {
		return Result{}, err
	}
	resp, err := a.client.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without the address, which may have a key in it
		}
		return Result{}, fmt.Errorf("%s %s: %w", t.method, t.path, err)
	}
	defer resp.Body.Close()
	return a.result(req, resp)
}

// request makes the request of a call.
func (a *API) request(ctx context.Context, t *Tool, values map[string]any) (*http.Request, error) {
	if next, ok := values["next"].(string); ok {
		return a.nextPage(ctx, next)
	}
	path, query, header, cookies := t.path, []string(nil), http.Header{}, []string(nil)
	for _, p := range t.params {
		v, given := values[p.argument]
		if !given {
			continue
		}
		switch p.in {
		case "path":
			text := join(v, ",", p.explode)
			if text == "" || text == "." || text == ".." {
				return nil, fmt.Errorf("%s: %q cannot be part of a path", p.argument, text)
			}
			path = strings.ReplaceAll(path, "{"+p.name+"}", url.PathEscape(text))
		case "query":
			query = append(query, p.query(v)...)
		case "header":
			text := join(v, ",", p.explode)
			if strings.ContainsAny(text, "\r\n\x00") {
				return nil, fmt.Errorf("%s: expected one line", p.argument)
			}
			header.Set(p.name, text)
		case "cookie":
			cookies = append(cookies, url.QueryEscape(p.name)+"="+url.QueryEscape(join(v, ",", p.explode)))
		}
	}
	content, media, err := t.encodeBody(values)
	if err != nil {
		return nil, err
	}
	at := a.base.String() + path
	if len(query) > 0 {
		at += "?" + strings.Join(query, "&")
	}
	req, err := http.NewRequestWithContext(ctx, t.method, at, content)
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, header)
	if len(cookies) > 0 {
		req.Header.Set("Cookie", strings.Join(cookies, "; "))
	}
	if media != "" {
		req.Header.Set("Content-Type", media)
	}
	req.Header.Set("Accept", "application/json, */*;q=0.5")
	return req, nil
}

// nextPage makes the request for another page, which must be of this API.
func (a *API) nextPage(ctx context.Context, next string) (*http.Request, error) {
	u, err := url.Parse(next)
	if err != nil || u.Scheme != a.base.Scheme || u.Host != a.base.Host || u.User != nil ||
		strings.Contains(u.Path, "..") ||
		!strings.HasPrefix(u.Path, a.base.Path+"/") {
		return nil, errors.New("next: expected an address that an earlier result has in next")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err == nil {
		req.Header.Set("Accept", "application/json, */*;q=0.5")
	}
	return req, err
}

// text returns a value as it is written in an address.
func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case nil:
		return ""
	case json.Number:
		return v.String()
	case bool:
		return map[bool]string{true: "true", false: "false"}[v]
	}
	b, _ := json.Marshal(v) // it was decoded from JSON
	return string(b)
}

// join writes a list or an object in one text.
func join(v any, separator string, explode bool) string {
	switch v := v.(type) {
	case []any:
		var all []string
		for _, one := range v {
			all = append(all, text(one))
		}
		return strings.Join(all, separator)
	case map[string]any:
		var all []string
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if explode {
				all = append(all, key+"="+text(v[key]))
			} else {
				all = append(all, key, text(v[key]))
			}
		}
		return strings.Join(all, separator)
	}
	return text(v)
}

// query returns the parts of a query for a parameter, by its style.
func (p *param) query(v any) (parts []string) {
	add := func(name, value string) { parts = append(parts, url.QueryEscape(name)+"="+url.QueryEscape(value)) }
	if p.style == "content" {
		b, _ := json.Marshal(v) // it was decoded from JSON
		add(p.name, string(b))
		return parts
	}
	switch list := v.(type) {
	case []any:
		if !p.explode {
			separator := map[string]string{"spaceDelimited": " ", "pipeDelimited": "|"}[p.style]
			add(p.name, join(v, cmp.Or(separator, ","), false))
			return parts
		}
		for _, one := range list {
			add(p.name, text(one))
		}
	case map[string]any:
		if p.style != "deepObject" && !p.explode {
			add(p.name, join(v, ",", false))
			return parts
		}
		for _, key := range slices.Sorted(maps.Keys(list)) {
			if p.style == "deepObject" {
				add(p.name+"["+key+"]", text(list[key]))
			} else {
				add(key, text(list[key]))
			}
		}
	default:
		add(p.name, text(v))
	}
	return parts
}

// encodeBody encodes the argument body.
func (t *Tool) encodeBody(values map[string]any) (io.Reader, string, error) {
	v, given := values["body"]
	if t.body == nil || !given {
		return nil, "", nil
	}
	switch rank(t.body.media) {
	case rankForm:
		members, _ := v.(map[string]any)
		form := url.Values{}
		for key, one := range members {
			addForm(form, key, one)
		}
		return strings.NewReader(form.Encode()), t.body.media, nil
	case rankMultipart:
		return encodeMultipart(v)
	case rankText:
		return strings.NewReader(text(v)), t.body.media, nil
	case rankBytes:
		b, err := base64.StdEncoding.DecodeString(text(v))
		if err != nil {
			return nil, "", errors.New("body: expected base64")
		}
		return bytes.NewReader(b), t.body.media, nil
	}
	b, err := json.Marshal(v)
	media := t.body.media
	if media == "*/*" {
		media = "application/json"
	}
	return bytes.NewReader(b), media, err
}

// addForm adds a value to a form, with members and elements in brackets.
func addForm(form url.Values, name string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, one := range v {
			addForm(form, name+"["+key+"]", one)
		}
	case []any:
		for _, one := range v {
			addForm(form, name, one)
		}
	default:
		form.Add(name, text(v))
	}
}

func encodeMultipart(v any) (io.Reader, string, error) {
	members, _ := v.(map[string]any)
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(members)) {
		h := textproto.MIMEHeader{}
		h.Set("Content-Disposition", mime.FormatMediaType("form-data", map[string]string{"name": name}))
		part, err := w.CreatePart(h)
		if err != nil {
			return nil, "", err
		}
		io.WriteString(part, text(members[name])) // it is written to memory
	}
	if err := w.Close(); err != nil {
		return nil, "", err
	}
	return &b, w.FormDataContentType(), nil
}

// authorize adds the credentials of the first alternative that the user has given all of.
func (a *API) authorize(t *Tool, req *http.Request) error {
	var missing []string
	for _, all := range t.security {
		without := slices.IndexFunc(all,
			func(s scheme) bool { _, ok := a.o.Credentials[Credential(s.name)]; return !ok })
		if without >= 0 {
			missing = append(missing, Credential(all[without].name))
			continue
		}
		for _, s := range all {
			s.addCredential(req, a.o.Credentials[Credential(s.name)].Reveal())
		}
		return nil
	}
	if len(missing) > 0 {
		return fmt.Errorf("a credential is needed; give the package the variable %s with --secret",
			strings.Join(missing, " or "))
	}
	return nil
}

// addCredential adds a credential to a request.
func (s scheme) addCredential(req *http.Request, value string) {
	switch {
	case s.kind == "apiKey" && s.in == "query":
		q := req.URL.Query()
		q.Set(s.at, value)
		req.URL.RawQuery = q.Encode()
	case s.kind == "apiKey" && s.in == "cookie":
		req.AddCookie(&http.Cookie{Name: s.at, Value: value})
	case s.kind == "apiKey":
		req.Header.Set(s.at, value)
	case s.kind == "http" && s.http == "basic":
		user, password, _ := strings.Cut(value, ":")
		req.SetBasicAuth(user, password)
	default: // http bearer, and access tokens of oauth2 and openIdConnect
		req.Header.Set("Authorization", "Bearer "+value)
	}
}

// result reads a response.
func (a *API) result(req *http.Request, resp *http.Response) (r Result, err error) {
	limit := cmp.Or(a.o.MaxBody, defaultBody)
	content, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		return r, fmt.Errorf("the server answered %d, and its response ended early: %w", resp.StatusCode, err)
	case int64(len(content)) > limit:
		return r, fmt.Errorf("the server answered %d with more than %d bytes; ask it for less", resp.StatusCode, limit)
	}
	r.Status, r.Next = resp.StatusCode, a.next(req, resp)
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case len(content) == 0:
	case rank(cmp.Or(kind, "text/plain")) == rankJSON && json.Valid(content):
		r.Body = content
	case utf8.Valid(content):
		r.Type = kind
		r.Body, err = json.Marshal(string(content))
	default:
		r.Type, r.Encoding = kind, "base64"
		r.Body, err = json.Marshal(base64.StdEncoding.EncodeToString(content))
	}
	return r, err
}

// next returns the address of the next page, of the header Link (RFC 8288), if it is of this API.
func (a *API) next(req *http.Request, resp *http.Response) string {
	for _, h := range resp.Header.Values("Link") {
		for link := range strings.SplitSeq(h, ",") {
			at, params, ok := strings.Cut(strings.TrimSpace(link), ">")
			if !ok || !strings.HasPrefix(at, "<") ||
				!strings.Contains(strings.ReplaceAll(params, `"`, "")+";", "rel=next;") {
				continue
			}
			u, err := req.URL.Parse(at[1:])
			if err != nil {
				continue
			}
			if _, err := a.nextPage(req.Context(), u.String()); err == nil {
				return u.String()
			}
		}
	}
	return ""
}

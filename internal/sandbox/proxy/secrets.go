package proxy

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/sandbox"
)

// hidden is a secret whose rules were read.
type hidden struct {
	placeholder string
	value       string
	hosts       []rule
	plain       bool
	sent        needles // what it was put in encoded, as it went out; of one request
}

const (
	mostSecrets  = 100
	longestValue = 16 << 10
)

func hide(secrets []sandbox.Secret) (all []hidden, err error) {
	if len(secrets) > mostSecrets {
		return nil, fmt.Errorf("there are %d secrets; at most %d are allowed", len(secrets), mostSecrets)
	}
	for i, s := range secrets {
		h := hidden{placeholder: s.Placeholder, value: s.Value.Reveal(), plain: s.Plain}
		if h.hosts, err = parseRules(s.Hosts, webPorts); err != nil {
			return nil, fmt.Errorf("the secret for %s: %w", printable(s.Placeholder), err)
		}
		if err := h.check(); err != nil {
			return nil, fmt.Errorf("secret %d: %w", i+1, err)
		}
		for _, other := range all {
			if strings.Contains(other.placeholder, h.placeholder) || strings.Contains(h.placeholder, other.placeholder) {
				return nil, fmt.Errorf("the placeholder %s contains another one", h.placeholder)
			}
		}
		all = append(all, h)
	}
	return all, nil
}

func (h hidden) check() error {
	if len(h.placeholder) < 8 || len(h.placeholder) > 200 {
		return errors.New("a placeholder has 8 to 200 bytes")
	}
	for _, c := range []byte(h.placeholder) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
			return errors.New("a placeholder is made of letters, digits, dashes and underscores")
		}
	}
	if len(h.value) < 8 || len(h.value) > longestValue || strings.ContainsAny(h.value, "\r\n\x00") || strings.Contains(h.value, h.placeholder) {
		return errors.New("a secret has 8 to 16,384 bytes, in one line, and its placeholder is not in it")
	}
	return nil
}

func (h hidden) goesTo(t target) bool {
	for i := range h.hosts {
		if r := &h.hosts[i]; (r.hasName(t.name) || t.name == "" && r.hasAddress(t.addr)) && r.at(t.port) {
			return true
		}
	}
	return false
}

// swap puts secrets where their placeholders are, in the fields of a request
// and in its query, and tells which. A request for port 80 that carries a
// secret which must not travel in the open goes to port 443 over TLS instead.
// A placeholder that cannot be swapped ends the request.
func (p *policy) swap(r *http.Request, t *target, secure *bool) (used secrets, err error) {
	for _, s := range p.secrets {
		if !s.in(r) {
			continue
		}
		if strings.Contains(r.URL.EscapedPath(), s.placeholder) {
			return nil, refuse("", "the placeholder %s is in the path of the URL; a secret is swapped in only in fields and the query", s.placeholder)
		}
		to, over := *t, *secure
		if !s.plain && !over {
			if to.port == httpPort {
				to.port = httpsPort
			}
			over = true
		}
		*t, *secure = to, over
		used = append(used, s)
	}
	for i, s := range used {
		if !s.goesTo(*t) {
			return nil, refuse("", "the secret for %s may not go to %s", s.placeholder, t)
		}
		used[i].sent = s.put(r)
	}
	if len(used) > 0 {
		r.Header.Set("Accept-Encoding", "identity") // so that what comes back can be looked through
		r.Header.Del("Range")
	}
	return used, nil
}

// in reports whether a request carries the placeholder.
func (s hidden) in(r *http.Request) bool {
	if strings.Contains(r.URL.EscapedPath(), s.placeholder) || strings.Contains(r.URL.RawQuery, s.placeholder) {
		return true
	}
	for _, values := range r.Header {
		for _, v := range values {
			if strings.Contains(v, s.placeholder) || strings.Contains(basic(v), s.placeholder) {
				return true
			}
		}
	}
	return false
}

// put puts the secret in. What it gives is what a server would have to repeat
// for the sandbox to take the secret out of an encoding.
func (s hidden) put(r *http.Request) (sent needles) {
	r.URL.RawQuery = strings.ReplaceAll(r.URL.RawQuery, s.placeholder, url.QueryEscape(s.value))
	for _, values := range r.Header {
		for i, v := range values {
			if plain := basic(v); strings.Contains(plain, s.placeholder) {
				was := base64.StdEncoding.EncodeToString([]byte(plain))
				is := base64.StdEncoding.EncodeToString([]byte(strings.ReplaceAll(plain, s.placeholder, s.value)))
				sent = append(sent, needle{[]byte(is), []byte(was)})
				v = "Basic " + is
			}
			values[i] = strings.ReplaceAll(v, s.placeholder, s.value)
		}
	}
	return sent
}

// basic is what a field of basic authentication says, else nothing.
func basic(value string) string {
	encoded, ok := cutFold(value, "Basic ")
	if !ok {
		return ""
	}
	plain, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	if err != nil {
		return ""
	}
	return string(plain)
}

// secrets are those that a request carries.
type secrets []hidden

// hideIn puts the placeholders back where a server repeats the secrets. An
// answer that cannot be looked through is an error.
func (s secrets) hideIn(resp *http.Response) error {
	if len(s) == 0 {
		return nil
	}
	if e := resp.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return fmt.Errorf("the server answered in the encoding %s although none was asked for, so that it cannot be seen whether it repeats a secret", printable(e))
	}
	n := s.needles()
	status, _ := n.replace([]byte(resp.Status), true)
	resp.Status = string(status)
	for name, values := range resp.Header {
		for i, v := range values {
			out, _ := n.replace([]byte(v), true)
			values[i] = string(out)
		}
		if out, _ := n.replace([]byte(name), true); string(out) != name {
			delete(resp.Header, name)
		}
	}
	resp.Header.Del("Content-Length")
	resp.ContentLength = -1
	resp.Body = &hiding{from: resp.Body, needles: n}
	return nil
}

// needles are the secrets in every form in which they are looked for: as they
// are, and as URLs, JSON and HTML write them.
func (s secrets) needles() (n needles) {
	add := func(find, put []byte) {
		for _, form := range forms(string(find)) {
			if !slices.ContainsFunc(n, func(k needle) bool { return string(k.find) == form }) {
				n = append(n, needle{[]byte(form), put})
			}
		}
	}
	for _, h := range s {
		add([]byte(h.value), []byte(h.placeholder))
		for _, k := range h.sent {
			add(k.find, k.put)
		}
	}
	return n
}

func forms(value string) []string {
	quoted := string(rawjson.AppendString(nil, value))
	plain := quoted[1 : len(quoted)-1]
	safe := strings.NewReplacer("<", `\u003c`, ">", `\u003e`, "&", `\u0026`).Replace(plain) // for pages
	slash := strings.NewReplacer("/", `\/`)
	return []string{
		value, url.QueryEscape(value), url.PathEscape(value), html.EscapeString(value),
		plain, safe, slash.Replace(plain), slash.Replace(safe),
	}
}

type needle struct{ find, put []byte }

type needles []needle

// replace replaces what it finds. What could be the beginning of a find is left
// for later, unless nothing follows.
func (n needles) replace(b []byte, last bool) (out, rest []byte) {
	for i := 0; i < len(b); {
		size, put, wait := n.at(b[i:], last)
		switch {
		case wait:
			return out, b[i:]
		case size > 0:
			out = append(out, put...)
			i += size
		default:
			out = append(out, b[i])
			i++
		}
	}
	return out, nil
}

func (n needles) at(b []byte, last bool) (size int, put []byte, wait bool) {
	for _, k := range n {
		if bytes.HasPrefix(b, k.find) {
			return len(k.find), k.put, false
		}
		if !last && bytes.HasPrefix(k.find, b) {
			wait = true
		}
	}
	return 0, nil, wait
}

// hiding is a body without secrets.
type hiding struct {
	from    io.ReadCloser
	needles needles
	ready   []byte
	rest    []byte
	err     error
}

func (h *hiding) Read(b []byte) (int, error) {
	for len(h.ready) == 0 {
		if h.err != nil {
			return 0, h.err
		}
		buf := make([]byte, 32<<10)
		n, err := h.from.Read(buf)
		h.err = err
		h.ready, h.rest = h.needles.replace(append(h.rest, buf[:n]...), err != nil)
	}
	n := copy(b, h.ready)
	h.ready = h.ready[n:]
	return n, nil
}

func (h *hiding) Close() error { return h.from.Close() }

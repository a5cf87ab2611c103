package proxy

import (
	"encoding/base64"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"strings"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/sandbox"
)

// hidden is a secret with parsed rules.
type hidden struct {
	placeholder string
	value       string
	hosts       []rule
	plain       bool
	sent        []encoded // what was inserted in encoded form; of one request
}

// encoded is a value of a request that contains a secret in encoded form, and what it would be without it.
type encoded struct{ secret, placeholder string }

const (
	mostSecrets  = 100
	longestValue = 16 << 10
)

func parseSecrets(secrets []sandbox.Secret) (all []hidden, err error) {
	if len(secrets) > mostSecrets {
		return nil, fmt.Errorf("%d secrets are too many; at most %d are allowed", len(secrets), mostSecrets)
	}
	for i, s := range secrets {
		h := hidden{placeholder: s.Placeholder, value: s.Value.Reveal(), plain: s.Plain}
		if h.hosts, err = parseRules(s.Hosts, webPorts); err != nil {
			return nil, fmt.Errorf("the secret for %s: %w", printable(s.Placeholder), err)
		}
		if err := h.checkSecrets(); err != nil {
			return nil, fmt.Errorf("secret %d: %w", i+1, err)
		}
		for _, other := range all {
			if strings.Contains(other.placeholder, h.placeholder) ||
				strings.Contains(h.placeholder, other.placeholder) {
				return nil, fmt.Errorf("the placeholder %s contains another one", h.placeholder)
			}
		}
		all = append(all, h)
	}
	return all, nil
}

func (h hidden) checkSecrets() error {
	if len(h.placeholder) < 8 || len(h.placeholder) > 200 {
		return errors.New("a placeholder must have 8 to 200 bytes")
	}
	for _, c := range []byte(h.placeholder) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
			return errors.New("a placeholder may contain only letters, digits, dashes and underscores")
		}
	}
	if len(h.value) < 8 || len(h.value) > longestValue || strings.ContainsAny(h.value, secret.LineEnds) ||
		strings.Contains(h.value, h.placeholder) {
		return errors.New("a secret must have 8 to 16,384 bytes in one line and must not contain its placeholder")
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

// swap replaces placeholders by secrets in the fields and the query of a request, and returns the secrets
// used. A request to port 80 with a secret that requires TLS is sent to port 443 over TLS instead. A
// placeholder that cannot be replaced ends the request.
func (p *policy) swap(r *http.Request, t *target, secure *bool) (used secrets, err error) {
	for _, s := range p.secrets {
		if !s.in(r) {
			continue
		}
		if strings.Contains(r.URL.EscapedPath(), s.placeholder) {
			return nil, refusef("",
				"the placeholder %s is in the path of the URL; secrets are inserted only in fields and the query",
				s.placeholder)
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
			return nil, refusef("", "the secret for %s may not go to %s", s.placeholder, t)
		}
		used[i].sent = s.insertSecrets(r)
	}
	if len(used) > 0 {
		r.Header.Set("Accept-Encoding", "identity") // so that the answer can be searched
		r.Header.Del("Range")
	}
	return used, nil
}

// in reports whether a request contains the placeholder.
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

// insertSecrets inserts the secret. It returns the encoded values that contain it, so that an answer that repeats them
// can be searched.
func (s hidden) insertSecrets(r *http.Request) (sent []encoded) {
	r.URL.RawQuery = strings.ReplaceAll(r.URL.RawQuery, s.placeholder, url.QueryEscape(s.value))
	for _, values := range r.Header {
		for i, v := range values {
			if plain := basic(v); strings.Contains(plain, s.placeholder) {
				was := base64.StdEncoding.EncodeToString([]byte(plain))
				is := base64.StdEncoding.EncodeToString([]byte(strings.ReplaceAll(plain, s.placeholder, s.value)))
				sent = append(sent, encoded{secret: is, placeholder: was})
				v = "Basic " + is
			}
			values[i] = strings.ReplaceAll(v, s.placeholder, s.value)
		}
	}
	return sent
}

// basic returns the decoded value of a field for basic authentication, else "".
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

// secrets are those in a request.
type secrets []hidden

// redact restores the placeholders in an answer that repeats the secrets. It returns an error for an answer
// that cannot be searched.
func (s secrets) redact(resp *http.Response) error {
	if len(s) == 0 {
		return nil
	}
	if e := resp.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return fmt.Errorf("the server answered in the encoding %s although none was requested, so the answer "+
			"cannot be searched for secrets", printable(e))
	}
	all := s.search()
	status, _ := all.Replace([]byte(resp.Status), true)
	resp.Status = string(status)
	for name, values := range resp.Header {
		for i, v := range values {
			out, _ := all.Replace([]byte(v), true)
			values[i] = string(out)
		}
		if out, _ := all.Replace([]byte(name), true); string(out) != name {
			delete(resp.Header, name)
		}
	}
	resp.Header.Del("Content-Length")
	resp.ContentLength = -1
	resp.Body = &redactedBody{from: resp.Body, search: all}
	return nil
}

func forms(value string) []string {
	quoted := string(rawjson.AppendString(nil, value))
	plain := quoted[1 : len(quoted)-1]
	safe := strings.NewReplacer("<", `\u003c`, ">", `\u003e`, "&", `\u0026`).Replace(plain) // as JSON in HTML
	slash := strings.NewReplacer("/", `\/`)
	return []string{
		value, url.QueryEscape(value), url.PathEscape(value), html.EscapeString(value),
		plain, safe, slash.Replace(plain), slash.Replace(safe),
	}
}

package audit

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/schema"
)

const (
	longestArgs   = 2 << 10 // bytes of redacted arguments
	longestString = 240     // bytes of a string in them
	closing       = 160     // bytes kept free to end arguments that are too long
	deepest       = 32      // objects and arrays nested in each other
	mask          = `"***"`
	left          = `"…"` // replaces omitted content
)

// redact appends arguments without their secrets, at most 2 KiB. It masks the values of members whose
// name or schema marks them as secret, of the members in private, and, within other texts, the value
// after words like "password=". It also masks members that the schema does not allow, because their
// content is unknown, and a password under a wrong name is a common reason for a refused call. It
// returns the masked texts too, because the tool's own message may quote them.
func redact(
	dst []byte,
	args json.RawMessage,
	names *memberNames,
	secret, private map[string]bool,
	sh *shape,
) (line []byte, masked [][]byte) {
	r := redactor{
		dst:     dst,
		cur:     rawjson.At(args),
		until:   len(dst) + longestArgs - closing,
		names:   names,
		secret:  secret,
		private: private,
	}
	r.redactValue(0, sh)
	if n := len(r.dst) - len(dst); n == 0 || n > longestArgs {
		return append(dst, left...), r.masked
	}
	return r.dst, r.masked
}

// hideMasked returns a message without the texts that were masked in the arguments it is about. Texts of less than four
// characters stay, because they would be found within words.
func hideMasked(message string, masked [][]byte) string {
	for _, v := range masked {
		text, ok := rawjson.String(v)
		if !ok || len(text) < 4 || len(text) > len(message) {
			continue
		}
		message = strings.ReplaceAll(message, text, "***")
		quoted := strconv.Quote(text)
		message = strings.ReplaceAll(message, quoted[1:len(quoted)-1], "***")
	}
	return message
}

type redactor struct {
	dst   []byte
	cur   rawjson.Cursor
	until int // of dst; beyond it nothing more is appended
	over  int // members and elements that were omitted; after the first, all further are omitted

	names           *memberNames
	secret, private map[string]bool
	masked          [][]byte // values of members, as they stand in the arguments
}

func (r *redactor) redactValue(depth int, sh *shape) {
	switch kind := r.cur.Kind(); {
	case kind == '{' && depth < deepest:
		r.object(depth, sh)
	case kind == '[' && depth < deepest:
		r.array(depth, sh)
	case kind == '"':
		r.string(r.cur.Value())
	default:
		v := r.cur.Value()
		if kind == '{' || kind == '[' || len(v) > longestString {
			v = []byte(left)
		}
		r.dst = append(r.dst, v...)
	}
}

func (r *redactor) full() bool { return r.over > 0 || len(r.dst) >= r.until }

func (r *redactor) object(depth int, sh *shape) {
	r.dst = append(r.dst, '{')
	r.cur.Enter()
	first := true
	for {
		key, ok := r.cur.Key()
		if !ok {
			break
		}
		if r.full() || len(r.dst)+len(key) > r.until {
			if r.over++; r.over == 1 {
				r.comma(&first)
				r.dst = append(r.dst, `"…":"more was given"`...)
			}
			r.cur.Value()
			continue
		}
		r.comma(&first)
		r.dst = rawjson.AppendString(r.dst, string(key))
		r.dst = append(r.dst, ':')
		member, allowed := sh.member(key)
		if !allowed || r.names.secret(key) || r.secret[string(key)] || r.private[string(key)] {
			r.masked = append(r.masked, r.cur.Value())
			r.dst = append(r.dst, mask...)
			continue
		}
		r.redactValue(depth+1, member)
	}
	r.dst = append(r.dst, '}')
}

func (r *redactor) array(depth int, sh *shape) {
	r.dst = append(r.dst, '[')
	r.cur.Enter()
	first := true
	for r.cur.More() {
		if r.full() {
			if r.over++; r.over == 1 {
				r.comma(&first)
				r.dst = append(r.dst, left...)
			}
			r.cur.Value()
			continue
		}
		r.comma(&first)
		r.redactValue(depth+1, sh.element())
	}
	r.dst = append(r.dst, ']')
}

func (r *redactor) comma(first *bool) {
	if !*first {
		r.dst = append(r.dst, ',')
	}
	*first = false
}

// string appends a string in its escaped form, so that a long one is never decoded.
func (r *redactor) string(v []byte) {
	if len(v) < 2 {
		return
	}
	body, cut := v[1:len(v)-1], false
	if space := min(longestString, max(0, r.until-len(r.dst))); len(body) > space {
		body, cut = body[:validPrefix(body, space)], true
	}
	r.dst = append(r.dst, '"')
	r.dst = appendMasked(r.dst, body)
	if cut {
		r.dst = append(r.dst, "… "...)
		r.dst = strconv.AppendInt(r.dst, int64(len(v)-2), 10)
		r.dst = append(r.dst, " bytes"...)
	}
	r.dst = append(r.dst, '"')
}

// validPrefix returns how many of at most n bytes of a string's body can be kept without cutting a
// character or an escape.
func validPrefix(body []byte, n int) int {
	at := 0
	for at < n {
		step := 1
		switch {
		case body[at] == '\\' && at+1 < len(body) && body[at+1] == 'u':
			step = 6
			if at+6 < len(body) && body[at+6] == '\\' && isHighSurrogate(body[at:]) {
				step = 12
			}
		case body[at] == '\\':
			step = 2
		case body[at] >= utf8.RuneSelf:
			_, step = utf8.DecodeRune(body[at:])
		}
		if at+step > n {
			break
		}
		at += step
	}
	return at
}

func isHighSurrogate(b []byte) bool {
	return len(b) >= 6 && b[2]|0x20 == 'd' && strings.IndexByte("89abAB", b[3]) >= 0
}

// secretWords mark a member as secret if its name contains one of them.
var secretWords = []string{
	"secret",
	"password",
	"passwd",
	"passphrase",
	"token",
	"credential",
	"authorization",
	"cookie",
	"apikey",
}

// secretNames mark a member as secret if they are its whole name. Environments are included because
// they hold secrets under any name.
var secretNames = []string{"pwd", "auth", "pin", "env", "environment"}

// isSecret reports whether a member's name marks it as secret.
func isSecret(name []byte) bool {
	if len(name) > 128 {
		return false
	}
	var low [128]byte
	n := low[:len(name)]
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		n[i] = c
	}
	if i := bytes.Index(n, []byte("key")); i >= 0 && endsWord(n[i+3:], name[i+3:]) {
		return true
	}
	for _, w := range secretWords {
		if bytes.Contains(n, []byte(w)) {
			return true
		}
	}
	return slices.Contains(secretNames, string(n))
}

// endsWord reports whether a word ends where rest begins: in key, keys, key_id and keyFile, but not in
// keyboard or keyword.
func endsWord(low, name []byte) bool {
	if len(low) > 0 && low[0] == 's' {
		low, name = low[1:], name[1:]
	}
	return len(low) == 0 || low[0] < 'a' || low[0] > 'z' || name[0] != low[0]
}

// secretCache caches the secret members of schemas, because finding them costs more than a call.
type secretCache struct {
	mu     sync.RWMutex
	by     map[*schema.Schema]map[string]bool
	shapes map[*schema.Schema]*shape
}

// shape holds the members that an object may have by its schema. nil allows all.
type shape struct {
	members map[string]*shape
	closed  bool   // no other members are allowed
	items   *shape // of the elements of an array
}

func (s *shape) member(key []byte) (member *shape, allowed bool) {
	if s == nil {
		return nil, true
	}
	member, there := s.members[string(key)]
	return member, there || !s.closed
}

func (s *shape) element() *shape {
	if s == nil {
		return nil
	}
	return s.items
}

// shapeOf returns the shape that a schema allows.
func (c *secretCache) shapeOf(in *schema.Schema) *shape {
	if in == nil {
		return nil
	}
	c.mu.RLock()
	s, known := c.shapes[in]
	c.mu.RUnlock()
	if known {
		return s
	}
	s = shapeIn(in.Raw(), 0)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shapes == nil || len(c.shapes) >= mostSchemas {
		c.shapes = map[*schema.Schema]*shape{}
	}
	c.shapes[in] = s
	return s
}

// shapeIn derives a shape from a schema. It leaves a part open, as nil, if that part depends on a
// reference or another construct that it does not follow.
func shapeIn(raw []byte, depth int) *shape {
	if depth > deepest || rawjson.Kind(raw) != '{' {
		return nil
	}
	s := &shape{}
	for key, v := range rawjson.Object(raw) {
		switch string(key) {
		case "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "patternProperties", "dependentSchemas":
			return nil
		case "additionalProperties":
			s.closed = string(v) == "false"
		case "items":
			s.items = shapeIn(v, depth+1)
		case "properties":
			if rawjson.Kind(v) != '{' {
				return nil
			}
			s.members = map[string]*shape{}
			for name, p := range rawjson.Object(v) {
				s.members[string(name)] = shapeIn(p, depth+1)
			}
		}
	}
	return s
}

const mostSchemas = 10_000

// secretsOf returns the names of the members that a schema marks as secret.
func (c *secretCache) secretsOf(in *schema.Schema) map[string]bool {
	if in == nil {
		return nil
	}
	c.mu.RLock()
	names, known := c.by[in]
	c.mu.RUnlock()
	if known {
		return names
	}
	names = secretMembers(in.Raw(), nil, 0)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil || len(c.by) >= mostSchemas {
		c.by = map[*schema.Schema]map[string]bool{}
	}
	c.by[in] = names
	return names
}

// secretMembers adds the names of the properties with format password, writeOnly or x-secret in a
// schema.
func secretMembers(raw []byte, names map[string]bool, depth int) map[string]bool {
	if depth > deepest {
		return names
	}
	switch rawjson.Kind(raw) {
	case '{':
		for key, v := range rawjson.Object(raw) {
			if string(key) == "properties" && rawjson.Kind(v) == '{' {
				for name, p := range rawjson.Object(v) {
					if saysSecret(p) {
						if names == nil {
							names = map[string]bool{}
						}
						names[string(name)] = true
					}
				}
			}
			names = secretMembers(v, names, depth+1)
		}
	case '[':
		for v := range rawjson.Elements(raw) {
			names = secretMembers(v, names, depth+1)
		}
	}
	return names
}

func saysSecret(property []byte) bool {
	if rawjson.Kind(property) != '{' {
		return false
	}
	if v, ok := rawjson.Get(property, "format"); ok && rawjson.Equal(v, "password") {
		return true
	}
	for _, name := range []string{"writeOnly", "x-secret"} {
		if v, ok := rawjson.Get(property, name); ok && string(v) == "true" {
			return true
		}
	}
	return false
}

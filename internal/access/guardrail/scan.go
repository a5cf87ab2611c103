package guardrail

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math/big"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"gatehouse/internal/mcp/rawjson"
)

// kind is a kind of data that a scanner finds.
type kind struct {
	name     string
	personal bool
	form     string   // a regular expression; its first group, if it has one, is what is masked
	hints    []string // of which a text has one, in lower case, if the expression can match; nil means any text
	valid    func(string) bool
}

var kinds = []kind{
	{name: "private-key", hints: []string{"private key"},
		form: `-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----(?s:.*?)(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\z)`},
	{name: "aws-key", hints: []string{"akia", "asia", "abia", "acca"}, form: `\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b`},
	{name: "github-token", hints: []string{"gh", "github_pat_"},
		form: `\b(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255})`},
	{name: "gitlab-token", hints: []string{"glpat-"}, form: `\bglpat-[A-Za-z0-9_-]{20,}`},
	{name: "slack-token", hints: []string{"xox", "hooks.slack.com"},
		form: `\bxox[abeprs]-[A-Za-z0-9-]{10,}|https://hooks\.slack\.com/services/[A-Za-z0-9/]+`},
	{name: "stripe-key", hints: []string{"k_live_", "k_test_"}, form: `\b[sr]k_(?:live|test)_[A-Za-z0-9]{16,}`},
	{name: "google-key", hints: []string{"aiza"}, form: `\bAIza[0-9A-Za-z_-]{35}`},
	{name: "model-key", hints: []string{"sk-"}, form: `\bsk-(?:ant-|proj-|svcacct-|or-)?[A-Za-z0-9_-]{20,}`},
	{name: "registry-token", hints: []string{"npm_", "pypi-", "hf_"},
		form: `\b(?:npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{30,})`},
	{name: "jwt", hints: []string{"eyj"}, form: `\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*`},
	{
		name:  "url-password",
		hints: []string{"://"},
		form:  `\b[a-zA-Z][a-zA-Z0-9+.-]*://[^\s/:@]*:([^\s/@]{3,})@`,
		valid: unmasked,
	},
	{name: "bearer", hints: []string{"bearer"}, form: `(?i)\bbearer\s+([A-Za-z0-9._~+/=-]{16,})`},
	{name: "password", hints: []string{"pass", "secret", "key", "token"}, valid: unmasked,
		form: `(?i)(?:password|passwd|passphrase|secret|api[_-]?key|access[_-]?key|(?:auth|access|refresh)[_-]?token|private[_-]?key)` +
			`["']?\s*[:=]\s*["']?([^\s"',;]{6,})`},
	{
		name:     "email",
		personal: true,
		hints:    []string{"@"},
		form:     `[A-Za-z0-9._%+-]+@[A-Za-z0-9](?:[A-Za-z0-9-]*\.)+[A-Za-z]{2,}`,
	},
	{name: "card", personal: true, form: `\b[3-6](?:[ -]?[0-9]){12,18}\b`, valid: isCard},
	{
		name:     "iban",
		personal: true,
		form:     `\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b`,
		valid:    isIBAN,
	},
	{name: "us-ssn", personal: true, hints: []string{"-"}, form: `\b[0-9]{3}-[0-9]{2}-[0-9]{4}\b`, valid: isSSN},
	{name: "phone", personal: true,
		form:  `\+[1-9][0-9]{0,2}[ .-]?(?:\(?[0-9]{1,4}\)?[ .-]?){1,5}[0-9]{2,4}\b|\(?\b[2-9][0-9]{2}\)?[ .-][0-9]{3}[ .-][0-9]{4}\b`,
		valid: func(s string) bool { n := len(digits(s)); return n >= 8 && n <= 15 }},
}

// forms are the expressions of kinds, compiled when a scanner is made.
var forms = sync.OnceValue(func() []*regexp.Regexp {
	all := make([]*regexp.Regexp, len(kinds))
	for i, k := range kinds {
		all[i] = regexp.MustCompile(k.form)
	}
	return all
})

// Scanner finds some kinds of data. It is safe for concurrent use.
type Scanner struct {
	kinds []int // of kinds
	names bool  // members of JSON that are named like passwords count
}

// newScanner returns a scanner for secrets, personal, or names of kinds.
func newScanner(find []string) (*Scanner, error) {
	s := &Scanner{}
	for _, name := range find {
		known := false
		for i, k := range kinds {
			if name == k.name || name == "personal" && k.personal || name == "secrets" && !k.personal {
				known = true
				s.names = s.names || k.name == "password"
				if !slices.Contains(s.kinds, i) {
					s.kinds = append(s.kinds, i)
				}
			}
		}
		if !known {
			return nil, fmt.Errorf("%q: expected secrets, personal or one of their kinds", name)
		}
	}
	if len(find) == 0 {
		return nil, fmt.Errorf("expected secrets, personal or one of their kinds")
	}
	slices.Sort(s.kinds)
	forms()
	return s, nil
}

// span is a part of a text, in bytes.
type span struct {
	from, to int
	kind     string
}

const maskBegin = "[masked: "

func maskOf(kind string) string { return maskBegin + kind + "]" }

// Text returns a text with what was found replaced by its kind.
func (s *Scanner) Text(text string) (masked string, found Found) {
	spans := s.findSpans(text)
	if len(spans) == 0 {
		return text, nil
	}
	found = Found{}
	var b strings.Builder
	at := 0
	for _, p := range spans {
		found[p.kind]++
		b.WriteString(text[at:p.from])
		b.WriteString(maskOf(p.kind))
		at = p.to
	}
	b.WriteString(text[at:])
	return b.String(), found
}

// findSpans returns what is found, in order and without overlaps.
func (s *Scanner) findSpans(text string) []span {
	plain, offsets := normal(text)
	spans := append(s.match(plain), s.encoded(plain)...)
	slices.SortFunc(spans, func(a, b span) int {
		if a.from != b.from {
			return a.from - b.from
		}
		return b.to - a.to
	})
	var out []span
	for _, p := range spans {
		if offsets != nil {
			p.from, p.to = offsets[p.from], offsets[p.to]
		}
		if last := len(out) - 1; last >= 0 && p.from < out[last].to {
			out[last].to = max(out[last].to, p.to)
			continue
		}
		out = append(out, p)
	}
	return out
}

// match returns the matches of the kinds in a normal text.
func (s *Scanner) match(text string) (spans []span) {
	lower := strings.ToLower(text)
	for _, i := range s.kinds {
		k := &kinds[i]
		if k.hints != nil && !slices.ContainsFunc(k.hints, func(h string) bool { return strings.Contains(lower, h) }) {
			continue
		}
		for _, m := range forms()[i].FindAllStringSubmatchIndex(text, -1) {
			from, to := m[0], m[1]
			if len(m) > 2 && m[2] >= 0 {
				from, to = m[2], m[3]
			}
			if k.valid == nil || k.valid(text[from:to]) {
				spans = append(spans, span{from, to, k.name})
			}
		}
	}
	return spans
}

// words are runs of text that may be encoded. Shorter ones hold no secret that would be found.
var words = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`[A-Za-z0-9+/_%.~-]{16,}={0,2}`)
})

// encoded returns the words that decode to a text in which something is found.
func (s *Scanner) encoded(text string) (spans []span) {
	for _, m := range words().FindAllStringIndex(text, -1) {
		word := text[m[0]:m[1]]
		for _, plain := range decodings(word) {
			if found := s.match(plain); len(found) > 0 {
				spans = append(spans, span{m[0], m[1], found[0].kind})
				break
			}
		}
	}
	return spans
}

// decodings returns what a word may stand for, if that is text.
func decodings(word string) (all []string) {
	add := func(b []byte, err error) {
		if err == nil && len(b) > 0 && utf8.Valid(b) {
			all = append(all, string(b))
		}
	}
	if strings.Contains(word, "%") {
		plain, err := url.PathUnescape(word)
		add([]byte(plain), err)
	}
	bare := strings.TrimRight(word, "=")
	if strings.ContainsAny(bare, "-_") {
		add(base64.RawURLEncoding.DecodeString(bare))
	} else {
		add(base64.RawStdEncoding.DecodeString(bare))
	}
	add(hex.DecodeString(word))
	return all
}

// normal returns a text without characters that are not shown, and with letters and digits of full width as the usual
// ones. offsets has for each byte of it, and its end, the place in the text; nil if both are the same.
func normal(text string) (plain string, offsets []int) {
	if isASCII(text) {
		return text, nil
	}
	var b strings.Builder
	for i, r := range text {
		n := b.Len()
		switch {
		case hidden(r):
			continue
		case r >= 0xff01 && r <= 0xff5e:
			b.WriteByte(byte(r - 0xff01 + '!'))
		case r == utf8.RuneError:
			b.WriteByte('?')
		default:
			b.WriteRune(r)
		}
		for range b.Len() - n {
			offsets = append(offsets, i)
		}
	}
	return b.String(), append(offsets, len(text))
}

func isASCII(text string) bool {
	for i := range len(text) {
		if text[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// hidden reports whether a character is not shown, and could divide what is searched for.
func hidden(r rune) bool {
	return r >= 0x200b && r <= 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x2060 && r <= 0x2064 || r == 0xfeff ||
		r == 0xad || r >= 0xfe00 && r <= 0xfe0f || r >= 0xe0000 && r <= 0xe007f
}

// JSON returns a JSON text whose strings, names of members and numbers are masked as texts are. It is still JSON.
func (s *Scanner) JSON(text []byte) (masked []byte, found Found) {
	w := &jsonScan{s: s, found: Found{}}
	c := rawjson.At(text)
	w.scanValue(c.Value(), "")
	if len(w.found) == 0 {
		return text, nil
	}
	return w.out, w.found
}

type jsonScan struct {
	s     *Scanner
	out   []byte
	found Found
}

// scanValue writes a value; name is that of its member.
func (w *jsonScan) scanValue(v []byte, name string) {
	switch rawjson.Kind(v) {
	case '{':
		w.out = append(w.out, '{')
		first := true
		for key, value := range rawjson.Object(v) {
			if !first {
				w.out = append(w.out, ',')
			}
			first = false
			plain := string(key)
			w.scanText(plain)
			w.out = append(w.out, ':')
			w.scanValue(value, plain)
		}
		w.out = append(w.out, '}')
	case '[':
		w.out = append(w.out, '[')
		first := true
		for value := range rawjson.Elements(v) {
			if !first {
				w.out = append(w.out, ',')
			}
			first = false
			w.scanValue(value, name)
		}
		w.out = append(w.out, ']')
	case '"':
		plain, _ := rawjson.String(v)
		if w.s.names && likePassword(name) && len(plain) >= shortestPassword && unmasked(plain) {
			w.found["password"]++
			plain = maskOf("password")
		}
		w.scanText(plain)
	default:
		if masked, found := w.s.Text(string(v)); len(found) > 0 {
			w.recordFound(found)
			w.out = rawjson.AppendString(w.out, masked)
			return
		}
		w.out = append(w.out, v...)
	}
}

func (w *jsonScan) scanText(plain string) {
	masked, found := w.s.Text(plain)
	w.recordFound(found)
	w.out = rawjson.AppendString(w.out, masked)
}

func (w *jsonScan) recordFound(found Found) {
	for kind, n := range found {
		w.found[kind] += n
	}
}

const shortestPassword = 4

// passwordNames end the names of members that hold passwords, without - and _ and in lower case. A token alone may be a
// place in a list.
var passwordNames = []string{
	"password",
	"passwd",
	"passphrase",
	"secret",
	"apikey",
	"accesskey",
	"secretkey",
	"privatekey",
	"accesstoken",
	"refreshtoken",
	"authtoken",
	"clientsecret",
	"authorization",
}

func likePassword(name string) bool {
	name = strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(name))
	return slices.ContainsFunc(passwordNames, func(end string) bool { return strings.HasSuffix(name, end) })
}

// unmasked reports whether a value was not masked before, and is no reference to a secret.
func unmasked(value string) bool {
	return !strings.HasPrefix(value, maskBegin[:len(maskBegin)-1]) && !strings.HasPrefix(value, "${")
}

func digits(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, s)
}

// isCard checks the last digit of a number (ISO/IEC 7812).
func isCard(s string) bool {
	d, sum := digits(s), 0
	for i := range len(d) {
		n := int(d[len(d)-1-i] - '0')
		if i%2 == 1 {
			if n *= 2; n > 9 {
				n -= 9
			}
		}
		sum += n
	}
	return len(d) >= 13 && len(d) <= 19 && sum%10 == 0
}

// isIBAN checks the digits of an account number (ISO 13616).
func isIBAN(s string) bool {
	s = strings.ReplaceAll(s, " ", "")
	if len(s) < 15 || len(s) > 34 {
		return false
	}
	var b strings.Builder
	for _, r := range s[4:] + s[:4] {
		if r >= 'A' && r <= 'Z' {
			fmt.Fprint(&b, int(r-'A')+10)
		} else {
			b.WriteRune(r)
		}
	}
	n, ok := new(big.Int).SetString(b.String(), 10)
	return ok && new(big.Int).Mod(n, big.NewInt(97)).Int64() == 1
}

// isSSN leaves out numbers that are never given.
func isSSN(s string) bool {
	return s[:3] != "000" && s[:3] != "666" && s[0] != '9' && s[4:6] != "00" && s[7:] != "0000"
}

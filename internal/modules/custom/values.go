package custom

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/schema"
	"gatehouse/tool"
)

// bounds are what a call may take and what it must give.
type bounds struct {
	timeout time.Duration
	most    int            // bytes of what comes back
	output  *schema.Schema // nil means text
}

// Causes with which the context of a call's work ends.
var (
	errTimeout = errors.New("the tool's own deadline passed")
	errTooLong = errors.New("it gave more than it may")
)

// ended turns such a cause into what the model reads; nil for any other.
func (b *bounds) ended(cause error) error {
	switch {
	case errors.Is(cause, errTimeout):
		return &tool.Refusal{Code: "timeout", Message: fmt.Sprintf("it did not end within %v and was stopped", b.timeout), Next: "Part of the work may have been done."}
	case errors.Is(cause, errTooLong):
		return &tool.Refusal{Code: "too_large", Message: fmt.Sprintf("it gave more than %d bytes and was stopped", b.most), Next: "Ask for less at once."}
	}
	return nil
}

// answer is what a program printed, or a server sent.
type answer struct {
	body []byte
	kind string // the media type that a server names, without parameters
	sent bool   // by a server
}

// result makes a tool's result of an answer.
func (b *bounds) result(a answer) (tool.Result, error) {
	switch {
	case b.output != nil:
		return b.structured(a.body)
	case strings.HasPrefix(a.kind, "image/"):
		return tool.Result{Content: []tool.Content{tool.Image(a.kind, a.body)}}, nil
	case strings.HasPrefix(a.kind, "audio/"):
		return tool.Result{Content: []tool.Content{tool.Audio(a.kind, a.body)}}, nil
	case a.sent && !utf8.Valid(a.body):
		return tool.Result{}, tool.Refuse("binary", "the answer is not text: %s, %d bytes", a.kind, len(a.body))
	}
	return tool.Result{Content: []tool.Content{tool.Text(printable(a.body))}}, nil
}

// structured makes a result of JSON that fits the output schema.
func (b *bounds) structured(text []byte) (tool.Result, error) {
	text = []byte(strings.TrimSpace(string(text)))
	if err := rawjson.Check(text, 0); err != nil {
		return tool.Result{}, tool.Refuse("failed", "the tool promises JSON and gave something else: %v", err)
	}
	if err := b.output.Check(text); err != nil {
		return tool.Result{}, tool.Refuse("failed", "what the tool gave does not fit its output schema: %v", err)
	}
	return tool.Result{Structured: json.RawMessage(text)}, nil
}

// failure is what went wrong in a program or at a server, with what it said.
type failure struct{ text string }

func (f *failure) Error() string { return f.text }

func failed(what string, said ...[]byte) error {
	var text strings.Builder
	text.WriteString("failed: " + what)
	for _, s := range said {
		if t := strings.TrimSpace(printable(s)); t != "" {
			text.WriteString("\n" + t)
		}
	}
	return &failure{text.String()}
}

func printable(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

// values are the arguments of one call.
type values map[string]json.RawMessage

func readValues(args json.RawMessage) (v values, err error) {
	err = json.Unmarshal(args, &v)
	return v, err
}

func (v values) has(name string) bool {
	raw, ok := v[name]
	return ok && rawjson.Kind(raw) != 'n'
}

// text is a value as text: a string as it is, anything else as JSON.
func (v values) text(name string) (string, bool) {
	if !v.has(name) {
		return "", false
	}
	return asText(v[name]), true
}

func asText(raw json.RawMessage) string {
	if s, ok := rawjson.String(raw); ok {
		return s
	}
	return string(rawjson.Compact(nil, raw))
}

// expand fills a template with the arguments alone.
func (v values) expand(t contextstore.Template) (string, error) {
	s, err := t.Expand(func(name, _ string) (string, bool) { return v.text(name) })
	return s, missing(err)
}

func missing(err error) error {
	if errors.Is(err, contextstore.ErrAbsent) {
		return tool.Refuse("invalid_arguments", "%v and is needed", err)
	}
	return err
}

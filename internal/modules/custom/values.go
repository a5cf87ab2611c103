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

// bounds are the limits of a call and the schema of its result.
type bounds struct {
	timeout time.Duration
	max     int            // bytes of output
	output  *schema.Schema // nil means text
}

// Causes with which the context of a program or request is cancelled.
var (
	errTimeout = errors.New("the deadline of the tool has passed")
	errTooLong = errors.New("the output is too large")
)

// refusal turns such a cause into a refusal. It returns nil for any other.
func (b *bounds) refusal(cause error) error {
	switch {
	case errors.Is(cause, errTimeout):
		return &tool.Refusal{
			Code:    tool.CodeTimeout,
			Message: fmt.Sprintf("the tool did not finish within %v and was stopped", b.timeout),
			Next:    "It may have done a part of its work.",
		}
	case errors.Is(cause, errTooLong):
		return &tool.Refusal{
			Code:    tool.CodeTooLarge,
			Message: fmt.Sprintf("the tool returned more than %d bytes and was stopped", b.max),
			Next:    "Request less in one call.",
		}
	}
	return nil
}

// answer is the output of a program, or the response of a server.
type answer struct {
	body []byte
	kind string // media type of a response, without parameters
	sent bool   // it is the response of a server
}

// result returns the result of a tool with an answer.
func (b *bounds) result(a answer) (tool.Result, error) {
	switch {
	case b.output != nil:
		return b.structured(a.body)
	case strings.HasPrefix(a.kind, "image/"):
		return tool.Result{Content: []tool.Content{tool.Image(a.kind, a.body)}}, nil
	case strings.HasPrefix(a.kind, "audio/"):
		return tool.Result{Content: []tool.Content{tool.Audio(a.kind, a.body)}}, nil
	case a.sent && !utf8.Valid(a.body):
		return tool.Result{}, tool.Refuse(tool.CodeBinary, "the response is not text: %s, %d bytes", a.kind,
			len(a.body))
	}
	return tool.Result{Content: []tool.Content{tool.Text(printable(a.body))}}, nil
}

// structured returns a result with JSON that must match the output schema.
func (b *bounds) structured(text []byte) (tool.Result, error) {
	text = []byte(strings.TrimSpace(string(text)))
	if err := rawjson.Check(text, 0); err != nil {
		return tool.Result{}, tool.Refuse(
			tool.CodeFailed, "the tool has an output schema, and its output is not JSON: %v", err,
		)
	}
	if err := b.output.Check(text); err != nil {
		return tool.Result{}, tool.Refuse(tool.CodeFailed,
			"the output of the tool does not match its output schema: %v", err)
	}
	return tool.Result{Structured: json.RawMessage(text)}, nil
}

// failure is the error of a program or a server, with its output.
type failure struct{ text string }

func (f *failure) Error() string { return f.text }

func newFailure(what string, said ...[]byte) error {
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

// textOf returns a value as text: a string itself, any other value as JSON.
func (v values) textOf(name string) (string, bool) {
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
	s, err := t.Expand(func(name, _ string) (string, bool) { return v.textOf(name) })
	return s, missing(err)
}

func missing(err error) error {
	if errors.Is(err, contextstore.ErrAbsent) {
		return tool.Refuse(tool.CodeInvalidArguments, "%v, which is required", err)
	}
	return err
}

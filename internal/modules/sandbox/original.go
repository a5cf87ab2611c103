package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"

	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

// missing is the code of a refusal for want of what only the original asks for.
const missing = "missing_parameters"

// adapted makes a tool that also takes the place of an original's: where a view
// has the original's names, results are its members as one pretty text, and
// failures have its words. like picks those members; failed begins the text of
// a failure.
func adapted[In, Out any](m *desk, d tool.Def, failed string, like func(Out) any, f func(context.Context, *tool.Call, In) (Out, []tool.Content, error)) tool.Tool {
	t := tool.New(d, func(ctx context.Context, c *tool.Call, in In) (tool.Result, error) {
		out, more, err := f(ctx, c, in)
		switch original := m.cfg.Original(c.Caller.Context); {
		case err != nil && original:
			return tool.Result{}, inItsWords(err, failed)
		case err != nil:
			return tool.Result{}, err
		case original:
			return asOriginal(like(out), more)
		}
		res := tool.Typed(out)
		res.Content = more
		return res, nil
	})
	t.Out = reflect.TypeFor[Out]()
	return t
}

// asOriginal is a result the way the original gives it, and once more as
// structured content. Pictures follow, which the original does not have.
func asOriginal(members any, more []tool.Content) (tool.Result, error) {
	var flat bytes.Buffer
	e := json.NewEncoder(&flat)
	e.SetEscapeHTML(false)
	if err := e.Encode(members); err != nil {
		return tool.Result{}, err
	}
	one := bytes.TrimSpace(flat.Bytes())
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, one, "", "  "); err != nil {
		return tool.Result{}, err
	}
	raw := append([]byte(nil), `{"content":[{"type":"text","text":`...)
	raw = rawjson.AppendString(raw, pretty.String())
	raw = append(raw, '}')
	for _, c := range more {
		if c.Type != "image" {
			continue
		}
		b, err := json.Marshal(struct {
			Type string `json:"type"`
			Data []byte `json:"data"` // base64 in JSON
			MIME string `json:"mimeType"`
		}{"image", c.Data, c.MIME})
		if err != nil {
			return tool.Result{}, err
		}
		raw = append(append(raw, ','), b...)
	}
	raw = append(raw, `],"structuredContent":`...)
	raw = append(raw, one...)
	return tool.Result{Raw: append(raw, '}')}, nil
}

// inItsWords puts a failure into the words of the original.
func inItsWords(err error, failed string) error {
	r, ok := errors.AsType[*tool.Refusal](err)
	if !ok {
		return err
	}
	itsOwn := r.Code == missing ||
		r.Code == "not_found" && r.Message == notFound ||
		r.Code == "too_large" && strings.Contains(r.Message, "exceeds maximum size")
	if itsOwn {
		return &tool.Refusal{Message: r.Message}
	}
	return &tool.Refusal{Message: failed + r.Message}
}

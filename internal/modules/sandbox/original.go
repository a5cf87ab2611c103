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

// missing is the code of a refusal for a parameter that only the original requires.
const missing = "missing_parameters"

// adapted makes a tool that can also replace one of the original server: if a view uses the original's names,
// results contain the original's members as one formatted text, and errors use its wording. like selects those
// members; failed is the start of an error's text.
func adapted[In, Out any](m *sandboxTools, d tool.Def, failed string, like func(Out) any,
	f func(context.Context, *tool.Call, In) (Out, []tool.Content, error)) tool.Tool {
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

// asOriginal formats a result as the original does, and adds it as structured content. Images follow, which
// the original does not have.
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

// inItsWords gives an error the wording of the original.
func inItsWords(err error, failed string) error {
	r, ok := errors.AsType[*tool.Refusal](err)
	if !ok {
		return err
	}
	itsOwn := r.Code == missing ||
		r.Code == tool.CodeNotFound && r.Message == notFound ||
		r.Code == tool.CodeTooLarge && strings.Contains(r.Message, "exceeds maximum size")
	if itsOwn {
		return &tool.Refusal{Message: r.Message}
	}
	return &tool.Refusal{Message: failed + r.Message}
}

package protocol

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"

	"gatehouse/internal/dispatch"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

// render appends a result in the form of the caller's revision.
func (r *request) render(b []byte, c *call, res *dispatch.Result) []byte {
	if res.Raw != nil {
		return r.relayed(b, c.method, res.Raw)
	}
	switch c.method {
	case "tools/call":
		b = r.toolResult(b, res)
	case "resources/read":
		b = r.contents(b, c, res.Content)
	case "prompts/get":
		b = r.messages(b, res)
	case "completion/complete":
		b = completion(b, res.Completion)
	default:
		if rawjson.Kind(res.Full) == '{' && len(res.Full) > 2 {
			return r.relayed(b, c.method, withMeta(res.Full, res.Meta))
		}
		b = append(b, '{')
	}
	return append(r.tail(b, c.method, withFields(res.Meta, res.Fields)), '}')
}

// metaFields is the member of _meta that holds the fields of an output whose product is sent as text.
const metaFields = "gatehouse/fields"

// withFields returns the _meta of a handler with the fields; it does not change meta.
func withFields(meta map[string]json.RawMessage, fields json.RawMessage) map[string]json.RawMessage {
	if fields == nil {
		return meta
	}
	all := make(map[string]json.RawMessage, len(meta)+1)
	maps.Copy(all, meta)
	all[metaFields] = fields
	return all
}

// tail appends the end of a result object: caching hints, kind, _meta.
func (r *request) tail(b []byte, method string, meta map[string]json.RawMessage) []byte {
	if !r.rev.Modern() {
		if len(meta) > 0 {
			b = comma(b)
			b = append(b, `"_meta":`...)
			b = append(b, encodeMeta(meta)...)
		}
		return b
	}
	b = comma(b)
	if method == "resources/read" {
		b = append(b, `"ttlMs":0,"cacheScope":"private",`...)
	}
	if len(meta) == 0 {
		return append(b, r.e.envelope("complete")[1:]...)
	}
	all := map[string]json.RawMessage{metaServer: json.RawMessage(r.e.about.Load().servers[r.rev].info)}
	maps.Copy(all, meta)
	b = append(b, `"resultType":"complete","_meta":`...)
	return append(b, encodeMeta(all)...)
}

func encodeMeta(m map[string]json.RawMessage) []byte {
	b, err := json.Marshal(m)
	if err != nil {
		return []byte("{}")
	}
	return b
}

func comma(b []byte) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	return b
}

// relayed passes a result on, and adds only what the revision requires.
func (r *request) relayed(b []byte, method string, raw []byte) []byte {
	if !r.rev.Modern() {
		return rawjson.Compact(b, raw)
	}
	demanded := []rawjson.Edit{{Key: "resultType", Value: []byte(`"complete"`)}}
	if method == "resources/read" {
		demanded = append(
			demanded,
			rawjson.Edit{Key: "ttlMs", Value: []byte("0")},
			rawjson.Edit{Key: "cacheScope", Value: []byte(`"private"`)},
		)
	}
	demanded = slices.DeleteFunc(demanded, func(e rawjson.Edit) bool {
		_, there := rawjson.Get(raw, e.Key)
		return there
	})
	return rawjson.Compact(b, rawjson.Splice(raw, demanded...))
}

// withMeta adds a _meta to a result object.
func withMeta(raw []byte, meta map[string]json.RawMessage) []byte {
	if len(meta) == 0 {
		return raw
	}
	return rawjson.Splice(raw, rawjson.Edit{Key: "_meta", Value: encodeMeta(meta)})
}

// toolResult appends content, structuredContent and isError.
func (r *request) toolResult(b []byte, res *dispatch.Result) []byte {
	structured := res.Complete && r.rev.Has(mcpversion.Structured) &&
		(rawjson.Kind(res.Full) == '{' || res.Full != nil && r.rev.Has(mcpversion.StructuredAny))
	b = append(b, `{"content":[`...)
	empty := true
	switch {
	case res.HasProduct && res.Product == "" && res.Facts != "" && !res.Complete:
		// Claude's API refuses an empty text, and with it every later message of the conversation.
		b = textBlock(b, "\n"+res.Facts)
		empty = false
	case res.HasProduct:
		b = textBlock(b, res.Product)
		if res.Facts != "" {
			b = textBlock(append(b, ','), "\n"+res.Facts)
		}
		empty = false
	case res.Full != nil:
		b = textBlock(b, r.serialised(res.Full))
		empty = false
	}
	for i := range res.Content {
		if !empty {
			b = append(b, ',')
		}
		b = r.block(b, &res.Content[i])
		empty = false
	}
	b = append(b, ']')
	if structured {
		b = append(b, `,"structuredContent":`...)
		b = append(b, res.Full...)
	}
	if res.IsError {
		b = append(b, `,"isError":true`...)
	}
	return b
}

// serialised returns the text of a structured output: compact JSON, or indented JSON for the revisions
// without structured content.
func (r *request) serialised(full json.RawMessage) string {
	var pretty bytes.Buffer
	if r.rev.Has(mcpversion.Structured) || json.Indent(&pretty, full, "", "  ") != nil {
		return string(full)
	}
	return pretty.String()
}

// block appends one content block; a kind that the revision does not have becomes a text that describes
// the block.
func (r *request) block(b []byte, c *tool.Content) []byte {
	if c.Raw != nil {
		return rawjson.Compact(b, c.Raw)
	}
	switch c.Type {
	case "image":
		return r.media(b, "image", c)
	case "audio":
		if !r.rev.Has(mcpversion.Audio) {
			return textBlock(b, "[audio, "+c.MIME+"]")
		}
		return r.media(b, "audio", c)
	case "resource":
		b = append(b, `{"type":"resource","resource":`...)
		b = r.content(b, c)
	case "resource_link":
		if !r.rev.Has(mcpversion.ResourceLinks) {
			return textBlock(b, "["+c.Name+": "+c.URI+"]")
		}
		b = link(b, c)
	default:
		b = append(b, `{"type":"text","text":`...)
		b = rawjson.AppendString(b, c.Text)
	}
	return append(r.extras(b, c), '}')
}

func textBlock(b []byte, s string) []byte {
	b = append(b, `{"type":"text","text":`...)
	return append(rawjson.AppendString(b, s), '}')
}

func (r *request) media(b []byte, kind string, c *tool.Content) []byte {
	b = append(b, `{"type":"`+kind+`","data":"`...)
	b = base64.StdEncoding.AppendEncode(b, c.Data)
	b = append(b, `","mimeType":`...)
	b = rawjson.AppendString(b, c.MIME)
	return append(r.extras(b, c), '}')
}

func link(b []byte, c *tool.Content) []byte {
	b = append(b, `{"type":"resource_link"`...)
	for _, m := range [...]struct{ name, val string }{
		{"uri", c.URI}, {"name", c.Name}, {"title", c.Title}, {"description", c.Description}, {"mimeType", c.MIME},
	} {
		if m.val != "" || m.name == "name" {
			b = append(b, `,"`+m.name+`":`...)
			b = rawjson.AppendString(b, m.val)
		}
	}
	if c.Size > 0 {
		n, _ := json.Marshal(c.Size)
		b = append(b, `,"size":`...)
		b = append(b, n...)
	}
	return b
}

// extras appends a block's annotations and _meta.
func (r *request) extras(b []byte, c *tool.Content) []byte {
	if c.Annotations != nil {
		a, _ := json.Marshal(c.Annotations)
		b = append(b, `,"annotations":`...)
		b = append(b, a...)
	}
	if c.Meta != nil && r.rev.Has(mcpversion.Titles) {
		b = append(b, `,"_meta":`...)
		b = rawjson.Compact(b, c.Meta)
	}
	return b
}

// contents appends the contents of a resource. A block without a URI or type gets those of the
// resource.
func (r *request) contents(b []byte, conv *call, blocks []tool.Content) []byte {
	b = append(b, `{"contents":[`...)
	for i := range blocks {
		if i > 0 {
			b = append(b, ',')
		}
		if raw := blocks[i].Raw; raw != nil {
			b = rawjson.Compact(b, raw)
			continue
		}
		c := blocks[i]
		c.URI = cmp.Or(c.URI, conv.name)
		c.MIME = cmp.Or(c.MIME, conv.entry.Resource.MIME)
		b = r.content(b, &c)
	}
	return append(b, ']')
}

// content appends one resource's text or blob.
func (r *request) content(b []byte, c *tool.Content) []byte {
	b = append(b, `{"uri":`...)
	b = rawjson.AppendString(b, c.URI)
	if c.MIME != "" {
		b = append(b, `,"mimeType":`...)
		b = rawjson.AppendString(b, c.MIME)
	}
	if c.Data != nil {
		b = append(b, `,"blob":"`...)
		b = base64.StdEncoding.AppendEncode(b, c.Data)
		return append(b, `"}`...)
	}
	b = append(b, `,"text":`...)
	return append(rawjson.AppendString(b, c.Text), '}')
}

// messages appends a prompt.
func (r *request) messages(b []byte, res *dispatch.Result) []byte {
	b = append(b, '{')
	if res.Description != "" {
		b = append(b, `"description":`...)
		b = append(rawjson.AppendString(b, res.Description), ',')
	}
	b = append(b, `"messages":[`...)
	for i := range res.Messages {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"role":`...)
		b = rawjson.AppendString(b, res.Messages[i].Role)
		b = append(b, `,"content":`...)
		b = append(r.block(b, &res.Messages[i].Content), '}')
	}
	return append(b, ']')
}

// completion appends at most 100 values.
func completion(b []byte, c *tool.Completion) []byte {
	if c == nil {
		c = &tool.Completion{}
	}
	out := *c
	if out.Values == nil {
		out.Values = []string{}
	}
	if len(out.Values) > 100 {
		out.Total, out.More = max(out.Total, len(out.Values)), true
		out.Values = out.Values[:100]
	}
	v, _ := json.Marshal(out)
	b = append(b, `{"completion":`...)
	return append(b, v...)
}

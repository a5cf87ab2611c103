package custom

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/yosida95/uritemplate/v3"

	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/files/roots"
	"gatehouse/module"
	"gatehouse/tool"
)

// contextResource is a resource of the context with parsed templates.
type contextResource struct {
	*contextstore.Resource
	m      *Module
	vars   *uritemplate.Template // nil if the resource is not a template
	text   contextstore.Template // of Text or File
	source source                // of Command or HTTP
	bounds bounds
}

// resource returns the resource of a definition, whose templates it parses.
func (m *Module) resource(r *contextstore.Resource) (module.Resource, error) {
	o := &contextResource{Resource: r, m: m, bounds: bounds{timeout: r.Deadline(), max: r.Most()}}
	var err error
	if o.vars, err = r.Template(); err != nil {
		return module.Resource{}, err
	}
	switch {
	case r.Text != nil:
		o.text, err = contextstore.ParseTemplate(*r.Text)
	case r.File != "":
		o.text, err = contextstore.ParseTemplate(r.File)
	case r.Command != nil:
		o.source, err = m.command(r.Command, o.bounds)
	default:
		get := *r.HTTP
		get.Method = "GET"
		o.source, err = m.request(&get, o.bounds)
	}
	out := module.Resource{
		URI: r.URI, Name: r.Name, Title: r.Title, Description: r.Description, MIME: r.MIME,
		// The source ends at its own deadline first and reports that it did.
		Timeout: o.bounds.timeout + stopTimeout, Read: o.readResource, Watch: o.watchContextResource,
	}
	if r.File != "" {
		out.MayWatch = o.mayWatch
	}
	proposed := map[string][]string{}
	for _, v := range r.Variables {
		proposed[v.Name] = v.Values
	}
	if len(proposed) > 0 {
		out.Complete = complete(proposed)
	}
	return out, err
}

// readResource returns the content. The variables of the URI are the call's arguments.
func (o *contextResource) readResource(ctx context.Context, c *tool.Call) (tool.Result, error) {
	a, err := o.content(ctx, c)
	if err != nil {
		return tool.Result{}, err
	}
	return tool.Result{Content: []tool.Content{o.toContent(c.Name, a)}}, nil
}

func (o *contextResource) content(ctx context.Context, c *tool.Call) (answer, error) {
	switch {
	case o.Text != nil:
		v, err := readValues(c.Args)
		if err != nil {
			return answer{}, err
		}
		text, err := v.expand(o.text)
		if err == nil && len(text) > o.bounds.max {
			err = tool.Refuse(tool.CodeTooLarge, "the text has %d bytes; at most %d are allowed", len(text),
				o.bounds.max)
		}
		return answer{body: []byte(text)}, err
	case o.File != "":
		return o.file(c)
	}
	env, err := o.m.environment(c.Caller)
	if err != nil {
		return answer{}, err
	}
	a, err := o.source(ctx, c, &env)
	if f, ok := errors.AsType[*failure](err); ok {
		said := string(env.Mask([]byte(strings.TrimPrefix(f.text, "failed: "))))
		return answer{}, &tool.Refusal{Code: tool.CodeFailed, Message: said}
	}
	a.body = env.Mask(a.body)
	return a, err
}

// toContent returns the content of a resource as text, or as a blob if it is not
// text.
func (o *contextResource) toContent(uri string, a answer) tool.Content {
	kind := o.MIME
	if kind == "" {
		kind = a.kind
	}
	if utf8.Valid(a.body) && bytes.IndexByte(a.body, 0) < 0 {
		if kind == "" {
			kind = "text/plain"
		}
		return tool.TextResource(uri, kind, string(a.body))
	}
	if kind == "" {
		kind = "application/octet-stream"
	}
	return tool.BlobResource(uri, kind, a.body)
}

// file reads the file, whose path is resolved in the folders of the call.
func (o *contextResource) file(c *tool.Call) (answer, error) {
	p, err := o.resolve(c.Roots, c.Args)
	if err != nil {
		return answer{}, err
	}
	f, info, err := p.Regular()
	if err != nil {
		return answer{}, err
	}
	defer f.Close()
	tooLarge := &tool.Refusal{
		Code: tool.CodeTooLarge, Message: "the file is larger than max_output of this resource",
		Next: "Read it in parts with a file tool, or ask an administrator to raise max_output.",
	}
	if info.Size() > int64(o.bounds.max) {
		return answer{}, tooLarge
	}
	b, err := io.ReadAll(io.LimitReader(f, int64(o.bounds.max)+1)) // the file may have grown
	if err != nil {
		return answer{}, p.Refuse(err)
	}
	if len(b) > o.bounds.max {
		return answer{}, tooLarge
	}
	kind, _, _ := strings.Cut(mime.TypeByExtension(filepath.Ext(p.Name)), ";")
	return answer{body: b, kind: kind}, nil
}

// resolve returns the place of the file. A value is one name of the path or a
// part of one, so that it cannot lead to another folder than in the definition.
func (o *contextResource) resolve(rs tool.Roots, args json.RawMessage) (roots.Place, error) {
	v, err := readValues(args)
	if err != nil {
		return roots.Place{}, err
	}
	leaves := ""
	path, err := o.text.Expand(func(name, _ string) (string, bool) {
		text, ok := v.textOf(name)
		if strings.ContainsFunc(text, isSeparator) {
			leaves = name
		}
		return text, ok
	})
	if err != nil {
		return roots.Place{}, missing(err)
	}
	if leaves != "" {
		return roots.Place{}, tool.Refuse(tool.CodeInvalidArguments,
			"%s: a value must be one name of a path, without / \\ or control characters", leaves)
	}
	if slices.Contains(strings.FieldsFunc(path, isSeparator), "..") {
		return roots.Place{}, tool.Refuse(tool.CodeInvalidArguments, "a value that is .. would lead to another folder")
	}
	return roots.Locate(rs, filepath.FromSlash(path))
}

// mayWatch refuses to watch a file that the caller may not read.
func (o *contextResource) mayWatch(_ context.Context, c *tool.Call) (tool.Result, error) {
	p, err := o.resolve(c.Roots, c.Args)
	if err != nil {
		return tool.Result{}, err
	}
	f, _, err := p.Regular()
	if err == nil {
		err = f.Close()
	}
	return tool.Result{}, err
}

// openWatch is one open watch.
type openWatch struct {
	of      string // the URI or template of the resource
	changed func(json.RawMessage)
}

// watchContextResource implements module.Watch: it reports changes of the definition and, if the
// content is a file, of the file.
func (o *contextResource) watchContextResource(who tool.Caller, uri string, changed func(json.RawMessage)) (func(), error) {
	end := func() {}
	if o.File != "" {
		path, err := o.pathFor(who, uri)
		if err != nil {
			return nil, err
		}
		if end, err = o.m.files.Watch(path, func() { changed(nil) }); err != nil {
			return nil, err
		}
	}
	w := &openWatch{o.URI, changed}
	o.m.mu.Lock()
	defer o.m.mu.Unlock()
	o.m.watches[w] = struct{}{}
	return func() {
		end()
		o.m.mu.Lock()
		defer o.m.mu.Unlock()
		delete(o.m.watches, w)
	}, nil
}

// pathFor returns the path of the file of a URI for a caller. mayWatch has checked
// it.
func (o *contextResource) pathFor(who tool.Caller, uri string) (string, error) {
	vars := map[string]string{}
	if o.vars != nil {
		for name, value := range o.vars.Match(uri) {
			vars[name] = value.String()
		}
	}
	args, err := json.Marshal(vars)
	if err != nil {
		return "", err
	}
	var rs tool.Roots
	if o.m.opts.Roots != nil {
		rs = o.m.opts.Roots(who)
	}
	if rs == nil {
		return "", tool.Refuse(tool.CodeOutsideRoot, "this context has no folders")
	}
	p, err := o.resolve(rs, args)
	if err != nil {
		return "", err
	}
	return filepath.Join(p.Folder(), p.Name), nil
}

// basisOf returns, as a string, everything in a record on which the content of a
// resource depends. If it is unchanged, the content can change only with files,
// programs and servers.
func basisOf(r *contextstore.Record, res *contextstore.Resource) (string, error) {
	b, err := json.Marshal([]any{res, r.Env, r.Roots})
	return string(b), err
}

package file

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gatehouse/internal/files/roots"
	"gatehouse/module"
	"gatehouse/tool"
)

const (
	resourceURI  = "file://{+path}"
	resourceMost = 1 << 20 // bytes of a file that are read as a resource; file_read has pages
	proposed     = 100     // paths a completion proposes
	looked       = 10_000  // entries of a directory a completion looks at
)

// resource is every file below the roots.
func (m *files) resource() module.Resource {
	return module.Resource{
		URI: resourceURI, Name: "file", Title: "File",
		Description: "A file, or the names in a directory, by absolute path. Can be subscribed to.",
		Read:        m.readResource,
		Complete:    m.completePath,
		Watch:       m.watch,
		MayWatch:    m.mayWatch,
	}
}

// pathOf is the path a file URI means.
func pathOf(uri string) (string, error) {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "file" || u.Host != "" && u.Host != "localhost" || !strings.HasPrefix(u.Path, "/") {
		return "", &tool.Refusal{Code: "invalid_arguments", Message: fmt.Sprintf("%.200q is no URI of a file here", uri), Next: "Write file:/// and the absolute path."}
	}
	path := u.Path
	if len(path) > 2 && path[2] == ':' { // a volume of Windows
		path = path[1:]
	}
	return filepath.FromSlash(path), nil
}

// readResource gives a file as text, or as bytes where it is none.
func (m *files) readResource(_ context.Context, c *tool.Call) (tool.Result, error) {
	path, err := pathOf(c.Name)
	if err != nil {
		return tool.Result{}, err
	}
	p, err := roots.Find(c.Roots, path)
	if err != nil {
		return tool.Result{}, err
	}
	if info, err := p.Stat(); err == nil && info.IsDir() {
		names, err := namesIn(p)
		text := strings.Join(names, "\n")
		return tool.Result{Content: []tool.Content{tool.TextResource(c.Name, "text/plain", text)}}, err
	}
	if err := p.MayRead(); err != nil {
		return tool.Result{}, err
	}
	f, info, err := p.Regular()
	if err != nil {
		return tool.Result{}, err
	}
	defer f.Close()
	b, err := readAll(f, info.Size(), resourceMost)
	if err == errTooLarge {
		return tool.Result{}, &tool.Refusal{
			Code:    "too_large",
			Message: fmt.Sprintf("%s has %s bytes; as a resource up to %s are read", path, commas(info.Size()), commas(resourceMost)),
			Next:    "Use file_read, which gives pages.",
		}
	}
	if err != nil {
		return tool.Result{}, p.Refuse(err)
	}
	return tool.Result{Content: []tool.Content{contentOf(c.Name, path, b)}}, nil
}

func contentOf(uri, path string, b []byte) tool.Content {
	kind, _, _ := strings.Cut(mime.TypeByExtension(filepath.Ext(path)), ";")
	if bad := binaryKind(b[:min(len(b), sniffed)]); bad == "" && strings.ToValidUTF8(string(b), "") == string(b) {
		if !strings.HasPrefix(kind, "text/") && kind != "application/json" && kind != "image/svg+xml" {
			kind = "text/plain"
		}
		return tool.TextResource(uri, kind, string(b))
	}
	if kind == "" || strings.HasPrefix(kind, "text/") {
		kind = "application/octet-stream"
	}
	return tool.BlobResource(uri, kind, b)
}

// namesIn lists a directory, those of directories with a slash at their end.
func namesIn(p roots.Place) ([]string, error) {
	root, err := p.Dir()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	d, err := root.Open(".")
	if err != nil {
		return nil, p.Refuse(err)
	}
	defer d.Close()
	entries, err := d.ReadDir(looked)
	if err != nil && err != io.EOF {
		return nil, p.Refuse(err)
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() || e.Type()&fs.ModeSymlink != 0 && leadsToDir(root, name) {
			name += "/"
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

func leadsToDir(root *os.Root, name string) bool {
	info, err := root.Stat(name)
	return err == nil && info.IsDir()
}

// completePath proposes the entries of the directory that is being typed, or
// the roots where nothing is.
func (m *files) completePath(_ context.Context, c *tool.Call) (tool.Result, error) {
	var in module.Completing
	if err := json.Unmarshal(c.Args, &in); err != nil {
		return tool.Result{}, err
	}
	dir, part := "", in.Value
	if i := strings.LastIndexByte(part, '/'); i >= 0 {
		dir, part = part[:i+1], part[i+1:]
	}
	var found []string
	for _, r := range c.Roots.List() {
		if root := filepath.ToSlash(r.Path); strings.HasPrefix(root, in.Value) {
			found = append(found, root)
		}
	}
	if p, err := roots.Find(c.Roots, filepath.FromSlash(dir)); err == nil && dir != "" {
		names, _ := namesIn(p) // where nothing can be read nothing is proposed
		for _, name := range names {
			if strings.HasPrefix(name, part) && !p.Refuses(strings.TrimSuffix(name, "/")) {
				found = append(found, dir+name)
			}
		}
	}
	all := len(found)
	found = append([]string{}, found[:min(all, proposed)]...)
	return tool.Result{Completion: &tool.Completion{Values: found, Total: all, More: all > len(found)}}, nil
}

package file

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"gatehouse/internal/files/merged"
	"gatehouse/internal/files/roots"
	"gatehouse/module"
	"gatehouse/tool"
)

const (
	resourceURI    = "file://{+path}"
	maxResource    = 1 << 20 // bytes of a file as a resource; file_read has pages
	maxCompletions = 100     // paths in a completion
	maxDirEntries  = 10_000  // entries of a directory that a completion reads
)

// resource returns the template of the files below the roots.
func (m *files) resource() module.Resource {
	return module.Resource{
		URI: resourceURI, Name: "file", Title: "File",
		Description: "A file, or the names in a directory, by absolute path. Supports subscriptions.",
		Read:        m.readResource,
		Complete:    m.completePath,
		Watch:       m.watchFile,
		MayWatch:    m.mayWatch,
		AllNodes:    true,
	}
}

// pathOf returns the path of a file URI.
func pathOf(uri string) (string, error) {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "file" || u.Host != "" && u.Host != "localhost" || !strings.HasPrefix(u.Path, "/") {
		return "", &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: fmt.Sprintf("%.200q is not a URI of a file on this host", uri),
			Next:    "Give file:// and the absolute path, such as file:///tmp/a.txt.",
		}
	}
	path := u.Path
	if len(path) > 2 && path[2] == ':' { // a drive letter of Windows
		path = path[1:]
	}
	return filepath.FromSlash(path), nil
}

// readResource returns a file as text, or as a blob if it is not text, and a
// directory as the list of its names.
func (m *files) readResource(_ context.Context, c *tool.Call) (tool.Result, error) {
	path, err := pathOf(c.Name)
	if err != nil {
		return tool.Result{}, err
	}
	p, err := roots.Locate(c.Roots, path)
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
	b, err := readAll(f, info.Size(), maxResource)
	if err == errTooLarge {
		return tool.Result{}, &tool.Refusal{
			Code: tool.CodeTooLarge,
			Message: fmt.Sprintf(
				"%s has %s bytes; a resource has at most %s", path, groupDigits(info.Size()), groupDigits(maxResource),
			),
			Next: "Read it in pages with file_read.",
		}
	}
	if err != nil {
		return tool.Result{}, p.Refuse(err)
	}
	return tool.Result{Content: []tool.Content{contentOf(c.Name, path, b)}}, nil
}

func contentOf(uri, path string, b []byte) tool.Content {
	kind, _, _ := strings.Cut(mime.TypeByExtension(filepath.Ext(path)), ";")
	if bad := binaryKind(b[:min(len(b), sniffBytes)]); bad == "" && strings.ToValidUTF8(string(b), "") == string(b) {
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

// namesIn lists the names in a directory. The name of a directory ends with a
// slash.
func namesIn(p roots.Place) ([]string, error) {
	root, err := p.Dir()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	d, err := merged.List(root)
	if err != nil {
		return nil, p.Refuse(err)
	}
	defer d.Close()
	entries, err := d.ReadDir(maxDirEntries)
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

func leadsToDir(root merged.Folder, name string) bool {
	info, err := root.Stat(name)
	return err == nil && info.IsDir()
}

// completePath proposes the entries of the directory in the value so far, and
// the roots that begin with it.
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
	if p, err := roots.Locate(c.Roots, filepath.FromSlash(dir)); err == nil && dir != "" {
		names, _ := namesIn(p) // a directory that cannot be read has no proposals
		for _, name := range names {
			if strings.HasPrefix(name, part) && !p.Refuses(strings.TrimSuffix(name, "/")) {
				found = append(found, dir+name)
			}
		}
	}
	all := len(found)
	found = append([]string{}, found[:min(all, maxCompletions)]...)
	return tool.Result{Completion: &tool.Completion{Values: found, Total: all, More: all > len(found)}}, nil
}

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strings"
	"unicode/utf8"

	"gatehouse/internal/sandbox"
	"gatehouse/module"
	"gatehouse/tool"
)

const resourceURI = "sandbox://{sandbox_id}/{+path}"

// fileResource is the resource of all files in the caller's sandboxes, which clients can fetch without passing
// them through a model.
func (m *sandboxTools) fileResource() module.Resource {
	return module.Resource{
		URI: resourceURI, Name: "sandbox_file", Title: "File in a sandbox",
		Description: "A file in one of your sandboxes, by absolute path, at most 10 MiB.",
		Read:        m.readResource,
	}
}

// fileURI returns the URI of a file in a sandbox.
func fileURI(id, file string) string {
	if !path.IsAbs(file) {
		file = path.Join("/home/user", file)
	}
	return (&url.URL{Scheme: "sandbox", Host: id, Path: file}).String()
}

func (m *sandboxTools) readResource(ctx context.Context, c *tool.Call) (tool.Result, error) {
	u, err := url.Parse(c.Name)
	if err != nil || u.Scheme != "sandbox" || u.Host == "" || u.Path == "" {
		return tool.Result{}, &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: fmt.Sprintf("%.200q is not the URI of a file in a sandbox", c.Name),
			Next:    "Expected sandbox://, the sandbox's id and the absolute path.",
		}
	}
	b := bounded{most: mostContent}
	err = m.onFiles(c, u.Host, func(f sandbox.Files) error {
		_, err := f.ReadFile(ctx, u.Path, 0, 0, &b)
		if errors.Is(err, errTooMuch) {
			return &tool.Refusal{
				Code:    tool.CodeTooLarge,
				Message: "the file has more than 10 MiB",
				Next:    "Read it in parts with sandbox_read.",
			}
		}
		return err
	})
	if err != nil {
		return tool.Result{}, err
	}
	return tool.Result{Content: []tool.Content{fileContent(c.Name, u.Path, b.Bytes())}}, nil
}

func fileContent(uri, file string, b []byte) tool.Content {
	kind := mime.TypeByExtension(path.Ext(file))
	if kind == "" {
		kind = http.DetectContentType(b)
	}
	if utf8.Valid(b) && !strings.Contains(string(b), "\x00") && !strings.HasPrefix(kind, "image/") {
		return tool.TextResource(uri, kind, string(b))
	}
	return tool.BlobResource(uri, kind, b)
}

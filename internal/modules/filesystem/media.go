package filesystem

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"path/filepath"
	"strings"

	"gatehouse/tool"
)

// mediaTypes are the types that the original supports, by extension.
var mediaTypes = map[string]string{
	".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp",
	".bmp": "image/bmp", ".svg": "image/svg+xml",
	".mp3": "audio/mpeg", ".wav": "audio/wav", ".ogg": "audio/ogg", ".flac": "audio/flac",
}

func readMedia(_ context.Context, c *tool.Call, in pathIn) (tool.Result, error) {
	p, err := findPlace(c, in.Path)
	if err != nil {
		return tool.Result{}, err
	}
	f, info, err := p.Regular()
	if code(err) == tool.CodeIsADirectory {
		return tool.Result{}, nodeError(err, "read", in.Path)
	}
	if err != nil {
		return tool.Result{}, nodeError(err, "open", in.Path)
	}
	defer f.Close()
	if info.Size() > maxBytes {
		return tool.Result{}, refusef("File too large: %s has more than %d bytes", in.Path, maxBytes)
	}
	b, err := readAll(f)
	if err != nil {
		return tool.Result{}, nodeError(p.Refuse(err), "read", in.Path)
	}
	if q, err := p.Followed(true); err == nil {
		p = q
	}
	block, err := json.Marshal(media(filepath.Join(p.Folder(), p.Name), b))
	if err != nil {
		return tool.Result{}, err
	}
	raw := `{"content":[` + string(block) + `],"structuredContent":{"content":[` + string(block) + `]}}`
	return tool.Result{Raw: json.RawMessage(raw)}, nil
}

// media returns a content block of the file at a path.
func media(path string, b []byte) any {
	type inline struct {
		Type string `json:"type"`
		Data string `json:"data"`
		MIME string `json:"mimeType"`
	}
	type blob struct {
		URI  string `json:"uri"`
		MIME string `json:"mimeType"`
		Blob string `json:"blob"`
	}
	type embedded struct {
		Type     string `json:"type"`
		Resource blob   `json:"resource"`
	}
	data := base64.StdEncoding.EncodeToString(b)
	kind := mediaTypes[strings.ToLower(filepath.Ext(path))]
	if kind != "" {
		family, _, _ := strings.Cut(kind, "/")
		return inline{family, data, kind}
	}
	uri := url.URL{Scheme: "file", Path: filepath.ToSlash(path)}
	return embedded{"resource", blob{uri.String(), "application/octet-stream", data}}
}

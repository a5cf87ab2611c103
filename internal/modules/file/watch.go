package file

import (
	"context"
	"encoding/json"

	"gatehouse/tool"
)

// mayWatch decides whether the caller may watch a path. It runs before watch,
// with the roots of the caller, which watch does not have.
func (m *files) mayWatch(ctx context.Context, c *tool.Call) (tool.Result, error) {
	path, err := pathOf(c.Name)
	if err != nil {
		return tool.Result{}, err
	}
	is, err := m.stat(ctx, c, statIn{Path: path})
	if err != nil {
		return tool.Result{}, err
	}
	if is.Type != "directory" && (is.Type != "file" || is.ETag == "") {
		return tool.Result{}, tool.Refuse(tool.CodeNotWatched, "%s is not a file or directory that you may read", path)
	}
	return tool.Result{}, nil
}

// watchFile implements module.Watch. mayWatch has checked the path. A notification
// says only that something changed.
func (m *files) watchFile(_ tool.Caller, uri string, changed func(json.RawMessage)) (func(), error) {
	path, err := pathOf(uri)
	if err != nil {
		return nil, err
	}
	return m.watcher.Watch(path, func() { changed(nil) })
}

package file

import (
	"context"
	"encoding/json"

	"gatehouse/tool"
)

// mayWatch is asked before a watch is opened, with the folders of its caller.
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
		return tool.Result{}, tool.Refuse("not_watched", "%s is no file or directory that may be read", path)
	}
	return tool.Result{}, nil
}

// watch implements module.Watch. What is watched is the path that mayWatch has
// seen; all that is ever told is that something changed.
func (m *files) watch(_ tool.Caller, uri string, changed func(json.RawMessage)) (func(), error) {
	path, err := pathOf(uri)
	if err != nil {
		return nil, err
	}
	return m.watcher.Watch(path, func() { changed(nil) })
}

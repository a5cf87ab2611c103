package webview

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"gatehouse/internal/files/roots"
	"gatehouse/internal/modules/webview/page"
	"gatehouse/tool"
)

type uploadIn struct {
	place
	Target string   `json:"target,omitempty" doc:"the file field; default: the chooser that the page has opened" max:"1000"`
	Paths  []string `json:"paths" min:"1" max:"20" names:"path"`
	showing
}

const mostUpload = 256 << 20 // bytes of one file

func (m *manager) upload(ctx context.Context, c *tool.Call, in uploadIn) (acted, error) {
	var at *page.Target
	if in.Target != "" {
		t, err := target(in.Target, "")
		if err != nil {
			return acted{}, err
		}
		at = &t
	}
	return m.act(ctx, c, in.place, in.showing, func(s *session, t *page.Tab) (e page.Element, err error) {
		// The browser reads the files later and by their names, so it gets copies of what is in the roots now.
		folder, err := s.browser.UploadFolder()
		if err != nil {
			return e, err
		}
		var copies []string
		for i, p := range in.Paths {
			to := filepath.Join(folder, fmt.Sprint(i), filepath.Base(p))
			if err := copyOut(c, p, to); err != nil {
				return e, err
			}
			copies = append(copies, to)
		}
		return t.Upload(ctx, at, copies)
	})
}

func copyOut(c *tool.Call, path, to string) error {
	p, err := roots.Locate(c.Roots, path)
	if err != nil {
		return err
	}
	from, info, err := p.Regular()
	if err != nil {
		return err
	}
	defer from.Close()
	if info.Size() > mostUpload {
		return tool.Refuse(tool.CodeTooLarge, "%s has %d bytes; at most %d are uploaded", path, info.Size(), mostUpload)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, io.LimitReader(from, mostUpload))
	if e := out.Close(); err == nil {
		err = e
	}
	return err
}

func originOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// copyIn writes a new file in the roots of a call.
func copyIn(c *tool.Call, path string, from io.Reader) (int64, error) {
	p, err := roots.Locate(c.Roots, path)
	if err != nil {
		return 0, err
	}
	f, err := p.Open(os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(f, from)
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return n, p.Refuse(err)
	}
	return n, nil
}

type downloadIn struct {
	Session string `json:"session,omitempty" default:"default" min:"1" max:"64"`
	ID      string `json:"id,omitempty" doc:"of the download to save; default: the newest" max:"100"`
	Path    string `json:"path,omitempty" doc:"of the file to write, which must not exist; default: downloads are only listed" names:"path"`
	Timeout int    `json:"timeout,omitempty" doc:"seconds to wait for those in progress" default:"10" min:"1" max:"45"`
}

type downloadOut struct {
	Downloads []downloadedOut `json:"downloads"`
	Saved     string          `json:"saved,omitempty"`
	Bytes     int64           `json:"bytes,omitempty"`
}

type downloadedOut struct {
	ID    string `json:"id"`
	Name  string `json:"name" doc:"as the server suggests it"`
	URL   string `json:"url"`
	State string `json:"state" doc:"completed, inProgress, canceled or tooLarge"`
	Bytes int64  `json:"bytes"`
}

func (m *manager) download(ctx context.Context, c *tool.Call, in downloadIn) (out downloadOut, err error) {
	out.Downloads = []downloadedOut{}
	s := m.findSession(c, in.Session)
	if s == nil {
		return out, nil
	}
	wait, cancel := context.WithTimeout(ctx, time.Duration(in.Timeout)*time.Second)
	defer cancel()
	var chosen *page.Download
	for _, d := range s.browser.Downloads(wait) {
		out.Downloads = append(out.Downloads, downloadedOut{d.GUID, d.Name, d.URL, d.State, d.Received})
		if in.ID == "" || d.GUID == in.ID {
			chosen = &d
		}
	}
	if in.Path == "" {
		return out, nil
	}
	if chosen == nil || chosen.State != "completed" {
		return out, &tool.Refusal{
			Code: tool.CodeNotFound, Message: "there is no such download that is complete",
			Next: "Call webview_download without path to list them.",
		}
	}
	f, err := os.Open(chosen.Path)
	if err != nil {
		return out, refuse(err)
	}
	defer f.Close()
	if out.Bytes, err = copyIn(c, in.Path, f); err == nil {
		out.Saved = in.Path
	}
	return out, err
}

type storageIn struct {
	place
	Action string `json:"action" enum:"save,load,clear"`
	Path   string `json:"path,omitempty" doc:"of save: a file to write, which must not exist; of load: the file" names:"path"`
}

type storageOut struct {
	Success bool `json:"success"`
	Cookies int  `json:"cookies"`
	Origins int  `json:"origins" doc:"with local storage"`
}

const mostState = 10 << 20 // bytes

func (m *manager) storage(ctx context.Context, c *tool.Call, in storageIn) (out storageOut, err error) {
	if in.Path == "" && in.Action != "clear" {
		return out, tool.Refuse(tool.CodeInvalidArguments, "path: expected the file to %s", in.Action)
	}
	err = m.on(ctx, c, in.place, func(_ *session, t *page.Tab) error {
		if err := dialogRefusal(t); err != nil {
			return err
		}
		out.Success = true
		switch in.Action {
		case "clear":
			return t.ClearState(ctx, originOf(t.URL()))
		case "save":
			state, err := t.SaveState(ctx)
			if err != nil {
				return err
			}
			out.Cookies, out.Origins = len(state.Cookies), len(state.Origins)
			return writeState(c, in.Path, state)
		}
		state, err := readState(c, in.Path)
		if err != nil {
			return err
		}
		out.Cookies, out.Origins = len(state.Cookies), len(state.Origins)
		return t.LoadState(ctx, state)
	})
	return out, err
}

func writeState(c *tool.Call, path string, state page.State) error {
	b, err := json.Marshal(state)
	if err == nil {
		_, err = copyIn(c, path, bytes.NewReader(b))
	}
	return err
}

func readState(c *tool.Call, path string) (state page.State, err error) {
	p, err := roots.Locate(c.Roots, path)
	if err != nil {
		return state, err
	}
	f, _, err := p.Regular()
	if err != nil {
		return state, err
	}
	defer f.Close()
	if err := json.NewDecoder(io.LimitReader(f, mostState)).Decode(&state); err != nil {
		return state, tool.Refuse(tool.CodeInvalidArguments, "path: %s is not a file of webview_storage: %v", path, err)
	}
	return state, nil
}

type pdfIn struct {
	place
	Path      string `json:"path" doc:"of the file to write, which must not exist" min:"1" names:"path"`
	Landscape bool   `json:"landscape,omitempty"`
}

type pdfOut struct {
	Success bool   `json:"success"`
	Path    string `json:"path"`
	Bytes   int    `json:"bytes"`
}

func (m *manager) pdf(ctx context.Context, c *tool.Call, in pdfIn) (out pdfOut, err error) {
	err = m.on(ctx, c, in.place, func(_ *session, t *page.Tab) error {
		if err := dialogRefusal(t); err != nil {
			return err
		}
		b, err := t.PDF(ctx, in.Landscape)
		if err != nil {
			return err
		}
		n, err := copyIn(c, in.Path, bytes.NewReader(b))
		out = pdfOut{err == nil, in.Path, int(n)}
		return err
	})
	return out, err
}

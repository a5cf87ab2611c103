package ide

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/exec/idelink"
	"gatehouse/internal/exec/rpc"
	"gatehouse/tool"
)

const (
	editorWait  = 10 * time.Second // for an editor to answer
	dirtyWait   = time.Second      // for an editor to list its files while another tool reads one
	dirtyFresh  = time.Second      // how long such a list is used
	maxBuffer   = 4 << 20          // bytes of one unsaved text
	maxBuffers  = 200              // of one owner
	maxDiffs    = 50               // open ones of one owner
	keptDiffs   = time.Hour        // after the decision
	latestMCP   = "2025-06-18"
	oldestMCP   = "2024-11-05"
	fromEditor  = "live"
	savedReply  = "FILE_SAVED"
	closedReply = "TAB_CLOSED"
	rejectReply = "DIFF_REJECTED"
)

// editors is what is known of the editors of the host's user, and of the agents for which this host is an editor.
type editors struct {
	m   *bridge
	dir string // of the lock files

	mu     sync.Mutex
	links  map[string]*link   // by path of the lock file
	served map[string]*served // by path of the lock file
	desks  map[string]*desk   // by owner
}

// desk is what an owner told this host about files that are being edited.
type desk struct {
	buffers   map[string]buffer
	selection *selection
	diffs     map[string]*diff
}

// buffer is the text of a file that is not saved.
type buffer struct {
	text string
	at   time.Time
}

// selection is a selected part of a file. Lines and columns begin at 1.
type selection struct {
	Path   string    `json:"path"`
	Text   string    `json:"text"`
	From   int       `json:"from" doc:"line"`
	To     int       `json:"to" doc:"line"`
	Since  time.Time `json:"since"`
	Source string    `json:"source" doc:"live: of a connected editor; local: as ide_editor_update said"`
	column [2]int
}

// link is a connection to an editor.
type link struct {
	e     *editors
	lock  idelink.Lock
	conn  *rpc.Conn
	tools map[string]bool

	mu        sync.Mutex
	selection *selection
	tabs      []tab // as of listed
	listed    time.Time
}

// tab is an open file of an editor.
type tab struct {
	Path     string `json:"path"`
	Label    string `json:"label,omitempty"`
	Language string `json:"language,omitempty"`
	Active   bool   `json:"active,omitempty"`
	Dirty    bool   `json:"dirty,omitempty" doc:"it has changes that are not saved"`
}

func (e *editors) folder() (string, error) {
	if e.dir != "" {
		return e.dir, nil
	}
	return idelink.Dir(os.Getenv)
}

// desk returns the desk of an owner. The caller holds e.mu.
func (e *editors) desk(owner string) *desk {
	d := e.desks[owner]
	if d == nil {
		d = &desk{buffers: map[string]buffer{}, diffs: map[string]*diff{}}
		e.desks[owner] = d
	}
	return d
}

// refused returns an error unless the caller may use the editors of the host's user.
func (e *editors) refused(c *tool.Call) error {
	return e.m.cfg.Rules.Check(c, "use the editors of its user")
}

// findEditors connects to the editors of this user and returns the connections, those first that have the folder dir open.
func (e *editors) findEditors(ctx context.Context, dir string) (links []*link, unusable []idelink.Unusable, err error) {
	where, err := e.folder()
	if err != nil {
		return nil, nil, err
	}
	locks, unusable := idelink.FindLocks(where)
	own := map[string]bool{}
	e.mu.Lock()
	for _, s := range e.served {
		own[s.server.Path] = true
	}
	e.mu.Unlock()
	for _, l := range locks {
		if own[l.Path] {
			continue
		}
		k, err := e.connect(ctx, l)
		if err != nil {
			unusable = append(unusable, idelink.Unusable{Path: l.Path, Err: err})
			continue
		}
		links = append(links, k)
	}
	slices.SortStableFunc(links, func(a, b *link) int { return cmp.Compare(b.matchLength(dir), a.matchLength(dir)) })
	return links, unusable, nil
}

// matchLength returns how well the folders of an editor match a folder.
func (k *link) matchLength(dir string) (best int) {
	for _, f := range k.lock.Folders {
		if rel, err := filepath.Rel(f, dir); err == nil && filepath.IsLocal(rel) {
			best = max(best, 1+len(f))
		}
	}
	return best
}

// connect returns the connection to an editor, and makes it if there is none.
func (e *editors) connect(ctx context.Context, l idelink.Lock) (*link, error) {
	e.mu.Lock()
	k := e.links[l.Path]
	e.mu.Unlock()
	if k != nil && k.lock.Token == l.Token {
		select {
		case <-k.conn.Done():
		default:
			return k, nil
		}
	}
	k = &link{e: e, lock: l, tools: map[string]bool{}}
	conn, err := idelink.Dial(ctx, l, rpc.Handler{Notify: k.notified})
	if err != nil {
		return nil, err
	}
	k.conn = conn
	if err := k.dialEditor(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if old := e.links[l.Path]; old != nil {
		go old.conn.Close()
	}
	if e.links[l.Path] = k; e.m.ctx.Err() != nil {
		go conn.Close()
		return nil, tool.Refuse(tool.CodeUnavailable, "the host is closing")
	}
	return k, nil
}

// dialEditor begins the session with an editor and lists its tools.
func (k *link) dialEditor(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, editorWait)
	defer cancel()
	if err := k.conn.Call(ctx, "initialize", map[string]any{
		"protocolVersion": latestMCP, "capabilities": map[string]any{},
		"clientInfo": map[string]string{"name": "gatehouse", "version": "1"},
	}, nil); err != nil {
		return err
	}
	if err := k.conn.Notify(ctx, "notifications/initialized", map[string]any{}); err != nil {
		return err
	}
	if err := k.conn.Notify(ctx, "ide_connected", map[string]int{"pid": os.Getpid()}); err != nil {
		return err
	}
	var list struct{ Tools []struct{ Name string } }
	if err := k.conn.Call(ctx, "tools/list", map[string]any{}, &list); err != nil {
		return err
	}
	for _, t := range list.Tools {
		k.tools[t.Name] = true
	}
	return nil
}

// wirePosition is a place as editors send it: lines and columns begin at 0.
type wirePosition struct {
	Line      int `json:"line"`
	Character int `json:"character"`
}

type wireRange struct {
	Start wirePosition `json:"start"`
	End   wirePosition `json:"end"`
}

func (k *link) notified(method string, params json.RawMessage) {
	var p struct {
		Text, FilePath string
		Selection      *wireRange
	}
	if method != "selection_changed" || json.Unmarshal(params, &p) != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.selection = nil; p.FilePath == "" || p.Selection == nil {
		return
	}
	k.selection = &selection{
		Path: p.FilePath, Text: cutText(p.Text, maxReply), From: p.Selection.Start.Line + 1,
		To:    p.Selection.End.Line + 1,
		Since: time.Now().UTC(), Source: fromEditor,
		column: [2]int{p.Selection.Start.Character + 1, p.Selection.End.Character + 1},
	}
	wire := k.selection.wire()
	k.e.m.wg.Go(func() { k.e.notifyAll(wire) })
}

func cutText(s string, most int) string {
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return s
}

// callEditor calls a tool of the editor and returns the texts of its answer.
func (k *link) callEditor(ctx context.Context, name string, args any) ([]string, error) {
	if !k.tools[name] {
		return nil, tool.Refuse(tool.CodeUnsupported, "the editor %s has no tool %s", k.lock.Editor, name)
	}
	var out struct {
		IsError bool
		Content []struct{ Text string }
	}
	if err := k.conn.Call(ctx, "tools/call", map[string]any{"name": name, "arguments": args}, &out); err != nil {
		if e, ok := err.(*rpc.Error); ok {
			why := e.Message
			if json.Unmarshal(e.Data, &why) == nil {
				why = e.Message + ": " + why
			}
			return nil, tool.Refuse(tool.CodeFailed, "the editor %s answered: %s", k.lock.Editor, why)
		}
		return nil, err
	}
	var texts []string
	for _, b := range out.Content {
		texts = append(texts, b.Text)
	}
	if out.IsError {
		return nil, tool.Refuse(tool.CodeFailed, "the editor %s answered: %s", k.lock.Editor, strings.Join(texts, "\n"))
	}
	return texts, nil
}

// callJSON calls a tool whose answer is JSON in a text.
func (k *link) callJSON(ctx context.Context, name string, args, into any) error {
	ctx, cancel := context.WithTimeout(ctx, editorWait)
	defer cancel()
	texts, err := k.callEditor(ctx, name, args)
	if err != nil {
		return err
	}
	if len(texts) == 0 {
		return tool.Refuse(tool.CodeFailed, "the editor %s answered nothing", k.lock.Editor)
	}
	if err := json.Unmarshal([]byte(texts[0]), into); err != nil {
		return tool.Refuse(tool.CodeFailed, "the editor %s answered %q, which is not JSON", k.lock.Editor,
			cutText(texts[0], 200))
	}
	return nil
}

// openTabs lists the open files of the editor.
func (k *link) openTabs(ctx context.Context) ([]tab, error) {
	var out struct {
		Tabs []struct {
			URI, FileName, Label, LanguageID string
			IsActive, IsDirty                bool
		}
	}
	if err := k.callJSON(ctx, "getOpenEditors", map[string]any{}, &out); err != nil {
		return nil, err
	}
	var all []tab
	for _, t := range out.Tabs {
		path := t.FileName
		if path == "" {
			path = pathOf(t.URI)
		}
		all = append(all, tab{path, t.Label, t.LanguageID, t.IsActive, t.IsDirty})
	}
	k.mu.Lock()
	k.tabs, k.listed = all, time.Now()
	k.mu.Unlock()
	return all, nil
}

func pathOf(uri string) string {
	if u, err := url.Parse(uri); err == nil && u.Scheme == "file" {
		return filepath.FromSlash(u.Path)
	}
	return uri
}

func uriOf(path string) string {
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(path)}).String()
}

// Unsaved returns the text of a file that an editor has not saved. known is false if no editor has
// unsaved changes; text is nil if the editor says only that there are some. It asks the connected
// editors, for dirtyWait at most, and connects to none.
func (e *editors) Unsaved(ctx context.Context, c *tool.Call, path string) (text *string, from string, known bool) {
	e.mu.Lock()
	if d := e.desks[c.Caller.Owner]; d != nil {
		if b, ok := d.buffers[path]; ok {
			e.mu.Unlock()
			return &b.text, fmt.Sprintf("%s, since %s", fromHost, b.at.UTC().Format(time.RFC3339)), true
		}
	}
	var links []*link
	for _, k := range e.links {
		links = append(links, k)
	}
	e.mu.Unlock()
	if len(links) == 0 || !e.m.cfg.Rules.By(c.Caller) {
		return nil, "", false
	}
	ctx, cancel := context.WithTimeout(ctx, dirtyWait)
	defer cancel()
	for _, k := range links {
		k.mu.Lock()
		tabs, fresh := k.tabs, time.Since(k.listed) < dirtyFresh
		k.mu.Unlock()
		if !fresh {
			var err error
			if tabs, err = k.openTabs(ctx); err != nil {
				continue
			}
		}
		for _, t := range tabs {
			if t.Dirty && t.Path == path {
				return nil, k.lock.Editor, true
			}
		}
	}
	return nil, "", false
}

// close ends the connections.
func (e *editors) close() {
	e.mu.Lock()
	var links []*link
	for _, k := range e.links {
		links = append(links, k)
	}
	e.mu.Unlock()
	for _, k := range links {
		k.conn.Close()
	}
}

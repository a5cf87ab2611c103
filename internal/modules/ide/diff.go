package ide

import (
	"context"
	"time"

	"gatehouse/tool"
)

// diff is a change of a file that waits for a person's decision.
type diff struct {
	id, path, tab, text string
	made                time.Time
	done                chan struct{} // closed with the decision

	// These are set before done is closed.
	accepted bool
	final    string // the accepted text
	by       string // where it was decided: the name of an editor, local, or agent
	decided  time.Time
}

type diffOut struct {
	ID     string    `json:"id"`
	Path   string    `json:"path"`
	Status string    `json:"status" doc:"pending, saved or rejected"`
	Since  time.Time `json:"since"`
	Source string    `json:"source" doc:"where it was decided or is shown: the name of an editor, local, or agent"`
	Text   *string   `json:"text,omitempty" doc:"what was accepted, which the person may have changed"`
}

// out describes a diff. The caller holds editors.mu or the diff is decided.
func (d *diff) out(text bool) diffOut {
	o := diffOut{ID: d.id, Path: d.path, Status: "pending", Since: d.made, Source: d.by}
	select {
	case <-d.done:
		o.Status, o.Since = "rejected", d.decided
		if d.accepted {
			if o.Status = "saved"; text {
				o.Text = &d.final
			}
		}
	default:
	}
	return o
}

// propose shows a change to the person: in the connected editor k, or else, if it is nil, in the list of
// ide_editor_state.
func (e *editors) propose(owner, path, text, tabName string, k *link) (*diff, error) {
	d := &diff{
		id: e.m.newID(
			"diff",
		), path: path, tab: tabName, text: text, made: time.Now().UTC(), done: make(chan struct{}), by: fromHost,
	}
	if k != nil {
		d.by = k.lock.Editor
	}
	e.mu.Lock()
	desk := e.desk(owner)
	open := 0
	for id, x := range desk.diffs {
		select {
		case <-x.done:
			if time.Since(x.decided) > keptDiffs || len(desk.diffs) > 2*maxDiffs {
				delete(desk.diffs, id)
			}
		default:
			open++
		}
	}
	if open >= maxDiffs {
		e.mu.Unlock()
		return nil, &tool.Refusal{
			Code: tool.CodeTooMany, Message: "as many changes wait for a decision as may wait",
			Next: "Decide them with ide_diff_decide.",
		}
	}
	desk.diffs[d.id] = d
	e.mu.Unlock()
	if k != nil {
		e.m.wg.Go(func() { e.showDiff(d, k) })
	}
	return d, nil
}

// showDiff shows a change in an editor and takes its answer, which comes when the person has decided.
func (e *editors) showDiff(d *diff, k *link) {
	ctx, cancel := context.WithCancel(e.m.ctx)
	defer cancel()
	go func() {
		select {
		case <-d.done: // decided elsewhere: the editor need not show it longer
			cancel()
		case <-ctx.Done():
		}
	}()
	texts, err := k.callEditor(ctx, "openDiff", map[string]string{
		"old_file_path": d.path, "new_file_path": d.path, "new_file_contents": d.text, "tab_name": d.tab,
	})
	if ctx.Err() != nil && e.m.ctx.Err() == nil {
		closing, stop := context.WithTimeout(e.m.ctx, editorWait)
		defer stop()
		_, _ = k.callEditor(closing, "close_tab", map[string]string{"tab_name": d.tab}) // it may be closed
		return
	}
	switch {
	case err != nil:
		e.m.log.Warn("an editor did not show a change; it waits in ide_editor_state", "editor", k.lock.Editor, "error",
			err)
		e.mu.Lock()
		d.by = fromHost
		e.mu.Unlock()
	case len(texts) > 0 && texts[0] == savedReply:
		final := d.text
		if len(texts) > 1 {
			final = texts[1]
		}
		e.decide(d, true, final, k.lock.Editor)
	default:
		e.decide(d, false, "", k.lock.Editor)
	}
}

// decide ends a diff. It reports false if it was decided before.
func (e *editors) decide(d *diff, accepted bool, final, by string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case <-d.done:
		return false
	default:
	}
	d.accepted, d.final, d.by, d.decided = accepted, final, by, time.Now().UTC()
	close(d.done)
	return true
}

// diffOf returns a diff of an owner.
func (e *editors) diffOf(owner, id string) (*diff, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if d := e.desk(owner).diffs[id]; d != nil {
		return d, nil
	}
	return nil, &tool.Refusal{
		Code: tool.CodeNotFound, Message: "you have no change " + id,
		Next: "ide_editor_state lists the changes that wait.",
	}
}

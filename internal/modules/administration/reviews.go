package administration

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"gatehouse/internal/access/audit"
	"gatehouse/internal/files/stage"
	"gatehouse/tool"
)

// Reviews administers the tasks of staged calls. It is safe for concurrent use.
type Reviews struct {
	Tasks  *stage.Manager
	Ledger *audit.Ledger // nil knows no calls
}

// TaskList is tasks.
type TaskList struct {
	Tasks []stage.Task `json:"tasks" doc:"newest first"`
}

// List lists the tasks that wait for a review; with all, also those that were accepted, refused or expired.
func (r Reviews) List(all bool) (out TaskList, err error) {
	if r.Tasks == nil {
		return out, errAbsent
	}
	list, err := r.Tasks.List(all)
	for _, t := range list {
		out.Tasks = append(out.Tasks, *t)
	}
	return out, err
}

// Shown is a change as a person sees it.
type Shown struct {
	Path     string `json:"path"`
	Kind     string `json:"kind" doc:"created, modified, deleted, replaced or mode"`
	Modes    string `json:"modes,omitempty" doc:"type and mode, before and after"`
	Linked   string `json:"linked,omitempty" doc:"another changed path that is the same file"`
	Conflict string `json:"conflict,omitempty" doc:"why it cannot be accepted"`
	Diff     string `json:"diff,omitempty"`
	Group    string `json:"group,omitempty" doc:"a folder of which git created this as an object, named by its hash"`
}

// Ran is a call of the task, or what a program of the call did.
type Ran struct {
	At      time.Time       `json:"at"`
	Kind    string          `json:"kind" doc:"call, or the event of the ledger, such as a program that started"`
	Tool    string          `json:"tool,omitempty"`
	Args    json.RawMessage `json:"args,omitempty" doc:"as the ledger has them, without secrets"`
	Outcome string          `json:"outcome,omitempty"`
	Direct  bool            `json:"direct,omitempty" doc:"it was not staged: what it did was done at once"`
}

// Review is what a task did.
type Review struct {
	Task     stage.Task     `json:"task"`
	ETag     string         `json:"etag" doc:"identifies the changes; give it to review_accept"`
	Changes  []Shown        `json:"changes"`
	Omitted  int            `json:"omitted,omitempty" doc:"changes after these"`
	Calls    []Ran          `json:"calls" doc:"calls that may have changed something, and the programs, hosts and packages that the ledger has of them"`
	Programs []Did          `json:"programs,omitempty" doc:"programs and lines that its calls ran"`
	Hosts    []Did          `json:"hosts,omitempty" doc:"hosts that calls named, and those that packages and sandboxes reached while calls used them"`
	Secrets  []Did          `json:"secrets,omitempty" doc:"names of secrets that its programs got"`
	Packages []Did          `json:"packages,omitempty" doc:"tools of packages that it called, and packages that it changed"`
	Note     string         `json:"note,omitempty" doc:"what is not known"`
	Accepted []stage.Result `json:"accepted,omitempty"`
	Undone   []stage.Result `json:"undone,omitempty"`
}

// mostDiffed is how many changes are shown with their diff.
const mostDiffed = 200

// gitObjects returns the folder of git's objects in which a change created one. A commit creates many, with content
// that no person reads. An object that was changed is none of them, because git never does that.
func gitObjects(c stage.Change) string {
	const folder = "/.git/objects/"
	at := strings.LastIndex(c.Path, folder)
	if at < 0 || c.Was.Type != stage.None || c.Conflict != "" {
		return ""
	}
	return c.Path[:at+len(folder)]
}

// Show returns what a task did. most limits its changes; 0 means all.
func (r Reviews) Show(ctx context.Context, id string, most int) (out Review, err error) {
	if r.Tasks == nil {
		return out, errAbsent
	}
	found, err := r.Tasks.Find(id)
	if err != nil {
		return out, err
	}
	t, of, err := r.Tasks.Changes(found.ID, most)
	if err != nil {
		return out, err
	}
	out.Task, out.ETag, out.Omitted = *t, of.ETag, of.Total-len(of.First)
	diffs := 0
	for _, c := range of.First {
		s := Shown{
			Path: c.Path, Kind: c.Kind, Modes: c.Modes(), Linked: c.Linked, Conflict: c.Conflict, Group: gitObjects(c),
		}
		if s.Group == "" && diffs < mostDiffed {
			s.Diff, diffs = t.Diff(c), diffs+1
		}
		out.Changes = append(out.Changes, s)
	}
	out.Accepted, out.Undone = r.Tasks.Results(t)
	return out, r.tell(ctx, &out)
}

// personOnly refuses callers that are programs.
func personOnly(who tool.Caller, what string) error {
	if who.Person && !who.Child {
		return nil
	}
	return &tool.Refusal{
		Code:    tool.CodeDenied,
		Message: "only a person who logged in to this host can " + what + ", and this caller is a program",
		Next:    "Log in with a password, a passkey or the link of gatehouse ui, or use gatehouse review at a terminal.",
	}
}

type reviewsIn struct {
	All bool `json:"all,omitempty" doc:"also tasks that were accepted, refused or expired"`
}

type reviewIn struct {
	Task string `json:"task" doc:"its id or the beginning of it" min:"1"`
	Most int    `json:"most,omitempty" doc:"changes to return" default:"100" min:"1" max:"10000"`
}

type acceptIn struct {
	Task   string   `json:"task" doc:"its id or the beginning of it" min:"1"`
	Paths  []string `json:"paths,omitempty" doc:"files and folders to accept; none means everything"`
	Exact  bool     `json:"exact,omitempty" doc:"only the paths themselves, without what is in those that are folders"`
	ETag   string   `json:"etag,omitempty" doc:"from review_show; then nothing is accepted that was not shown"`
	Branch string   `json:"branch,omitempty" doc:"commit the changes to a new branch of this name instead"`
	Commit bool     `json:"commit,omitempty" doc:"also commit them to the present branch of the git repository"`
}

type taskIn struct {
	Task string `json:"task" doc:"its id or the beginning of it" min:"1"`
}

type reviewed struct {
	Task  string `json:"task"`
	State string `json:"state"`
}

func reviewTools(c Config) []tool.Tool {
	r := Reviews{c.Tasks, c.Ledger}
	by := func(call *tool.Call) string { return call.Caller.Principal }
	return []tool.Tool{
		operation(c, "see what tasks have staged", tool.Def{
			Name: "review_list", Title: "List staged tasks", Effects: tool.Reads,
			Description: "Lists the tasks whose changes of folders wait for a person's review.",
		}, func(_ context.Context, _ *tool.Call, in reviewsIn) (TaskList, error) { return r.List(in.All) }),
		operation(c, "see what tasks have staged", tool.Def{
			Name: "review_show", Title: "Show a staged task", Effects: tool.Reads,
			Description: "Shows what a task has changed, as diffs with modes and links, and what it ran.",
		}, func(ctx context.Context, _ *tool.Call, in reviewIn) (Review, error) {
			return r.Show(ctx, in.Task, in.Most)
		}),
		operation(c, "accept what tasks have staged", tool.Def{
			Name: "review_accept", Title: "Accept a staged task", Effects: tool.Writes | tool.Destroys,
			Description: "Copies what a task has changed to the folders, all or some of it. Only a person who logged in can.",
			Help: "What was changed in a folder since the task changed it is left alone and listed as a conflict. A task " +
				"of which everything was accepted is closed, unless calls or programs still run in it.",
		}, func(ctx context.Context, call *tool.Call, in acceptIn) (res stage.Result, err error) {
			t, err := r.decidable(call, in.Task, "accept a task")
			if err != nil {
				return stage.Result{}, err
			}
			choice := stage.Choice{Paths: in.Paths, Exact: in.Exact, ETag: in.ETag, By: by(call)}
			switch {
			case in.Branch != "" && in.Commit:
				return res, tool.Refuse(tool.CodeInvalidArguments,
					"branch and commit exclude each other: a new branch, or the present one")
			case in.Commit:
				res, err = r.Tasks.AcceptCommit(ctx, t.ID, choice)
			case in.Branch != "":
				res, err = r.Tasks.AcceptBranch(ctx, t.ID, in.Branch, choice)
			default:
				res, err = r.Tasks.Accept(t.ID, choice)
			}
			c.changed("task.accepted", t.ID, by(call), err)
			return res, err
		}),
		operation(c, "refuse what tasks have staged", tool.Def{
			Name: "review_refuse", Title: "Refuse a staged task", Effects: tool.Writes | tool.Destroys,
			Description: "Drops what a task has changed. Only a person who logged in can.",
		}, func(_ context.Context, call *tool.Call, in taskIn) (reviewed, error) {
			t, err := r.decidable(call, in.Task, "refuse a task")
			if err != nil {
				return reviewed{}, err
			}
			err = r.Tasks.Refuse(t.ID, by(call))
			c.changed("task.refused", t.ID, by(call), err)
			return reviewed{t.ID, stage.Refused}, err
		}),
		operation(c, "undo what was accepted", tool.Def{
			Name: "review_undo", Title: "Undo a staged task", Effects: tool.Writes | tool.Destroys,
			Description: "Takes back what was accepted of a task. Files that were changed since are left alone and listed.",
		}, func(_ context.Context, call *tool.Call, in taskIn) (stage.Result, error) {
			t, err := r.decidable(call, in.Task, "undo a task")
			if err != nil {
				return stage.Result{}, err
			}
			res, err := r.Tasks.Undo(t.ID, by(call))
			c.changed("task.undone", t.ID, by(call), err)
			return res, err
		}),
	}
}

func (r Reviews) decidable(call *tool.Call, id, what string) (*stage.Task, error) {
	if err := personOnly(call.Caller, what); err != nil {
		return nil, err
	}
	if r.Tasks == nil {
		return nil, errAbsent
	}
	return r.Tasks.Find(id)
}

func (c Config) changed(subject, name, by string, err error) {
	if err == nil && c.Changed != nil {
		c.Changed(subject, name, by)
	}
}

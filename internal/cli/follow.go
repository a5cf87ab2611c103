package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"gatehouse/internal/mcp/client"
)

const (
	jobWait = "job_wait" // the tool by which a job is followed

	// mostWait is the longest time, in seconds, of one job_wait call while the job makes no progress. The end of
	// the job is reported at once.
	mostWait = 8
)

// jobState is the result of job_wait for a job that has no result.
type jobState struct {
	ID     string  `json:"id"`
	Status string  `json:"status"`
	Note   string  `json:"note"`
	Done   float64 `json:"done"`
	Total  float64 `json:"total"`
}

// follower follows the jobs of one server.
type follower struct {
	stderr io.Writer // receives their progress
	client *client.Client
	stays  bool // the server and its jobs outlive the command
	every  int  // the longest time of one job_wait call in seconds; 0 means mostWait

	wait client.Tool // found with the first job
}

// follow waits for the job if a call continues as one, and returns the job's result instead. If the server has no
// tool to wait with, it returns the result that names the job.
func (f *follower) follow(ctx context.Context, r *client.Result) (*client.Result, error) {
	if r.Meta.Job == "" {
		return r, nil
	}
	all, err := f.client.Tools(ctx)
	if err != nil {
		return nil, broken(err)
	}
	i := slices.IndexFunc(all, func(t client.Tool) bool { return t.Name == jobWait })
	if i < 0 {
		return r, nil
	}
	f.wait = all[i]
	for r.Meta.Job != "" {
		fmt.Fprintln(f.stderr, "[gatehouse] "+printable(begun(r)))
		if r, err = f.awaitEnd(ctx, r.Meta.Job); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// begun reports that a call continues as a job, in the server's words if it gives the reason, for instance that an
// approval is required.
func begun(r *client.Result) string {
	if len(r.Structured) == 0 && len(r.Content) > 0 && r.Content[0].Text != "" {
		why, _, _ := strings.Cut(r.Content[0].Text, "\n")
		return why
	}
	return "the call continues as job " + r.Meta.Job
}

// awaitEnd waits for the end of one job and returns its result.
func (f *follower) awaitEnd(ctx context.Context, id string) (*client.Result, error) {
	show, last := progress(f.stderr), jobState{}
	for seconds := 1; ; seconds = min(2*seconds, cmp.Or(f.every, mostWait)) {
		now, r, err := f.poll(ctx, id, seconds)
		switch {
		case err != nil:
			return nil, err
		case r != nil:
			return r, nil
		case now.Status == "cancelled":
			return nil, errors.New("the job was cancelled")
		}
		if now != last && (now.Done > 0 || now.Note != "") {
			show(now.Done, now.Total, now.Note)
			seconds = 1
		}
		last = now
	}
}

// poll waits for a job for a limited time. It returns the job's result, or its state if it has none yet.
func (f *follower) poll(ctx context.Context, id string, seconds int) (now jobState, r *client.Result, err error) {
	args, err := json.Marshal(map[string]any{"id": id, "seconds": seconds})
	if err != nil {
		return now, nil, err
	}
	r, err = f.client.Call(ctx, f.wait, args)
	if _, refused := errors.AsType[*client.RPCError](err); err != nil && !refused && f.stays {
		fmt.Fprintf(
			f.stderr,
			"[gatehouse] it may still be running; follow it with: gatehouse call %s id=%s\n",
			jobWait,
			printable(id),
		)
	}
	if err != nil {
		return now, nil, broken(err)
	}
	if !r.IsError && json.Unmarshal(r.Structured, &now) == nil && now.ID == id && now.Status != "" {
		return now, nil, nil
	}
	return now, r, nil
}

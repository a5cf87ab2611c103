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
	"time"

	"gatehouse/internal/access/approvals"
	"gatehouse/internal/mcp/client"
)

const (
	jobWait   = "job_wait"   // the tool by which a job is followed
	jobCancel = "job_cancel" // and the one that cancels it

	// mostWait is the longest time, in seconds, of one job_wait call while the job makes no progress. The end of
	// the job is reported at once.
	mostWait = 8

	withdrawTime = 10 * time.Second // to cancel a job
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

	operator time.Duration // the longest time to wait for an operator's decision; 0 means as long as the host waits

	wait client.Tool // found with the first job
}

// follow waits for the job if a call continues as one, and returns the job's result instead. If the server has no
// tool to wait with, it returns the result that names the job.
func (f *follower) follow(ctx context.Context, r *client.Result) (*client.Result, error) {
	if r.Meta.Job == "" {
		return r, nil
	}
	wait, ok, err := f.find(ctx, jobWait)
	if err != nil {
		return nil, broken(err)
	}
	if !ok {
		return r, nil
	}
	f.wait = wait
	for r.Meta.Job != "" {
		why := begun(r)
		fmt.Fprintln(f.stderr, "[gatehouse] "+printable(why))
		if r, err = f.awaitEnd(ctx, r.Meta.Job, approvals.Awaited(why)); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// find finds a tool of the server by its name.
func (f *follower) find(ctx context.Context, name string) (entry client.Tool, ok bool, err error) {
	all, err := f.client.Tools(ctx)
	i := slices.IndexFunc(all, func(t client.Tool) bool { return t.Name == name })
	if err != nil || i < 0 {
		return entry, false, err
	}
	return all[i], true, nil
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

// awaitEnd waits for the end of one job and returns its result. approval is the request for an operator's approval that
// the job waits for, or "". A job that is not waited for any longer while it waits for an operator is cancelled.
func (f *follower) awaitEnd(ctx context.Context, id, approval string) (*client.Result, error) {
	show, last, end := progress(f.stderr), jobState{}, f.decision(approval)
	for seconds := 1; ; seconds = min(2*seconds, cmp.Or(f.every, mostWait)) {
		if !end.IsZero() {
			seconds = max(min(seconds, int(time.Until(end)/time.Second)), 0)
		}
		now, r, err := f.poll(ctx, id, seconds)
		if next := approvals.Awaited(now.Note); now.Note != "" && next != approval {
			approval, end = next, f.decision(next)
		}
		switch {
		case err != nil && approval != "" && ctx.Err() != nil:
			return nil, errors.Join(err, f.withdraw(ctx, id, approval))
		case err != nil:
			f.mayRun(id, err)
			return nil, err
		case r != nil:
			return r, nil
		case now.Status == "cancelled":
			return nil, errors.New("the job was cancelled")
		case !end.IsZero() && time.Now().After(end):
			return nil, errors.Join(
				fmt.Errorf("no operator decided %s within %v", approval, f.operator), f.withdraw(ctx, id, approval))
		}
		if now != last && (now.Done > 0 || now.Note != "") {
			show(now.Done, now.Total, now.Note)
			seconds = 1
		}
		last = now
	}
}

// decision prints how to decide a request for approval, and returns the time until which its decision is waited for.
// It is zero if that is the host's.
func (f *follower) decision(approval string) (end time.Time) {
	if approval == "" {
		return end
	}
	fmt.Fprintf(f.stderr, "[gatehouse] decide on the machine of the host with: gatehouse approvals approve %s, "+
		"or deny; an interrupt withdraws the call\n", approval)
	if f.operator > 0 {
		end = time.Now().Add(f.operator)
	}
	return end
}

// withdraw cancels a job that waits for an operator, also if ctx is done. The host withdraws the request.
func (f *follower) withdraw(ctx context.Context, id, approval string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTime)
	defer cancel()
	cancelling, ok, err := f.find(ctx, jobCancel)
	if err == nil && !ok {
		err = fmt.Errorf("the server offers no %s", jobCancel)
	}
	if err == nil {
		_, err = f.client.Call(ctx, cancelling, fmt.Appendf(nil, `{"id":%q}`, id))
	}
	if err != nil {
		return fmt.Errorf("%s was not withdrawn: %w", approval, err)
	}
	fmt.Fprintln(f.stderr, "[gatehouse] the call was withdrawn")
	return nil
}

// mayRun says that a job is left alone on a server that keeps running.
func (f *follower) mayRun(id string, err error) {
	if _, refused := errors.AsType[*client.RPCError](err); !refused && f.stays {
		fmt.Fprintf(
			f.stderr,
			"[gatehouse] it may still be running; follow it with: gatehouse call %s id=%s\n",
			jobWait,
			printable(id),
		)
	}
}

// poll waits for a job for a limited time. It returns the job's result, or its state if it has none yet.
func (f *follower) poll(ctx context.Context, id string, seconds int) (now jobState, r *client.Result, err error) {
	args, err := json.Marshal(map[string]any{"id": id, "seconds": seconds})
	if err != nil {
		return now, nil, err
	}
	r, err = f.client.Call(ctx, f.wait, args)
	if err != nil {
		return now, nil, broken(err)
	}
	if !r.IsError && json.Unmarshal(r.Structured, &now) == nil && now.ID == id && now.Status != "" {
		return now, nil, nil
	}
	return now, r, nil
}

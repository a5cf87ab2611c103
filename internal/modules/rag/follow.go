package rag

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gatehouse/tool"
)

const (
	followPause = time.Second      // between two ingests of a folder that changes all the time
	followAll   = 10 * time.Minute // until all files are looked at again, because systems drop events
)

// startFollowing starts a job that keeps a collection like its folder.
func (k *knowledge) startFollowing(c *tool.Call, in ingestIn) (ingestOut, error) {
	if k.deps.Job == nil {
		return ingestOut{}, tool.Refuse(tool.CodeUnsupported, "this host runs no jobs, which watch needs")
	}
	if _, err := newSource(c, in); err != nil {
		return ingestOut{}, err
	}
	id, err := k.deps.Job(c, "follow "+in.Path, func(ctx context.Context, c *tool.Call) (tool.Result, error) {
		out, err := k.follow(ctx, c, in)
		if err != nil {
			return tool.Result{}, err
		}
		return tool.Typed(out), nil
	})
	if err != nil {
		return ingestOut{}, err
	}
	return ingestOut{
		Success: true, Path: in.Path, Collection: in.Collection, Job: id,
		Message: "it has begun, and follows the changes until job_cancel ends it",
	}, nil
}

// follow ingests at first and after each change, until ctx is done or the module closes. Only the first ingest can
// fail it: files that cannot be read later are in the note of its progress.
func (k *knowledge) follow(ctx context.Context, c *tool.Call, in ingestIn) (ingestOut, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(k.ctx, cancel)()
	src, err := newSource(c, in)
	if err != nil {
		return ingestOut{}, err
	}
	changed := make(chan struct{}, 1)
	stop, err := k.watcher.Watch(src.below, func() { // before the first ingest, so that no change is missed
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return ingestOut{}, err
	}
	defer stop()
	steps := 0
	out, err := k.runIngest(ctx, c, in, func(done, total int, note string) {
		steps = done
		c.Peer.Progress(float64(done), 0, note)
	})
	if err != nil {
		return ingestOut{}, err
	}
	in.Recreate = false
	for ctx.Err() == nil {
		steps++
		c.Peer.Progress(float64(steps), 0, followNote(out, err))
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(followAll):
		}
		next, e := k.runIngest(ctx, c, in, func(int, int, string) {})
		if err = e; err == nil {
			out = next
		} else if refusal, ok := errors.AsType[*tool.Refusal](err); ok && refusal.Code == tool.CodeBusy {
			select { // the change is not stored yet
			case changed <- struct{}{}:
			default:
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(followPause):
		}
	}
	return out, nil
}

// followNote says what the last ingest of a folder did.
func followNote(out ingestOut, err error) string {
	if err != nil {
		return fmt.Sprintf("the folder could not be ingested, which is tried again after a change: %v", err)
	}
	return fmt.Sprintf("it follows %d files; of the last change: %d added, %d changed, %d renamed, %d removed, %d failed",
		out.Files, out.Added, out.Changed, out.Renamed, out.Removed, out.Failed)
}

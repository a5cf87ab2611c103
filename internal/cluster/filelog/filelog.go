// Package filelog makes small files the same on all nodes of a cluster, such as the encrypted secrets.
//
// A file is one record with its whole content, which is changed by compare-and-set. Each node has a copy of it in its
// folder, and of the revision in a file of its own, by which it tells a copy from a file that it had before it joined.
// The package imports cluster alone.
package filelog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/files/atomicfile"
)

// changeTime is how long a change waits for the cluster: longer than the election of a leader.
const changeTime = 20 * time.Second

// Files are the files that a node has in common with the others. It is safe for concurrent use, also by several
// processes.
type Files struct {
	bucket *cluster.Bucket
	mark   string            // path of the file of revisions
	paths  map[string]string // by name of the record
}

// Has reports whether a node has files in common with others; mark is as in Open.
func Has(mark string) bool {
	_, err := os.Stat(mark)
	return err == nil
}

// Open opens the records of files, whose paths on this node are given by their names. mark is the path of the file in
// which this node stores the revisions that it has.
func Open(ctx context.Context, n *cluster.Node, mark string, paths map[string]string) (*Files, error) {
	b, err := n.Bucket(ctx, "files", cluster.BucketOptions{})
	if err != nil {
		return nil, err
	}
	return &Files{bucket: b, mark: mark, paths: paths}, nil
}

// Join makes a file of this node that of the cluster, or the cluster's that of this node. It returns an error if both
// have one, and they differ.
func (f *Files) Join(ctx context.Context, name string) error {
	for {
		r, err := f.bucket.Get(ctx, name)
		if err == nil {
			return f.join(ctx, r)
		}
		own, readErr := os.ReadFile(f.paths[name])
		if !errors.Is(err, cluster.ErrNotFound) || readErr != nil {
			if errors.Is(err, cluster.ErrNotFound) && errors.Is(readErr, fs.ErrNotExist) {
				return nil
			}
			return errors.Join(err, readErr)
		}
		if _, err := f.bucket.Create(ctx, name, own); err != nil && !again(err) || ctx.Err() != nil {
			return errors.Join(err, context.Cause(ctx))
		} // the record has this file now, or that of another node
	}
}

func again(err error) bool {
	return errors.Is(err, cluster.ErrConflict) || errors.Is(err, cluster.ErrNotRun) || errors.Is(err, cluster.ErrMayHaveRun)
}

func (f *Files) join(ctx context.Context, r cluster.Record) error {
	has, err := f.revisions()
	if err != nil {
		return err
	}
	if has[r.Key] > r.Revision { // a leader that was cut off may have answered with an old record
		if r, err = f.bucket.Confirmed(ctx, r.Key); err != nil {
			return err
		}
	}
	if has[r.Key] > r.Revision {
		return fmt.Errorf("%s: %w", f.paths[r.Key], cluster.ErrLost)
	}
	own, err := os.ReadFile(f.paths[r.Key])
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, copied := has[r.Key]; err == nil && !copied && !bytes.Equal(own, r.Value) {
		return fmt.Errorf("%s is not that of the cluster: move it away, so that this node gets the cluster's",
			f.paths[r.Key])
	}
	return f.apply(r)
}

// Change replaces a file on all nodes by what change makes of it. change is called again if another node was first.
// The other nodes have the new content a moment later.
func (f *Files) Change(path string, change func(old []byte) ([]byte, error)) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), changeTime, errors.New("most nodes do not answer"))
	defer cancel()
	name := filepath.Base(path)
	if f.paths[name] != path {
		return fmt.Errorf("%s is no file of the cluster", path)
	}
	var sent []byte // what the last attempt wrote, if its end is not known
	for {
		r, err := f.bucket.Get(ctx, name)
		if err != nil && !errors.Is(err, cluster.ErrNotFound) {
			return err
		}
		if sent != nil && bytes.Equal(sent, r.Value) {
			return f.apply(r)
		}
		content, err := change(r.Value)
		if err != nil {
			return err
		}
		var revision uint64
		if r.Revision == 0 {
			revision, err = f.bucket.Create(ctx, name, content)
		} else {
			revision, err = f.bucket.Update(ctx, name, content, r.Revision)
		}
		if err == nil {
			return f.apply(cluster.Record{Key: name, Value: content, Revision: revision})
		}
		if !again(err) || ctx.Err() != nil {
			return fmt.Errorf("change %s on all nodes: %w", path, err)
		}
		if sent = nil; errors.Is(err, cluster.ErrMayHaveRun) {
			sent = content
		}
	}
}

// Refresh gets the newest content of a file.
func (f *Files) Refresh(path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), changeTime)
	defer cancel()
	r, err := f.record(ctx, path)
	if err != nil {
		return err
	}
	return f.apply(r)
}

// Changed returns when a file was changed last, by the clock of the engine.
func (f *Files) Changed(ctx context.Context, path string) (time.Time, error) {
	r, err := f.record(ctx, path)
	return r.At, err
}

func (f *Files) record(ctx context.Context, path string) (cluster.Record, error) {
	name := filepath.Base(path)
	if f.paths[name] != path {
		return cluster.Record{}, fmt.Errorf("%s is no file of the cluster", path)
	}
	return f.bucket.Get(ctx, name)
}

// Run applies the changes of other nodes until ctx is done.
func (f *Files) Run(ctx context.Context, log *slog.Logger) {
	for r := range f.bucket.Watch(ctx) {
		if err := f.apply(r); err != nil {
			log.Error("a file of the cluster cannot be written", "file", f.paths[r.Key], "err", err)
		}
	}
}

// apply writes a record to its file, unless the file has a later one.
func (f *Files) apply(r cluster.Record) error {
	path := f.paths[r.Key]
	if path == "" || r.Deleted { // the files of another version; records of files are never deleted
		return nil
	}
	unlock, err := atomicfile.Lock(f.mark + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	has, err := f.revisions()
	if err != nil || has[r.Key] >= r.Revision {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := atomicfile.Write(path, r.Value); err != nil {
		return err
	}
	has[r.Key] = r.Revision
	raw, err := json.Marshal(has)
	if err != nil {
		return err
	}
	return atomicfile.Write(f.mark, raw)
}

func (f *Files) revisions() (map[string]uint64, error) {
	has := map[string]uint64{}
	raw, err := os.ReadFile(f.mark)
	if err == nil {
		err = json.Unmarshal(raw, &has)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return has, err
}

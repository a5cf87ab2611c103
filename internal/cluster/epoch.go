package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"gatehouse/internal/files/atomicfile"
)

// A node counts on its disk how often its records have changed, tells the others that number, its epoch, and they
// remember the greatest one that they have heard. A disk that is set back to an old image has a lower epoch than the
// others have heard: it lacks records that its engine has acknowledged. Its engine must not count where most nodes have
// to agree, so the node removes its copies of records before its engine starts with them. An engine without records
// does not count until it has got them from the others.

// ErrOldImage means that this node runs on with a disk, and perhaps with memory, of an earlier time.
var ErrOldImage = errors.New("the machine of this node was set back to an old image, as the other nodes know: restart the " +
	"host, which makes its copies of records anew")

// epochs is what a node remembers of its own epoch and of those of others. It is safe for concurrent use.
type epochs struct {
	path string

	mu    sync.Mutex
	own   uint64
	heard map[string]uint64 // by id: of each other member, 0 if none was heard
	dirty bool
}

// epochsFile is the file of epochs.
type epochsFile struct {
	Own   uint64            `json:"own"`
	Heard map[string]uint64 `json:"heard"`
}

const (
	epochsName = "epochs.json"
	// epochCheck is how often a node looks whether its records have changed. What its engine acknowledged since the
	// last time is not found to be missing.
	epochCheck = time.Second
)

func loadEpochs(dir string) (*epochs, error) {
	e := &epochs{path: filepath.Join(dir, epochsName), heard: map[string]uint64{}}
	raw, err := os.ReadFile(e.path)
	if errors.Is(err, fs.ErrNotExist) {
		return e, nil
	}
	f := epochsFile{Heard: e.heard}
	if err == nil {
		err = json.Unmarshal(raw, &f)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w; remove it, and the folder jetstream beside it, which is made anew from the other nodes",
			e.path, err)
	}
	e.own = f.Own
	return e, nil
}

// get returns the epochs that this node tells others.
func (e *epochs) get() (own uint64, heard map[string]uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.own, maps.Clone(e.heard)
}

// hear notes the epoch of another node, 0 for one that does not say it. It reports whether it is as great as the last.
func (e *epochs) hear(id string, epoch uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	was, ok := e.heard[id]
	if !ok || epoch > was {
		e.heard[id], e.dirty = max(epoch, was), true
	}
	return epoch >= was || epoch == 0
}

// forget forgets a node that is no member any more.
func (e *epochs) forget(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.heard[id]; ok {
		delete(e.heard, id)
		e.dirty = true
	}
}

// write writes the file, with a greater epoch of this node if own is set, before others are told of that.
func (e *epochs) write(own bool) error {
	e.mu.Lock()
	f := epochsFile{e.own, maps.Clone(e.heard)}
	dirty := e.dirty
	e.dirty = false
	e.mu.Unlock()
	if own {
		f.Own++
	} else if !dirty {
		return nil
	}
	raw, err := json.Marshal(f)
	if err == nil {
		err = atomicfile.Write(e.path, raw)
	}
	if err != nil {
		e.mu.Lock()
		e.dirty = true
		e.mu.Unlock()
		return err
	}
	e.mu.Lock()
	e.own = f.Own
	e.mu.Unlock()
	return nil
}

// keepEpochs writes the epochs until ctx is done.
func (n *Node) keepEpochs(ctx context.Context) {
	records := filepath.Join(n.opts.Dir, recordsFolder)
	var last uint64
	tick := time.NewTicker(epochCheck)
	defer tick.Stop()
	for {
		now := last
		if n.engine != nil {
			now = fingerprint(records)
		}
		if err := n.epochs.write(now != last); err != nil {
			n.log.Error("the epoch of this node was not written, so that an old image of its disk may not be recognised",
				"err", err)
		} else {
			last = now
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// fingerprint differs when files of a folder have been written. Files that disappear meanwhile are left out.
func fingerprint(folder string) uint64 {
	h := fnv.New64a()
	filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // it has just been removed
		}
		if info, err := d.Info(); err == nil {
			fmt.Fprint(h, path, info.Size(), info.ModTime().UnixNano())
		}
		return nil
	})
	return h.Sum64()
}

// epochsTopic is the topic of the events by which a node that starts hears and tells epochs, before its engine has
// records.
const epochsTopic = "epochs"

// recordsFolder is the folder of the embedded engine's records.
const recordsFolder = "jetstream"

// checkImage asks most nodes whether they have heard a greater epoch of this node than its disk has. Then the disk is
// an old image, and its records are removed. It returns when most nodes have answered.
func (e *engine) checkImage(ctx context.Context, o Options, id string, known *epochs) error {
	records := filepath.Join(o.Dir, recordsFolder)
	if _, err := os.Stat(records); errors.Is(err, fs.ErrNotExist) { // it has acknowledged nothing
		return nil
	}
	own, _ := known.get()
	var newest uint64
	err := e.withoutRecords(ctx, func(conn *nats.Conn) (err error) {
		newest, err = askEpochs(ctx, &Node{opts: o, id: id, log: e.log, conn: conn}, known)
		return err
	})
	if err != nil || newest <= own {
		return err
	}
	e.log.Error("the disk of this node is an old image: the other nodes know records that it has acknowledged and does not "+
		"have. Its copies are removed and made anew from the other nodes", "node", id, "epoch", own, "known", newest)
	if err := os.RemoveAll(records); err != nil {
		return fmt.Errorf("remove the records of an old image: %w", err)
	}
	known.mu.Lock()
	known.own = newest
	known.mu.Unlock()
	return known.write(true)
}

// askEpochs returns the greatest epoch of this node that others have heard, once most members have told it.
func askEpochs(ctx context.Context, n *Node, known *epochs) (newest uint64, err error) {
	var mu sync.Mutex
	answers, changed := map[string]map[string]uint64{}, make(chan struct{}, 1)
	hear := func(from, _ string, data []byte) {
		var b beat
		if json.Unmarshal(data, &b) != nil || b.ID != from || !ValidID(from) || from == n.id {
			return
		}
		mu.Lock()
		answers[from] = b.Epochs // none of a version that does not count
		mu.Unlock()
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	for _, topic := range []string{"beat", epochsTopic} {
		stop, _, err := n.Follow(topic, hear)
		if err != nil {
			return 0, err
		}
		defer stop()
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	told := time.Now()
	for {
		own, heard := known.get()
		raw, err := json.Marshal(beat{Peer: Peer{ID: n.id}, Epoch: own, Epochs: heard})
		if err == nil {
			err = errors.Join(n.Publish(epochsTopic, raw), n.conn.FlushTimeout(time.Second))
		}
		members := max(len(heard)+1, MinNodes)
		mu.Lock()
		for _, a := range answers {
			members = max(members, len(a)+1)
			newest = max(newest, a[n.id])
		}
		has := len(answers) + 1
		mu.Unlock()
		if has > members/2 {
			return newest, err
		}
		if time.Since(told) > attempt {
			n.log.Info("waiting for the cluster", "for", "most nodes to say that this disk is no old image", "heard", has,
				"members", members)
			told = time.Now()
		}
		select {
		case <-tick.C:
		case <-changed:
		case <-ctx.Done():
			return 0, fmt.Errorf("%d of %d nodes are heard, which does not show that the disk of this one is no old image: %w",
				has, members, context.Cause(ctx))
		}
	}
}

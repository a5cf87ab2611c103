package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/cluster/sqllog"
	"gatehouse/internal/cluster/statelog"
	"gatehouse/internal/config"
	"gatehouse/internal/maintenance/backup"
)

// What the nodes of a cluster have in common: the logs of files, and the buckets of records. Sessions, leases, members and
// the places of jobs and browsers are those of running nodes, and are not in a backup.
var (
	clusterLogs    = []string{"identity", "contexts", "approvals"}
	clusterBuckets = []string{"keys", "files", stateBucket, "packages", "ledgers"}
	// clusterChanging are the buckets that change without a user, such as heads of ledgers.
	clusterChanging = map[string]bool{"ledgers": true}
)

const stateBucket = "state"

// clusterBackup is the content of a backup of a cluster.
type clusterBackup struct {
	Format  string                              `json:"format"`
	Cluster string                              `json:"cluster"`
	Created time.Time                           `json:"created"`
	Version string                              `json:"version"`
	Moment  bool                                `json:"moment"` // whether all parts are of one moment
	Logs    map[string][]string                 `json:"logs"`
	Buckets map[string]map[string]clusterRecord `json:"buckets"`
}

type clusterRecord struct {
	Value []byte `json:"value"`
}

const clusterBackupFormat = "gatehouse cluster 1"

// maxClusterBackup bounds the content of a backup of a cluster.
const maxClusterBackup = 1 << 30

// ClusterBackup describes a backup of a cluster.
type ClusterBackup struct {
	Cluster string
	Created time.Time
	Moment  bool // whether all parts are of one moment; otherwise each is, by itself
	Bytes   int
}

// backupTries is how often a backup is begun again because the cluster changed meanwhile.
const backupTries = 10

// BackupCluster writes what the nodes of the cluster have in common to a new file, by way of the node of this machine.
func BackupCluster(ctx context.Context, f config.Folders, path string, key backup.Key) (made ClusterBackup, err error) {
	if err := key.CheckCreate(); err != nil {
		return made, err
	}
	n, err := cluster.Visitor(ClusterFolder(f.Data))
	if err != nil {
		return made, err
	}
	defer n.Close()
	b := clusterBackup{
		Format: clusterBackupFormat, Cluster: n.Name(), Created: time.Now().UTC(), Version: Version,
	}
	for range backupTries {
		before, err := clusterRevisions(ctx, n)
		if err != nil {
			return made, err
		}
		if err := b.read(ctx, n); err != nil {
			return made, err
		}
		after, err := clusterRevisions(ctx, n)
		if err != nil {
			return made, err
		}
		if b.Moment = before == after; b.Moment {
			break
		}
	}
	raw, err := json.Marshal(b)
	if err == nil && len(raw) > maxClusterBackup {
		err = fmt.Errorf("the cluster has %d bytes, more than the %d of a backup", len(raw), maxClusterBackup)
	}
	if err != nil {
		return made, err
	}
	made = ClusterBackup{Cluster: b.Cluster, Created: b.Created, Moment: b.Moment, Bytes: len(raw)}
	return made, backup.WriteSealed(path, key, raw)
}

// clusterRevisions returns the newest revisions of what changes by users, as text.
func clusterRevisions(ctx context.Context, n *cluster.Node) (string, error) {
	all := map[string]uint64{}
	names := append([]string{}, clusterLogs...)
	for _, name := range clusterBuckets {
		if !clusterChanging[name] {
			names = append(names, name)
		}
	}
	for _, name := range names {
		b, err := n.Bucket(ctx, name, cluster.BucketOptions{})
		if err == nil {
			all[name], err = b.Newest(ctx)
		}
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprint(all), nil // maps are printed in the order of their keys
}

func (b *clusterBackup) read(ctx context.Context, n *cluster.Node) error {
	b.Logs, b.Buckets = map[string][]string{}, map[string]map[string]clusterRecord{}
	for _, name := range clusterLogs {
		statements, _, err := sqllog.Export(ctx, n, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		b.Logs[name] = statements
	}
	for _, name := range clusterBuckets {
		bucket, err := n.Bucket(ctx, name, cluster.BucketOptions{})
		if err != nil {
			return err
		}
		all, err := bucket.List(ctx)
		if err != nil {
			return err
		}
		b.Buckets[name] = map[string]clusterRecord{}
		for _, r := range all {
			b.Buckets[name][r.Key] = clusterRecord{r.Value}
		}
	}
	return nil
}

// RestoreCluster makes the cluster of this machine's node, which must be fresh, have what a backup has.
func RestoreCluster(ctx context.Context, f config.Folders, path string, key backup.Key) (was ClusterBackup, err error) {
	raw, err := backup.ReadSealed(path, key, maxClusterBackup)
	if err != nil {
		return was, err
	}
	var b clusterBackup
	if err := json.Unmarshal(raw, &b); err != nil || b.Format != clusterBackupFormat {
		return was, fmt.Errorf("%s is not a backup of a cluster: format %q, expected %q", path, b.Format, clusterBackupFormat)
	}
	was = ClusterBackup{Cluster: b.Cluster, Created: b.Created, Moment: b.Moment, Bytes: len(raw)}
	n, err := cluster.Visitor(ClusterFolder(f.Data))
	if err != nil {
		return was, err
	}
	defer n.Close()
	for _, name := range clusterLogs { // before anything is changed
		if err := sqllog.Empty(ctx, n, name); err != nil {
			return was, fmt.Errorf("%w: restore into a fresh cluster, whose nodes have no users, contexts and approvals", err)
		}
	}
	for _, name := range clusterBuckets {
		if err := restoreBucket(ctx, n, name, b.Buckets[name]); err != nil {
			return was, err
		}
	}
	for _, name := range clusterLogs {
		if err := sqllog.Import(ctx, n, name, b.Logs[name]); err != nil {
			return was, err
		}
	}
	return was, nil
}

func restoreBucket(ctx context.Context, n *cluster.Node, name string, records map[string]clusterRecord) error {
	b, err := n.Bucket(ctx, name, cluster.BucketOptions{TTL: clusterTTL[name]})
	if err != nil {
		return err
	}
	for key, r := range records {
		for {
			was, err := b.Get(ctx, key)
			value := r.Value
			switch {
			case errors.Is(err, cluster.ErrNotFound):
				_, err = b.Create(ctx, key, value)
			case err == nil:
				if name == stateBucket {
					value, err = statelog.After(value, was.Value)
				}
				if err == nil {
					_, err = b.Update(ctx, key, value, was.Revision)
				}
			}
			if errors.Is(err, cluster.ErrConflict) && ctx.Err() == nil {
				continue // a node has written it meanwhile
			}
			if err != nil {
				return fmt.Errorf("restore %s: %w", name, err)
			}
			break
		}
	}
	return nil
}

// clusterTTL is how long the records of a bucket are kept that is made by a restore.
var clusterTTL = map[string]time.Duration{"ledgers": headsKept}

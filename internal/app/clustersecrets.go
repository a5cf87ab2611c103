package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/cluster"
	"gatehouse/internal/cluster/filelog"
	"gatehouse/internal/config"
)

// The files of secrets that all nodes have. The key is one of them unless the settings name its file: then every node
// must be given the same one.
const (
	secretsFile = "secrets.age"
	loginsFile  = "logins.age"
	secretsKey  = "secrets.key"
)

func sharedFilesOf(f config.Folders) (mark string, paths map[string]string) {
	paths = map[string]string{}
	for _, name := range []string{secretsFile, loginsFile, secretsKey} {
		paths[name] = filepath.Join(f.Config, name)
	}
	return filepath.Join(ClusterFolder(f.Data), "files.json"), paths
}

// shareSecrets makes the secrets and the logins of packages those of all nodes.
func (c *clusterNodes) shareSecrets(ctx context.Context) error {
	f, keyFile := c.app.cfg.Folders, c.app.cfg.Secrets.KeyFile
	if f.Config == "" {
		return nil
	}
	mark, paths := sharedFilesOf(f)
	files, err := filelog.Open(ctx, c.Node, mark, paths)
	if err != nil {
		return fmt.Errorf("secrets of the cluster: %w", err)
	}
	if keyFile == "" {
		if err := shareKeyOfSecrets(ctx, files, paths[secretsKey]); err != nil {
			return fmt.Errorf("secrets of the cluster: %w", err)
		}
	}
	for _, name := range []string{secretsFile, loginsFile} {
		if err := files.Join(ctx, name); err != nil {
			return fmt.Errorf("secrets of the cluster: %w", err)
		}
	}
	c.files = files
	return nil
}

// shareKeyOfSecrets makes this node have the cluster's key. If there is none, the first node makes it.
func shareKeyOfSecrets(ctx context.Context, files *filelog.Files, path string) error {
	if err := files.Join(ctx, secretsKey); err != nil {
		return err
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return files.Change(path, func(old []byte) ([]byte, error) {
		if old != nil {
			return old, nil
		}
		return secret.NewKey()
	})
}

// sharedFiles returns what changes the secrets on all nodes; nil without a cluster.
func (c *clusterNodes) sharedFiles() secret.Shared {
	if c == nil || c.files == nil {
		return nil
	}
	return c.files
}

// secretStore returns the store of this host, or of its cluster.
func (a *App) secretStore() *secret.Store {
	return secret.In(a.cfg.Folders.Config, a.cfg.Secrets.KeyFile).Share(a.nodes.sharedFiles())
}

// SecretStore returns the store of this machine for a command. If a node runs here, the store is that of all nodes, and
// changes go through the node.
func SecretStore(f config.Folders, keyFile string) *secret.Store {
	s := secret.In(f.Config, keyFile)
	if mark, _ := sharedFilesOf(f); filelog.Has(mark) {
		return s.Share(visitorsFiles{f})
	}
	return s
}

// visitorsFiles changes files by way of the node of this machine.
type visitorsFiles struct{ folders config.Folders }

// Change implements secret.Shared.
func (v visitorsFiles) Change(path string, change func([]byte) ([]byte, error)) error {
	return v.with(path, func(f *filelog.Files) error { return f.Change(path, change) })
}

// Refresh implements secret.Shared.
func (v visitorsFiles) Refresh(path string) error {
	return v.with(path, func(f *filelog.Files) error { return f.Refresh(path) })
}

func (v visitorsFiles) with(path string, do func(*filelog.Files) error) error {
	n, err := cluster.Visitor(ClusterFolder(v.folders.Data))
	if err != nil {
		return fmt.Errorf("%s belongs to all nodes of a cluster: %w", path, err)
	}
	defer n.Close()
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	mark, paths := sharedFilesOf(v.folders)
	files, err := filelog.Open(ctx, n, mark, paths)
	if err != nil {
		return err
	}
	return do(files)
}

// RotateSecrets makes a new key of the secrets and the logins of packages, and encrypts both with it.
func RotateSecrets(f config.Folders, keyFile string) error {
	s := SecretStore(f, keyFile)
	if mark, _ := sharedFilesOf(f); keyFile != "" && filelog.Has(mark) {
		return fmt.Errorf("the key of the secrets is in %s on each node of the cluster (secrets.key_file), so that a command "+
			"cannot change it on all: on every node write a new key as the first line that is a key, keep the old one "+
			"below it, and then change any secret", keyFile)
	}
	if mark, _ := sharedFilesOf(f); filelog.Has(mark) {
		raw, err := cluster.Visit(context.Background(), ClusterFolder(f.Data), StatusTopic, nil)
		if err != nil {
			return fmt.Errorf("whether all nodes can read secrets during the rotation is not known: %w", err)
		}
		var nodes []NodeStatus
		if err := json.Unmarshal(raw, &nodes); err != nil {
			return err
		}
		for i := range nodes {
			if err := WaitsForUpgrade(&nodes[i].Peer); err != nil {
				return err
			}
		}
	}
	return s.Rotate("", s.Logins())
}

// WaitsForUpgrade returns an error if the key of the secrets must not be changed because of a node: between the change
// of the key and that of what is encrypted with it, a node of the version before could read none. What is known of a
// member that is not heard it recorded when it was started last.
func WaitsForUpgrade(p *cluster.Peer) error {
	if !p.Member || p.Keys {
		return nil
	}
	return fmt.Errorf("the key of the secrets is not changed while node %s (%s) has version %s, which could not read "+
		"secrets meanwhile: upgrade it, or remove it with gatehouse cluster remove %s if it is gone",
		p.ID, p.Host, p.Version, p.ID)
}

// secretsLife is how long a key of the cluster encrypts secrets before a node makes another one, as keysLife for sealed
// state. It is longer because keys that are no longer kept make public keys of earlier times useless.
const secretsLife = 90 * 24 * time.Hour

// rotateSecrets makes a new key if the cluster's has encrypted for so long. One node does it.
func (c *clusterNodes) rotateSecrets(ctx context.Context, life time.Duration) error {
	if c.files == nil || c.app.cfg.Secrets.KeyFile != "" {
		return nil
	}
	_, paths := sharedFilesOf(c.app.cfg.Folders)
	changed, err := c.files.Changed(ctx, paths[secretsKey])
	if err != nil || time.Since(changed) < life {
		return err
	}
	for _, p := range c.Nodes() {
		if err := WaitsForUpgrade(&p); err != nil {
			return err
		}
	}
	s := c.app.secretStore()
	public, err := s.Recipient()
	if err != nil {
		return err
	}
	err = s.Rotate(public, s.Logins())
	if errors.Is(err, secret.ErrRotated) {
		return nil
	}
	if err == nil {
		c.log.Info("the key of the secrets was rotated")
	}
	return err
}

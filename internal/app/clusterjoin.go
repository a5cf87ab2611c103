package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/config"
)

// CheckJoin returns why this machine cannot join the cluster of the settings as a new node, as far as it can be said
// without the other nodes. The host must not run.
func CheckJoin(ctx context.Context, f config.Folders, c config.Cluster) error {
	if f.Data == "" {
		return errors.New("a node needs a folder for data: set HOME, or GATEHOUSE_DATA_DIR")
	}
	if c.NATS.Address != "" {
		return errors.New("nodes of a cluster whose engine is an external NATS do not join by an address: start the host with " +
			"gatehouse serve --http --cluster NAME")
	}
	dir := ClusterFolder(f.Data)
	if id, err := cluster.IDOf(dir); err == nil {
		if cluster.Running(ctx, dir) {
			return fmt.Errorf("this machine is node %s of a cluster already, and runs", id)
		}
		return fmt.Errorf("this machine is node %s of a cluster already: start it with gatehouse serve --http, or run "+
			"gatehouse cluster leave before it joins as a new one", id)
	}
	return cluster.CheckJoin(cluster.Options{
		Name: c.Name, Listen: c.Listen, Advertise: c.Advertise, Direct: c.Direct, Join: c.Join, TokenFile: c.TokenFile,
		TLS: c.TLS,
	}, time.Now())
}

// ownFiles returns the files of this machine that a node has from its cluster, as far as they are here. state.db is not
// among them, though packages are in it, because most of it is each node's own.
func ownFiles(f config.Folders, keyFile string) (all []string, err error) {
	_, secrets := sharedFilesOf(f)
	paths := []string{
		filepath.Join(f.Data, "identity.db"), ApprovalsFile(f), ContextsFile(f), secrets[secretsFile], secrets[loginsFile],
	}
	if keyFile == "" {
		paths = append(paths, secrets[secretsKey])
	}
	for _, path := range paths {
		switch _, err := os.Stat(path); {
		case err == nil:
			all = append(all, path)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	return all, nil
}

// SetAside makes this machine have no users, tokens, contexts, approvals and secrets of its own, in place of which a
// node gets those of its cluster. With move they are moved to the folder that it returns, "" if there are none;
// otherwise the error names them. The host must not run.
func SetAside(f config.Folders, keyFile string, move bool) (folder string, err error) {
	all, err := ownFiles(f, keyFile)
	if err != nil || len(all) == 0 {
		return "", err
	}
	if !move {
		return "", fmt.Errorf("this machine has users, contexts, approvals or secrets of its own, and gets those of the cluster: "+
			"%s; with --set-aside these files are moved to a folder beside them, and are no longer used",
			strings.Join(all, ", "))
	}
	folder = filepath.Join(f.Data, "before-cluster-"+time.Now().UTC().Format("20060102T150405"))
	if err := os.Mkdir(folder, 0o700); err != nil {
		return "", err
	}
	for _, path := range all {
		for _, part := range []string{"-wal", "-shm", ""} { // the file itself last, so that it is found again if this fails
			err := os.Rename(path+part, filepath.Join(folder, filepath.Base(path)+part))
			if err != nil && (part == "" || !errors.Is(err, fs.ErrNotExist)) {
				return folder, fmt.Errorf("set %s aside: %w", path, err)
			}
		}
	}
	return folder, nil
}

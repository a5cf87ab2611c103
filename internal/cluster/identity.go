package cluster

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"gatehouse/internal/files/atomicfile"
)

// nodeFile is what a node remembers of itself.
type nodeFile struct {
	ID      string `json:"id"`
	Cluster string `json:"cluster"`
}

// loadID returns the id of this node, and makes one at the first start. A data folder belongs to one cluster.
func loadID(path, cluster string) (string, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		f := nodeFile{ID: strings.ToLower(rand.Text()[:idLength]), Cluster: cluster}
		raw, err := json.Marshal(f)
		if err != nil {
			return "", err
		}
		return f.ID, atomicfile.Write(path, raw)
	}
	if err != nil {
		return "", err
	}
	var f nodeFile
	if err := json.Unmarshal(raw, &f); err != nil || !ValidID(f.ID) {
		return "", fmt.Errorf("%s does not name a node; remove it to join as a new one", path)
	}
	if f.Cluster != cluster {
		return "", fmt.Errorf("this data folder belongs to a node of the cluster %s, not of %s; run gatehouse cluster "+
			"leave there, or use another data folder", f.Cluster, cluster)
	}
	return f.ID, nil
}

// IDOf returns the id of the node whose folder is dir.
func IDOf(dir string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(dir, nodeFileName))
	if err != nil {
		return "", fmt.Errorf("there is no node in this data folder: %w", err)
	}
	var f nodeFile
	if err := json.Unmarshal(raw, &f); err != nil || !ValidID(f.ID) {
		return "", fmt.Errorf("%s does not name a node", filepath.Join(dir, nodeFileName))
	}
	return f.ID, nil
}

const (
	idLength     = 10
	nodeFileName = "node.json"
)

// ValidID reports whether a text has the form of a node's id.
func ValidID(id string) bool {
	if len(id) != idLength {
		return false
	}
	for _, c := range []byte(id) {
		if (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return false
		}
	}
	return true
}

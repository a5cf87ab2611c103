package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nats-io/nats.go"

	"gatehouse/internal/files/atomicfile"
)

// External is a NATS with JetStream that this host does not start.
type External struct {
	Address     string `json:"address"`               // URLs, separated by commas
	Credentials string `json:"credentials,omitempty"` // file of NATS credentials; "" for none
	CA          string `json:"ca,omitempty"`          // file of certificates of its authorities; "" for those of the system
	Replicas    int    `json:"replicas,omitempty"`    // of each bucket; 0 means 3
}

func (x *External) options() (all []nats.Option) {
	if x.Credentials != "" {
		all = append(all, nats.UserCredentials(x.Credentials))
	}
	if x.CA != "" {
		all = append(all, nats.RootCAs(x.CA))
	}
	return all
}

// checkPayload refuses a server that takes shorter messages than nodes send.
func checkPayload(conn *nats.Conn) error {
	if has := conn.MaxPayload(); has < maxPayload {
		return fmt.Errorf("NATS at %s takes messages of %d bytes, and nodes send up to %d: set its max_payload to 8MB: %w",
			conn.ConnectedUrlRedacted(), has, maxPayload, errRefused)
	}
	return nil
}

// externalFile is what commands on the machine of a node read to reach its external engine. The address may have a
// password, so that the file is the administrator's alone.
type externalFile struct {
	Cluster string `json:"cluster"`
	External
}

const externalName = "external.json"

// noteExternal records how commands reach the engine of a node.
func (o *Options) noteExternal() error {
	path := filepath.Join(o.Dir, externalName)
	if o.External == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	raw, err := json.Marshal(externalFile{o.Name, *o.External})
	if err != nil {
		return err
	}
	return atomicfile.Write(path, raw)
}

// readExternal returns the cluster and the engine of the node in a folder; nil if its engine is embedded.
func readExternal(dir string) (cluster string, x *External, err error) {
	raw, err := os.ReadFile(filepath.Join(dir, externalName))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, nil
	}
	var f externalFile
	if err == nil {
		err = json.Unmarshal(raw, &f)
	}
	return f.Cluster, &f.External, err
}

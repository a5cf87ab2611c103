package api

import (
	"context"
	"net/http"
	"net/url"
)

// Requests before the machine starts.

// PutMachine sets the machine's processors and memory.
func (c *Client) PutMachine(ctx context.Context, m Machine) error {
	return c.putJSON(ctx, "/machine-config", m)
}

// PutBootSource sets the kernel.
func (c *Client) PutBootSource(ctx context.Context, b BootSource) error {
	return c.putJSON(ctx, "/boot-source", b)
}

// PutDrive adds a block device, or changes the one with its ID.
func (c *Client) PutDrive(ctx context.Context, d Drive) error {
	return c.putJSON(ctx, "/drives/"+url.PathEscape(d.ID), d)
}

// PutNetworkInterface adds a network device, or changes the one with its ID.
func (c *Client) PutNetworkInterface(ctx context.Context, n NetworkInterface) error {
	return c.putJSON(ctx, "/network-interfaces/"+url.PathEscape(n.ID), n)
}

// PutVsock adds the vsock device.
func (c *Client) PutVsock(ctx context.Context, v Vsock) error { return c.putJSON(ctx, "/vsock", v) }

// PutEntropy adds the entropy device.
func (c *Client) PutEntropy(ctx context.Context, e Entropy) error {
	return c.putJSON(ctx, "/entropy", e)
}

// PutMMDSConfig configures the machine's access to the metadata.
func (c *Client) PutMMDSConfig(ctx context.Context, m MMDSConfig) error {
	return c.putJSON(ctx, "/mmds/config", m)
}

// PutLogger configures the log.
func (c *Client) PutLogger(ctx context.Context, l Logger) error { return c.putJSON(ctx, "/logger", l) }

// PutMetrics configures the metrics.
func (c *Client) PutMetrics(ctx context.Context, m Metrics) error {
	return c.putJSON(ctx, "/metrics", m)
}

// Start starts the machine.
func (c *Client) Start(ctx context.Context) error { return c.act(ctx, "InstanceStart") }

// LoadSnapshot restores the machine from a snapshot, in a process that is not configured except for its log.
// If it fails, the process exits.
func (c *Client) LoadSnapshot(ctx context.Context, s SnapshotLoad) error {
	return c.do(ctx, CopyWait, http.MethodPut, "/snapshot/load", s, nil)
}

// Requests after the start.

// PatchDrive changes a block device.
func (c *Client) PatchDrive(ctx context.Context, d DriveUpdate) error {
	return c.patch(ctx, "/drives/"+url.PathEscape(d.ID), d)
}

// PatchNetworkInterface changes a network device.
func (c *Client) PatchNetworkInterface(ctx context.Context, n NetworkUpdate) error {
	return c.patch(ctx, "/network-interfaces/"+url.PathEscape(n.ID), n)
}

// Pause pauses the machine's processors. It succeeds if they are paused already.
func (c *Client) Pause(ctx context.Context) error { return c.patch(ctx, "/vm", vm{"Paused"}) }

// Resume resumes them. It succeeds if the machine runs already.
func (c *Client) Resume(ctx context.Context) error { return c.patch(ctx, "/vm", vm{"Resumed"}) }

type vm struct {
	State string `json:"state"`
}

// CreateSnapshot writes a snapshot of a paused machine. Connections of its vsock device are reset, also for
// the machine when it is resumed.
func (c *Client) CreateSnapshot(ctx context.Context, s SnapshotCreate) error {
	return c.do(ctx, CopyWait, http.MethodPut, "/snapshot/create", s, nil)
}

// FlushMetrics writes the metrics now.
func (c *Client) FlushMetrics(ctx context.Context) error { return c.act(ctx, "FlushMetrics") }

// CtrlAltDel asks the machine to shut down, on amd64.
func (c *Client) CtrlAltDel(ctx context.Context) error { return c.act(ctx, "SendCtrlAltDel") }

func (c *Client) act(ctx context.Context, action string) error {
	return c.putJSON(ctx, "/actions", struct {
		Type string `json:"action_type"`
	}{action})
}

// Requests at any time.

// Instance returns the state of the process.
func (c *Client) Instance(ctx context.Context) (i Instance, err error) {
	err = c.getJSON(ctx, "/", &i)
	return i, err
}

// Version returns the version of Firecracker.
func (c *Client) Version(ctx context.Context) (string, error) {
	var v struct {
		Version string `json:"firecracker_version"`
	}
	err := c.getJSON(ctx, "/version", &v)
	return v.Version, err
}

// Machine returns the machine's processors and memory.
func (c *Client) Machine(ctx context.Context) (m Machine, err error) {
	err = c.getJSON(ctx, "/machine-config", &m)
	return m, err
}

// PutMMDS replaces the metadata.
func (c *Client) PutMMDS(ctx context.Context, data any) error { return c.putJSON(ctx, "/mmds", data) }

// PatchMMDS changes the metadata, by the rules of a JSON merge patch.
func (c *Client) PatchMMDS(ctx context.Context, data any) error { return c.patch(ctx, "/mmds", data) }

// MMDS reads the metadata.
func (c *Client) MMDS(ctx context.Context, into any) error { return c.getJSON(ctx, "/mmds", into) }

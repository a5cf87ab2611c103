package api

import (
	"context"
	"net/http"
	"net/url"
)

// Before the machine starts.

// PutMachine says what the machine has.
func (c *Client) PutMachine(ctx context.Context, m Machine) error {
	return c.put(ctx, "/machine-config", m)
}

// PutBootSource says what it begins with.
func (c *Client) PutBootSource(ctx context.Context, b BootSource) error {
	return c.put(ctx, "/boot-source", b)
}

// PutDrive adds a block device, or changes the one of that ID.
func (c *Client) PutDrive(ctx context.Context, d Drive) error {
	return c.put(ctx, "/drives/"+url.PathEscape(d.ID), d)
}

// PutNetworkInterface adds a network device, or changes the one of that ID.
func (c *Client) PutNetworkInterface(ctx context.Context, n NetworkInterface) error {
	return c.put(ctx, "/network-interfaces/"+url.PathEscape(n.ID), n)
}

// PutVsock adds the socket device.
func (c *Client) PutVsock(ctx context.Context, v Vsock) error { return c.put(ctx, "/vsock", v) }

// PutEntropy adds the device for randomness.
func (c *Client) PutEntropy(ctx context.Context, e Entropy) error { return c.put(ctx, "/entropy", e) }

// PutMMDSConfig says how the machine reaches the metadata.
func (c *Client) PutMMDSConfig(ctx context.Context, m MMDSConfig) error {
	return c.put(ctx, "/mmds/config", m)
}

// PutLogger says where the log goes.
func (c *Client) PutLogger(ctx context.Context, l Logger) error { return c.put(ctx, "/logger", l) }

// PutMetrics says where counts go.
func (c *Client) PutMetrics(ctx context.Context, m Metrics) error { return c.put(ctx, "/metrics", m) }

// Start starts the machine.
func (c *Client) Start(ctx context.Context) error { return c.act(ctx, "InstanceStart") }

// LoadSnapshot makes the machine one that was kept, in a process that was told
// nothing else but where to log. A process that fails in it ends.
func (c *Client) LoadSnapshot(ctx context.Context, s SnapshotLoad) error {
	return c.do(ctx, Copying, http.MethodPut, "/snapshot/load", s, nil)
}

// Once it has started.

// PatchDrive changes a block device.
func (c *Client) PatchDrive(ctx context.Context, d DriveUpdate) error {
	return c.patch(ctx, "/drives/"+url.PathEscape(d.ID), d)
}

// PatchNetworkInterface changes a network device.
func (c *Client) PatchNetworkInterface(ctx context.Context, n NetworkUpdate) error {
	return c.patch(ctx, "/network-interfaces/"+url.PathEscape(n.ID), n)
}

// Pause stops the machine's processors. One that stands already is fine.
func (c *Client) Pause(ctx context.Context) error { return c.patch(ctx, "/vm", vm{"Paused"}) }

// Resume lets them go on. A machine that runs is fine.
func (c *Client) Resume(ctx context.Context) error { return c.patch(ctx, "/vm", vm{"Resumed"}) }

type vm struct {
	State string `json:"state"`
}

// CreateSnapshot keeps a paused machine. Connections of its socket device are
// reset, in it too when it goes on.
func (c *Client) CreateSnapshot(ctx context.Context, s SnapshotCreate) error {
	return c.do(ctx, Copying, http.MethodPut, "/snapshot/create", s, nil)
}

// FlushMetrics has the counts written now.
func (c *Client) FlushMetrics(ctx context.Context) error { return c.act(ctx, "FlushMetrics") }

// CtrlAltDel asks the machine to end, on amd64.
func (c *Client) CtrlAltDel(ctx context.Context) error { return c.act(ctx, "SendCtrlAltDel") }

func (c *Client) act(ctx context.Context, action string) error {
	return c.put(ctx, "/actions", struct {
		Type string `json:"action_type"`
	}{action})
}

// At any time.

// Instance asks what the process is and does.
func (c *Client) Instance(ctx context.Context) (i Instance, err error) {
	err = c.get(ctx, "/", &i)
	return i, err
}

// Version asks which Firecracker it is.
func (c *Client) Version(ctx context.Context) (string, error) {
	var v struct {
		Version string `json:"firecracker_version"`
	}
	err := c.get(ctx, "/version", &v)
	return v.Version, err
}

// Machine asks what the machine has.
func (c *Client) Machine(ctx context.Context) (m Machine, err error) {
	err = c.get(ctx, "/machine-config", &m)
	return m, err
}

// PutMMDS replaces the metadata.
func (c *Client) PutMMDS(ctx context.Context, data any) error { return c.put(ctx, "/mmds", data) }

// PatchMMDS changes the metadata, by the rules of a JSON merge patch.
func (c *Client) PatchMMDS(ctx context.Context, data any) error { return c.patch(ctx, "/mmds", data) }

// MMDS asks for the metadata.
func (c *Client) MMDS(ctx context.Context, into any) error { return c.get(ctx, "/mmds", into) }

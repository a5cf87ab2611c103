package api

// Zero fields are not sent unless they are required. Paths are those of the process: a jailed one has another
// root.

// Machine is the machine's size. VCPUs is 1 to 32.
type Machine struct {
	VCPUs      int    `json:"vcpu_count"`
	MemoryMiB  int    `json:"mem_size_mib"`
	SMT        bool   `json:"smt,omitempty"`
	TrackDirty bool   `json:"track_dirty_pages,omitempty"` // for Diff snapshots
	HugePages  string `json:"huge_pages,omitempty"`        // None or 2M
}

// BootSource is the kernel and its arguments.
type BootSource struct {
	Kernel string `json:"kernel_image_path"` // an uncompressed ELF image, or on arm64 a PE one
	Initrd string `json:"initrd_path,omitempty"`
	Args   string `json:"boot_args,omitempty"`
}

// Drive is a block device.
type Drive struct {
	ID        string       `json:"drive_id"`
	Path      string       `json:"path_on_host"`
	Root      bool         `json:"is_root_device"`
	ReadOnly  bool         `json:"is_read_only"`
	PartUUID  string       `json:"partuuid,omitempty"`
	CacheType string       `json:"cache_type,omitempty"` // Unsafe or Writeback
	IOEngine  string       `json:"io_engine,omitempty"`  // Sync or Async
	Rate      *RateLimiter `json:"rate_limiter,omitempty"`
}

// DriveUpdate is what can be changed of a drive while the machine runs.
type DriveUpdate struct {
	ID   string       `json:"drive_id"`
	Path string       `json:"path_on_host,omitempty"`
	Rate *RateLimiter `json:"rate_limiter,omitempty"`
}

// NetworkInterface is a network device that is a TAP device on the host.
type NetworkInterface struct {
	ID      string       `json:"iface_id"`
	HostDev string       `json:"host_dev_name"`
	MAC     string       `json:"guest_mac,omitempty"`
	RX      *RateLimiter `json:"rx_rate_limiter,omitempty"`
	TX      *RateLimiter `json:"tx_rate_limiter,omitempty"`
}

// NetworkUpdate is what can be changed of an interface while the machine runs.
type NetworkUpdate struct {
	ID string       `json:"iface_id"`
	RX *RateLimiter `json:"rx_rate_limiter,omitempty"`
	TX *RateLimiter `json:"tx_rate_limiter,omitempty"`
}

// RateLimiter limits bytes and operations separately.
type RateLimiter struct {
	Bandwidth  *TokenBucket `json:"bandwidth,omitempty"`
	Operations *TokenBucket `json:"ops,omitempty"`
}

// TokenBucket holds Size tokens and is refilled in RefillTime milliseconds.
type TokenBucket struct {
	Size         int64 `json:"size"`
	RefillTime   int64 `json:"refill_time"`
	OneTimeBurst int64 `json:"one_time_burst,omitempty"`
}

// Vsock is a vsock device. The process listens on Path after the machine has started.
type Vsock struct {
	CID  uint32 `json:"guest_cid"` // 3 or higher
	Path string `json:"uds_path"`
}

// Entropy is a device that provides randomness to the machine.
type Entropy struct {
	Rate *RateLimiter `json:"rate_limiter,omitempty"`
}

// MMDSConfig selects the interfaces through which the machine reads the metadata.
type MMDSConfig struct {
	Interfaces []string `json:"network_interfaces"`
	Version    string   `json:"version,omitempty"` // V1 or V2
	Address    string   `json:"ipv4_address,omitempty"`
	IMDSCompat bool     `json:"imds_compat,omitempty"`
}

// Logger is the destination of the process's log.
type Logger struct {
	Path       string `json:"log_path,omitempty"`
	Level      string `json:"level,omitempty"` // Error, Warning, Info, Debug, Trace or Off
	ShowLevel  bool   `json:"show_level,omitempty"`
	ShowOrigin bool   `json:"show_log_origin,omitempty"`
	Module     string `json:"module,omitempty"`
}

// Metrics is the destination of the process's metrics.
type Metrics struct {
	Path string `json:"metrics_path"`
}

// SnapshotCreate is the destination of a snapshot.
type SnapshotCreate struct {
	State  string `json:"snapshot_path"` // of the devices and processors
	Memory string `json:"mem_file_path"`
	Type   string `json:"snapshot_type,omitempty"` // Full or Diff
}

// SnapshotLoad is the source of a snapshot.
type SnapshotLoad struct {
	State      string            `json:"snapshot_path"`
	Memory     MemoryBackend     `json:"mem_backend"`
	TrackDirty bool              `json:"track_dirty_pages,omitempty"`
	Resume     bool              `json:"resume_vm,omitempty"`
	Networks   []NetworkOverride `json:"network_overrides,omitempty"`
	Vsock      *VsockOverride    `json:"vsock_override,omitempty"`
}

// MemoryBackend is the source of a restored machine's memory. A file must not change while the machine lives.
type MemoryBackend struct {
	Type string `json:"backend_type"` // File or Uffd
	Path string `json:"backend_path"`
}

// NetworkOverride gives a restored machine's interface another TAP device.
type NetworkOverride struct {
	ID      string `json:"iface_id"`
	HostDev string `json:"host_dev_name"`
}

// VsockOverride gives a restored machine's vsock device another path.
type VsockOverride struct {
	Path string `json:"uds_path"`
}

// Instance is the state of the process.
type Instance struct {
	App     string `json:"app_name"`
	ID      string `json:"id"`
	State   State  `json:"state"`
	Version string `json:"vmm_version"`
}

// State is the state of a machine.
type State string

const (
	NotStarted State = "Not started"
	Running    State = "Running"
	Paused     State = "Paused"
)

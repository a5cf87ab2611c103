package api

// Members that are left at their zero value are not sent, unless they have to
// be. Paths are those the process sees: a jailed one has another root.

// Machine is what the machine has. VCPUs is 1 to 32.
type Machine struct {
	VCPUs      int    `json:"vcpu_count"`
	MemoryMiB  int    `json:"mem_size_mib"`
	SMT        bool   `json:"smt,omitempty"`
	TrackDirty bool   `json:"track_dirty_pages,omitempty"` // for snapshots of what changed
	HugePages  string `json:"huge_pages,omitempty"`        // None or 2M
}

// BootSource is what the machine begins with.
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

// RateLimiter limits bytes and operations, each by itself.
type RateLimiter struct {
	Bandwidth  *TokenBucket `json:"bandwidth,omitempty"`
	Operations *TokenBucket `json:"ops,omitempty"`
}

// TokenBucket holds so many tokens, and is full again after RefillTime
// milliseconds.
type TokenBucket struct {
	Size         int64 `json:"size"`
	RefillTime   int64 `json:"refill_time"`
	OneTimeBurst int64 `json:"one_time_burst,omitempty"`
}

// Vsock is a socket device. The process listens at Path once the machine has
// started.
type Vsock struct {
	CID  uint32 `json:"guest_cid"` // from 3 on
	Path string `json:"uds_path"`
}

// Entropy is a device that gives the machine randomness.
type Entropy struct {
	Rate *RateLimiter `json:"rate_limiter,omitempty"`
}

// MMDSConfig says by which interfaces the machine reaches the metadata.
type MMDSConfig struct {
	Interfaces []string `json:"network_interfaces"`
	Version    string   `json:"version,omitempty"` // V1 or V2
	Address    string   `json:"ipv4_address,omitempty"`
	IMDSCompat bool     `json:"imds_compat,omitempty"`
}

// Logger says where the process writes its log.
type Logger struct {
	Path       string `json:"log_path,omitempty"`
	Level      string `json:"level,omitempty"` // Error, Warning, Info, Debug, Trace or Off
	ShowLevel  bool   `json:"show_level,omitempty"`
	ShowOrigin bool   `json:"show_log_origin,omitempty"`
	Module     string `json:"module,omitempty"`
}

// Metrics says where the process writes its counts.
type Metrics struct {
	Path string `json:"metrics_path"`
}

// SnapshotCreate says where a snapshot is written to.
type SnapshotCreate struct {
	State  string `json:"snapshot_path"` // of the devices and processors
	Memory string `json:"mem_file_path"`
	Type   string `json:"snapshot_type,omitempty"` // Full or Diff
}

// SnapshotLoad says where a snapshot is read from.
type SnapshotLoad struct {
	State      string            `json:"snapshot_path"`
	Memory     MemoryBackend     `json:"mem_backend"`
	TrackDirty bool              `json:"track_dirty_pages,omitempty"`
	Resume     bool              `json:"resume_vm,omitempty"`
	Networks   []NetworkOverride `json:"network_overrides,omitempty"`
	Vsock      *VsockOverride    `json:"vsock_override,omitempty"`
}

// MemoryBackend is where a restored machine's memory comes from. A file has to
// stay as it is while a machine made of it lives.
type MemoryBackend struct {
	Type string `json:"backend_type"` // File or Uffd
	Path string `json:"backend_path"`
}

// NetworkOverride gives a restored machine's interface another TAP device.
type NetworkOverride struct {
	ID      string `json:"iface_id"`
	HostDev string `json:"host_dev_name"`
}

// VsockOverride gives a restored machine's socket device another path.
type VsockOverride struct {
	Path string `json:"uds_path"`
}

// Instance is what the process says of itself.
type Instance struct {
	App     string `json:"app_name"`
	ID      string `json:"id"`
	State   State  `json:"state"`
	Version string `json:"vmm_version"`
}

// State is what a machine does.
type State string

const (
	NotStarted State = "Not started"
	Running    State = "Running"
	Paused     State = "Paused"
)

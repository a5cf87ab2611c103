package manager

import (
	"fmt"
	"slices"
	"time"

	"gatehouse/internal/sandbox"
)

// Settings are the settings of sandboxes: what a sandbox may use, how long it lives, and how many are kept ready.
// One struct, because each field is one setting of one section of gatehouse.yaml.
type Settings struct {
	Memory          int                `yaml:"memory_mib" doc:"Memory of a sandbox, in MiB, unless the caller requests another amount." env:"GATEHOUSE_SANDBOX_MEMORY_MIB"`
	VCPUs           int                `yaml:"vcpu_count" doc:"Processors it may use, unless the caller requests another number." env:"GATEHOUSE_SANDBOX_VCPU_COUNT"`
	Processes       int                `doc:"Processes and threads alive at once in it, unless the caller requests another number." env:"GATEHOUSE_SANDBOX_PROCESSES"`
	Disk            int                `yaml:"disk_mib" doc:"Size of all its files together, in MiB, unless the caller requests another size. They are kept in memory, so at most half of the memory is used for them." env:"GATEHOUSE_SANDBOX_DISK_MIB"`
	Descriptors     int                `doc:"Files that one process in it may have open." env:"GATEHOUSE_SANDBOX_DESCRIPTORS"`
	Output          int                `doc:"Size that each output stream of a call may reach before the call is ended." unit:"bytes" env:"GATEHOUSE_SANDBOX_OUTPUT"`
	Call            time.Duration      `doc:"Time limit of one call in it, unless the call sets another." env:"GATEHOUSE_SANDBOX_CALL"`
	MostMemory      int                `yaml:"most_memory_mib" doc:"Memory that a caller may request, in MiB." env:"GATEHOUSE_SANDBOX_MOST_MEMORY_MIB"`
	TotalMemory     int                `yaml:"total_memory_mib" doc:"Memory that all sandboxes may be granted together, by their limits, in MiB. 0 means that of this machine." env:"GATEHOUSE_SANDBOX_TOTAL_MEMORY_MIB"`
	PrincipalMemory int                `yaml:"principal_memory_mib" doc:"Memory that all sandboxes of one principal may be granted together, in MiB. 0 means three quarters of total_memory_mib." env:"GATEHOUSE_SANDBOX_PRINCIPAL_MEMORY_MIB"`
	MostVCPUs       int                `yaml:"most_vcpu_count" doc:"Processors that a caller may request." env:"GATEHOUSE_SANDBOX_MOST_VCPU_COUNT"`
	MostCall        time.Duration      `doc:"Time limit that a sandbox's creator may request for one call." env:"GATEHOUSE_SANDBOX_MOST_CALL"`
	Idle            time.Duration      `doc:"A sandbox ends if it is not used for this long." env:"GATEHOUSE_SANDBOX_IDLE"`
	Lifetime        time.Duration      `doc:"A sandbox ends at this age even if it is in use." env:"GATEHOUSE_SANDBOX_LIFETIME"`
	Most            int                `doc:"Sandboxes alive at once, of all owners together, which callers share: each may have as many as it leaves free, and a sixteenth is for administrators." env:"GATEHOUSE_SANDBOX_MOST"`
	Isolation       string             `yaml:"min_isolation" doc:"The weakest isolation that is allowed between the code and the host. If no driver offers it, there are no sandboxes." enum:"process,filtered,namespaces,user kernel,machine" env:"GATEHOUSE_SANDBOX_MIN_ISOLATION"`
	Driver          string             `doc:"The driver that makes a sandbox if its creator names none. auto is the first driver of prefer that works on this machine and is as strong as min_isolation requires; a name means that driver alone. process isolates nothing: unsafe has to be set as well." enum:"auto,namespaces,oci,gvisor,firecracker,qemu,process" env:"GATEHOUSE_SANDBOX_DRIVER"`
	Prefer          []string           `doc:"The order in which drivers are tried. Empty means namespaces, oci, gvisor, firecracker, qemu." enum:"namespaces,oci,gvisor,firecracker,qemu,process" env:"GATEHOUSE_SANDBOX_PREFER"`
	Drivers         []string           `doc:"Drivers that a sandbox's creator may request, by name or by min_isolation. Empty means those of prefer if driver is auto, else driver alone." enum:"namespaces,oci,gvisor,firecracker,qemu,process" env:"GATEHOUSE_SANDBOX_DRIVERS"`
	Runtime         string             `doc:"The container runtime of the driver oci, a path or a name. Empty means crun, or else runc." env:"GATEHOUSE_SANDBOX_RUNTIME"`
	Runsc           string             `doc:"The program of the driver gvisor, a path or a name. Empty means gatehouse-runsc beside this program, or else an installed runsc." env:"GATEHOUSE_RUNSC"`
	QEMU            string             `yaml:"qemu" doc:"The program of the driver qemu, a path or a name. Empty means the one for this machine's architecture." env:"GATEHOUSE_SANDBOX_QEMU"`
	Accelerator     string             `doc:"How qemu runs machines: kvm, tcg (slow, but requires no processor support), or empty for the first that works." enum:",kvm,tcg" env:"GATEHOUSE_SANDBOX_ACCELERATOR"`
	Kernel          string             `doc:"Kernel file of virtual machines. Empty means the newest that is installed." kind:"path" env:"GATEHOUSE_KERNEL"`
	KernelModules   string             `yaml:"kernel_modules" doc:"Folder of that kernel's modules. Empty means the one of its version." kind:"path" env:"GATEHOUSE_SANDBOX_KERNEL_MODULES"`
	Rootfs          string             `doc:"Root file system of virtual machines, a file with ext4, squashfs or erofs. Empty means one that is made from the host's own programs." kind:"path" env:"GATEHOUSE_ROOTFS"`
	MachineBytes    int64              `yaml:"machine_bytes" doc:"Disk space that the disk images made for virtual machines may use, including those in use and copies for jails; the least recently used are removed first." unit:"bytes" env:"GATEHOUSE_SANDBOX_MACHINE_BYTES"`
	Registries      []string           `doc:"Registries that images may be pulled from, each a host or host:port; http:// in front means without TLS. None means that nothing is pulled." env:"GATEHOUSE_SANDBOX_REGISTRIES"`
	Logins          []RegistryLogin    `doc:"Logins for registries that require authentication."`
	CallersImages   bool               `yaml:"callers_images" doc:"Let a sandbox's creator name any image of the registries, besides the templates." env:"GATEHOUSE_SANDBOX_CALLERS_IMAGES"`
	ImageBytes      int64              `yaml:"image_bytes" doc:"Disk space that all unpacked images may use; the least recently used are removed first." unit:"bytes" env:"GATEHOUSE_SANDBOX_IMAGE_BYTES"`
	Firecracker     string             `doc:"The program of the driver firecracker, a path or a name. Empty means firecracker in the PATH." env:"GATEHOUSE_FIRECRACKER"`
	Jailer          string             `doc:"The program that confines firecracker, a path or a name. Empty means jailer beside it or in the PATH." env:"GATEHOUSE_SANDBOX_JAILER"`
	Chroot          string             `doc:"Folder for the jails of firecracker. Empty means the system's folder for temporary files." kind:"path" env:"GATEHOUSE_CHROOT"`
	Unsafe          bool               `doc:"Let the driver process run code with all permissions of the host's user. min_isolation has to allow it too." env:"GATEHOUSE_SANDBOX_UNSAFE"`
	Network         bool               `doc:"Let callers open network access for their sandboxes, through a proxy with rules. Addresses that are not public stay closed unless network_special opens them." env:"GATEHOUSE_SANDBOX_NETWORK"`
	NetworkSpecial  []string           `yaml:"network_special" doc:"Loopback, private, link-local and metadata addresses, and those of this machine, that callers' rules may open: such as 10.1.2.3:5432 or 192.168.7.0/24:443. Without it no rule of a caller reaches them; listeners of this host are never reached." env:"GATEHOUSE_SANDBOX_NETWORK_SPECIAL"`
	NetworkDeny     []string           `doc:"Destinations that no sandbox ever reaches, whatever its rules: such as example.com, *.example.com:443 or 203.0.113.0/24." env:"GATEHOUSE_SANDBOX_NETWORK_DENY"`
	Ports           bool               `doc:"Let callers open ports of their sandboxes on this machine's loopback, where every program of this machine can reach them." env:"GATEHOUSE_SANDBOX_PORTS"`
	Secrets         []SecretSettings   `doc:"Secrets that the proxy may insert into requests of sandboxes, and the hosts they may be sent to. A caller can use a secret if its context has a variable that refers to that secret and to no other."`
	Snapshots       int                `doc:"Snapshots of sandboxes at once, of all owners together." env:"GATEHOUSE_SANDBOX_SNAPSHOTS"`
	SnapshotBytes   int64              `yaml:"snapshot_bytes" doc:"Disk space that all snapshots together may use." unit:"bytes" env:"GATEHOUSE_SANDBOX_SNAPSHOT_BYTES"`
	SnapshotLife    time.Duration      `yaml:"snapshot_lifetime" doc:"A snapshot is kept for this long, and no longer than the host runs." env:"GATEHOUSE_SANDBOX_SNAPSHOT_LIFETIME"`
	Templates       []TemplateSettings `doc:"Templates of sandboxes. The one named default is used if the creator of a sandbox names none."`
	Pool            PoolSettings       `doc:"Sandboxes that are prepared before a caller requests one."`
}

// SecretSettings names a secret that may go out of sandboxes.
type SecretSettings struct {
	Name  string   `doc:"The secret's name, as in gatehouse secret set." need:"yes"`
	Hosts []string `doc:"Where it may be sent, as rules of the proxy: such as api.example.com or *.example.com:443." need:"yes"`
}

// RegistryLogin says who pulls images from a registry.
type RegistryLogin struct {
	Host   string `doc:"The registry, as in registries." need:"yes"`
	User   string `doc:"The user name at the registry." need:"yes"`
	Secret string `doc:"The secret that holds the password, by its name in gatehouse secret set." need:"yes"`
}

// TemplateSettings is one of the kinds of sandboxes that callers can choose by name.
type TemplateSettings struct {
	Name      string   `doc:"Name; the creator of a sandbox chooses the template by it." need:"yes"`
	Image     string   `doc:"The root file system: dir:/path of a folder, oci:/path[:tag] of an image layout, tar:/path[:tag] of an archive, or host/name:tag of a registry. Empty means the host's own programs."`
	Driver    string   `doc:"The driver that makes its sandboxes; empty means the driver that modules.sandbox chooses." enum:"namespaces,oci,gvisor,firecracker,qemu,process"`
	Strict    bool     `doc:"Allow only the system calls of a short list."`
	Env       []string `doc:"Environment variables of all programs in it, each NAME=value."`
	Memory    int      `yaml:"memory_mib" doc:"As in modules.sandbox; 0 means the value there, here and below."`
	VCPUs     int      `yaml:"vcpu_count" doc:"As in modules.sandbox."`
	Processes int      `doc:"As in modules.sandbox."`
	Disk      int      `yaml:"disk_mib" doc:"As in modules.sandbox."`
	Ready     int      `doc:"How many are kept ready after the first request for one; 0 means pool.min_size, -1 none."`
}

// PoolSettings says how many sandboxes are ready before the first request.
type PoolSettings struct {
	Enabled  bool `doc:"Keep some ready, from the first client on that is offered sandboxes." env:"GATEHOUSE_POOL_ENABLED"`
	MinSize  int  `doc:"How many are kept ready." env:"GATEHOUSE_POOL_MIN_SIZE"`
	MaxBoots int  `doc:"How many are made at the same time; 0 means twice the number of processors." env:"GATEHOUSE_POOL_MAX_BOOTS"`
}

// DefaultSettings returns the settings of a host without any.
func DefaultSettings() Settings {
	return Settings{
		Memory: 256, VCPUs: 2, Processes: 256, Disk: 1024, Descriptors: 1024, Output: 1 << 20, Call: 30 * time.Second,
		MostMemory: 32768, MostVCPUs: 32, MostCall: time.Hour, Idle: 15 * time.Minute, Lifetime: 24 * time.Hour,
		Most:      100,
		Isolation: "namespaces", Driver: "auto", Ports: true, Snapshots: 20, SnapshotBytes: 4 << 30,
		SnapshotLife: 24 * time.Hour, ImageBytes: 20 << 30, MachineBytes: 20 << 30,
		Pool: PoolSettings{Enabled: true, MinSize: 3},
	}
}

// DriverNames returns the names of the drivers in the order in which they are tried by default. The one without
// isolation is not among them.
func DriverNames() []string { return []string{"namespaces", "oci", "gvisor", "firecracker", "qemu"} }

// Ladder returns the names of the drivers that sandboxes may be made by, the preferred first.
func (s Settings) Ladder() (names []string) {
	prefer := s.Prefer
	if len(prefer) == 0 {
		prefer = DriverNames()
	}
	allowed := s.Drivers
	switch {
	case len(allowed) > 0:
	case s.Auto():
		allowed = prefer
	default:
		return []string{s.Driver}
	}
	if !s.Auto() && !slices.Contains(allowed, s.Driver) {
		allowed = slices.Concat([]string{s.Driver}, allowed)
	}
	for _, name := range slices.Concat(prefer, allowed) {
		if slices.Contains(allowed, name) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// Auto reports whether the driver is chosen by what works.
func (s Settings) Auto() bool { return s.Driver == "" || s.Driver == "auto" }

// Options returns the options for New that follow from the settings. A zero limit means the default. The caller adds
// the drivers, the templates and what the host provides.
func (s Settings) Options() (Options, error) {
	o := Options{
		Limits: sandbox.Limits{
			MemoryMiB: s.Memory, VCPUs: s.VCPUs, Processes: s.Processes, DiskMiB: s.Disk,
			Descriptors: s.Descriptors, OutputBytes: s.Output, Call: s.Call,
		},
		Most: sandbox.Limits{MemoryMiB: s.MostMemory, VCPUs: s.MostVCPUs, Call: s.MostCall},
		Idle: s.Idle, Lifetime: s.Lifetime, Sandboxes: s.Most,
		MemoryMiB: s.TotalMemory, PrincipalMiB: s.PrincipalMemory,
		Snapshots: s.Snapshots, SnapshotBytes: s.SnapshotBytes, SnapshotLife: s.SnapshotLife,
		NoPool: !s.Pool.Enabled, Ready: s.Pool.MinSize, Boots: s.Pool.MaxBoots,
		Least: sandbox.Namespaces,
	}
	if !s.Auto() {
		o.Default = s.Driver
	}
	for _, n := range []int{
		s.Memory, s.VCPUs, s.Processes, s.Disk, s.Descriptors, s.Output, s.MostMemory, s.MostVCPUs, s.TotalMemory,
		s.PrincipalMemory, s.Most, s.Snapshots, int(s.SnapshotBytes), s.Pool.MinSize, s.Pool.MaxBoots,
	} {
		if n < 0 {
			return o, fmt.Errorf("%d: a limit cannot be negative", n)
		}
	}
	if s.Isolation != "" {
		if o.Least = sandbox.ParseTier(s.Isolation); o.Least == sandbox.Unknown {
			return o, fmt.Errorf("min_isolation is %q; expected process, filtered, namespaces, user "+
				"kernel or machine", s.Isolation)
		}
	}
	return o, nil
}

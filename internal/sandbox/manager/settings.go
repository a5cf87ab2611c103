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
	Memory          int                `yaml:"memory_mib" doc:"Memory of a sandbox, in MiB, unless its maker asks otherwise." env:"GATEHOUSE_SANDBOX_MEMORY_MIB"`
	VCPUs           int                `yaml:"vcpu_count" doc:"Processors it may keep busy, unless its maker asks otherwise." env:"GATEHOUSE_SANDBOX_VCPU_COUNT"`
	Processes       int                `doc:"Processes and threads alive at once in it, unless its maker asks otherwise." env:"GATEHOUSE_SANDBOX_PROCESSES"`
	Disk            int                `yaml:"disk_mib" doc:"All its files together, in MiB, unless its maker asks otherwise. They are kept in memory, so at most half of that is used." env:"GATEHOUSE_SANDBOX_DISK_MIB"`
	Descriptors     int                `doc:"Files that one process in it may have open." env:"GATEHOUSE_SANDBOX_DESCRIPTORS"`
	Output          int                `doc:"What each output stream of a call may bring before the call is ended." unit:"bytes" env:"GATEHOUSE_SANDBOX_OUTPUT"`
	Call            time.Duration      `doc:"Time for one call in it, unless the call asks otherwise." env:"GATEHOUSE_SANDBOX_CALL"`
	MostMemory      int                `yaml:"most_memory_mib" doc:"Memory that may be asked for, in MiB." env:"GATEHOUSE_SANDBOX_MOST_MEMORY_MIB"`
	TotalMemory     int                `yaml:"total_memory_mib" doc:"Memory that all sandboxes may be granted together, by their limits, in MiB. 0 means that of this machine." env:"GATEHOUSE_SANDBOX_TOTAL_MEMORY_MIB"`
	PrincipalMemory int                `yaml:"principal_memory_mib" doc:"Memory that all sandboxes of one principal may be granted together, in MiB. 0 means three quarters of total_memory_mib." env:"GATEHOUSE_SANDBOX_PRINCIPAL_MEMORY_MIB"`
	MostVCPUs       int                `yaml:"most_vcpu_count" doc:"Processors that may be asked for." env:"GATEHOUSE_SANDBOX_MOST_VCPU_COUNT"`
	MostCall        time.Duration      `doc:"Time that a sandbox's maker may ask for one call." env:"GATEHOUSE_SANDBOX_MOST_CALL"`
	Idle            time.Duration      `doc:"A sandbox ends when it was not used for this long." env:"GATEHOUSE_SANDBOX_IDLE"`
	Lifetime        time.Duration      `doc:"A sandbox ends after so long in any case." env:"GATEHOUSE_SANDBOX_LIFETIME"`
	Most            int                `doc:"Sandboxes alive at once, of all owners together, which callers share: each may have as many as it leaves free, and a sixteenth is for administrators." env:"GATEHOUSE_SANDBOX_MOST"`
	Isolation       string             `yaml:"min_isolation" doc:"What has to stand between the code and the host at least. Where no driver offers that, there are no sandboxes." enum:"process,filtered,namespaces,user kernel,machine" env:"GATEHOUSE_SANDBOX_MIN_ISOLATION"`
	Driver          string             `doc:"What makes a sandbox when its maker does not say. auto is the first of prefer that works here and is as strong as min_isolation asks; a name is that one alone. process makes no wall at all: unsafe has to be set as well." enum:"auto,namespaces,oci,gvisor,firecracker,qemu,process" env:"GATEHOUSE_SANDBOX_DRIVER"`
	Prefer          []string           `doc:"The order in which drivers are tried. Empty means namespaces, oci, gvisor, firecracker, qemu." enum:"namespaces,oci,gvisor,firecracker,qemu,process" env:"GATEHOUSE_SANDBOX_PREFER"`
	Drivers         []string           `doc:"Drivers that a sandbox's maker may ask for, by name or by min_isolation. Empty means those of prefer where driver is auto, else driver alone." enum:"namespaces,oci,gvisor,firecracker,qemu,process" env:"GATEHOUSE_SANDBOX_DRIVERS"`
	Runtime         string             `doc:"The container runtime of the driver oci, a path or a name. Empty means crun, or else runc." env:"GATEHOUSE_SANDBOX_RUNTIME"`
	Runsc           string             `doc:"The program of the driver gvisor, a path or a name. Empty means gatehouse-runsc beside this program, or else an installed runsc." env:"GATEHOUSE_RUNSC"`
	QEMU            string             `yaml:"qemu" doc:"The program of the driver qemu, a path or a name. Empty means the one for this machine's kind." env:"GATEHOUSE_SANDBOX_QEMU"`
	Accelerator     string             `doc:"How qemu runs machines: kvm, tcg (slow, and needs nothing of the processor), or empty for whichever works." enum:",kvm,tcg" env:"GATEHOUSE_SANDBOX_ACCELERATOR"`
	Kernel          string             `doc:"Kernel of virtual machines, a file. Empty means the newest that is installed." kind:"path" env:"GATEHOUSE_KERNEL"`
	KernelModules   string             `yaml:"kernel_modules" doc:"Folder of that kernel's modules. Empty means the one of its version." kind:"path" env:"GATEHOUSE_SANDBOX_KERNEL_MODULES"`
	Rootfs          string             `doc:"System of virtual machines, a file with an ext4, squashfs or erofs. Empty means one that is made of the host's own programs." kind:"path" env:"GATEHOUSE_ROOTFS"`
	MachineBytes    int64              `yaml:"machine_bytes" doc:"What the disks that are made for virtual machines may take on disk, those in use and copies for jails included; those that were not used for longest go first." unit:"bytes" env:"GATEHOUSE_SANDBOX_MACHINE_BYTES"`
	Registries      []string           `doc:"Registries that images may be pulled from, each a host or host:port; http:// before one says that it is spoken to without TLS. None means that nothing is pulled." env:"GATEHOUSE_SANDBOX_REGISTRIES"`
	Logins          []RegistryLogin    `doc:"Who pulls, where a registry asks."`
	CallersImages   bool               `yaml:"callers_images" doc:"Let a sandbox's maker name any image of the registries, besides the templates." env:"GATEHOUSE_SANDBOX_CALLERS_IMAGES"`
	ImageBytes      int64              `yaml:"image_bytes" doc:"What all unpacked images may take on disk; those that were not used for longest go first." unit:"bytes" env:"GATEHOUSE_SANDBOX_IMAGE_BYTES"`
	Firecracker     string             `doc:"The program of the driver firecracker, a path or a name. Empty means firecracker in the PATH." env:"GATEHOUSE_FIRECRACKER"`
	Jailer          string             `doc:"The program that shuts firecracker in, a path or a name. Empty means jailer beside it or in the PATH." env:"GATEHOUSE_SANDBOX_JAILER"`
	Chroot          string             `doc:"Folder for the jails of firecracker. Empty means the system's place for temporary files." kind:"path" env:"GATEHOUSE_CHROOT"`
	Unsafe          bool               `doc:"Let the driver process run code that may do whatever the host's user may. min_isolation has to allow it too." env:"GATEHOUSE_SANDBOX_UNSAFE"`
	Network         bool               `doc:"Let callers open a way out of their sandboxes, by a proxy with rules. Addresses that are not public stay closed unless network_special opens them." env:"GATEHOUSE_SANDBOX_NETWORK"`
	NetworkSpecial  []string           `yaml:"network_special" doc:"Loopback, private, link-local and metadata addresses, and those of this machine, that callers' rules may lead to: such as 10.1.2.3:5432 or 192.168.7.0/24:443. Without it no rule of a caller reaches them; listeners of this host are never reached." env:"GATEHOUSE_SANDBOX_NETWORK_SPECIAL"`
	NetworkDeny     []string           `doc:"What no sandbox ever reaches, whatever its rules: such as example.com, *.example.com:443 or 203.0.113.0/24." env:"GATEHOUSE_SANDBOX_NETWORK_DENY"`
	Ports           bool               `doc:"Let callers open ports of their sandboxes on this machine's loopback, where every program of this machine can reach them." env:"GATEHOUSE_SANDBOX_PORTS"`
	Secrets         []SecretSettings   `doc:"Secrets that may go out of sandboxes, swapped in by the proxy, and where to. A caller can use one whose context has a variable that refers to it and to no other."`
	Snapshots       int                `doc:"Snapshots of sandboxes at once, of all owners together." env:"GATEHOUSE_SANDBOX_SNAPSHOTS"`
	SnapshotBytes   int64              `yaml:"snapshot_bytes" doc:"What all of them together may take on disk." unit:"bytes" env:"GATEHOUSE_SANDBOX_SNAPSHOT_BYTES"`
	SnapshotLife    time.Duration      `yaml:"snapshot_lifetime" doc:"A snapshot is kept for so long, and no longer than the host runs." env:"GATEHOUSE_SANDBOX_SNAPSHOT_LIFETIME"`
	Templates       []TemplateSettings `doc:"What sandboxes can be made of. The one that is named default is for those whose maker names none."`
	Pool            PoolSettings       `doc:"Sandboxes that are ready before anybody asks."`
}

// SecretSettings names a secret that may go out of sandboxes.
type SecretSettings struct {
	Name  string   `doc:"The secret's name, as in gatehouse secret set." need:"yes"`
	Hosts []string `doc:"Where it may go, as rules of the proxy: such as api.example.com or *.example.com:443." need:"yes"`
}

// RegistryLogin says who pulls images from a registry.
type RegistryLogin struct {
	Host   string `doc:"The registry, as in registries." need:"yes"`
	User   string `doc:"The user's name there." need:"yes"`
	Secret string `doc:"The secret that is the password, by its name in gatehouse secret set." need:"yes"`
}

// TemplateSettings is one of the kinds of sandboxes that callers can choose by name.
type TemplateSettings struct {
	Name      string   `doc:"Name; a sandbox's maker chooses the template by it." need:"yes"`
	Image     string   `doc:"The system they run: dir:/path of a folder, oci:/path[:tag] of an image layout, tar:/path[:tag] of an archive, or host/name:tag of a registry. Left out, the host's own programs."`
	Driver    string   `doc:"The driver that makes them; left out, as for every sandbox." enum:"namespaces,oci,gvisor,firecracker,qemu,process"`
	Strict    bool     `doc:"Only the system calls of a short list may be made in them."`
	Env       []string `doc:"Variables of all that runs in them, each NAME=value."`
	Memory    int      `yaml:"memory_mib" doc:"As for every sandbox; 0 means that of modules.sandbox, here and below."`
	VCPUs     int      `yaml:"vcpu_count" doc:"As for every sandbox."`
	Processes int      `doc:"As for every sandbox."`
	Disk      int      `yaml:"disk_mib" doc:"As for every sandbox."`
	Ready     int      `doc:"How many are kept ready once the first was asked for; 0 means pool.min_size, -1 none."`
}

// PoolSettings says how many sandboxes are ready before the first request.
type PoolSettings struct {
	Enabled  bool `doc:"Keep some ready, from the first client that is offered sandboxes." env:"GATEHOUSE_POOL_ENABLED"`
	MinSize  int  `doc:"How many are kept ready." env:"GATEHOUSE_POOL_MIN_SIZE"`
	MaxBoots int  `doc:"How many are made at the same time; 0 means twice the number of processors." env:"GATEHOUSE_POOL_MAX_BOOTS"`
}

// DefaultSettings returns the settings of a host without any.
func DefaultSettings() Settings {
	return Settings{
		Memory: 256, VCPUs: 2, Processes: 256, Disk: 1024, Descriptors: 1024, Output: 1 << 20, Call: 30 * time.Second,
		MostMemory: 32768, MostVCPUs: 32, MostCall: time.Hour, Idle: 15 * time.Minute, Lifetime: 24 * time.Hour, Most: 100,
		Isolation: "namespaces", Driver: "auto", Ports: true, Snapshots: 20, SnapshotBytes: 4 << 30, SnapshotLife: 24 * time.Hour, ImageBytes: 20 << 30, MachineBytes: 20 << 30, Pool: PoolSettings{Enabled: true, MinSize: 3},
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

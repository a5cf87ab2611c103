// Package disk is the module that lists the disks of the machine with their
// partitions and used space.
//
// It does not partition or repair disks, which is up to the operating system.
package disk

import (
	"context"

	"gatehouse/module"
	"gatehouse/tool"
)

type disks struct{ offer module.Offer }

// New returns the module.
func New(context.Context, module.Deps) (module.Module, error) {
	d := &disks{}
	d.offer.Tools = []tool.Tool{tool.New(tool.Def{
		Name: "disk_list", Title: "List disks", Effects: tool.Reads, Task: tool.TaskNever,
		Aliases:     []string{"disk.list"},
		Description: "Lists the disks of this machine and their partitions: size, mount points and used space.",
		Help: `Sizes are in bytes. Values that the system does not report are missing; used is present for mounted file
systems.

On Linux it lists the disks of /sys/block, without loop devices and drives without a medium. On other systems it lists
each mounted file system as a disk with one partition.`,
	}, d.listDisks)}
	return d, nil
}

// Offer implements module.Module.
func (d *disks) Offer(context.Context, module.Audience) (*module.Offer, error) { return &d.offer, nil }

// Close implements module.Module.
func (d *disks) Close(context.Context) error { return nil }

type listOut struct {
	Disks []Disk `json:"disks"`
}

// Disk is a disk with its partitions.
type Disk struct {
	LogicalName    string      `json:"logicalname" doc:"device file"`
	PartitionTable string      `json:"partitionTable,omitempty" doc:"gpt or dos"`
	Vendor         string      `json:"vendor,omitempty"`
	Model          string      `json:"model,omitempty"`
	Capacity       uint64      `json:"capacity"`
	Removable      bool        `json:"removable,omitempty"`
	ReadOnly       bool        `json:"readOnly,omitempty"`
	GUID           string      `json:"guid,omitempty"`
	Partitions     []Partition `json:"partitions" doc:"the whole disk if it is used without partitions"`
}

// Partition is a part of a disk that can have a file system.
type Partition struct {
	LogicalName string   `json:"logicalname"`
	Label       string   `json:"label,omitempty"`
	Capacity    uint64   `json:"capacity"`
	Used        *uint64  `json:"used,omitempty"`
	FileSystem  string   `json:"fileSystem,omitempty"`
	MountPoints []string `json:"mountPoints,omitempty"`
	GUID        string   `json:"guid,omitempty"`
}

func (d *disks) listDisks(ctx context.Context, _ *tool.Call, _ struct{}) (listOut, error) {
	mounts, err := listMounts(ctx)
	if err != nil {
		return listOut{}, err
	}
	all, there, err := newSystem(measureUsage).disks(ctx, mounts)
	if err == nil && !there {
		all = disksOfMounts(ctx, mounts, measureUsage)
	}
	return listOut{all}, err
}

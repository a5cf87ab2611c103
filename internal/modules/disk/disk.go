// Package disk is the module that lists the disks of the machine, with their
// partitions and how full these are.
//
// Setting them up and repairing them is the operating system's business.
package disk

import (
	"context"

	"gatehouse/module"
	"gatehouse/tool"
)

type disks struct{ offer module.Offer }

// New makes the module.
func New(context.Context, module.Deps) (module.Module, error) {
	d := &disks{}
	d.offer.Tools = []tool.Tool{tool.New(tool.Def{
		Name: "disk_list", Title: "List disks", Effects: tool.Reads, Task: tool.TaskNever, Aliases: []string{"disk.list"},
		Description: "Lists the disks of this machine and their partitions: size, where they are mounted and how full they are.",
		Help: `Sizes are in bytes. What the system does not tell is left out; used is there for what is mounted.

On Linux disks are those of /sys/block, without loop devices and such that have no medium in them; on other systems each mounted file system is listed as a disk with one partition.`,
	}, d.list)}
	return d, nil
}

// Offer implements module.Module.
func (d *disks) Offer(context.Context, module.Audience) (*module.Offer, error) { return &d.offer, nil }

// Close implements module.Module.
func (d *disks) Close(context.Context) error { return nil }

type listOut struct {
	Disks []Disk `json:"disks"`
}

// Disk is what can be divided into partitions.
type Disk struct {
	LogicalName    string      `json:"logicalname" doc:"where it is among the devices"`
	PartitionTable string      `json:"partitionTable,omitempty" doc:"gpt or dos"`
	Vendor         string      `json:"vendor,omitempty"`
	Model          string      `json:"model,omitempty"`
	Capacity       uint64      `json:"capacity"`
	Removable      bool        `json:"removable,omitempty"`
	ReadOnly       bool        `json:"readOnly,omitempty"`
	GUID           string      `json:"guid,omitempty"`
	Partitions     []Partition `json:"partitions" doc:"the whole disk, where it is not divided but used"`
}

// Partition is what can hold a file system.
type Partition struct {
	LogicalName string   `json:"logicalname"`
	Label       string   `json:"label,omitempty"`
	Capacity    uint64   `json:"capacity"`
	Used        *uint64  `json:"used,omitempty"`
	FileSystem  string   `json:"fileSystem,omitempty"`
	MountPoints []string `json:"mountPoints,omitempty"`
	GUID        string   `json:"guid,omitempty"`
}

func (d *disks) list(ctx context.Context, _ *tool.Call, _ struct{}) (listOut, error) {
	mounts, err := mounted(ctx)
	if err != nil {
		return listOut{}, err
	}
	all, there, err := machine(used).disks(ctx, mounts)
	if err == nil && !there {
		all = ofMounts(ctx, mounts, used)
	}
	return listOut{all}, err
}

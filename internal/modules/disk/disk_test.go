package disk

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"testing"
	"testing/fstest"

	"gatehouse/module/moduletest"
)

func TestTheModuleKeepsTheContract(t *testing.T) {
	moduletest.Run(t, New, moduletest.Options{})
}

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }

// A machine with a divided disk, one that is used as a whole, one that is
// mapped, an empty drive and what is no disk.
func fixture() system {
	return system{
		sys: fstest.MapFS{
			"sda/size": file("2000\n"), "sda/dev": file("8:0\n"), "sda/removable": file("0\n"),
			"sda/device/vendor": file("ATA     \n"), "sda/device/model": file("Fast One\n"),
			"sda/sda1/partition": file("1\n"), "sda/sda1/size": file("500\n"), "sda/sda1/dev": file("8:1\n"),
			"sda/sda10/partition": file("10\n"), "sda/sda10/size": file("100\n"),
			"sda/sda2/partition": file("2\n"), "sda/sda2/size": file("1000\n"),
			"sda1/partition": file("1\n"), "sda1/size": file("500\n"), "sda2/partition": file("2\n"),
			"sda10/partition": file("10\n"),
			"nvme0n1/size":    file("4000\n"), "nvme0n1/ro": file("1\n"), "nvme0n1/removable": file("1\n"),
			"dm-0/size": file("900\n"), "dm-0/dm/name": file("root\n"),
			"cciss!c0d0/size": file("70\n"),
			"sr0/size":        file("0\n"), "loop0/size": file("99\n"), "ram3/size": file("99\n"),
			"zram0/size": file("99\n"),
			"odd/size":   file("-5\n"), "vast/size": file("99999999999999999999999\n"),
		},
		udev: fstest.MapFS{
			"b8:0": file("N:sda\nE:ID_PART_TABLE_TYPE=gpt\nE:ID_PART_TABLE_UUID=d1\n"),
			"b8:1": file("E:ID_FS_LABEL=data\xff\nE:ID_FS_TYPE=ext4\nE:ID_PART_ENTRY_UUID=p1\nodd\n"),
		},
		usage: func(_ context.Context, point string) (uint64, uint64, error) {
			if point == "/gone" {
				return 0, 0, errors.New("it does not answer")
			}
			return uint64(len(point)), 100, nil
		},
	}
}

func TestDisksOfAMachine(t *testing.T) {
	all, there, err := fixture().disks(t.Context(), []mount{
		{"/dev/sda1", "/srv", "ext4"}, {"/dev/sda1", "/mnt/srv", "ext4"}, {"/dev/sda2", "/gone", "xfs"},
		{"/dev/nvme0n1", "/big", "btrfs"}, {"/dev/mapper/root", "/", "ext4"}, {"/dev/mapper/", "/x", "y"},
	})
	if err != nil || !there {
		t.Fatal(there, err)
	}
	got, _ := json.MarshalIndent(all, "", " ")
	want := `[
 {
  "logicalname": "/dev/cciss/c0d0",
  "capacity": 35840,
  "partitions": []
 },
 {
  "logicalname": "/dev/dm-0",
  "capacity": 460800,
  "partitions": [
   {
    "logicalname": "/dev/dm-0",
    "capacity": 460800,
    "used": 1,
    "fileSystem": "ext4",
    "mountPoints": [
     "/"
    ]
   }
  ]
 },
 {
  "logicalname": "/dev/nvme0n1",
  "capacity": 2048000,
  "removable": true,
  "readOnly": true,
  "partitions": [
   {
    "logicalname": "/dev/nvme0n1",
    "capacity": 2048000,
    "used": 4,
    "fileSystem": "btrfs",
    "mountPoints": [
     "/big"
    ]
   }
  ]
 },
 {
  "logicalname": "/dev/sda",
  "partitionTable": "gpt",
  "vendor": "ATA",
  "model": "Fast One",
  "capacity": 1024000,
  "guid": "d1",
  "partitions": [
   {
    "logicalname": "/dev/sda1",
    "label": "data",
    "capacity": 256000,
    "used": 4,
    "fileSystem": "ext4",
    "mountPoints": [
     "/srv",
     "/mnt/srv"
    ],
    "guid": "p1"
   },
   {
    "logicalname": "/dev/sda2",
    "capacity": 512000,
    "fileSystem": "xfs",
    "mountPoints": [
     "/gone"
    ]
   },
   {
    "logicalname": "/dev/sda10",
    "capacity": 51200
   }
  ]
 }
]`
	if string(got) != want {
		t.Errorf("got\n%s", got)
	}
}

func TestWhereThereIsNoListOfDisks(t *testing.T) {
	s := fixture()
	s.sys = os.DirFS(t.TempDir() + "/none")
	if _, there, err := s.disks(t.Context(), nil); there || err != nil {
		t.Errorf("there %v, %v", there, err)
	}
	all := disksOfMounts(t.Context(), []mount{{"C:", `C:\`, "NTFS"}, {"D:", "/gone", "NTFS"}}, s.usage)
	if len(all) != 2 || all[0].Capacity != 100 || *all[0].Partitions[0].Used != 3 || all[1].Partitions[0].Used != nil {
		t.Errorf("got %+v", all)
	}
}

func TestDisksOfThisMachine(t *testing.T) {
	m, err := New(t.Context(), moduletest.NewHost(t).Deps())
	if err != nil {
		t.Fatal(err)
	}
	res, err := moduletest.NewCall(t, `{}`).Tool(t.Context(), moduletest.Tool(t, m, "disk_list"))
	out, ok := res.Structured.(listOut)
	if err != nil || !ok || out.Disks == nil {
		t.Fatalf("%+v, %v", res, err)
	}
	if _, err := os.Stat("/sys/class/block"); runtime.GOOS == "linux" && err == nil {
		for _, d := range out.Disks {
			if d.Capacity == 0 || d.LogicalName == "" || d.Partitions == nil {
				t.Errorf("got %+v", d)
			}
		}
	}
	t.Logf("%+v", out)
	if _, all, err := measureUsage(t.Context(), t.TempDir()); err != nil || all == 0 {
		t.Errorf("%d bytes, %v", all, err)
	}
}

package stage

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"time"
)

// folderTime is the time of a folder that contains names of a plan and stays. Each name that is put in its place
// changes that time, though a program that wrote the file in the folder would not have changed it.
type folderTime struct {
	Layer int    `json:"layer"`
	Name  string `json:"name"`
	MTime int64  `json:"mtime"`
	Names int    `json:"names"`          // in the folder
	Keep  bool   `json:"keep,omitempty"` // the folder gets the time back if it has as many names afterwards
}

// touched are the folders that contain the names of a plan.
type touched struct {
	in      map[place]bool // whether names come or leave
	passing map[place]bool // folders that the plan makes, and false for those that it removes
}

func newTouched() touched { return touched{in: map[place]bool{}, passing: map[place]bool{}} }

func (t touched) add(o *op) {
	if o.Name != "." {
		at := place{o.Layer, path.Dir(o.Name)}
		if changes := (o.From.Type == None) != (o.To.Type == None); changes || !t.in[at] {
			t.in[at] = changes
		}
	}
	if (o.From.Type == Folder) != (o.To.Type == Folder) {
		t.passing[place{o.Layer, o.Name}] = o.To.Type == Folder
	}
}

// noteFolders returns the folders of a plan that stay, with their times. A folder keeps its time unless names come to
// it or leave it.
func (t *Task) noteFolders(of touched) (all []folderTime, err error) {
	for i := range t.Layers {
		root, err := os.OpenRoot(t.Layers[i].Lower)
		if err != nil {
			return nil, err
		}
		for at, changes := range of.in {
			if _, passes := of.passing[at]; passes || at.layer != i {
				continue
			}
			if one, err := timeOf(root, at); err == nil {
				one.Keep = !changes
				all = append(all, one)
			} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errNoFolder) {
				root.Close()
				return nil, err
			}
		}
		root.Close()
	}
	slices.SortFunc(all, func(a, b folderTime) int {
		return cmp.Or(a.Layer-b.Layer, cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// timeOf returns the time of a folder, and how many names it has.
func timeOf(root *os.Root, at place) (folderTime, error) {
	one := folderTime{Layer: at.layer, Name: at.name}
	entries, err := list(root, at.name)
	if err != nil {
		return one, err
	}
	for _, e := range entries {
		if !isTemp(e.Name()) {
			one.Names++
		}
	}
	info, err := root.Lstat(at.name)
	if err == nil {
		one.MTime = info.ModTime().UnixNano()
	}
	return one, err
}

// keepTimes gives folders their times back, and returns what they have then. A folder that another program changed
// meanwhile has another number of names.
func (f *performer) keepTimes() (after []folderTime) {
	for _, want := range f.plan.Folders {
		root := f.roots[want.Layer].top
		now, err := timeOf(root, place{want.Layer, want.Name})
		if err != nil {
			continue // it was removed meanwhile
		}
		if want.Keep && now.Names == want.Names && now.MTime != want.MTime {
			at := time.Unix(0, want.MTime)
			if root.Chtimes(want.Name, at, at) == nil {
				now.MTime = want.MTime
			}
		}
		after = append(after, now)
	}
	return after
}

// foldersBefore returns the folders of the undoing of a plan, of which before and after are the folders: those that
// nothing has changed since get the time that they had before the plan.
func (t *Task) foldersBefore(of touched, before, after []folderTime) ([]folderTime, error) {
	all, err := t.noteFolders(of)
	if err != nil {
		return nil, err
	}
	byPlace := func(of []folderTime) map[place]folderTime {
		m := map[place]folderTime{}
		for _, one := range of {
			m[place{one.Layer, one.Name}] = one
		}
		return m
	}
	thens, wases := byPlace(after), byPlace(before)
	for i, now := range all {
		at := place{now.Layer, now.Name}
		then, ok := thens[at]
		was, had := wases[at]
		if ok && had && then.MTime == now.MTime {
			all[i].MTime, all[i].Names, all[i].Keep = was.MTime, was.Names, true
		}
	}
	return all, nil
}
